package tnp

import (
	"fmt"
	"strings"

	"github.com/flashvk/flashvk/internal/enum"
	"github.com/flashvk/flashvk/pipelines/mlp"
)

// A Config holds the sizes of a model.
type Config struct {
	Layers     int // blocks
	Heads      int // of attention
	HeadDim    int // a multiple of 8, at most 256
	DModel     int // elements of a row of the residual stream, a multiple of 8
	DFF        int // hidden units of a perceptron, and of each head of the mixture
	Components int // of the mixture
	InputDim   int // elements of a token: x, of one or more, then y, then the flag
}

// Default returns the sizes of the model that is used to measure training: 36,400,118 parameters.
func Default() Config {
	return Config{Layers: 12, Heads: 8, HeadDim: 64, DModel: 512, DFF: 1365, Components: 10, InputDim: 3}
}

// rowMultiple divides DModel: rows of 16-bit formats are multiples of 16 bytes.
const rowMultiple = 8

// Validate returns an error that names the first size that breaks a rule.
func (c Config) Validate() error {
	for _, f := range []struct {
		name           string
		n, least, most int
		multiple       int
	}{
		{"layers", c.Layers, 1, 1024, 1},
		{"heads", c.Heads, 1, 1024, 1},
		{"head_dim", c.HeadDim, 8, 256, 8},
		{"d_model", c.DModel, rowMultiple, 1 << 16, rowMultiple},
		{"d_ff", c.DFF, 1, 1 << 18, 1},
		{"components", c.Components, 1, 1024, 1},
		{"input_dim", c.InputDim, 3, 1 << 16, 1},
	} {
		switch {
		case f.n < f.least || f.n > f.most:
			return fmt.Errorf("tnp: %s=%d is not from %d to %d", f.name, f.n, f.least, f.most)
		case f.n%f.multiple != 0:
			return fmt.Errorf("tnp: %s=%d is not a multiple of %d", f.name, f.n, f.multiple)
		}
	}
	return nil
}

// String names the sizes in a few words.
func (c Config) String() string {
	return fmt.Sprintf("%d layers of %d, %d heads of %d, d_ff %d, %d components", c.Layers, c.DModel, c.Heads, c.HeadDim, c.DFF, c.Components)
}

// inner returns the elements of all heads in a row.
func (c Config) inner() int { return c.Heads * c.HeadDim }

// A Shape holds the sizes of a batch of tasks.
type Shape struct {
	Batch   int // tasks
	Context int // points of each whose y the model sees
	Targets int // points of each whose y it predicts
}

// Validate returns an error that names the first size that is out of its range.
func (s Shape) Validate() error {
	for _, f := range []struct {
		name string
		n    int
	}{{"batch", s.Batch}, {"context", s.Context}, {"targets", s.Targets}} {
		if f.n < 1 || f.n > 1<<24 {
			return fmt.Errorf("tnp: %s=%d is not from 1 to %d", f.name, f.n, 1<<24)
		}
	}
	if float64(s.Batch)*float64(s.Context+s.Targets) > 1<<28 {
		return fmt.Errorf("tnp: batch=%d of context=%d and targets=%d is more than %d tokens", s.Batch, s.Context, s.Targets, 1<<28)
	}
	return nil
}

// Tokens returns the tokens of all tasks.
func (s Shape) Tokens() int { return s.Batch * (s.Context + s.Targets) }

// String names the sizes in a few words.
func (s Shape) String() string {
	return fmt.Sprintf("batch %d of context %d, targets %d", s.Batch, s.Context, s.Targets)
}

// A Preset is a named model and batch.
type Preset struct {
	Name string
	Config
	Shape
}

// Presets lists the presets: tiny, which a CPU trains, and the three that training is measured
// with.
func Presets() []Preset {
	return []Preset{
		{"tiny", Config{Layers: 2, Heads: 2, HeadDim: 16, DModel: 32, DFF: 64, Components: 3, InputDim: 3}, Shape{Batch: 8, Context: 16, Targets: 16}},
		{"small", Default(), Shape{Batch: 32, Context: 64, Targets: 500}},
		{"mid", Default(), Shape{Batch: 1, Context: 10000, Targets: 1000}},
		{"large", Default(), Shape{Batch: 1, Context: 200000, Targets: 5000}},
	}
}

// PresetOf returns the preset with that name.
func PresetOf(name string) (Preset, error) {
	var names []string
	for _, p := range Presets() {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Preset{}, fmt.Errorf("tnp: shape %q is not one of %s", name, strings.Join(names, ", "))
}

// StepFLOPs returns the operations of a training step as they are usually counted: products of
// all rows forward, twice that backward, and 3.5 times attention's forward pass. It counts what a
// plan leaves out (K and V of targets, context rows of the last block). It does not count what a
// plan computes again.
func (c Config) StepFLOPs(s Shape) float64 {
	d, inner, ff := float64(c.DModel), float64(c.inner()), float64(c.DFF)
	tokens, targets := float64(s.Tokens()), float64(s.Batch)*float64(s.Targets)
	block := 4*d*inner + 2*d*ff
	products := 2*tokens*(float64(c.Layers)*block+float64(c.InputDim)*d) + 2*targets*float64(c.Components)*ff*(d+3)
	attention := 4 * float64(c.Layers) * inner * tokens * float64(s.Context)
	return 3*products + 3.5*attention
}

// A Variant says how much of the model is one kernel, for comparisons. A variant that the device
// lacks is an error that wraps vk.ErrUnsupported.
//
//	          attention             perceptrons of blocks     heads and loss
//	Fastest   what is the fastest   likewise                  likewise
//	Unfused   S in memory           two products              outputs in memory, then gmm
//	Separate  one kernel            two products              outputs in memory, then gmm
//	Fused     one kernel            one kernel forward,       one kernel forward
//	                                whose hidden units are
//	                                computed again backward
type Variant uint8

// The variants.
const (
	Fastest Variant = iota
	Unfused
	Separate
	Fused
)

var variantNames = enum.Names[Variant]{"auto", "unfused", "separate", "fused"}

// String returns auto, unfused, separate or fused.
func (v Variant) String() string { return variantNames.Of(v) }

// ParseVariant accepts the names that String returns.
func ParseVariant(name string) (Variant, error) { return variantNames.Parse("tnp: variant", name) }

// mlp returns the options of that package.
func (o *PlanOptions) mlp() (opt mlp.Options) {
	switch o.Variant {
	case Unfused, Separate:
		opt.Fused = mlp.FusedOff
	case Fused:
		opt.Fused = mlp.FusedOn
	}
	return opt
}
