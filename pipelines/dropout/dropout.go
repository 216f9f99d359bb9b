// Package dropout drops elements of a matrix by chance, and scales the others:
//
//	y[r,c] = x[r,c] / (1-P)    if it is kept
//	         0                 else, with probability P
//
//	tensor  shape         format
//	X, Y    (rows, cols)  Problem.DType, any row stride
//	State   (3)           int32, contiguous: the two words of a seed, and a number
//
// The gradient by X is the same call with the gradient by Y for X: what was dropped has none.
//
// State, Stream and the place of an element alone decide whether it is kept: word c%4 of Philox-4x32-10 with the
// counter (c/4, r, Stream, number) under the seed is not less than P * 2^32, rounded. A recording that is replayed
// with another number drops others; streams tell its calls apart.
//
// Arithmetic is float32, and results are rounded once. What is dropped is 0 also if x is NaN or infinite. The same
// call gives the same bits. Several goroutines may call the functions; a vk.Cmd belongs to one of them.
//
// Source: Srivastava et al., Dropout, 2014.
package dropout

import (
	"cmp"
	"fmt"
	"math"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/philox"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A Problem holds the sizes, the format and the probability of a call.
type Problem struct {
	Rows, Cols int
	P          float64     // that an element is dropped, from 0 to less than 1
	Stream     int         // from 0 to 2^32-1
	DType      dtype.DType // of X and Y
}

// Validate returns an error that names the first field that is out of its range.
func (p Problem) Validate() error {
	switch {
	case p.Rows <= 0:
		return fmt.Errorf("dropout: rows=%d is not positive", p.Rows)
	case p.Cols <= 0:
		return fmt.Errorf("dropout: cols=%d is not positive", p.Cols)
	case p.elements() > math.MaxUint32: // kernels count elements in 32 bits
		return fmt.Errorf("dropout: rows=%d by cols=%d are more than %d elements", p.Rows, p.Cols, uint32(math.MaxUint32))
	case !(p.P >= 0 && p.P < 1):
		return fmt.Errorf("dropout: p=%g is not from 0 to less than 1", p.P)
	case p.Stream < 0 || int64(p.Stream) > math.MaxUint32:
		return fmt.Errorf("dropout: stream=%d is not from 0 to %d", p.Stream, uint32(math.MaxUint32))
	case !p.DType.Float():
		return fmt.Errorf("dropout: dtype=%v is not one of float32, float16, bfloat16", p.DType)
	}
	return nil
}

// String describes the problem in a few words.
func (p Problem) String() string {
	return fmt.Sprintf("%v, %d rows of %d, p %g", p.DType, p.Rows, p.Cols, p.P)
}

func (p *Problem) elements() float64 { return float64(p.Rows) * float64(p.Cols) }

// FLOPs returns the operations, a product for each element.
func (p Problem) FLOPs() float64 { return p.elements() }

// Bytes returns the memory traffic: x is read, y is written.
func (p Problem) Bytes() float64 { return 2 * p.elements() * float64(p.DType.Size()) }

// Kept reports whether an element is kept, with what State holds.
func (p Problem) Kept(state []int32, row, col int) bool {
	counter := [4]uint32{uint32(col / 4), uint32(row), uint32(p.Stream), uint32(state[2])}
	return philox.Words(counter, [2]uint32{uint32(state[0]), uint32(state[1])})[col%4] >= p.dropped().Threshold()
}

func (p *Problem) dropped() attention.Dropout { return attention.Dropout{P: p.P} }

// States returns what Tensors.State holds for a seed and a number.
func States(seed uint64, number uint32) []int32 {
	return []int32{int32(uint32(seed)), int32(seed >> 32), int32(number)}
}

// Tensors are what Forward reads and writes.
type Tensors struct {
	X, State vk.Tensor
	Y        vk.Tensor // written
}

// Options modify a call. The zero value is the default.
type Options struct {
	Workspace *vk.Buffer // for the contract of package kit; no call needs one
}

// A Plan says how a problem runs on a device. It is a kit.Plan.
type Plan struct{}

// String names the choices in a few words.
func (Plan) String() string { return fmt.Sprintf("wg%d", threads) }

// Workspace is 0.
func (Plan) Workspace() int64 { return 0 }

// Kernels lists the module that runs.
func (Plan) Kernels() []string { return []string{"dropout"} }

// Choose returns how p would run on a device. Errors about p are as in Forward. There is no backward pass of its own.
func Choose(caps *vk.Caps, p Problem, pass kit.Pass, _ Options) (Plan, error) {
	if pass == kit.Backward {
		return Plan{}, argument.Unsupported("dropout", "the backward pass is Forward of the gradient")
	}
	return Plan{}, cmp.Or(p.Validate(), argument.Pass("dropout", pass), argument.Storage("dropout", caps, p.DType))
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

const (
	threads  = 128 // of a workgroup: every device has as many
	vecBytes = 16  // of a vector of shaders/lib/vec16.glsl
)

// Forward computes Y from X, as the package documentation says.
//
// Forward records into c and returns; Y is valid once c has completed, and has memory of its own. It returns an
// error that wraps vk.ErrUnsupported if the device cannot do it, and an error naming the tensor if one does not fit p.
func Forward(c *vk.Cmd, t Tensors, p Problem, o Options) (err error) {
	defer c.Keep(&err)
	if err := Supports(c.Device().Caps(), p, kit.Forward, o); err != nil {
		return err
	}
	shape := []int{p.Rows, p.Cols}
	if err := argument.Check("dropout", []argument.Argument{
		argument.New("x", t.X, true, p.DType, shape), argument.New("state", t.State, true, dtype.Int32, []int{3}),
	}, []argument.Argument{argument.New("y", t.Y, true, p.DType, shape)}); err != nil {
		return err
	}
	vk.Narrow(&t.X, &t.State, &t.Y)
	vec := vecBytes / p.DType.Size()
	k := chips.Kernel[params](c, "dropout", p.DType.Short(), spec{threads, argument.Aligned(vec, t.X, t.Y)}, vk.KernelOptions{})
	c.Note(func() vk.Note { return vk.Note{Text: p.String(), FLOPs: p.FLOPs(), Bytes: p.Bytes()} })
	vectors := p.Rows * ((p.Cols + vec - 1) / vec)
	k.Dispatch(c, chips.Groups(c.Device().Caps(), vectors, threads), params{
		Rows: uint32(p.Rows), Cols: uint32(p.Cols), Stream: uint32(p.Stream), DropBelow: p.dropped().Threshold(), KeepScale: float32(p.dropped().KeepScale()),
		StateOffset: uint32(t.State.Offset),
		XOffset:     uint32(t.X.Offset), XStride: uint32(t.X.Strides[0]), YOffset: uint32(t.Y.Offset), YStride: uint32(t.Y.Strides[0]),
	}, t.X, t.State, t.Y)
	return c.Err()
}

// params is the push-constant block of dropout.comp.
type params struct {
	Rows        uint32  `glsl:"rows"`
	Cols        uint32  `glsl:"cols"`
	Stream      uint32  `glsl:"stream"`
	DropBelow   uint32  `glsl:"drop_below"`
	KeepScale   float32 `glsl:"keep_scale"`
	StateOffset uint32  `glsl:"state_offset"` // elements, like all that follow
	XOffset     uint32  `glsl:"x_offset"`
	XStride     uint32  `glsl:"x_stride"`
	YOffset     uint32  `glsl:"y_offset"`
	YStride     uint32  `glsl:"y_stride"`
}

// spec is the specialization of dropout.comp.
type spec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	Aligned       bool   `glsl:"ALIGNED"`
}
