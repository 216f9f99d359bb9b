package embed

import (
	"cmp"
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Forward takes a row of the table for each token:
//
//	out[t,:] = table[ids[t],:]       0 for an id that is not in 0..vocabulary-1
//
// IDs is (tokens), int32, contiguous. Table is (vocabulary, dim) of p.DType, and Out (tokens, dim) of
// p.OutDType(), with any row stride and a contiguous last axis. Offsets and strides that are multiples
// of 16 bytes are fastest.
//
// Elements are exact, or rounded to nearest even where Out has another format with fewer digits. With
// p.Accumulate they are added to what Out held, in float32, and the sum is rounded; rows of ids
// outside of the table stay as they are. Of Table only the rows of ids are read.
//
// Forward records into c and returns; Out is valid once c has completed, and has memory of its own. It
// returns an error that wraps vk.ErrUnsupported if the device cannot do it, for example because the table
// is larger than what a kernel sees of a buffer, and an error naming the tensor if one does not fit p.
func Forward(c *vk.Cmd, t Tensors, p Problem, o Options) (err error) {
	defer c.Keep(&err)
	if err := Supports(c.Device().Caps(), p, kit.Forward, o); err != nil {
		return err
	}
	inputs := []argument.Argument{
		argument.New("ids", t.IDs, true, dtype.Int32, []int{p.Tokens}),
		argument.New("table", t.Table, true, p.DType, []int{p.Vocabulary, p.Dim}),
	}
	outputs := []argument.Argument{argument.New("out", t.Out, true, p.OutDType(), []int{p.Tokens, p.Dim})}
	if err := argument.Check("embed", inputs, outputs); err != nil {
		return err
	}
	vk.Narrow(&t.IDs, &t.Table, &t.Out)
	c.Note(func() vk.Note {
		return vk.Note{Text: fmt.Sprintf("%d of %d rows of %d", p.Tokens, p.Vocabulary, p.Dim), FLOPs: p.FLOPs(), Bytes: p.Bytes()}
	})
	return rows(c, t, p.Accumulate, false)
}

// rows records embed_fwd, for Out with rows of Table or with zeros.
func rows(c *vk.Cmd, t Tensors, accumulate, zero bool) error {
	caps, spec := c.Device().Caps(), newSpec(c.Device().Caps(), t.Table, t.Out)
	k := chips.Kernel[fwdParams](c, "embed_fwd", "", fwdSpec{spec, accumulate, zero}, vk.KernelOptions{})
	tokens, dim := t.Out.Shape[0], t.Out.Shape[1]
	params := fwdParams{
		Tokens: uint32(tokens), Vocabulary: uint32(t.Table.Shape[0]), Dim: uint32(dim), IDsOffset: uint32(t.IDs.Offset),
		TableOffset: uint32(t.Table.Offset), TableStride: stride(t.Table), OutOffset: uint32(t.Out.Offset), OutStride: stride(t.Out),
	}
	k.Dispatch(c, chips.Groups(caps, tokens*spec.vecs(dim), fwdEach*int(spec.WorkgroupSize)), params, t.IDs, t.Table, t.Out)
	return c.Err()
}

// Backward computes the gradient of the table. DOut is the gradient of a loss by Out:
//
//	dtable[row,:] = sum of dout[t,:] over t with ids[t] = row       0 for a row without tokens
//
// IDs is as in Forward. DOut is (tokens, dim) of p.OutDType(), DTable (vocabulary, dim) of
// p.GradDType(), with any row stride and a contiguous last axis. With p.Accumulate the sums are added to
// what DTable held, and rows without tokens stay as they are.
//
// The tokens are sorted by id, tokens of one id in their own order, and divided into blocks of 32. The
// tokens of a row in a block are added in order, in float32, then the sums of blocks in order, then what
// DTable held; the result is rounded to nearest even. So a sum of n elements is off by at most
// min(n-1, 32+n/32) * 2^-24 times the sum of their magnitudes, with p.Accumulate one more 2^-24, and
// the rounding. There are no atomics: the bits depend on nothing but ids and elements.
//
// The call takes the time to read DOut, to write DTable, and to sort, which is about tokens² / 100 loads
// of 8 bytes from caches.
//
// Backward records into c and returns; DTable is valid once c has completed, and has memory of its own.
// Errors are as in Forward, with dtable for the table.
func Backward(c *vk.Cmd, t Tensors, g Gradients, p Problem, o Options) (err error) {
	defer c.Keep(&err)
	defer c.Scope()()
	d, ids, dout, dtable := c.Device(), t.IDs, g.DOut, g.DTable
	plan, err := Choose(d.Caps(), p, kit.Backward, o)
	if err != nil {
		return err
	}
	inputs := []argument.Argument{
		argument.New("ids", ids, true, dtype.Int32, []int{p.Tokens}),
		argument.New("dout", dout, true, p.OutDType(), []int{p.Tokens, p.Dim}),
	}
	outputs := []argument.Argument{argument.New("dtable", dtable, true, p.GradDType(), []int{p.Vocabulary, p.Dim})}
	memory, err := argument.Open(c, "embed", o.Workspace, plan.space.bytes, inputs, outputs)
	if err != nil {
		return err
	}
	vk.Narrow(&ids, &dout, &dtable)
	sorted, parts, err := sort(c, ids, &p, memory)
	if err != nil {
		return err
	}
	if !p.Accumulate {
		c.Note(func() vk.Note { return vk.Note{Text: fmt.Sprintf("%d zeros", p.Vocabulary), Bytes: vk.Traffic(dtable)} })
		if err := rows(c, Tensors{IDs: ids, Table: dout, Out: dtable}, false, true); err != nil {
			return err
		}
	}
	return sum(c, sorted, dout, dtable, parts, &p)
}

// sort records embed_sort. It returns the sorted tokens, and the memory of parts.
func sort(c *vk.Cmd, ids vk.Tensor, p *Problem, memory *vk.Buffer) (sorted, parts vk.Tensor, err error) {
	d, space, n := c.Device(), newSpace(p), 8*int64(p.Tokens)
	slice := func(first, bytes int64) vk.Tensor {
		b, failed := memory.Slice(first, bytes)
		err = cmp.Or(err, failed)
		return vk.Tensor{Buffer: b}
	}
	tiles, sorted, parts := slice(0, n), slice(space.sorted, n), slice(space.parts, space.bytes-space.parts)
	if err != nil {
		return sorted, parts, err
	}
	if p.Tokens <= tile {
		sorted = tiles // which is sorted
	}
	threads := threads(d.Caps())
	for _, merge := range []bool{false, true} {
		if merge && p.Tokens <= tile {
			break
		}
		k := chips.Kernel[sortParams](c, "embed_sort", "", sortSpec{threads, merge}, vk.KernelOptions{})
		each := tile
		if merge {
			each = int(threads)
		}
		c.Note(func() vk.Note {
			return vk.Note{Text: fmt.Sprintf("%d tokens", p.Tokens), Bytes: 12 * float64(p.Tokens)}
		})
		k.Dispatch(c, chips.Groups(d.Caps(), p.Tokens, each), sortParams{uint32(p.Tokens), uint32(p.Vocabulary), uint32(ids.Offset)}, ids, tiles, sorted)
	}
	return sorted, parts, c.Err()
}

// sum records embed_bwd: sums of blocks, and of the rows that are in several.
func sum(c *vk.Cmd, sorted, dout, dtable, parts vk.Tensor, p *Problem) error {
	caps, spec := c.Device().Caps(), newSpec(c.Device().Caps(), dout, dtable)
	params := bwdParams{
		Tokens: uint32(p.Tokens), Vocabulary: uint32(p.Vocabulary), Dim: uint32(p.Dim),
		DOutOffset: uint32(dout.Offset), DOutStride: stride(dout), DTableOffset: uint32(dtable.Offset), DTableStride: stride(dtable),
	}
	blocks := (p.Tokens + block - 1) / block
	for _, carry := range []bool{false, true} {
		if carry && blocks == 1 {
			break
		}
		k := chips.Kernel[bwdParams](c, "embed_bwd", "", bwdSpec{spec, p.Accumulate, carry}, vk.KernelOptions{})
		c.Note(func() vk.Note {
			if carry {
				return vk.Note{Text: "rows of several blocks", Bytes: 4 * float64(blocks) * float64(p.Dim)}
			}
			return vk.Note{Text: fmt.Sprintf("%d tokens, rows of %d", p.Tokens, p.Dim), FLOPs: p.BackwardFLOPs(), Bytes: p.BackwardBytes()}
		})
		k.Dispatch(c, chips.Groups(caps, blocks*spec.vecs(p.Dim), int(spec.WorkgroupSize)), params, sorted, dout, dtable, parts)
	}
	return c.Err()
}

// The constants of the shaders.
const (
	tile    = 1024 // TILE of embed_sort.comp
	block   = 32   // BLOCK of embed_bwd.comp
	fwdEach = 4    // EACH of embed_fwd.comp
)

// A space is the workspace of Backward: sorted tiles from 0 on, all tokens sorted, and parts, in bytes.
// Slices may start at multiples of 256.
type space struct{ sorted, parts, bytes int64 }

func newSpace(p *Problem) space {
	sorted := (8*int64(p.Tokens) + 255) / 256 * 256
	blocks, dim := int64(p.Tokens+block-1)/block, int64(p.Dim+7)/8*8
	return space{sorted, 2 * sorted, 2*sorted + 2*4*blocks*dim}
}

// threads returns the invocations of a workgroup.
func threads(caps *vk.Caps) uint32 {
	return min(256, caps.MaxWorkgroupInvocations, caps.MaxWorkgroupSize[0])
}

// stride returns the distance of rows in elements.
func stride(t vk.Tensor) uint32 { return uint32(t.Strides[0]) }

// fwdParams is the push-constant block of embed_fwd.comp.
type fwdParams struct {
	Tokens      uint32 `glsl:"tokens"`
	Vocabulary  uint32 `glsl:"vocabulary"`
	Dim         uint32 `glsl:"dim"`
	IDsOffset   uint32 `glsl:"ids_offset"` // elements, like all that follow
	TableOffset uint32 `glsl:"table_offset"`
	TableStride uint32 `glsl:"table_stride"`
	OutOffset   uint32 `glsl:"out_offset"`
	OutStride   uint32 `glsl:"out_stride"`
}

// sortParams is the push-constant block of embed_sort.comp.
type sortParams struct {
	Tokens     uint32 `glsl:"tokens"`
	Vocabulary uint32 `glsl:"vocabulary"`
	IDsOffset  uint32 `glsl:"ids_offset"`
}

// bwdParams is the push-constant block of embed_bwd.comp.
type bwdParams struct {
	Tokens       uint32 `glsl:"tokens"`
	Vocabulary   uint32 `glsl:"vocabulary"`
	Dim          uint32 `glsl:"dim"`
	DOutOffset   uint32 `glsl:"dout_offset"` // elements, like all that follow
	DOutStride   uint32 `glsl:"dout_stride"`
	DTableOffset uint32 `glsl:"dtable_offset"`
	DTableStride uint32 `glsl:"dtable_stride"`
}

// spec holds the specialization constants that embed_fwd.comp and embed_bwd.comp have in common.
type spec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	Vec           uint32 `glsl:"VEC"`
	Aligned       bool   `glsl:"ALIGNED"`
	From          uint32 `glsl:"FROM_FORMAT"`
	To            uint32 `glsl:"TO_FORMAT"`
}

// newSpec returns the specialization for rows of one tensor that go to another.
func newSpec(caps *vk.Caps, from, to vk.Tensor) spec {
	s := spec{threads(caps), 4, true, chips.Format(from.DType), chips.Format(to.DType)}
	for _, t := range []vk.Tensor{from, to} {
		if t.DType.Size() == 2 {
			s.Vec = 8
		}
		s.Aligned = s.Aligned && t.Aligned(16/t.DType.Size())
	}
	return s
}

// vecs returns how many vectors a row has.
func (s *spec) vecs(dim int) int { return (dim + int(s.Vec) - 1) / int(s.Vec) }

// fwdSpec is the specialization of embed_fwd.comp.
type fwdSpec struct {
	shared     spec
	Accumulate bool `glsl:"ACCUMULATE"`
	Zero       bool `glsl:"ZERO"`
}

// sortSpec is the specialization of embed_sort.comp.
type sortSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	Merge         bool   `glsl:"MERGE"`
}

// bwdSpec is the specialization of embed_bwd.comp.
type bwdSpec struct {
	shared     spec
	Accumulate bool `glsl:"ACCUMULATE"`
	Carry      bool `glsl:"CARRY"`
}
