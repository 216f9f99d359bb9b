// Finetune trains an adapter of a language model: go run ./examples/finetune DIR FILE.jsonl OUT, with the folder of a
// Hugging Face checkpoint.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/lm"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/vk"
)

const rows, seqlen, steps = 4, 64, 40 // rows of tokens in a batch, and batches

func main() {
	dir, file, out := os.Args[1], os.Args[2], os.Args[3]
	ctx := context.Background()
	d := must(vk.Open(vk.Options{}))
	defer d.Close()
	checkpoint := must(lm.Open(dir))
	defer checkpoint.Close()
	config := &checkpoint.Config
	data, _, err := lm.ReadData(dir, config, file, lm.DataOptions{Seqlen: seqlen}) // lines of text, prompts, messages
	check(err)

	lora := &lm.LoRA{Rank: 8, Alpha: 16} // of all products of the layers
	o := lm.TrainOptions{LoRA: lora, DType: dtype.Float32, Sizes: data.Sizes(rows), Optim: optim.Default()}
	if d.Caps().BFloat16CoopMat {
		o.DType = dtype.BFloat16
	}
	o.Optim.LR = 0.002
	t := must(lm.NewTrainer(ctx, d, config, checkpoint, o))
	defer t.Close()
	for step := range steps {
		r := must(t.Step(ctx, must(data.Batch(step, rows)))) // forward, backward and AdamW: one recording
		fmt.Printf("%3d  loss %.4f\n", step, r.Loss)
	}
	check(lora.WriteAdapter(out, dir, config, t)) // for PEFT, and flashvk generate DIR --adapter OUT
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}
