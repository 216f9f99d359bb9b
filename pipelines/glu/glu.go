// Package glu computes gated linear units, the middle of the perceptrons of Llama and its like:
//
//	y[r,c] = a(g[r,c]) * u[r,c]
//
//	a(x)
//	silu       x / (1 + exp(-x))
//	gelu       x * (1 + erf(x / √2)) / 2
//	gelu-tanh  x * (1 + tanh(√(2/π) * (x + 0.044715 x³))) / 2
//
// and its gradients by g and by u in one pass:
//
//	dg[r,c] = dy[r,c] * a'(g[r,c]) * u[r,c]
//	du[r,c] = dy[r,c] * a(g[r,c])
//
//	tensor                shape         format
//	G, U, Y, DY, DG, DU   (rows, cols)  Problem.DType, any row stride
//
// The last axis is contiguous. Offsets and strides that are multiples of 16 bytes are fastest. A
// product with the weights of g and u beside each other writes both as one tensor x (rows, 2 * cols):
// G is x.Slice(1, 0, cols) and U is x.Slice(1, cols, 2*cols). DG and DU may likewise be parts of one
// tensor.
//
// Arithmetic is float32, and results are rounded once. A result that the format cannot hold is the
// infinity that it rounds to. With finite inputs nothing is NaN.
//
// The same call on the same device gives the same bits. Several goroutines may call the functions. A
// vk.Cmd belongs to one of them.
//
// Source: Shazeer, GLU Variants Improve Transformer, 2020 (arXiv:2002.05202): SwiGLU is silu, GEGLU is
// gelu. Gelu-tanh is the approximation of Hendrycks and Gimpel (arXiv:1606.08415).
package glu

