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

// The files of an adapter are those of the library PEFT.
const (
	adapterConfig  = "adapter_config.json"
	adapterWeights = "adapter_model.safetensors"
)

// rawLoRA is what is read of adapter_config.json.
type rawLoRA struct {
	Type  string  `json:"peft_type"`
	Rank  int     `json:"r"`
	Alpha float64 `json:"lora_alpha"`
	Root  bool    `json:"use_rslora"`
}

// rawAdapter is what is written. PEFT has a default for other fields.
type rawAdapter struct {
	rawLoRA
	Task      string   `json:"task_type"`
	Base      string   `json:"base_model_name_or_path"`
	Targets   []string `json:"target_modules"`
	Dropout   float64  `json:"lora_dropout"`
	FanIn     bool     `json:"fan_in_fan_out"`
	Bias      string   `json:"bias"`
	Inference bool     `json:"inference_mode"`
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
	var raw rawLoRA
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
		if name, ok := strings.CutSuffix(t.Name, ".lora_A.weight"); ok {
			l.Targets = append(l.Targets, strings.TrimPrefix(name, adapterPrefix))
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
func (x tensors) Read(p Param, t dtype.DType, b []byte, first int64) error {
	return encode(p.Name, t, b, x[p.Name][first:][:len(b)/t.Size()], first)
}

// WriteAdapter writes an adapter of a model into a folder, which it makes, as PEFT does. W has its weights, as a
// Trainer does; base is the name or the folder of the model.
func (l *LoRA) WriteAdapter(dir, base string, c *Config, w Weights) error {
	raw := rawAdapter{rawLoRA: rawLoRA{Type: "LORA", Rank: l.Rank, Alpha: l.Alpha}, Task: "CAUSAL_LM", Base: base, Targets: l.Targets, Dropout: l.Dropout, FanIn: c.GPT2(), Bias: "none", Inference: true}
	params := l.Params(c)
	for _, p := range params {
		name := strings.TrimSuffix(p.Name, ".lora_A.weight")
		if target := name[strings.LastIndexByte(name, '.')+1:]; l.Targets == nil && name != p.Name && !slices.Contains(raw.Targets, target) {
			raw.Targets = append(raw.Targets, target)
		}
	}
	config, err := json.MarshalIndent(raw, "", "  ")
	if err == nil {
		err = os.MkdirAll(dir, 0o777)
	}
	if err != nil {
		return fmt.Errorf("lm: %w", err)
	}
	if err := writeShard(filepath.Join(dir, adapterWeights), params, dtype.Float32, w); err != nil {
		return err
	}
	return files.Write(filepath.Join(dir, adapterConfig), config)
}

// Merge returns weights with the adapter of l.Weights added, in float32, before they become those of another
// format.
func (l *LoRA) Merge(c *Config, w Weights) (Weights, error) {
	m := &merged{w: w, scale: float32(l.scale()), rank: l.Rank, left: tensors{}, right: tensors{}}
	for pair := range slices.Chunk(l.Params(c), 2) {
		a, err := float32s(l.Weights, pair[0], 0, pair[0].elements())
		if err != nil {
			return nil, err
		}
		b, err := float32s(l.Weights, pair[1], 0, pair[1].elements())
		if err != nil {
			return nil, err
		}
		if c.GPT2() {
			a, b = transpose(b, pair[1].Shape), transpose(a, pair[0].Shape)
		}
		name := strings.TrimSuffix(strings.TrimPrefix(pair[0].Name, adapterPrefix), ".lora_A.weight") + ".weight"
		m.left[name], m.right[name] = b, a
	}
	return m, nil
}

// transpose returns a matrix with its axes exchanged.
func transpose(x []float32, shape []int) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		y[i%shape[1]*shape[0]+i/shape[1]] = v
	}
	return y
}

// merged are weights w + scale * left * right, left (rows, rank) and right (rank, cols) as w is in the file.
type merged struct {
	w           Weights
	scale       float32
	rank        int
	left, right tensors
}

// Read is of Weights.
func (m *merged) Read(x Param, t dtype.DType, p []byte, first int64) error {
	left, right := m.left[x.Name], m.right[x.Name]
	if left == nil {
		return m.w.Read(x, t, p, first)
	}
	n, cols := len(p)/t.Size(), x.Shape[1]
	values, err := float32s(m.w, x, first, int64(n))
	if err != nil {
		return err
	}
	parallel.Pieces(n, func(from, to int) {
		sum := make([]float32, cols)
		for at, end := int(first)+from, int(first)+to; at < end; {
			row, col := at/cols, at%cols
			part := sum[:min(cols-col, end-at)]
			clear(part)
			for r, l := range left[row*m.rank:][:m.rank] {
				for i, v := range right[r*cols+col:][:len(part)] {
					part[i] += l * v
				}
			}
			for i, v := range part {
				values[at-int(first)+i] += m.scale * v
			}
			at += len(part)
		}
	})
	return encode(x.Name, t, p, values, first)
}
