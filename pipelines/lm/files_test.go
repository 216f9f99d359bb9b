package lm

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/dtype/storage"
)

// small has the fields of config.json of a named model that is small enough for a software driver.
func small(name string) map[string]any {
	fields := models()[name]
	if name == "gpt2" {
		maps.Copy(fields, map[string]any{"vocab_size": 300, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "head_dim": 8, "attention_bias": false})
		return fields
	}
	maps.Copy(fields, map[string]any{
		"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
		"num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64, "sliding_window": 5,
	})
	if name == "llama-3.2-1b" { // pairs of all three kinds
		fields["rope_scaling"] = map[string]any{"rope_type": "llama3", "factor": 4, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 32}
		fields["rope_theta"] = 100
	}
	return fields
}

// smallConfig returns a named model, small.
func smallConfig(name string) *Config {
	c := must(parseConfig(small(name)))
	return &c
}

// smallModel writes a checkpoint of a small model, in one file or in several.
func smallModel(t *testing.T, name string, format dtype.DType, several bool, w Weights) (dir string) {
	dir = t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, configFile), must(json.Marshal(small(name))), 0o666))
	params, index := smallConfig(name).Params(), map[string]string{}
	if !several {
		require.NoError(t, writeParams(filepath.Join(dir, weightsFile), params, format, w))
		return dir
	}
	for list := range slices.Chunk(params, 9) {
		file := fmt.Sprintf("model-%05d.safetensors", len(index))
		for _, p := range list {
			index[p.Name] = file
		}
		require.NoError(t, writeParams(filepath.Join(dir, file), list, format, w))
	}
	text := must(json.Marshal(map[string]any{"metadata": map[string]any{}, "weight_map": index}))
	require.NoError(t, os.WriteFile(filepath.Join(dir, indexFile), text, 0o666))
	return dir
}

// openModel opens a checkpoint.
func openModel(t *testing.T, dir string) *Checkpoint {
	c := must(Open(dir))
	t.Cleanup(c.Close)
	return c
}

// families are models of all families, and both kinds of heads.
var families = []string{"smollm2-135m", "tinyllama-1.1b", "llama-3.2-1b", "qwen2.5-0.5b", "qwen3-0.6b", "mistral-7b", "gpt2"}

func TestNamed(t *testing.T) {
	want := map[string]int64{ // the numbers of the models' cards
		"smollm2-135m": 134515008, "tinyllama-1.1b": 1100048384, "llama-3.2-1b": 1235814400, "llama-3.1-8b": 8030261248,
		"qwen2.5-0.5b": 494032768, "qwen3-0.6b": 596049920, "mistral-7b": 7241732096, "gpt2": 124439808,
	}
	for _, name := range Models() {
		c := must(Named(name))
		require.Equal(t, want[name], c.NumParams(), name)
	}
}

// TestCheckpoint reads checkpoints in several files and all formats, as they are and in float32, and copies of them.
func TestCheckpoint(t *testing.T) {
	for _, name := range families {
		for _, format := range []dtype.DType{dtype.Float32, dtype.Float16, dtype.BFloat16} {
			out, c := t.TempDir(), openModel(t, smallModel(t, name, format, true, Random{1}))
			require.NoError(t, c.Copy(out, c))
			c = openModel(t, out)
			require.Greater(t, len(c.shards), 1)
			require.Equal(t, format, c.DType)
			for _, p := range c.Config.Params() {
				values := must(read(Random{1}, p))
				want := storage.Bytes(format, values)
				require.NoError(t, pieces(p, format, c, func(piece []byte, first int) error {
					require.Equal(t, want[first*format.Size():][:len(piece)], piece)
					return nil
				}))
				storage.Decode(format, values, want)
				require.Equal(t, values, must(read(c, p)))
			}
		}
	}
}

// TestOldNames reads GPT-2 as its first checkpoint has it: names without a prefix, and masks, which a copy has, too.
func TestOldNames(t *testing.T) {
	dir, out := smallModel(t, "gpt2", dtype.Float32, false, Random{1}), t.TempDir()
	params := smallConfig("gpt2").Params()
	for i := range params {
		params[i].Name = strings.TrimPrefix(params[i].Name, "transformer.")
	}
	params = append(params, Param{Name: "h.0.attn.bias", Shape: []int{1, 1, 64, 64}})
	require.NoError(t, writeParams(filepath.Join(dir, weightsFile), params, dtype.Float32, Random{1}))
	c := openModel(t, dir)
	require.NoError(t, c.Copy(out, c))
	require.Equal(t, must(os.ReadFile(filepath.Join(dir, weightsFile))), must(os.ReadFile(filepath.Join(out, weightsFile))))
}

// TestConversion reads numbers that float16 cannot hold.
func TestConversion(t *testing.T) {
	c := openModel(t, smallModel(t, "gpt2", dtype.BFloat16, false, scaled(7e4)))
	err := pieces(Param{Name: "transformer.ln_f.weight", Shape: []int{64}}, dtype.Float16, c, nil)
	require.EqualError(t, err, `lm: tensor "transformer.ln_f.weight": element 0 is 70144, beyond the 65504 of float16: take bfloat16 or float32`)
}

