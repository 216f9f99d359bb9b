package lm

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/attention"
)

// A Config says which model a checkpoint is, in the words of its config.json.
type Config struct {
	Architecture string  `json:"-"`          // as in architectures: LlamaForCausalLM
	Vocabulary   int     `json:"vocab_size"` // tokens
	Width        int     `json:"hidden_size"`
	Layers       int     `json:"num_hidden_layers"`
	Heads        int     `json:"num_attention_heads"` // of queries
	KVHeads      int     `json:"num_key_value_heads"`
	HeadDim      int     `json:"head_dim"`
	Hidden       int     `json:"intermediate_size"`       // units of a feed-forward layer
	Positions    int     `json:"max_position_embeddings"` // the longest sequence that the model was made for
	Eps          float64 `json:"rms_norm_eps"`            // of the norms
	Window       int     `json:"sliding_window"`          // keys that a query sees, with its own; 0 is all
	Tied         bool    `json:"tie_word_embeddings"`     // the head is the table of embeddings
	OutBias      bool    `json:"attention_bias"`          // the product after attention has a bias
	Bias         bool    `json:"-"`                       // q, k and v have a bias
	QKNorm       bool    `json:"-"`                       // heads of q and k are normalized
	EOS          []int32 `json:"-"`                       // the tokens that end a text

	RoPE attention.Frequencies `json:"-"` // not of GPT-2
}

// GPT2 reports whether the model is of the family of GPT-2: learned positions, LayerNorm, GELU and
// biases everywhere, and weights of (in, out).
func (c *Config) GPT2() bool { return c.Architecture == "GPT2LMHeadModel" }

// The families that ReadConfig knows.
var architectures = []string{"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM", "GPT2LMHeadModel"}

// rawConfig has the other fields of config.json that are read. Fields that are not read change nothing that is
// computed, or belong to training.
type rawConfig struct {
	Config
	EOS          idList   `json:"eos_token_id"`
	Activation   string   `json:"hidden_act"`
	MLPBias      bool     `json:"mlp_bias"`
	UseWindow    bool     `json:"use_sliding_window"`
	MaxWindow    int      `json:"max_window_layers"`
	Theta        float64  `json:"rope_theta"`
	Scaling      *rawRoPE `json:"rope_scaling"`
	Parameters   *rawRoPE `json:"rope_parameters"` // both, since Transformers 5
	Partial      float64  `json:"partial_rotary_factor"`
	Quantization any      `json:"quantization_config"`
	Scaled       bool     `json:"scale_attn_weights"`
	ByLayer      bool     `json:"scale_attn_by_inverse_layer_idx"`
}

// gpt2Words are what GPT-2 says for words of the other families.
var gpt2Words = map[string]string{
	"n_embd": "hidden_size", "n_inner": "intermediate_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
	"n_positions": "max_position_embeddings", "layer_norm_epsilon": "rms_norm_eps", "activation_function": "hidden_act",
}

type rawRoPE struct {
	Type     string  `json:"rope_type"`
	OldType  string  `json:"type"`
	Theta    float64 `json:"rope_theta"`
	Factor   float64 `json:"factor"`
	Low      float64 `json:"low_freq_factor"`
	High     float64 `json:"high_freq_factor"`
	Slow     float64 `json:"beta_slow"`
	Fast     float64 `json:"beta_fast"`
	Factored float64 `json:"attention_factor"`
	Original int     `json:"original_max_position_embeddings"`
}

// An idList is a token or a list of tokens.
type idList []int32

func (l *idList) UnmarshalJSON(text []byte) error {
	if bytes.HasPrefix(text, []byte("[")) {
		return json.Unmarshal(text, (*[]int32)(l))
	}
	var n *int32
	err := json.Unmarshal(text, &n)
	if n != nil {
		*l = idList{*n}
	}
	return err
}

// modelsJSON has config.json of models by name.
//
//go:embed models.json
var modelsJSON []byte

func models() (m map[string]map[string]any) {
	if err := json.Unmarshal(modelsJSON, &m); err != nil {
		panic("lm: models.json is not JSON")
	}
	return m
}

// Models returns the names of the models that Named knows.
func Models() []string { return slices.Sorted(maps.Keys(models())) }

// Named returns the configuration of a model by name.
func Named(name string) (Config, error) {
	fields, ok := models()[name]
	if !ok {
		return Config{}, fmt.Errorf("lm: model %q is none of %s", name, strings.Join(Models(), ", "))
	}
	return parseConfig(fields)
}

// ReadConfig reads the config.json of a folder. Its error names what the package does not know.
func ReadConfig(dir string) (Config, error) {
	path := filepath.Join(dir, configFile)
	var fields map[string]any
	if err := readJSON(path, &fields); err != nil {
		return Config{}, err
	}
	c, err := parseConfig(fields)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// parseConfig returns what the fields of config.json mean.
func parseConfig(fields map[string]any) (Config, error) {
	list, _ := fields["architectures"].([]any)
	r := rawConfig{Partial: 1, Scaled: true}
	if len(list) == 1 {
		r.Architecture, _ = list[0].(string)
	}
	if !slices.Contains(architectures, r.Architecture) {
		return Config{}, fmt.Errorf("lm: architectures=%q is none of %s", list, strings.Join(architectures, ", "))
	}
	if r.GPT2() {
		r.Eps, r.Tied = 1e-5, true
		fields = maps.Clone(fields)
		for theirs, ours := range gpt2Words {
			fields[ours] = fields[theirs]
		}
	}
	text, err := json.Marshal(fields)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		return Config{}, fmt.Errorf("lm: %w", err)
	}
	err = cmp.Or(r.complete(), r.Validate())
	return r.Config, err
}

