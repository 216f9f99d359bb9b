// Package rope turns the pairs of rows of queries and keys by the rows' positions (rotary position
// embedding):
//
//	(x, y) = factor * (x cos a - y sin a, y cos a + x sin a)    a = position * frequency[i]
//
// Pair i is elements i and i + dims/2 of a row, as in Llama and GPT-NeoX, or with Problem.Interleaved
// elements 2i and 2i + 1, as in GPT-J. Elements from dims on are copied. The frequencies and the factor are
// those of [attention.Frequencies], with the scalings of Llama 3, YaRN and linear ones. The backward
// pass turns back, with the same factor.
//
//	tensor                  shape                              format
//	Q, QOut, DQOut, DQ      (batch, heads, seq, head_dim)      Problem.DType, any strides
//	K, KOut, DKOut, DK      (batch, kv_heads, seq, head_dim)   Problem.DType, any strides; none if kv_heads is 0
//	Positions               (batch, seq) or (seq)              int32, contiguous rows
//	Turns                   (dims)                             int32, what [Words] returns
//
// The last axis is contiguous; offsets and strides that are multiples of 16 bytes are fastest. Positions may
// be any int32 numbers, also negative: packed rows begin at 0 again where a sequence does. Positions of
// shape (seq) hold for every batch. With Problem.InPlace there are no QOut, KOut, DQOut and DKOut:
// Forward turns Q and K where they lie, and Backward DQ and DK, which hold the gradients by the turned rows.
//
// Frequencies have 64 bits, and a product with a position loses none: the cosine and the sine of what is
// left beyond whole turns are right to 2^-22 at every position. The rest is float32, rounded once.
//
// The same call on the same device gives the same bits. Several goroutines may call the functions. A
// vk.Cmd belongs to one of them. [attention.Append] turns new keys and their queries itself.
//
// Source: Su et al., RoFormer, 2021 (arXiv:2104.09864).
package rope