// scaled are weights that are all one number.
type scaled float32

func (s scaled) Read(_ Param, x []float32, _ int) error {
	for i := range x {
		x[i] = float32(s)
	}
	return nil
}

// TestCopyErrors keeps what is there.
func TestCopyErrors(t *testing.T) {
	dir, out := smallModel(t, "gpt2", dtype.Float32, false, Random{1}), t.TempDir()
	c := openModel(t, dir)
	require.ErrorContains(t, c.Copy(dir+"/.", c), "is the folder of the checkpoint that is copied")
	require.NoError(t, c.Copy(out, c))
	require.ErrorContains(t, c.Copy(out, &Checkpoint{}), "there is no parameter")
	require.NoFileExists(t, filepath.Join(out, configFile), "a folder that is not whole has none")
	require.Equal(t, must(os.ReadFile(filepath.Join(dir, weightsFile))), must(os.ReadFile(filepath.Join(out, weightsFile))))
}

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

// peft writes an adapter of two products as PEFT does, and reads it.
func peft(t *testing.T, c *Config, config string) *LoRA {
	params := []Param{
		{Name: "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", Shape: []int{4, 64}}, {Name: "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", Shape: []int{64, 4}},
		{Name: "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight", Shape: []int{4, 96}}, {Name: "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight", Shape: []int{64, 4}},
	}
	targets := []string{"model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"}
	if c.GPT2() {
		params = []Param{
			{Name: "base_model.model.transformer.h.1.attn.c_attn.lora_A.weight", Shape: []int{4, 64}}, {Name: "base_model.model.transformer.h.1.attn.c_attn.lora_B.weight", Shape: []int{192, 4}},
			{Name: "base_model.model.transformer.h.1.mlp.c_proj.lora_A.weight", Shape: []int{4, 256}}, {Name: "base_model.model.transformer.h.1.mlp.c_proj.lora_B.weight", Shape: []int{64, 4}},
		}
		targets = []string{"transformer.h.1.attn.c_attn", "transformer.h.1.mlp.c_proj"}
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, adapterConfig), []byte(config), 0o666))
	require.NoError(t, writeParams(filepath.Join(dir, adapterWeights), params, dtype.Float32, normal{}))
	l := must(ReadAdapter(dir, c))
	require.ElementsMatch(t, targets, l.Targets)
	return l
}

// TestMerge reads an adapter that is merged, from the middle of rows, and compares with the formula in float64.
func TestMerge(t *testing.T) {
	for _, name := range []string{"smollm2-135m", "gpt2"} {
		c := smallConfig(name)
		a := peft(t, c, strings.Replace(peftConfig, `"use_rslora": false`, `"use_rslora": true`, 1))
		require.Equal(t, 32.0, a.Alpha)
		product := a.Targets[slices.IndexFunc(a.Targets, func(name string) bool { return strings.Contains(name, ".mlp.") })]
		i := slices.IndexFunc(c.Params(), func(p Param) bool { return p.Name == product+".weight" })
		p, down, up := c.Params()[i], a.Weights.(tensors)[adapterName(product, "A")], a.Weights.(tensors)[adapterName(product, "B")]
		m := must(a.Merge(c, Random{1}))
		for _, piece := range [][2]int{{0, 1}, {63, 2}, {100, 500}, {64 * 96 / 2, 64}} {
			x, y := make([]float32, piece[1]), make([]float32, piece[1])
			require.NoError(t, m.Read(p, x, piece[0]))
			require.NoError(t, Random{1}.Read(p, y, piece[0]))
			for i := range x {
				row, col := (piece[0]+i)/p.Shape[1], (piece[0]+i)%p.Shape[1]
				if c.GPT2() {
					row, col = col, row
				}
				want := float64(y[i])
				for r := range 4 {
					want += 32.0 / 4 * float64(up[row*4+r]) * float64(down[r*len(down)/4+col])
				}
				require.InDelta(t, want, x[i], 8*5*0x1p-24) // sums of 5 numbers of at most 8
			}
		}
	}
}

// TestAdapterFiles writes an adapter and reads it again, of some products and of all.
func TestAdapterFiles(t *testing.T) {
	for _, name := range []string{"smollm2-135m", "gpt2"} {
		c, dir := smallConfig(name), filepath.Join(t.TempDir(), "a")
		a := peft(t, c, peftConfig)
		require.NoError(t, a.WriteAdapter(dir, "m", c, a.Weights))
		b := must(ReadAdapter(dir, c))
		require.Equal(t, a, b)

		all := &LoRA{Rank: 4, Alpha: 16, Dropout: 0.05}
		require.NoError(t, all.WriteAdapter(dir, "m", c, Random{2}))
		b = must(ReadAdapter(dir, c))
		require.Len(t, b.Weights, len(all.Params(c)))
		var written, peft map[string]any
		require.NoError(t, readJSON(filepath.Join(dir, adapterConfig), &written))
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
