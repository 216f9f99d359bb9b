package lm

import (
	"encoding/json"
	"maps"
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

// smallConfig returns a named model, small.
func smallConfig(t *testing.T, name string) *Config {
	t.Helper()
	_, c := smallJSON(t, name)
	return &c
}

// smallJSON returns the config.json of a named model, small.
func smallJSON(t *testing.T, name string) (text []byte, c Config) {
	t.Helper()
	fields := map[string]any{}
	require.NoError(t, json.Unmarshal(models()[name], &fields))
	maps.Copy(fields, small(name))
	text, err := json.Marshal(fields)
	require.NoError(t, err)
	c, err = parseConfig(text)
	require.NoError(t, err)
	return text, c
}

// smallModel writes a checkpoint of a small model into files of at most shardBytes.
func smallModel(t *testing.T, name string, format dtype.DType, shardBytes int64, w Weights) (dir string) {
	t.Helper()
	dir = t.TempDir()
	text, c := smallJSON(t, name)
	require.NoError(t, os.WriteFile(filepath.Join(dir, configFile), text, 0o666))
	require.NoError(t, write(dir, c.Params(), format, shardBytes, w))
	return dir
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
			dir := smallModel(t, name, format, 64<<10, Random{1})
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
	dir := smallModel(t, "gpt2", dtype.Float32, 1<<30, Random{1})
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
	dir := smallModel(t, "gpt2", dtype.BFloat16, 1<<30, scaled(7e4))
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
