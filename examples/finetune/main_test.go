package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/lm"
)

// TestExample: the program has at most 60 lines, the losses that it prints fall, and its adapter is one of the model.
func TestExample(t *testing.T) {
	vktest.Open(t) // skips
	source, err := os.ReadFile("main.go")
	require.NoError(t, err)
	require.LessOrEqual(t, strings.Count(string(source), "\n"), 60)
	dir := t.TempDir()
	model, data, out := filepath.Join(dir, "m"), filepath.Join(dir, "data.jsonl"), filepath.Join(dir, "out")
	small := `{"architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
		"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(small), 0o600))
	empty, err := lm.NewCheckpoint(dir)
	require.NoError(t, err)
	require.NoError(t, empty.Copy(model, lm.Random{Seed: 1}))
	lines := `{"prompt": "One and one are", "completion": " two."}` + "\n" + `{"text": "The rest is silence."}`
	require.NoError(t, os.WriteFile(data, []byte(lines), 0o600))

	printed, err := os.Create(filepath.Join(dir, "printed"))
	require.NoError(t, err)
	args, stdout := os.Args, os.Stdout
	os.Args, os.Stdout = []string{"finetune", model, data, out}, printed
	defer func() { os.Args, os.Stdout = args, stdout }()
	main()
	text, err := os.ReadFile(printed.Name())
	require.NoError(t, err)
	words := strings.Fields(string(text))
	require.Len(t, words, 3*steps)
	first, err := strconv.ParseFloat(words[2], 64)
	require.NoError(t, err)
	last, err := strconv.ParseFloat(words[len(words)-1], 64)
	require.NoError(t, err)
	require.Less(t, last, 0.6*first)
	config, err := lm.ReadConfig(model)
	require.NoError(t, err)
	adapter, err := lm.ReadAdapter(out, &config)
	require.NoError(t, err)
	require.Len(t, adapter.Targets, 7)
}

func TestMain(m *testing.M) { vktest.Main(m) }
