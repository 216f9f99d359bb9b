package lm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/dtype/storage"
)

// small makes a named model small enough for a software driver.
func small(name string) map[string]any {
	if name == "gpt2" {
		return map[string]any{"vocab_size": 300, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
	}
	m := map[string]any{
		"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
		"num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64, "sliding_window": 5,
	}
	if name == "llama-3.2-1b" { // pairs of all three kinds
		m["rope_scaling"] = map[string]any{"rope_type": "llama3", "factor": 4, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 32}
		m["rope_theta"] = 100
	}
	return m
}

// families are models of all families, and both kinds of heads.
var families = []string{"smollm2-135m", "tinyllama-1.1b", "llama-3.2-1b", "qwen2.5-0.5b", "qwen3-0.6b", "mistral-7b", "gpt2"}

func TestNamed(t *testing.T) {
	want := map[string]int64{ // the numbers of the models' cards
		"smollm2-135m": 134515008, "tinyllama-1.1b": 1100048384, "llama-3.2-1b": 1235814400, "llama-3.1-8b": 8030261248,
		"qwen2.5-0.5b": 494032768, "qwen3-0.6b": 596049920, "mistral-7b": 7241732096, "gpt2": 124439808,
	}
	for _, name := range Models() {
		c, err := Named(name)
		require.NoError(t, err)
		require.Equal(t, want[name], c.NumParams(), name)
	}
}

// TestCheckpoint writes checkpoints in one file and in shards, in all formats, and reads them.
func TestCheckpoint(t *testing.T) {
	for _, name := range families {
		for _, format := range []dtype.DType{dtype.Float32, dtype.Float16, dtype.BFloat16} {
			dir := t.TempDir()
			require.NoError(t, WriteModel(dir, name, small(name), format, 64<<10, Random{1}))
			c, err := Open(dir)
			require.NoError(t, err)
			defer c.Close()
			require.Greater(t, len(c.files), 1)
			require.Equal(t, format, c.DType)
			for _, p := range c.Config.Params() {
				want := make([]byte, int(p.elements())*format.Size())
				require.NoError(t, Random{1}.Read(p, format, want, 0))
				require.NoError(t, pieces(p, format, c, func(piece []byte, offset int64) error {
					require.Equal(t, want[offset:][:len(piece)], piece)
					return nil
				}))
			}
		}
	}
}

// TestOldNames reads GPT-2 as its first checkpoint has it: names without a prefix, and masks.
func TestOldNames(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, WriteModel(dir, "gpt2", small("gpt2"), dtype.Float32, 1<<30, Random{1}))
	config, err := ReadConfig(dir)
	require.NoError(t, err)
	params := config.Params()
	for i := range params {
		params[i].Name = strings.TrimPrefix(params[i].Name, "transformer.")
	}
	params = append(params, Param{"h.0.attn.bias", []int{1, 1, 64, 64}})
	require.NoError(t, write(dir, params, dtype.Float32, 1<<30, Random{1}))
	c, err := Open(dir)
	require.NoError(t, err)
	c.Close()
}

// TestConversion reads numbers that float16 cannot hold.
func TestConversion(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, WriteModel(dir, "gpt2", small("gpt2"), dtype.BFloat16, 1<<30, scaled(7e4)))
	c, err := Open(dir)
	require.NoError(t, err)
	defer c.Close()
	b := make([]byte, 128)
	err = c.Read(Param{"transformer.ln_f.weight", []int{64}}, dtype.Float16, b, 0)
	require.EqualError(t, err, `lm: tensor "transformer.ln_f.weight": element 0 is 70144, beyond the 65504 of float16: take bfloat16 or float32`)
}

// scaled are weights that are all one number.
type scaled float32

func (s scaled) Read(_ Param, t dtype.DType, p []byte, _ int64) error {
	values := make([]float32, len(p)/t.Size())
	for i := range values {
		values[i] = float32(s)
	}
	storage.Encode(t, p, values)
	return nil
}

func TestConfigErrors(t *testing.T) {
	for _, c := range []struct {
		model, field string
		value        any
		want         string
	}{
		{"gpt2", "architectures", []string{"MambaForCausalLM"}, `lm: architectures=["MambaForCausalLM"] is none of LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, MistralForCausalLM, GPT2LMHeadModel`},
		{"gpt2", "activation_function", "relu", `lm: activation_function="relu" is neither gelu_new nor gelu_pytorch_tanh`},
		{"gpt2", "n_head", 7, "lm: n_embd=64 is not a multiple of n_head=7"},
		{"smollm2-135m", "hidden_act", "gelu", `lm: hidden_act="gelu" is not silu`},
		{"smollm2-135m", "num_key_value_heads", 3, "lm: num_attention_heads=4 is not a multiple of num_key_value_heads=3"},
		{"smollm2-135m", "num_hidden_layers", 0, "lm: num_hidden_layers=0 is not from 1 to 2147483647"},
		{"smollm2-135m", "rope_scaling", map[string]any{"type": "longrope", "factor": 2}, `lm: rope_type="longrope" is none of default, linear, llama3, yarn`},
		{"smollm2-135m", "quantization_config", map[string]any{}, "lm: quantization_config is not known: weights are float32, float16 or bfloat16"},
		{"smollm2-135m", "mlp_bias", true, "lm: mlp_bias=true is not known"},
		{"qwen2.5-0.5b", "use_sliding_window", true, ""},
	} {
		change := small(c.model)
		change[c.field] = c.value
		if _, _, err := changed(c.model, change); c.want == "" {
			require.NoError(t, err)
		} else {
			require.EqualError(t, err, c.want)
		}
	}
}

func TestCheckpointErrors(t *testing.T) {
	params := func(change func([]Param) []Param) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			c, err := ReadConfig(dir)
			require.NoError(t, err)
			require.NoError(t, write(dir, change(c.Params()), dtype.Float32, 1<<30, Random{1}))
		}
	}
	for _, c := range []struct {
		name, want string
		spoil      func(t *testing.T, dir string)
	}{
		{"missing", `tensor "model.embed_tokens.weight" is missing: LlamaForCausalLM with num_hidden_layers=2 has it`, params(func(p []Param) []Param { return p[1:] })},
		{"extra", `tensor "model.layers.2.bias" is none of the parameters that config.json describes`, params(func(p []Param) []Param { return append(p, Param{"model.layers.2.bias", []int{1}}) })},
		{"shape", `tensor "model.embed_tokens.weight" has shape [300 63], config.json wants [300 64]`, params(func(p []Param) []Param { p[0].Shape[1]--; return p })},
		{"truncated", `tensor "model.embed_tokens.weight": data_offsets [0, 76800] run past the`, func(t *testing.T, dir string) {
			require.NoError(t, os.Truncate(filepath.Join(dir, weightsFile), 70000))
		}},
		{"no weights", "has neither model.safetensors nor model.safetensors.index.json", func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, weightsFile)))
		}},
		{"index", `which is no name of a file in the folder`, func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, weightsFile)))
			require.NoError(t, os.WriteFile(filepath.Join(dir, indexFile), []byte(`{"weight_map": {"x": "../y"}}`), 0o666))
		}},
		{"no shard", "model-1.safetensors: no such file", func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, weightsFile)))
			require.NoError(t, os.WriteFile(filepath.Join(dir, indexFile), []byte(`{"weight_map": {"x": "model-1.safetensors"}}`), 0o666))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, WriteModel(dir, "smollm2-135m", small("smollm2-135m"), dtype.Float32, 1<<30, Random{1}))
			c.spoil(t, dir)
			_, err := Open(dir)
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "\n")
		})
	}
}
