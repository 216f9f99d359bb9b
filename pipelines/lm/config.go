package lm

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/files"
)

// A Config says which model a checkpoint is, in the words of its config.json.
type Config struct {
	Architecture string // as in architectures: LlamaForCausalLM
	Vocabulary   int    // tokens
	Width        int    // elements of the residual stream
	Layers       int
	Heads        int // of queries
	KVHeads      int // of keys and values
	HeadDim      int
	Hidden       int                   // units of a feed-forward layer
	Positions    int                   // the longest sequence that the model was made for
	Eps          float64               // of the norms
	Window       int                   // keys that a query sees, with its own; 0 is all
	Tied         bool                  // the head is the table of embeddings
	Bias         bool                  // q, k and v have a bias
	OutBias      bool                  // the product after attention has a bias
	QKNorm       bool                  // heads of q and k are normalized
	RoPE         attention.Frequencies // not of GPT-2
	BOS          int                   // the token that begins a text; -1 is none
	EOS          []int                 // the tokens that end one
}

// GPT2 reports whether the model is of the family of GPT-2: learned positions, LayerNorm, GELU and
// biases everywhere, and weights of (in, out).
func (c *Config) GPT2() bool { return c.Architecture == "GPT2LMHeadModel" }

// The families that ReadConfig knows.
var architectures = []string{"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM", "GPT2LMHeadModel"}

// rawConfig has the fields of config.json that are read. Others change nothing that is computed, or
// belong to training.
type rawConfig struct {
	Architectures []string
	VocabSize     int `json:"vocab_size"`
	Hidden        int `json:"hidden_size"`
	Intermediate  int `json:"intermediate_size"`
	Layers        int `json:"num_hidden_layers"`
	Heads         int `json:"num_attention_heads"`
	KVHeads       int `json:"num_key_value_heads"`
	HeadDim       int `json:"head_dim"`
	Positions     int `json:"max_position_embeddings"`

	Eps            float64  `json:"rms_norm_eps"`
	Activation     string   `json:"hidden_act"`
	Tied           *bool    `json:"tie_word_embeddings"`
	AttentionBias  bool     `json:"attention_bias"`
	MLPBias        bool     `json:"mlp_bias"`
	Window         *int     `json:"sliding_window"`
	UseWindow      bool     `json:"use_sliding_window"`
	MaxWindow      int      `json:"max_window_layers"`
	Theta          float64  `json:"rope_theta"`
	Scaling        *rawRoPE `json:"rope_scaling"`
	RoPE           *rawRoPE `json:"rope_parameters"` // both, since Transformers 5
	Partial        *float64 `json:"partial_rotary_factor"`
	BOS            *int     `json:"bos_token_id"`
	EOS            intList  `json:"eos_token_id"`
	Quantization   any      `json:"quantization_config"`
	NEmbd          int      `json:"n_embd"`
	NLayer         int      `json:"n_layer"`
	NHead          int      `json:"n_head"`
	NInner         *int     `json:"n_inner"`
	NPositions     int      `json:"n_positions"`
	LayerNormEps   float64  `json:"layer_norm_epsilon"`
	Function       string   `json:"activation_function"`
	ScaleAttention *bool    `json:"scale_attn_weights"`
	ByLayer        bool     `json:"scale_attn_by_inverse_layer_idx"`
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

// An intList is a number or a list of numbers.
type intList []int

func (l *intList) UnmarshalJSON(text []byte) error {
	if bytes.HasPrefix(text, []byte("[")) {
		return json.Unmarshal(text, (*[]int)(l))
	}
	var n *int
	err := json.Unmarshal(text, &n)
	if n != nil {
		*l = intList{*n}
	}
	return err
}

// ReadConfig reads the config.json of a folder. Its error names what the package does not know.
func ReadConfig(dir string) (Config, error) {
	path := filepath.Join(dir, configFile)
	var text json.RawMessage
	if err := readJSON(path, &text); err != nil {
		return Config{}, err
	}
	c, err := parseConfig(text)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

func parseConfig(text []byte) (Config, error) {
	var raw rawConfig
	if err := json.Unmarshal(text, &raw); err != nil {
		return Config{}, fmt.Errorf("lm: %w", err)
	}
	c, err := raw.config()
	if err == nil {
		err = c.Validate()
	}
	return c, err
}

// readJSON reads a file of a checkpoint.
func readJSON(path string, x any) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("lm: %w", err)
	}
	if err == nil {
		err = json.Unmarshal(text, x)
	}
	if err != nil {
		return fmt.Errorf("lm: %s: %w", path, files.Bare(err))
	}
	return nil
}