import (
	"cmp"
	"fmt"
	"math"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A Problem holds the sizes, the format and the frequencies of a call.
type Problem struct {
	Batch, Seq            int
	Heads, KVHeads        int // of Q and of K; without key heads there is no K
	HeadDim               int
	attention.Frequencies      // of the first Dims elements of a row
	Interleaved           bool // pair i is elements 2i and 2i + 1, else i and i + Dims/2
	InPlace               bool // rows are turned where they lie
	DType                 dtype.DType
}

// Validate returns an error that names the first field that is out of its range.
func (p Problem) Validate() error {
	switch {
	case p.Batch <= 0:
		return fmt.Errorf("rope: batch=%d is not positive", p.Batch)
	case p.Seq <= 0:
		return fmt.Errorf("rope: seq=%d is not positive", p.Seq)
	case p.Heads <= 0:
		return fmt.Errorf("rope: heads=%d is not positive", p.Heads)
	case p.KVHeads < 0:
		return fmt.Errorf("rope: kv_heads=%d is negative", p.KVHeads)
	case p.HeadDim <= 0:
		return fmt.Errorf("rope: head_dim=%d is not positive", p.HeadDim)
	case p.Dims > p.HeadDim:
		return fmt.Errorf("rope: dims=%d are more than head_dim=%d", p.Dims, p.HeadDim)
	case p.elements() > math.MaxUint32: // kernels count elements in 32 bits
		return fmt.Errorf("rope: q and k have %.0f elements, more than %d", p.elements(), uint32(math.MaxUint32))
	case !p.DType.Float():
		return fmt.Errorf("rope: dtype=%v is not one of float32, float16, bfloat16", p.DType)
	}
	return p.Frequencies.Validate()
}

// String describes the problem in a few words.
func (p Problem) String() string {
	s := fmt.Sprintf("%v, batch %d, %d positions, %d and %d heads, %d of %d elements", p.DType, p.Batch, p.Seq, p.Heads, p.KVHeads, p.Dims, p.HeadDim)
	if p.Interleaved {
		s += ", interleaved"
	}
	return s
}

// elements returns the elements of Q and K.
func (p *Problem) elements() float64 {
	return float64(p.Batch) * float64(p.Seq) * (float64(p.Heads) + float64(p.KVHeads)) * float64(p.HeadDim)
}

// FLOPs returns the operations of the rotation, three for each element; angles are not counted.
func (p Problem) FLOPs() float64 { return 3 * p.elements() / float64(p.HeadDim) * float64(p.Dims) }

// BackwardFLOPs returns the same.
func (p Problem) BackwardFLOPs() float64 { return p.FLOPs() }

// Bytes returns the memory traffic: Q and K are read and written, positions are read.
func (p Problem) Bytes() float64 {
	return 2*p.elements()*float64(p.DType.Size()) + 4*float64(p.Batch)*float64(p.Seq)
}

// BackwardBytes returns the same.
func (p Problem) BackwardBytes() float64 { return p.Bytes() }

// Tensors are what Forward reads and writes; Backward reads Positions and Turns.
type Tensors struct {
	Q, K, Positions, Turns vk.Tensor
	QOut, KOut             vk.Tensor // written; with InPlace Q and K are
}

// Gradients are what Backward reads and writes: DQOut and DKOut, the gradients of a loss by QOut and
// KOut, are read. With InPlace DQ and DK are, and written.
type Gradients struct {
	DQOut, DKOut vk.Tensor
	DQ, DK       vk.Tensor // written
}

// Words returns what Tensors.Turns holds: the low and the high word of each of f.Turns.
func Words(f attention.Frequencies) (words []int32) {
	for _, t := range f.Turns() {
		words = append(words, int32(uint32(t)), int32(t>>32))
	}
	return words
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
func (Plan) Kernels() []string { return []string{"rope"} }

// Choose returns how p would run on a device. Errors about p are as in Forward and Backward.
func Choose(caps *vk.Caps, p Problem, pass kit.Pass, _ Options) (Plan, error) {
	if err := cmp.Or(p.Validate(), argument.Pass("rope", pass)); err != nil {
		return Plan{}, err
	}
	return Plan{}, argument.Storage("rope", caps, p.DType)
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

// Forward turns Q and K by Positions, in one dispatch.
//
// Forward records into c and returns; the outputs are valid once c has completed, and have memory of
// their own. It returns an error that wraps vk.ErrUnsupported if the device cannot do it, and an error
// naming the tensor if one does not fit p.
func Forward(c *vk.Cmd, t Tensors, p Problem, o Options) (err error) {
	defer c.Keep(&err)
	names := [...]string{"q", "k", "q_out", "k_out"}
	return record(c, rows{names, [...]vk.Tensor{t.Q, t.K, t.QOut, t.KOut}, p.AttentionFactor()}, &t, &p, kit.Forward, o)
}

// Backward turns DQOut and DKOut back: DQ and DK are the gradients by Q and K. It has the errors
// of Forward.
func Backward(c *vk.Cmd, t Tensors, g Gradients, p Problem, o Options) (err error) {
	defer c.Keep(&err)
	names, from, to := [...]string{"dq_out", "dk_out", "dq", "dk"}, [2]vk.Tensor{g.DQOut, g.DKOut}, [2]vk.Tensor{g.DQ, g.DK}
	if p.InPlace {
		names = [...]string{"dq", "dk", "dq_out", "dk_out"}
		from, to = to, from
	}
	return record(c, rows{names, [...]vk.Tensor{from[0], from[1], to[0], to[1]}, -p.AttentionFactor()}, &t, &p, kit.Backward, o)
}

// rows are the tensors of a pass: queries and keys, and where they go. The sine has its factor.
type rows struct {
	names   [4]string
	tensors [4]vk.Tensor
	factor  float64
}

const (
	threads  = 128 // of a workgroup: every device has as many
	each     = 4   // heads of an invocation, HEADS in rope.comp
	vecBytes = 16  // of a vector of shaders/lib/vec16.glsl
)

// record records a pass.
func record(c *vk.Cmd, r rows, t *Tensors, p *Problem, pass kit.Pass, o Options) error {
	if err := Supports(c.Device().Caps(), *p, pass, o); err != nil {
		return err
	}
	if err := r.check(t, p); err != nil {
		return err
	}
	x, positions, turns := r.tensors, t.Positions, t.Turns
	vk.Narrow(&x[0], &x[1], &x[2], &x[3], &positions, &turns)
	spec := newSpec(p, x[:])
	k := chips.Kernel[params](c, "rope", p.DType.Short(), spec, vk.KernelOptions{})
	c.Note(func() vk.Note { return vk.Note{Text: p.String(), FLOPs: p.FLOPs(), Bytes: p.Bytes()} })
	args := params{
		Batch: uint32(p.Batch), Seq: uint32(p.Seq), Heads: uint32(p.Heads), KVHeads: uint32(p.KVHeads), Dim: uint32(p.HeadDim), Dims: uint32(p.Dims),
		CosFactor: float32(math.Abs(r.factor)), SinFactor: float32(r.factor), TurnsOffset: uint32(turns.Offset), PositionsOffset: uint32(positions.Offset),
		Q: argument.PlaceOf(x[0]), K: argument.PlaceOf(x[1]), QOut: argument.PlaceOf(x[2]), KOut: argument.PlaceOf(x[3]),
	}
	if len(positions.Shape) == 2 {
		args.PositionsStrideB = uint32(positions.Strides[0])
	}
	if !p.InPlace {
		args.Copies = uint32(groups(p.HeadDim-p.Dims, int(spec.Width)))
	}
	span := p.Dims
	if !p.Interleaved {
		span /= 2
	}
	items := p.Batch * p.Seq * groups(p.Heads+p.KVHeads, each) * (span/int(spec.Width) + int(args.Copies))
	k.Dispatch(c, chips.Groups(c.Device().Caps(), items, threads), args, x[0], x[1], positions, turns, x[2], x[3])
	return c.Err()
}

// groups returns how many groups of n hold all.
func groups(all, n int) int { return (all + n - 1) / n }

// check checks the tensors of a pass. It puts rows that are turned in place where outputs are, and
// queries where keys are that the problem does not have.
func (r *rows) check(t *Tensors, p *Problem) error {
	shape := []int{p.Batch, p.Seq}
	if len(t.Positions.Shape) == 1 {
		shape = shape[1:]
	}
	inputs := []argument.Argument{
		argument.New("positions", t.Positions, true, dtype.Int32, shape),
		argument.New("turns", t.Turns, true, dtype.Int32, []int{p.Dims}),
	}
	var outputs []argument.Argument
	for i, heads := range []int{p.Heads, p.KVHeads, p.Heads, p.KVHeads} {
		present := heads > 0 && (i < 2 || !p.InPlace)
		x := argument.New(r.names[i], r.tensors[i], present, p.DType, []int{p.Batch, heads, p.Seq, p.HeadDim})
		if x = x.Axes("(batch, heads, seq, head_dim)"); i < 2 && !p.InPlace {
			inputs = append(inputs, x)
		} else {
			outputs = append(outputs, x)
		}
	}
	if err := argument.Check("rope", inputs, outputs); err != nil {
		return err
	}
	if p.InPlace {
		copy(r.tensors[2:], r.tensors[:2])
	}
	if p.KVHeads == 0 {
		r.tensors[1], r.tensors[3] = r.tensors[0], r.tensors[2]
	}
	return nil
}

// params is the push-constant block of rope.comp.
type params struct {
	Batch            uint32         `glsl:"batch"`
	Seq              uint32         `glsl:"seq"`
	Heads            uint32         `glsl:"heads"`
	KVHeads          uint32         `glsl:"kv_heads"`
	Dim              uint32         `glsl:"dim"`
	Dims             uint32         `glsl:"dims"`
	Copies           uint32         `glsl:"copies"`
	CosFactor        float32        `glsl:"cos_factor"`
	SinFactor        float32        `glsl:"sin_factor"`
	TurnsOffset      uint32         `glsl:"turns_offset"` // elements, like all that follow
	PositionsOffset  uint32         `glsl:"positions_offset"`
	PositionsStrideB uint32         `glsl:"positions_stride_b"`
	Q                argument.Place `glsl:"q"`
	K                argument.Place `glsl:"k"`
	QOut             argument.Place `glsl:"q_out"`
	KOut             argument.Place `glsl:"k_out"`
}

// spec is the specialization of rope.comp.
type spec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	Interleaved   bool   `glsl:"INTERLEAVED"`
	Width         uint32 `glsl:"WIDTH"`
	Aligned       bool   `glsl:"ALIGNED"`
}

// newSpec returns the specialization for the tensors of a pass. Width is fewer than the elements of 16
// bytes where partners would be within them, or half in them.
func newSpec(p *Problem, tensors []vk.Tensor) spec {
	vec := vecBytes / p.DType.Size()
	s := spec{WorkgroupSize: threads, Interleaved: p.Interleaved, Width: uint32(vec), Aligned: argument.Aligned(vec, tensors...)}
	switch {
	case p.Interleaved && p.Dims%vec != 0:
		s.Width = 2
	case !p.Interleaved && p.Dims/2%vec != 0:
		s.Width = 1
	}
	return s
}
