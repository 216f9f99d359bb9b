// Package tnp is a transformer neural process, with its loss, its gradients and its training
// step. The model sees points of a function, the context, and predicts the distribution of the
// function at other points, the targets.
//
//	token   = (x, y, 1) of the context, (x, 0, -1) of a target: package gp
//	h       = token * embedᵀ
//	h       = h + attention(LayerNorm(h)) * outᵀ                   for every block: targets and context
//	h       = h + silu(LayerNorm(h) * upᵀ) * downᵀ                 see the context, none sees a target
//	heads   = silu(LayerNorm(h) * heads.up[k]) * heads.down[k]     of targets: logit, mu, log sigma
//	log_p   = logsumexp over k of log_softmax(logit)[k] - ((y - mu[k]) / sigma[k])² / 2 - log sigma[k] - log(2π) / 2
//	loss    = -mean(log_p)
//
// There is no bias, no dropout, no mask and no encoding of positions, so the order of points does
// not matter. Norms have a weight only.
//
//	tensor  shape                                format
//	X       (batch, context+targets, input_dim)  the model's
//	Y       (batch, targets)                     float32
//
// Config has the sizes of the model, Shape the sizes of a batch, and Presets both under a name.
// Params lists the parameters with the names of a PyTorch state dict. Init makes the first
// weights. Load and Save read and write them as safetensors.
//
// It is the TNP-D of Nguyen and Grover, Transformer Neural Processes (arXiv:2207.04179), with a
// mixture for each target.
package tnp

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/enum"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/pipelines/train"
)

// NormEps is what LayerNorm adds to the variance.
const NormEps = 1e-5

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

// Params lists the parameters, in the order of the forward pass:
//
//	embed.weight           (d_model, input_dim)
//	blocks.N.norm1.weight  (d_model)
//	blocks.N.qkv.weight    (3*heads*head_dim, d_model): rows of q, then k, then v, head after head
//	blocks.N.out.weight    (d_model, heads*head_dim)
//	blocks.N.norm2.weight  (d_model)
//	blocks.N.up.weight     (d_ff, d_model)
//	blocks.N.down.weight   (d_model, d_ff)
//	norm.weight            (d_model)
//	heads.up               (components, d_model, d_ff)
//	heads.down             (components, d_ff, 3): logit, mu, log sigma
//
// Shapes are those of a PyTorch state dict, where a linear layer is (out, in). On the device linear layers are
// transposed, (in, out), so that a product is x * w. Sizes that are no multiples of 8 are padded with zeros, so that
// all rows are multiples of 16 bytes:
//
//	file                         device
//	embed.weight  (512, 3)       (8, 512)          of rows x of zeros, too
//	up.weight     (1365, 512)    (512, 1368)
//	down.weight   (512, 1365)    (1368, 512)
//	heads.up      (10, 512, 1365)  (10, 512, 1368)
//	heads.down    (10, 1365, 3)    (10, 1368, 3)
//
// The zeros stay. A hidden unit without weights is silu(0) = 0, the gradients of its weights are
// 0, and so are their moments and their updates. Ops read matrices in format, and the weights of norms,
// which have no weight decay, in float32.
func (c Config) Params(format dtype.DType) []train.Param {
	linear := func(name string, out, in int) train.Param {
		rows, cols := padded(in), padded(out)
		return train.Param{Name: name, Shape: []int{out, in}, DType: format, Device: []int{rows, cols},
			At: func(i int) int { return i%in*cols + i/in }}
	}
	norm := func(name string) train.Param {
		return train.Param{Name: name, Shape: []int{c.DModel}, NoDecay: true}
	}
	head := func(name string, in, out, cols int) train.Param {
		rows := padded(in)
		return train.Param{Name: name, Shape: []int{c.Components, in, out}, DType: format, Device: []int{c.Components, rows, cols},
			At: func(i int) int { return (i/out/in*rows+i/out%in)*cols + i%out }}
	}
	list := []train.Param{linear("embed.weight", c.DModel, c.InputDim)}
	for i := range c.Layers {
		list = append(list,
			norm(BlockName(i, "norm1.weight")),
			linear(BlockName(i, "qkv.weight"), 3*c.inner(), c.DModel),
			linear(BlockName(i, "out.weight"), c.DModel, c.inner()),
			norm(BlockName(i, "norm2.weight")),
			linear(BlockName(i, "up.weight"), c.DFF, c.DModel),
			linear(BlockName(i, "down.weight"), c.DModel, c.DFF))
	}
	return append(list, norm("norm.weight"), head("heads.up", c.DModel, c.DFF, c.ff()), head("heads.down", c.DFF, 3, 3))
}

// BlockName returns the name of a parameter of block i.
func BlockName(i int, name string) string { return fmt.Sprintf("blocks.%d.%s", i, name) }

// NumParams returns the number of weights.
func (c Config) NumParams() int {
	n := 0
	for _, p := range c.Params(dtype.Float32) {
		n += p.Size()
	}
	return n
}

// Weights holds the values of parameters by name, row-major: see Config.Params.
type Weights map[string][]float32

// Init returns the weights that a training begins with. Weights of linear layers are uniform in
// ±1/√in, the default of PyTorch. Weights of the heads are normal with deviation 1/√in. Weights of
// norms are 1. The same seed gives the same weights.
func Init(c Config, seed uint64) (Weights, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	w := Weights{}
	for i, p := range c.Params(dtype.Float32) {
		rng := rand.New(rand.NewPCG(seed, uint64(i))) // one for each, so that sizes of others do not matter
		x := make([]float32, p.Size())
		for j := range x {
			switch len(p.Shape) {
			case 1: // of a norm
				x[j] = 1
			case 2: // of a linear layer
				x[j] = float32((2*rng.Float64() - 1) / math.Sqrt(float64(p.Shape[1])))
			default: // of heads
				x[j] = float32(rng.NormFloat64() / math.Sqrt(float64(p.Shape[1])))
			}
		}
		w[p.Name] = x
	}
	return w, nil
}

// padded returns n rounded up to a multiple of 8.
func padded(n int) int { return (n + rowMultiple - 1) &^ (rowMultiple - 1) }

// ff and input are the numbers of hidden units and of elements of a token on the device.
func (c Config) ff() int    { return padded(c.DFF) }
func (c Config) input() int { return padded(c.InputDim) }
