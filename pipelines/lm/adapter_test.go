package lm

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/dtype/storage"
	"github.com/flashvk/flashvk/safetensors"
)

// peftConfig is what PEFT 0.19 writes.
const peftConfig = `{
  "alpha_pattern": {}, "auto_mapping": null, "base_model_name_or_path": "m", "bias": "none", "corda_config": null, "ensure_weight_tying": false,
  "eva_config": null, "exclude_modules": null, "fan_in_fan_out": false, "inference_mode": true, "init_lora_weights": true,
  "layer_replication": null, "layers_pattern": null, "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 16, "lora_bias": false,
  "lora_dropout": 0.05, "megatron_config": null, "megatron_core": "megatron.core", "modules_to_save": null, "peft_type": "LORA",
  "peft_version": "0.19.1", "qalora_group_size": 16, "r": 4, "rank_pattern": {}, "revision": null,
  "target_modules": ["q_proj", "down_proj"], "target_parameters": null, "task_type": "CAUSAL_LM", "trainable_token_indices": null,
  "use_bdlora": null, "use_dora": false, "use_qalora": false, "use_rslora": false
}`

// writePEFT writes an adapter as PEFT does, with tensors of a format.
func writePEFT(t *testing.T, config string, format safetensors.DType, tensors map[string][]int) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "adapter_config.json"), []byte(config), 0o666))
	var list []safetensors.Tensor
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		list = append(list, safetensors.Tensor{Name: name, DType: format, Shape: tensors[name]})
	}
	w, err := safetensors.Create(filepath.Join(dir, "adapter_model.safetensors"), list, map[string]string{"format": "pt"})
	require.NoError(t, err)
	defer w.Close()
	random := rand.New(rand.NewPCG(1, 1))
	for _, x := range list {
		values := make([]float32, x.Shape[0]*x.Shape[1])
		for i := range values {
			values[i] = float32(0.1 * random.NormFloat64()) // the bound of compare is for outputs like the inputs
		}
		to, err := w.Tensor(x.Name)
		require.NoError(t, err)
		_, err = to.Write(storage.Bytes(map[safetensors.DType]dtype.DType{"F32": dtype.Float32, "BF16": dtype.BFloat16}[format], values))
		require.NoError(t, err)
	}
	require.NoError(t, w.Commit())
	return dir
}

// adapterOf returns the tensors of an adapter of rank 4 for a model of smallConfig, and the matrices.
func adapterOf(name string) (tensors map[string][]int, targets []string) {
	if name == "gpt2" {
		return map[string][]int{
			"base_model.model.transformer.h.1.attn.c_attn.lora_A.weight": {4, 64}, "base_model.model.transformer.h.1.attn.c_attn.lora_B.weight": {192, 4},
			"base_model.model.transformer.h.0.mlp.c_proj.lora_A.weight": {4, 256}, "base_model.model.transformer.h.0.mlp.c_proj.lora_B.weight": {64, 4},
		}, []string{"transformer.h.1.attn.c_attn", "transformer.h.0.mlp.c_proj"}
	}
	return map[string][]int{
		"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": {4, 64}, "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": {64, 4},
		"base_model.model.model.layers.1.mlp.down_proj.lora_A.weight": {4, 96}, "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight": {64, 4},
	}, []string{"model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"}
}

// added are weights with an adapter, by its formula in float64, element by element.
type added struct {
	l *LoRA
	c *Config
}

func (x added) Read(p Param, t dtype.DType, b []byte, first int64) error {
	name := strings.TrimSuffix(p.Name, ".weight")
	down, ok := x.l.Weights.(tensors)[adapterName(name, "A")]
	if !ok {
		return Random{1}.Read(p, t, b, first)
	}
	up := x.l.Weights.(tensors)[adapterName(name, "B")]
	values, err := float32s(Random{1}, p, first, int64(len(b)/t.Size()))
	if err != nil {
		return err
	}
	for i := range values {
		row, col := (int(first)+i)/p.Shape[1], (int(first)+i)%p.Shape[1]
		if x.c.GPT2() {
			row, col = col, row
		}
		in, sum := len(down)/x.l.Rank, 0.0
		for r := range x.l.Rank {
			sum += float64(up[row*x.l.Rank+r]) * float64(down[r*in+col])
		}
		values[i] = float32(float64(values[i]) + x.l.Alpha/float64(x.l.Rank)*sum)
	}
	storage.Encode(t, b, values)
	return nil
}

