package lm

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/files"
	"github.com/flashvk/flashvk/internal/parallel"
	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/safetensors"
)

// A LoRA is an adapter of low rank: a product with a weight W, (out, in), that it adapts is
//
//	y = x * Wᵀ + Alpha/Rank * (dropout(x) * Aᵀ) * Bᵀ      A (rank, in), B (out, rank)
//
// Its parameters have the names of PEFT: base_model.model.NAME.lora_A.weight and ….lora_B.weight for a weight
// NAME.weight.
type LoRA struct {
	Rank  int
	Alpha float64
	// Dropout is the probability that an element of x is dropped in training, for each product by itself
	// (package dropout): the lora_dropout of PEFT, which ReadAdapter does not read.
	Dropout float64
	// Targets are the names of products, or the ends of them behind a point, as in target_modules of PEFT:
	// q_proj. Nil is all products of the layers.
	Targets []string
	// Weights are those of the adapter. Nil is what a training begins with: A is uniform between ±1/√in, and B
	// is 0.
	Weights Weights
}

// Check returns an error if a number breaks a rule, or a target is no product of the model. It is nil for nil.
func (l *LoRA) Check(c *Config) error {
	if l == nil {
		return nil
	}
	switch {
	case l.Rank < 1 || l.Rank > c.Width:
		return fmt.Errorf("lm: rank=%d is not from 1 to hidden_size=%d", l.Rank, c.Width)
	case !(l.Alpha > 0) || math.IsInf(l.Alpha, 0):
		return fmt.Errorf("lm: alpha=%v is not a positive number", l.Alpha)
	case !(l.Dropout >= 0 && l.Dropout < 1):
		return fmt.Errorf("lm: dropout=%v is not from 0 to less than 1", l.Dropout)
	}
	all := (&LoRA{Rank: l.Rank}).Params(c)
	for _, target := range l.Targets {
		one := LoRA{Targets: []string{target}}
		if !slices.ContainsFunc(all, func(p Param) bool { return one.adapts(productOf(p)) }) {
			return fmt.Errorf("lm: target %q is no product of %s", target, c.Architecture)
		}
	}
	return nil
}

// Params returns the parameters of the adapter, in the order of the layers: A before B of each product. It
// may be called on nil.
func (l *LoRA) Params(c *Config) []Param {
	return slices.DeleteFunc(c.params(l), func(p Param) bool { return !strings.HasPrefix(p.Name, adapterPrefix) })
}

// adapts reports whether the product of a name is adapted.
func (l *LoRA) adapts(name string) bool {
	if l == nil || l.Targets == nil {
		return l != nil
	}
	return slices.ContainsFunc(l.Targets, func(target string) bool { return name == target || strings.HasSuffix(name, "."+target) })
}

// scale is what the product of the adapter is multiplied by.
func (l *LoRA) scale() float64 { return l.Alpha / float64(l.Rank) }

// adapterPrefix begins the names of an adapter's parameters.
const adapterPrefix = "base_model.model."

func adapterName(product, matrix string) string {
	return adapterPrefix + product + ".lora_" + matrix + ".weight"
}

// productOf returns the name of the product that a parameter of an adapter belongs to.
func productOf(p Param) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(p.Name, adapterPrefix), ".lora_")
	return name
}

// The files of an adapter are those of the library PEFT.
const (
	adapterConfig  = "adapter_config.json"
	adapterWeights = "adapter_model.safetensors"
)

// rawAdapter is adapter_config.json: what is read of it, and what is written. PEFT has a default for other fields.
type rawAdapter struct {
	Type      string  `json:"peft_type"`
	Rank      int     `json:"r"`
	Alpha     float64 `json:"lora_alpha"`
	Root      bool    `json:"use_rslora"`
	Task      string  `json:"task_type"`
	Base      string  `json:"base_model_name_or_path"`
	Targets   any     `json:"target_modules"` // a list, or a pattern
	Dropout   float64 `json:"lora_dropout"`
	FanIn     bool    `json:"fan_in_fan_out"`
	Bias      any     `json:"bias"`
	Inference bool    `json:"inference_mode"`
}

// unknownOptions change what an adapter computes, unless they have one of these values.
var unknownOptions = map[string][]string{
	"use_dora": {"false"}, "use_qalora": {"false"}, "lora_bias": {"false"}, "bias": {`"none"`}, "modules_to_save": {"null", "[]"},
	"rank_pattern": {"{}", "null"}, "alpha_pattern": {"{}", "null"}, "layer_replication": {"null"}, "trainable_token_indices": {"null"},
	"target_parameters": {"null", "[]"}, "init_lora_weights": {"true", "false", `"gaussian"`, `"eva"`, `"orthogonal"`},
}