// config returns what the fields mean.
func (r *rawConfig) config() (Config, error) {
	if len(r.Architectures) != 1 || !slices.Contains(architectures, r.Architectures[0]) {
		return Config{}, fmt.Errorf("lm: architectures=%q is none of %s", r.Architectures, strings.Join(architectures, ", "))
	}
	c := Config{Architecture: r.Architectures[0], Vocabulary: r.VocabSize, BOS: -1, EOS: r.EOS}
	if r.BOS != nil {
		c.BOS = *r.BOS
	}
	if r.Quantization != nil {
		return c, errors.New("lm: quantization_config is not known: weights are float32, float16 or bfloat16")
	}
	if c.GPT2() {
		return c, r.gpt2(&c)
	}
	c.Width, c.Hidden, c.Layers, c.Heads, c.Positions, c.Eps = r.Hidden, r.Intermediate, r.Layers, r.Heads, r.Positions, r.Eps
	c.KVHeads, c.HeadDim = cmp.Or(r.KVHeads, r.Heads), r.HeadDim
	if c.HeadDim == 0 && c.Heads > 0 {
		c.HeadDim = c.Width / c.Heads
	}
	c.Tied = r.Tied != nil && *r.Tied
	c.QKNorm = c.Architecture == "Qwen3ForCausalLM"
	c.OutBias = r.AttentionBias
	c.Bias = r.AttentionBias || c.Architecture == "Qwen2ForCausalLM"
	switch {
	case r.Activation != "" && r.Activation != "silu":
		return c, fmt.Errorf("lm: hidden_act=%q is not silu", r.Activation)
	case r.MLPBias:
		return c, errors.New("lm: mlp_bias=true is not known")
	case r.Partial != nil && *r.Partial != 1:
		return c, fmt.Errorf("lm: partial_rotary_factor=%v is not 1", *r.Partial)
	case r.UseWindow && r.MaxWindow > 0 && r.MaxWindow < c.Layers:
		return c, fmt.Errorf("lm: max_window_layers=%d: layers with and without a window in one model are not known", r.MaxWindow)
	}
	windowed := c.Architecture == "MistralForCausalLM" || r.UseWindow && r.MaxWindow == 0
	if windowed && r.Window != nil {
		c.Window = *r.Window
	}
	return c, r.rope(&c)
}

// rope sets how positions rotate.
func (r *rawConfig) rope(c *Config) error {
	c.RoPE = attention.Frequencies{Dims: c.HeadDim, Base: cmp.Or(r.Theta, 10000)}
	s := cmp.Or(r.RoPE, r.Scaling)
	if s == nil {
		return nil
	}
	f := &c.RoPE
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

// gpt2 sets what GPT-2's own words say.
func (r *rawConfig) gpt2(c *Config) error {
	c.Width, c.Layers, c.Heads, c.KVHeads, c.Positions = r.NEmbd, r.NLayer, r.NHead, r.NHead, r.NPositions
	c.Eps, c.Bias, c.OutBias, c.Hidden = cmp.Or(r.LayerNormEps, 1e-5), true, true, 4*r.NEmbd
	c.Tied = r.Tied == nil || *r.Tied
	if r.NInner != nil {
		c.Hidden = *r.NInner
	}
	if c.Heads > 0 {
		c.HeadDim = c.Width / c.Heads
	}
	switch {
	case r.Function != "" && r.Function != "gelu_new" && r.Function != "gelu_pytorch_tanh":
		return fmt.Errorf("lm: activation_function=%q is neither gelu_new nor gelu_pytorch_tanh", r.Function)
	case r.ByLayer || r.ScaleAttention != nil && !*r.ScaleAttention:
		return errors.New("lm: scores with another scale than 1/sqrt(head_dim) are not known")
	case c.Heads > 0 && c.Width%c.Heads != 0:
		return fmt.Errorf("lm: n_embd=%d is not a multiple of n_head=%d", c.Width, c.Heads)
	}
	return nil
}

// Validate returns an error that names the first size that breaks a rule.
func (c *Config) Validate() error {
	for _, f := range []struct {
		name  string
		value int
	}{
		{"vocab_size", c.Vocabulary}, {"hidden_size", c.Width}, {"num_hidden_layers", c.Layers}, {"num_attention_heads", c.Heads},
		{"num_key_value_heads", c.KVHeads}, {"head_dim", c.HeadDim}, {"intermediate_size", c.Hidden}, {"max_position_embeddings", c.Positions},
	} {
		if f.value <= 0 || f.value > math.MaxInt32 {
			return fmt.Errorf("lm: %s=%d is not from 1 to %d", f.name, f.value, math.MaxInt32)
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
		EOS intList `json:"eos_token_id"`
	}
	if err := readJSON(filepath.Join(dir, "generation_config.json"), &more); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var list []int32
	for _, id := range append(more.EOS, c.EOS...) {
		list = append(list, int32(id))
	}
	return list, nil
}