// TestAdapter reads what PEFT writes, merges it into a checkpoint of shards, and compares the weights, and the loss with
// that of the adapter beside the model. TestMergePieces compares the weights with the formula.
func TestAdapter(t *testing.T) {
	d := open(t)
	ctx := context.Background()
	for _, name := range []string{"smollm2-135m", "gpt2"} {
		for _, format := range []safetensors.DType{"F32", "BF16"} {
			t.Run(fmt.Sprint(name, "/", format), func(t *testing.T) {
				dir, out := smallModel(t, name, dtype.Float32, 64<<10, Random{1}), t.TempDir()
				require.NoError(t, os.WriteFile(filepath.Join(dir, "vocab.txt"), []byte("a"), 0o666))
				base, err := Open(dir)
				require.NoError(t, err)
				defer base.Close()
				tensors, targets := adapterOf(name)
				c := &base.Config
				a, err := ReadAdapter(writePEFT(t, peftConfig, format, tensors), c)
				require.NoError(t, err)
				require.Equal(t, 16.0, a.Alpha)
				require.ElementsMatch(t, targets, a.Targets)

				weights, err := a.Merge(c, base)
				require.NoError(t, err)
				require.NoError(t, base.Copy(out, weights))
				merged, err := Open(out)
				require.NoError(t, err)
				defer merged.Close()
				require.Equal(t, base.names, merged.names)
				require.FileExists(t, filepath.Join(out, "vocab.txt"))
				for _, p := range c.Params() {
					x, err := float32s(weights, p, 0, p.elements())
					require.NoError(t, err)
					y, err := float32s(merged, p, 0, p.elements())
					require.NoError(t, err)
					require.Equal(t, x, y)
				}
				batch := Batch{IDs: []int32{5, 17, 299, 0, 8, 9, 133}, Labels: []int32{17, 299, 0, -100, 9, 133, 7}, Shape: [2]int{1, 7}}
				var losses [2]float64 // the adapter's product beside the base's, and merged
				for i, o := range []TrainOptions{{LoRA: a}, {}} {
					losses[i], _, err = Gradients(ctx, d, c, []Weights{base, merged}[i], batch, false, o)
					require.NoError(t, err)
				}
				require.InDelta(t, losses[1], losses[0], 10*0x1p-18)
			})
		}
	}
}

// TestMergePieces reads from the middle of rows, in another format.
func TestMergePieces(t *testing.T) {
	for _, name := range []string{"smollm2-135m", "gpt2"} {
		c := smallConfig(t, name)
		tensors, targets := adapterOf(name)
		a, err := ReadAdapter(writePEFT(t, strings.Replace(peftConfig, `"use_rslora": false`, `"use_rslora": true`, 1), "F32", tensors), c)
		require.NoError(t, err)
		require.Equal(t, 32.0, a.Alpha)
		list := c.Params()
		p := list[slices.IndexFunc(list, func(p Param) bool { return p.Name == targets[1]+".weight" })]
		m, err := a.Merge(c, Random{1})
		require.NoError(t, err)
		for _, piece := range [][2]int{{0, 1}, {63, 2}, {100, 500}, {64 * 96 / 2, 64}} {
			x, err := float32s(m, p, int64(piece[0]), int64(piece[1]))
			require.NoError(t, err)
			y, err := float32s(added{a, c}, p, int64(piece[0]), int64(piece[1]))
			require.NoError(t, err)
			for i := range x { // sums of 5 numbers of at most 8
				require.InDelta(t, y[i], x[i], 8*5*0x1p-24)
			}
		}
		a.Alpha = 1e30
		m, err = a.Merge(c, Random{1})
		require.NoError(t, err)
		err = m.Read(p, dtype.Float16, make([]byte, 128), 64)
		require.ErrorContains(t, err, "beyond the 65504 of float16")
	}
}

// TestAdapterFiles writes an adapter and reads it again, of some products and of all.
func TestAdapterFiles(t *testing.T) {
	for _, name := range []string{"smollm2-135m", "gpt2"} {
		c, dir := smallConfig(t, name), filepath.Join(t.TempDir(), "a")
		files, _ := adapterOf(name)
		a, err := ReadAdapter(writePEFT(t, peftConfig, "F32", files), c)
		require.NoError(t, err)
		require.NoError(t, a.WriteAdapter(dir, "m", c, a.Weights))
		b, err := ReadAdapter(dir, c)
		require.NoError(t, err)
		require.Equal(t, a, b)

		all := &LoRA{Rank: 4, Alpha: 16, Dropout: 0.05}
		require.NoError(t, all.WriteAdapter(dir, "m", c, Random{2}))
		b, err = ReadAdapter(dir, c)
		require.NoError(t, err)
		require.Len(t, b.Weights, len(all.Params(c)))
		var written, peft map[string]any
		require.NoError(t, readJSON(filepath.Join(dir, "adapter_config.json"), &written))
		require.NoError(t, json.Unmarshal([]byte(peftConfig), &peft))
		peft["fan_in_fan_out"] = name == "gpt2"
		peft["target_modules"] = []any{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
		if name == "gpt2" {
			peft["target_modules"] = []any{"c_attn", "c_proj", "c_fc"}
		}
		for key, value := range written {
			require.Equal(t, peft[key], value, key)
		}
	}
}

// TestCopyErrors keeps what is there.
func TestCopyErrors(t *testing.T) {
	dir := smallModel(t, "gpt2", dtype.Float32, 1<<30, Random{1})
	c, err := Open(dir)
	require.NoError(t, err)
	defer c.Close()
	require.ErrorContains(t, c.Copy(dir+"/.", c), "is the folder of the checkpoint that is copied")
	out := t.TempDir()
	require.NoError(t, c.Copy(out, c))
	require.ErrorContains(t, c.Copy(out, source{c.files[0], safetensors.Tensor{Name: "none"}}), "outside its")
	require.NoFileExists(t, filepath.Join(out, configFile), "a folder that is not whole has none")
	one, err := os.ReadFile(filepath.Join(dir, weightsFile))
	require.NoError(t, err)
	other, err := os.ReadFile(filepath.Join(out, weightsFile))
	require.NoError(t, err)
	require.Equal(t, one, other)
}