// complete sets what follows from other fields. Its error names the first option that is not known.
func (r *rawConfig) complete() error {
	c, gpt2 := &r.Config, r.GPT2()
	if gpt2 { // which has no fields of these
		c.KVHeads, c.HeadDim, c.OutBias, c.Hidden = 0, 0, true, cmp.Or(c.Hidden, 4*c.Width)
	}
	c.EOS, c.KVHeads = r.EOS, cmp.Or(c.KVHeads, c.Heads)
	if c.HeadDim == 0 && c.Heads > 0 {
		c.HeadDim = c.Width / c.Heads
	}
	if c.Architecture != "MistralForCausalLM" && !(r.UseWindow && r.MaxWindow == 0) {
		c.Window = 0
	}
	c.QKNorm = c.Architecture == "Qwen3ForCausalLM"
	c.Bias = c.OutBias || c.Architecture == "Qwen2ForCausalLM"
	switch {
	case r.Quantization != nil:
		return errors.New("lm: quantization_config is not known: weights are float32, float16 or bfloat16")
	case gpt2 && !slices.Contains([]string{"", "gelu_new", "gelu_pytorch_tanh"}, r.Activation):
		return fmt.Errorf("lm: activation_function=%q is neither gelu_new nor gelu_pytorch_tanh", r.Activation)
	case gpt2 && (r.ByLayer || !r.Scaled):
		return errors.New("lm: scores with another scale than 1/sqrt(head_dim) are not known")
	case gpt2 && c.Heads > 0 && c.Width%c.Heads != 0:
		return fmt.Errorf("lm: n_embd=%d is not a multiple of n_head=%d", c.Width, c.Heads)
	case gpt2:
		return nil
	case r.Activation != "" && r.Activation != "silu":
		return fmt.Errorf("lm: hidden_act=%q is not silu", r.Activation)
	case r.MLPBias:
		return errors.New("lm: mlp_bias=true is not known")
	case r.Partial != 1:
		return fmt.Errorf("lm: partial_rotary_factor=%v is not 1", r.Partial)
	case r.UseWindow && r.MaxWindow > 0 && r.MaxWindow < c.Layers:
		return fmt.Errorf("lm: max_window_layers=%d: layers with and without a window in one model are not known", r.MaxWindow)
	}
	return r.rope(c)
}

// rope sets how positions rotate.
func (r *rawConfig) rope(c *Config) error {
	c.RoPE = attention.Frequencies{Dims: c.HeadDim, Base: cmp.Or(r.Theta, 10000)}
	f, s := &c.RoPE, cmp.Or(r.Parameters, r.Scaling, &rawRoPE{})
	f.Base = cmp.Or(s.Theta, f.Base)
	kind := cmp.Or(s.Type, s.OldType, "default")
	if kind == "default" {
		return nil
	}
	scaling, err := attention.ParseScaling(kind)
	if err != nil {
		return fmt.Errorf("lm: rope_type=%q is none of default, linear, llama3, yarn", kind)
	}
	f.Scaling, f.Factor, f.Low, f.High = scaling, s.Factor, s.Low, s.High
	switch scaling {
	case attention.Llama3:
		f.Original = s.Original
	case attention.YaRN:
		f.Low, f.High, f.Attention, f.Original = s.Slow, s.Fast, s.Factored, cmp.Or(s.Original, c.Positions)
	}
	return nil
}

// Validate returns an error that names the first size that breaks a rule. Numbers of elements fit 64 bits.
func (c *Config) Validate() error {
	const wide = 1 << 20
	for _, f := range []struct {
		name        string
		value, most int
	}{
		{"vocab_size", c.Vocabulary, math.MaxInt32}, {"hidden_size", c.Width, wide}, {"num_hidden_layers", c.Layers, 1024}, {"num_attention_heads", c.Heads, wide},
		{"num_key_value_heads", c.KVHeads, wide}, {"head_dim", c.HeadDim, wide}, {"intermediate_size", c.Hidden, wide}, {"max_position_embeddings", c.Positions, math.MaxInt32},
	} {
		if f.value <= 0 || f.value > f.most {
			return fmt.Errorf("lm: %s=%d is not from 1 to %d", f.name, f.value, f.most)
		}
	}
	switch {
	case c.Heads%c.KVHeads != 0:
		return fmt.Errorf("lm: num_attention_heads=%d is not a multiple of num_key_value_heads=%d", c.Heads, c.KVHeads)
	case c.HeadDim%8 != 0: // of package attention
		return fmt.Errorf("lm: head_dim=%d is not a multiple of 8", c.HeadDim)
	case !(c.Eps > 0):
		return fmt.Errorf("lm: rms_norm_eps=%v is not positive", c.Eps)
	case c.Window < 0:
		return fmt.Errorf("lm: sliding_window=%d is negative", c.Window)
	case !c.GPT2():
		return c.RoPE.Validate()
	}
	return nil
}

// StopTokens returns the tokens that end a text: those of generation_config.json, if there is one, and of
// the configuration.
func StopTokens(dir string, c *Config) ([]int32, error) {
	var more struct {
		EOS idList `json:"eos_token_id"`
	}
	if err := readJSON(filepath.Join(dir, "generation_config.json"), &more); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return append(more.EOS, c.EOS...), nil
}

// readJSON reads a file of a checkpoint.
func readJSON(path string, x any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("lm: %w", err)
	}
	if err := json.Unmarshal(text, x); err != nil {
		return fmt.Errorf("lm: %s: %w", path, err)
	}
	return nil
}
