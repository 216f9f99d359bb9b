// Package quantize stores numbers as elements of 8 bits that share scales, in the formats of
// [dtype.Quant]:
//
//	amax  = max |x|                        of the numbers that share a scale
//	scale = round(amax / 127)              int8, q8_0; round(amax / 448) for e4m3
//	y     = round(x / scale)               ties to even; x is about y * scale
//
//	tensor  shape                        format
//	X       (batch, heads, rows, cols)   Problem.DType, any strides, last axis contiguous
//	Y       (batch, heads, rows, cols)   Int8 or E4M3, likewise
//	Scale   Problem.ScaleShape           float32, for q8_0 float16, contiguous
//
// A scale belongs to Problem.Block rows of a head, to a head, to all (Problem.Whole), or in q8_0 to
// 32 elements of a row. A matrix has one head.
//
// The same call on the same device gives the same bits.
//
// Several goroutines may call the functions; a vk.Cmd belongs to one of them.
package quantize

import (
	"cmp"
	"fmt"
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Tensors are what Forward reads and writes.
type Tensors struct {
	X     vk.Tensor
	Y     vk.Tensor // written
	Scale vk.Tensor // written
}

// Options modify a call. The zero value is the default.
type Options struct {
	// Workspace is memory, at least as many bytes as the function Workspace says. Its content is
	// lost. Calls that share it run one after the other. Nil takes memory of the Cmd.
	Workspace *vk.Buffer
}

// A Problem holds the sizes and formats of a call.
type Problem struct {
	Batch, Heads, Rows, Cols int

	DType dtype.DType // of X
	Quant dtype.Quant
	Block int  // rows of a head that share a scale: 1 of each row, Rows or more of each head; not of q8_0
	Whole bool // one scale for all, instead of Block; not of q8_0
}

// Validate returns an error that names the first field that is out of its range.
func (p Problem) Validate() error {
	most := float64(math.MaxUint32)
	for _, x := range []struct {
		name string
		size int
	}{{"batch", p.Batch}, {"heads", p.Heads}, {"rows", p.Rows}, {"cols", p.Cols}} {
		if x.size <= 0 {
			return fmt.Errorf("quantize: %s=%d is not positive", x.name, x.size)
		}
		if most /= float64(x.size); most < 1 {
			return fmt.Errorf("quantize: batch=%d by heads=%d by rows=%d by cols=%d are more than %d elements", p.Batch, p.Heads, p.Rows, p.Cols, uint32(math.MaxUint32))
		}
	}
	switch {
	case !p.DType.Float():
		return fmt.Errorf("quantize: dtype=%v is not one of float32, float16, bfloat16", p.DType)
	case !p.Quant.Valid():
		return fmt.Errorf("quantize: quant=%v is not one of int8, q8_0, e4m3", p.Quant)
	case p.Quant.Block() > 0 && (p.Block != 0 || p.Whole):
		return fmt.Errorf("quantize: %v has a scale for %d elements of a row, and no other block", p.Quant, p.Quant.Block())
	case p.Quant.Block() > 0 && p.Cols%p.Quant.Block() != 0:
		return fmt.Errorf("quantize: cols=%d is not a multiple of %d, a block of %v", p.Cols, p.Quant.Block(), p.Quant)
	case p.Whole && p.Block != 0:
		return fmt.Errorf("quantize: block=%d is of rows, but whole has one scale", p.Block)
	case p.Quant.Block() == 0 && !p.Whole && p.Block <= 0:
		return fmt.Errorf("quantize: block=%d is not positive", p.Block)
	}
	return nil
}

// A unit is what shares a scale: rows by cols elements of a group of rows, a head or all.
type unit struct{ group, rows, cols int }

func (p *Problem) unit() unit {
	switch n := p.Quant.Block(); {
	case n > 0:
		return unit{p.Rows, 1, n}
	case p.Whole:
		n := p.Batch * p.Heads * p.Rows
		return unit{n, n, p.Cols}
	}
	return unit{p.Rows, min(p.Block, p.Rows), p.Cols}
}

// ScaleShape returns the shape of Scale: (1) for Whole, (batch, heads, rows, cols/32) for q8_0, else
// (batch, heads, rows/Block), rounded up.
func (p Problem) ScaleShape() []int {
	switch u := p.unit(); {
	case p.Whole:
		return []int{1}
	case p.Quant.Block() > 0:
		return []int{p.Batch, p.Heads, p.Rows, p.Cols / u.cols}
	default:
		return []int{p.Batch, p.Heads, ceil(p.Rows, u.rows)}
	}
}

func (p *Problem) scales() int {
	n := 1
	for _, size := range p.ScaleShape() {
		n *= size
	}
	return n
}

func ceil(n, by int) int { return (n + by - 1) / by }

// String names the problem as benchmarks do.
func (p Problem) String() string {
	block := fmt.Sprintf("block=%d", p.Block)
	if p.Whole {
		block = "whole=true"
	}
	return fmt.Sprintf("quant=%v/dtype=%v/batch=%d/heads=%d/rows=%d/cols=%d/%s", p.Quant, p.DType, p.Batch, p.Heads, p.Rows, p.Cols, block)
}

func (p *Problem) elements() float64 {
	return float64(p.Batch) * float64(p.Heads) * float64(p.Rows) * float64(p.Cols)
}

// Bytes returns the least traffic: x read, y and the scales written.
func (p Problem) Bytes() float64 {
	return p.elements()*float64(p.DType.Size()+1) + float64(p.scales()*p.Quant.ScaleDType().Size())
}

// FLOPs returns the operations: 3 of each element, a maximum, a product and a rounding.
func (p Problem) FLOPs() float64 { return 3 * p.elements() }

// A Plan says how a problem runs on a device. It is a kit.Plan.
type Plan struct {
	threads, team int // invocations of a workgroup, and of them those that share a unit
	loads         int // vectors of 16 bytes that an invocation keeps in registers; 0: x is read twice
	parts         int // of a unit, each for a workgroup, if there are more than 1
	bytes         int64
}

// String names the choices in a few words.
func (p Plan) String() string {
	if p.parts > 1 {
		return fmt.Sprintf("%d parts", p.parts)
	}
	return fmt.Sprintf("%d invocations a scale", p.team)
}

// Workspace is how many bytes of memory a call needs: 4 for each part of what shares a scale.
func (p Plan) Workspace() int64 { return p.bytes }

// Kernels lists the modules that run, in order.
func (Plan) Kernels() []string { return []string{"quantize"} }

const (
	// threads are the invocations of a workgroup that has a unit, or a part of one, at most;
	// leastThreads the invocations of a workgroup of smaller teams.
	threads, leastThreads = 256, 128
	// maxLoads is MAX_LOADS of the shader.
	maxLoads = 4
	// partVecs is how many vectors a workgroup has of a unit that is shared: fewer than a unit has
	// that a workgroup reads twice itself. A unit has at most maxParts parts.
	partVecs, maxParts = maxLoads * threads, 1024
)

// Choose returns how p would run on a device. Errors about p are as in Forward. There is no
// backward pass.
func Choose(caps *vk.Caps, p Problem, pass kit.Pass, _ Options) (Plan, error) {
	limit := int(min(caps.MaxWorkgroupInvocations, caps.MaxWorkgroupSize[0], caps.MaxSharedMemoryBytes/4, threads))
	switch err := cmp.Or(p.Validate(), argument.Pass("quantize", pass), argument.Storage("quantize", caps, p.DType, p.Quant.ScaleDType())); {
	case err != nil:
		return Plan{}, err
	case pass == kit.Backward:
		return Plan{}, argument.Unsupported("quantize", "there is no backward pass")
	case !caps.Storage8:
		return Plan{}, argument.Unsupported("quantize", "the device has no 8-bit storage")
	case limit < leastThreads:
		return Plan{}, argument.Unsupported("quantize", "the device has workgroups of %d invocations, want %d", limit, leastThreads)
	}
	u := p.unit()
	vecs := u.rows * ceil(u.cols, vec(&p))
	plan := Plan{threads: leastThreads, team: 1, parts: 1}
	if vecs > 4*partVecs {
		plan.parts = min(ceil(vecs, partVecs), maxParts)
		plan.bytes = 4 * int64(plan.parts) * int64(p.scales())
	}
	for plan.team < vecs && 2*plan.team <= limit {
		plan.team *= 2
	}
	plan.threads = max(plan.threads, plan.team)
	if plan.loads = ceil(vecs, plan.team); plan.loads > maxLoads {
		plan.loads = 0
	}
	return plan, nil
}

// vec returns the elements of x in 16 bytes.
func vec(p *Problem) int { return 16 / p.DType.Size() }

// Supports returns nil if the device can compute p, and otherwise an error: one of
// Problem.Validate, or one that wraps vk.ErrUnsupported and says why not.
func Supports(caps *vk.Caps, p Problem, pass kit.Pass, o Options) error {
	_, err := Choose(caps, p, pass, o)
	return err
}

// Workspace returns how many bytes Options.Workspace must have, with the errors of Choose.
func Workspace(caps *vk.Caps, p Problem, pass kit.Pass, o Options) (int64, error) {
	plan, err := Choose(caps, p, pass, o)
	return plan.bytes, err
}

// Forward stores x in the format p.Quant, in one pass over memory:
//
//	amax  = max |x|                of the numbers that share a scale
//	scale = round(amax / 127)      int8; to float16, at most 515.5, for q8_0; round(amax / 448) for e4m3
//	y     = round(x / scale)       ties to even, at most 127 or 448; 0 for a scale of 0
//
// X and Y are (batch, heads, rows, cols) of p.DType and p.Quant.Element, with any strides and a
// contiguous last axis. Offsets and strides that are multiples of 16 bytes of x, and of as many
// elements of y, are fastest. Scale has p.ScaleShape, p.Quant.ScaleDType, and is contiguous.
//
// The scale is the nearest number of its format. The quotient x / scale is a product with the
// inverse of the scale in float32, off by 2^-21 of itself at most; where that decides between two
// elements, y is either. It is exact where the scale is a power of two.
//
// Numbers that are all 0, or below 2^-100, have a scale of 0 and elements of 0. A NaN does not count
// in amax; it stays NaN in e4m3, and becomes 0 in int8 and q8_0. An infinity counts in amax as the
// largest float32, 3.4e38, and becomes the largest element.
//
// Where more than 64 KiB of x share a scale, workgroups share them: one kernel computes the largest
// magnitude of each part, into Workspace bytes of memory, and a second one the rest.
//
// Forward records into c and returns; outputs are valid once c has completed, and have memory of
// their own. It returns an error that wraps vk.ErrUnsupported if the device cannot do it, and an
// error naming the tensor if one does not fit p.
func Forward(c *vk.Cmd, t Tensors, p Problem, o Options) (err error) {
	defer c.Keep(&err)
	defer c.Scope()()
	d := c.Device()
	plan, err := Choose(d.Caps(), p, kit.Forward, o)
	if err != nil {
		return err
	}
	x, y, scale, shape := t.X, t.Y, t.Scale, []int{p.Batch, p.Heads, p.Rows, p.Cols}
	inputs := []argument.Argument{argument.New("x", x, true, p.DType, shape)}
	outputs := []argument.Argument{
		argument.New("y", y, true, p.Quant.Element(), shape),
		argument.New("scale", scale, true, p.Quant.ScaleDType(), p.ScaleShape()),
	}
	memory, err := argument.Open(c, "quantize", o.Workspace, plan.bytes, inputs, outputs)
	if err != nil {
		return err
	}
	if !scale.Contiguous() {
		return fmt.Errorf("quantize: scale has strides %v for shape %v: it is not contiguous", scale.Strides, scale.Shape)
	}
	vk.Narrow(&x, &y, &scale)
	parts := scale // a binding must hold something
	if memory != nil {
		parts = vk.View(memory, dtype.Float32, int(plan.bytes/4)).Narrow()
	}
	u := p.unit()
	par := params{
		Units: uint32(p.scales()), Parts: uint32(plan.parts), Heads: uint32(p.Heads), Rows: uint32(p.Rows), Cols: uint32(p.Cols),
		GroupRows: uint32(u.group), BlockRows: uint32(u.rows), BlockCols: uint32(u.cols),
		X: argument.PlaceOf(x), Y: argument.PlaceOf(y), ScaleOffset: uint32(scale.Offset),
	}
	s := spec{
		WorkgroupSize: uint32(plan.threads), Team: uint32(plan.team), Loads: uint32(plan.loads), Format: uint32(p.Quant),
		Aligned: argument.Aligned(vec(&p), x, y),
	}
	groups := chips.Groups(d.Caps(), p.scales()*plan.parts, plan.threads/plan.team)
	steps := []uint32{whole}
	if plan.parts > 1 {
		steps = []uint32{amax, cast}
	}
	for _, s.Step = range steps {
		k := chips.Kernel[params](c, "quantize", p.DType.Short(), s, vk.KernelOptions{})
		c.Note(func() vk.Note {
			return vk.Note{Text: p.String(), FLOPs: p.FLOPs(), Bytes: vk.Traffic(x, y, scale)}
		})
		k.Dispatch(c, groups, par, x, y, scale, parts)
	}
	return c.Err()
}

// Values of STEP: all, or the largest magnitudes of parts, and the rest.
const (
	whole = iota
	amax
	cast
)

// params is the push-constant block of quantize.comp.
type params struct {
	Units       uint32         `glsl:"units"`
	Parts       uint32         `glsl:"parts"`
	Heads       uint32         `glsl:"heads"`
	Rows        uint32         `glsl:"rows"`
	Cols        uint32         `glsl:"cols"`
	GroupRows   uint32         `glsl:"group_rows"`
	BlockRows   uint32         `glsl:"block_rows"`
	BlockCols   uint32         `glsl:"block_cols"`
	X           argument.Place `glsl:"x"`
	Y           argument.Place `glsl:"y"`
	ScaleOffset uint32         `glsl:"scale_offset"`
}

// spec is the specialization of quantize.comp.
type spec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	Team          uint32 `glsl:"TEAM"`
	Loads         uint32 `glsl:"LOADS"`
	Format        uint32 `glsl:"FORMAT"`
	Step          uint32 `glsl:"STEP"`
	Aligned       bool   `glsl:"ALIGNED"`
}
