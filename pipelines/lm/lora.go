package lm

import (
	"fmt"
	"math"
	"strings"

	"github.com/flashvk/flashvk/dtype"
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
	for _, target := range l.Targets {
		one := LoRA{Rank: l.Rank, Targets: []string{target}}
		if len(one.Params(c)) == 0 {
			return fmt.Errorf("lm: target %q is no product of %s", target, c.Architecture)
		}
	}
	return nil
}

// Params returns the parameters of the adapter, in the order of the layers: A before B of each product. It
// may be called on nil.
func (l *LoRA) Params(c *Config) (list []Param) {
	for _, p := range c.Params() {
		name, ok := strings.CutSuffix(p.Name, ".weight")
		if !ok || len(p.Shape) != 2 || !strings.HasPrefix(name, strings.TrimSuffix(c.layer(0, ""), "0.")) || !l.adapts(name) {
			continue
		}
		out, in := p.Shape[0], p.Shape[1]
		if c.GPT2() {
			out, in = in, out
		}
		list = append(list, Param{adapterName(name, "A"), []int{l.Rank, in}}, Param{adapterName(name, "B"), []int{out, l.Rank}})
	}
	return list
}

// adapts reports whether the product of a name is adapted.
func (l *LoRA) adapts(name string) bool {
	if l == nil || l.Targets == nil {
		return l != nil
	}
	for _, target := range l.Targets {
		if name == target || strings.HasSuffix(name, "."+target) {
			return true
		}
	}
	return false
}

// scale is what the product of the adapter is multiplied by.
func (l *LoRA) scale() float64 { return l.Alpha / float64(l.Rank) }

// adapterPrefix begins the names of an adapter's parameters.
const adapterPrefix = "base_model.model."

func adapterName(product, matrix string) string {
	return adapterPrefix + product + ".lora_" + matrix + ".weight"
}

// weights returns the weights of a model with its adapter. Seed is for what a training begins with.
func (l *LoRA) weights(base Weights, seed uint64) Weights {
	if l == nil {
		return base
	}
	if l.Weights == nil {
		return adapted{base, Random{seed}}
	}
	return adapted{base, l.Weights}
}

type adapted struct{ base, adapter Weights }

func (a adapted) Read(x Param, t dtype.DType, p []byte, first int64) error {
	if strings.HasPrefix(x.Name, adapterPrefix) {
		return a.adapter.Read(x, t, p, first)
	}
	return a.base.Read(x, t, p, first)
}