// ReadAdapter reads adapter_config.json and adapter_model.safetensors of a folder, as PEFT writes them, for
// a model. Targets are the products that the file has. With use_rslora, Alpha is the one whose Alpha/Rank is
// lora_alpha/√r. An error names the first option that is not known, or the first tensor that is of no
// product of the layers, or of another shape.
func ReadAdapter(dir string, c *Config) (*LoRA, error) {
	path := filepath.Join(dir, adapterConfig)
	var raw rawAdapter
	var options map[string]json.RawMessage
	if err := cmp.Or(readJSON(path, &options), readJSON(path, &raw)); err != nil {
		return nil, err
	}
	if raw.Type != "LORA" {
		return nil, fmt.Errorf("lm: %s: peft_type=%q is not LORA", path, raw.Type)
	}
	for _, name := range slices.Sorted(maps.Keys(unknownOptions)) {
		if value, ok := options[name]; ok && !slices.Contains(unknownOptions[name], string(value)) {
			return nil, fmt.Errorf("lm: %s: %s=%s is not known, only %s", path, name, text.Short(string(value), 40), strings.Join(unknownOptions[name], " or "))
		}
	}
	l := &LoRA{Rank: raw.Rank, Alpha: raw.Alpha}
	if raw.Root {
		l.Alpha *= math.Sqrt(float64(raw.Rank))
	}
	if err := l.Check(c); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	path = filepath.Join(dir, adapterWeights)
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, fmt.Errorf("lm: %w", err)
	}
	defer f.Close()
	if err := l.read(f, c); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

// read reads Targets and Weights.
func (l *LoRA) read(f *safetensors.File, c *Config) error {
	known, values := map[string]Param{}, tensors{}
	for _, p := range l.Params(c) {
		known[p.Name] = p
	}
	for _, t := range f.Tensors() {
		p, ok := known[t.Name]
		if !ok {
			return fmt.Errorf("lm: tensor %q is lora_A or lora_B of no product of %s with num_hidden_layers=%d", t.Name, c.Architecture, c.Layers)
		}
		if !slices.Equal(t.Shape, p.Shape) {
			return fmt.Errorf("lm: tensor %q has shape %v, want %v", t.Name, t.Shape, p.Shape)
		}
		var err error
		if values[t.Name], err = f.Float32s(t); err != nil {
			return err
		}
		if name := productOf(p); !slices.Contains(l.Targets, name) {
			l.Targets = append(l.Targets, name)
		}
	}
	l.Weights = values
	if len(l.Targets) == 0 || len(values) != len(l.Params(c)) {
		return fmt.Errorf("lm: %d tensors are not lora_A and lora_B of %d products", len(values), len(l.Targets))
	}
	return nil
}

// tensors are weights in memory, by name.
type tensors map[string][]float32

// Read is of Weights.
func (t tensors) Read(p Param, x []float32, first int) error {
	copy(x, t[p.Name][first:])
	return nil
}

// WriteAdapter writes an adapter of a model into a folder, which it makes, as PEFT does. W has its weights, as a
// Trainer does; base is the name or the folder of the model.
func (l *LoRA) WriteAdapter(dir, base string, c *Config, w Weights) error {
	params, targets := l.Params(c), slices.Clone(l.Targets)
	for _, p := range params {
		name := productOf(p)
		if target := name[strings.LastIndexByte(name, '.')+1:]; l.Targets == nil && !slices.Contains(targets, target) {
			targets = append(targets, target)
		}
	}
	config, err := json.MarshalIndent(rawAdapter{
		Type: "LORA", Rank: l.Rank, Alpha: l.Alpha, Task: "CAUSAL_LM", Base: base, Targets: targets, Dropout: l.Dropout, FanIn: c.GPT2(), Bias: "none", Inference: true,
	}, "", "  ")
	if err == nil {
		err = os.MkdirAll(dir, 0o777)
	}
	if err != nil {
		return fmt.Errorf("lm: %w", err)
	}
	if err := writeParams(filepath.Join(dir, adapterWeights), params, dtype.Float32, w); err != nil {
		return err
	}
	return files.Write(filepath.Join(dir, adapterConfig), config)
}

// Merge returns weights with the adapter of l.Weights added.
func (l *LoRA) Merge(c *Config, w Weights) (_ Weights, err error) {
	m := &merged{w, l, c.GPT2(), tensors{}}
	for _, p := range l.Params(c) {
		if m.matrices[p.Name], err = read(l.Weights, p); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// merged are weights with an adapter, of which it has the matrices.
type merged struct {
	Weights
	l          *LoRA
	transposed bool // weights are (in, out)
	matrices   tensors
}

// Read is of Weights.
func (m *merged) Read(p Param, x []float32, first int) error {
	if err := m.Weights.Read(p, x, first); err != nil {
		return err
	}
	name := strings.TrimSuffix(p.Name, ".weight")
	a, b := m.matrices[adapterName(name, "A")], m.matrices[adapterName(name, "B")]
	if a == nil {
		return nil
	}
	rank, width, scale := m.l.Rank, len(a)/m.l.Rank, float32(m.l.scale())
	parallel.Pieces(len(x), func(from, end int) {
		for i := from; i < end; i++ {
			out, in := (first+i)/p.Shape[1], (first+i)%p.Shape[1]
			if m.transposed {
				out, in = in, out
			}
			sum := float32(0)
			for r := range rank {
				sum += b[out*rank+r] * a[r*width+in]
			}
			x[i] += scale * sum
		}
	})
	return nil
}