import (
	"cmp"
	"fmt"
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/enum"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// An Activation is the function of the gate.
type Activation uint8

// The activations.
const (
	SiLU     Activation = iota // x / (1 + exp(-x))
	GELU                       // x * (1 + erf(x / √2)) / 2
	GELUTanh                   // x * (1 + tanh(√(2/π) * (x + 0.044715 x³))) / 2
)

var activationNames = enum.Names[Activation]{SiLU: "silu", GELU: "gelu", GELUTanh: "gelu-tanh"}

// String returns the name that flags have.
func (a Activation) String() string { return activationNames.Of(a) }

// ParseActivation accepts the names that String returns.
func ParseActivation(name string) (Activation, error) {
	return activationNames.Parse("glu: activation", name)
}

// flops are the operations of an element, a function being one: forward, backward.
var flops = [...][2]float64{SiLU: {5, 9}, GELU: {6, 11}, GELUTanh: {10, 18}}

// A Problem holds the sizes, the format and the activation of a call.
type Problem struct {
	Rows, Cols int // of g and of u
	Activation Activation
	DType      dtype.DType // of all tensors
}

// Validate returns an error that names the first field that is out of its range.
func (p Problem) Validate() error {
	switch {
	case p.Rows <= 0:
		return fmt.Errorf("glu: rows=%d is not positive", p.Rows)
	case p.Cols <= 0:
		return fmt.Errorf("glu: cols=%d is not positive", p.Cols)
	case float64(p.Rows)*float64(p.Cols) > math.MaxUint32: // kernels count elements in 32 bits
		return fmt.Errorf("glu: rows=%d by cols=%d are more than %d elements", p.Rows, p.Cols, uint32(math.MaxUint32))
	case int(p.Activation) >= len(flops):
		return fmt.Errorf("glu: activation=%v is not one of %v", p.Activation, activationNames)
	case !p.DType.Float():
		return fmt.Errorf("glu: dtype=%v is not one of float32, float16, bfloat16", p.DType)
	}
	return nil
}

// String describes the problem in a few words.
func (p Problem) String() string {
	return fmt.Sprintf("%v, %v, %d rows of %d", p.Activation, p.DType, p.Rows, p.Cols)
}

// FLOPs returns the operations of the forward pass, as the formulas are written, an exponential, erf
// or tanh being one.
func (p Problem) FLOPs() float64 { return flops[p.Activation][0] * p.elements() }

// BackwardFLOPs returns the operations of the backward pass, counted in the same way.
func (p Problem) BackwardFLOPs() float64 { return flops[p.Activation][1] * p.elements() }

// Bytes returns the memory traffic of the forward pass: g and u are read, y is written.
func (p Problem) Bytes() float64 { return 3 * p.elements() * float64(p.DType.Size()) }

// BackwardBytes returns the memory traffic of the backward pass: g, u and dy are read, dg and du written.
func (p Problem) BackwardBytes() float64 { return 5 * p.elements() * float64(p.DType.Size()) }

func (p Problem) elements() float64 { return float64(p.Rows) * float64(p.Cols) }

// Tensors are what Forward reads and writes; Backward reads G and U.
type Tensors struct {
	G, U vk.Tensor
	Y    vk.Tensor // written
}

// Gradients are what Backward reads and writes: DY, the gradient of a loss by Y, is read.
type Gradients struct {
	DY     vk.Tensor
	DG, DU vk.Tensor // written
}

// Options modify a call. The zero value is the default.
type Options struct {
	Workspace *vk.Buffer // for the contract of package kit; no call needs one
}

// A Plan says how a problem runs on a device. It is a kit.Plan.
type Plan struct {
	pass kit.Pass
}

// String names the choices in a few words.
func (p Plan) String() string { return fmt.Sprintf("wg%d", threads) }

// Workspace is 0.
func (p Plan) Workspace() int64 { return 0 }

// Kernels lists the module that runs.
func (p Plan) Kernels() []string { return []string{kernels[p.pass]} }

var kernels = [...]string{kit.Forward: "glu_fwd", kit.Backward: "glu_bwd"}

// Choose returns how p would run on a device. Errors about p are as in Forward and Backward.
func Choose(caps *vk.Caps, p Problem, pass kit.Pass, _ Options) (Plan, error) {
	plan := Plan{pass}
	if err := cmp.Or(p.Validate(), argument.Pass("glu", pass)); err != nil {
		return plan, err
	}
	return plan, argument.Storage("glu", caps, p.DType)
}

// Supports returns nil if the device can compute p, and otherwise an error: one of
// Problem.Validate, or one that wraps vk.ErrUnsupported and says why not.
func Supports(caps *vk.Caps, p Problem, pass kit.Pass, o Options) error {
	_, err := Choose(caps, p, pass, o)
	return err
}

// Workspace returns 0: no call needs memory. Errors are as in Choose.
func Workspace(caps *vk.Caps, p Problem, pass kit.Pass, o Options) (int64, error) {
	return 0, Supports(caps, p, pass, o)
}

// Forward computes Y = a(G) * U.
//
// Forward records into c and returns; Y is valid once c has completed, and has memory of its own. It
// returns an error that wraps vk.ErrUnsupported if the device cannot do it, and an error naming the
// tensor if one does not fit p.
func Forward(c *vk.Cmd, t Tensors, p Problem, o Options) (err error) {
	defer c.Keep(&err)
	if err := Supports(c.Device().Caps(), p, kit.Forward, o); err != nil {
		return err
	}
	inputs := [...]argument.Argument{p.argument("g", t.G), p.argument("u", t.U)}
	outputs := [...]argument.Argument{p.argument("y", t.Y)}
	if err := argument.Check("glu", inputs[:], outputs[:]); err != nil {
		return err
	}
	g, u, y := t.G, t.U, t.Y
	vk.Narrow(&g, &u, &y)
	params := fwdParams{uint32(p.Rows), uint32(p.Cols), argument.RowsOf(g), argument.RowsOf(u), argument.RowsOf(y)}
	return dispatch(c, &p, kit.Forward, p.FLOPs(), params, g, u, y)
}

// Backward computes the gradients DG = DY * a'(G) * U and DU = DY * a(G), from what Forward read.
//
// Backward records into c and returns; gradients are valid once c has completed, and have memory of
// their own. Errors are as in Forward.
func Backward(c *vk.Cmd, t Tensors, g Gradients, p Problem, o Options) (err error) {
	defer c.Keep(&err)
	if err := Supports(c.Device().Caps(), p, kit.Backward, o); err != nil {
		return err
	}
	inputs := [...]argument.Argument{p.argument("g", t.G), p.argument("u", t.U), p.argument("dy", g.DY)}
	outputs := [...]argument.Argument{p.argument("dg", g.DG), p.argument("du", g.DU)}
	if err := argument.Check("glu", inputs[:], outputs[:]); err != nil {
		return err
	}
	x, u, dy, dg, du := t.G, t.U, g.DY, g.DG, g.DU
	vk.Narrow(&x, &u, &dy, &dg, &du)
	params := bwdParams{uint32(p.Rows), uint32(p.Cols), argument.RowsOf(x), argument.RowsOf(u), argument.RowsOf(dy), argument.RowsOf(dg), argument.RowsOf(du)}
	return dispatch(c, &p, kit.Backward, p.BackwardFLOPs(), params, x, u, dy, dg, du)
}

func (p *Problem) argument(name string, t vk.Tensor) argument.Argument {
	return argument.New(name, t, true, p.DType, []int{p.Rows, p.Cols})
}

const (
	threads  = 128 // of a workgroup: every device has as many
	vecBytes = 16  // of a vector of shaders/lib/vec16.glsl
)

// dispatch runs the kernel of a pass, with an invocation for each vector if the device has as many.
func dispatch[P any](c *vk.Cmd, p *Problem, pass kit.Pass, flops float64, params P, t ...vk.Tensor) error {
	vec := vecBytes / p.DType.Size()
	constants := spec{threads, uint32(p.Activation), argument.Aligned(vec, t...)}
	k := chips.Kernel[P](c, kernels[pass], p.DType.Short(), constants, vk.KernelOptions{})
	c.Note(func() vk.Note {
		return vk.Note{Text: fmt.Sprintf("%dx%d", p.Rows, p.Cols), FLOPs: flops, Bytes: vk.Traffic(t...)}
	})
	vectors := p.Rows * ((p.Cols + vec - 1) / vec)
	k.Dispatch(c, chips.Groups(c.Device().Caps(), vectors, threads), params, t...)
	return c.Err()
}

// fwdParams is the push-constant block of glu_fwd.comp.
type fwdParams struct {
	Rows uint32        `glsl:"rows"`
	Cols uint32        `glsl:"cols"`
	G    argument.Rows `glsl:"g"`
	U    argument.Rows `glsl:"u"`
	Y    argument.Rows `glsl:"y"`
}

// bwdParams is the push-constant block of glu_bwd.comp.
type bwdParams struct {
	Rows uint32        `glsl:"rows"`
	Cols uint32        `glsl:"cols"`
	G    argument.Rows `glsl:"g"`
	U    argument.Rows `glsl:"u"`
	DY   argument.Rows `glsl:"dy"`
	DG   argument.Rows `glsl:"dg"`
	DU   argument.Rows `glsl:"du"`
}

// spec is the specialization of both kernels. Activations have their numbers in lib/glu.glsl.
type spec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	Activation    uint32 `glsl:"ACTIVATION"`
	Aligned       bool   `glsl:"ALIGNED"`
}
