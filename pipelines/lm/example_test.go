package lm_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/lm"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/vk"
)

func must[T any](x T, err error) T {
	vktest.Must(err)
	return x
}

// A folder with config.json alone becomes a checkpoint, whose model continues a text. The weights are random, so the
// text means nothing.
func ExampleGenerator() {
	ctx, dir := context.Background(), must(os.MkdirTemp("", "lm"))
	defer os.RemoveAll(dir)
	small := `{"architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 128, "eos_token_id": 0}`
	vktest.Must(os.WriteFile(filepath.Join(dir, "config.json"), []byte(small), 0o666))
	vktest.Must(os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte("{{'<|im_start|>' + message['role'] + '\n'}}"), 0o666))
	empty := must(lm.NewCheckpoint(dir))
	dir = filepath.Join(dir, "model")
	vktest.Must(empty.Copy(dir, lm.Initial{Seed: 1, Layers: 1})) // what a training begins with

	config := must(lm.ReadConfig(dir))
	weights := must(lm.Open(dir)) // all names and shapes are checked
	defer weights.Close()
	tokenizer := must(lm.ReadTokenizer(dir, config.Vocabulary)) // bytes, as there is no tokenizer.json
	stop := must(lm.StopTokens(dir, &config))
	d := must(vk.Open(vk.Options{}))
	defer d.Close()
	most := must(lm.MaxContext(d, &config, 1, dtype.Float32)) // what memory holds
	g := must(lm.NewGenerator(ctx, d, &config, weights, lm.Options{DType: dtype.Float32, Batch: 1, Context: 96}))
	defer g.Close()
	chat := must(lm.ReadChat(dir))
	text := must(chat.Text([]lm.Message{{Role: "user", Content: "Why?"}})) // up to where the answer begins
	prompt, n := must(tokenizer.Encode(text, true)), 0
	vktest.Must(g.Generate(ctx, [][]int32{prompt}, 8, func(_ int, _ int32) bool {
		n++
		return false
	}))
	fmt.Printf("%q\n", text)
	fmt.Println(len(prompt), n, len(stop) > 0, most >= 96, len(lm.Models()))
	// Output:
	// "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
	// 54 8 true true 8
}

// The logits of a whole sequence.
func ExampleLogits() {
	ctx, config := context.Background(), must(lm.Named("gpt2"))
	config.Vocabulary, config.Width, config.Hidden, config.Layers, config.Heads, config.KVHeads, config.HeadDim = 16, 16, 16, 1, 1, 1, 16
	d := must(vk.Open(vk.Options{}))
	defer d.Close()
	model := must(lm.NewModel(ctx, d, &config, lm.Random{Seed: 1}, dtype.Float32, nil))
	defer model.Close()
	logits := must(lm.Logits(ctx, &config, model, lm.Batch{IDs: []int32{7, 8, 9}, Shape: [2]int{1, 3}}))
	fmt.Println(len(logits)) // 3 tokens of a vocabulary of 16
	// Output: 48
}

// An adapter learns a text, is written as PEFT does, and added to the weights of its model.
func ExampleNewTrainer() {
	ctx, config := context.Background(), must(lm.Named("smollm2-135m"))
	config.Vocabulary, config.Width, config.Hidden, config.Layers, config.Heads, config.KVHeads, config.HeadDim, config.RoPE.Dims = 16, 16, 16, 1, 1, 1, 16, 16
	weights := lm.Random{Seed: 1} // or what lm.Open returns
	batch := lm.Batch{IDs: []int32{7, 8, 9, 10}, Labels: []int32{8, 9, 10, lm.Ignored}, Shape: [2]int{1, 4}}
	o := lm.TrainOptions{LoRA: &lm.LoRA{Rank: 4, Alpha: 8}, DType: dtype.Float32, Sizes: lm.Sizes{Batch: 1, Seq: 4}, Optim: optim.Default()}
	o.Optim.LR = 0.03
	d := must(vk.Open(vk.Options{}))
	defer d.Close()
	memory := must(lm.MeasureTraining(d.Caps(), &config, o))
	vktest.Must(lm.CheckFits(d, &config, o)) // says what to lower
	t := must(lm.NewTrainer(ctx, d, &config, weights, o))
	defer t.Close()
	var r lm.StepResult
	for range 60 {
		r = must(t.Step(ctx, batch))
	}
	loss, gradients, err := lm.Gradients(ctx, d, &config, weights, batch, true, lm.TrainOptions{DType: dtype.Float32})
	vktest.Must(err)
	dir := must(os.MkdirTemp("", "lm"))
	defer os.RemoveAll(dir)
	vktest.Must(o.LoRA.WriteAdapter(dir, "HuggingFaceTB/SmolLM2-135M", &config, t))
	adapter := must(lm.ReadAdapter(dir, &config))
	merged := must(adapter.Merge(&config, weights))
	fmt.Println(r.Loss < 0.1, loss > 1, len(gradients), t.Memory().Bytes() == memory.Bytes(), len(adapter.Targets), merged != nil)
	// Output: true true 11 true 7 true
}

// Lines of JSON become rows of tokens with labels, several texts in a row.
func ExampleReadData() {
	dir := must(os.MkdirTemp("", "lm"))
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "data.jsonl")
	vktest.Must(os.WriteFile(path, []byte(`{"prompt": "1+1=", "completion": "2."}`+"\n"+`{"text": "abc"}`), 0o666))
	config := must(lm.Named("gpt2"))
	config.EOS = []int32{0}
	data, _, err := lm.ReadData(dir, &config, path, lm.DataOptions{Seqlen: 9}) // tokens are bytes, as there is no tokenizer.json
	vktest.Must(err)
	defer data.Close()
	batch := must(data.Batch(0, 1))
	fmt.Println(data)
	fmt.Println(batch.CuSeqlens, batch.Labels)
	// Output:
	// 2 samples of 9 tokens, of which 6 are learned, in 1 rows of 9
	// [0 3 9] [98 99 0 -100 -100 -100 50 46 0]
}
