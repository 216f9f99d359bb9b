package attention

import (
	"fmt"
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// PageTableTensors are what PageTable reads and writes: contiguous, but for the rows of BlockTable.
//
//	tensor       shape                                    format
//	Indptr       (batch+1): where the pages of a sequence begin in Indices, and where the last ones end  int32
//	Indices      (any number): pages                      int32
//	LastPageLen  (batch): keys in the last page           int32
//	BlockTable   (batch, seq_kv/page_size)                int32, written
//	SeqLens      (batch)                                  int32, written
//	State        that of Decode, of which only State[0] is used
type PageTableTensors struct {
	Indptr, Indices, LastPageLen vk.Tensor
	BlockTable, SeqLens, State   vk.Tensor
}

// PageTable makes the BlockTable and the SeqLens of Append and Decode from lists of pages one after
// the other (CSR), FlashInfer's paged_kv_indptr, paged_kv_indices and paged_kv_last_page_len:
//
//	n                = Indptr[b+1] - Indptr[b]
//	BlockTable[b, i] = Indices[Indptr[b] + i]    i < n, else -1
//	SeqLens[b]       = (n-1)*PageSize + LastPageLen[b] - NewKeys
//
// As there, LastPageLen counts the new keys, for which the lists have pages before they are appended.
// A sequence without pages has no keys. For pages of 8, 2 new keys, Indptr 0 2 3 3, Indices 7 4 1 and
// LastPageLen 5 2 0, the last sequence breaks the rule that new keys have pages:
//
//	BlockTable   7  4    SeqLens  11
//	             1 -1              0
//	            -1 -1             -1
//
// It runs once for all layers, where lists have changed; a recorded one reads them anew. Lists that go
// down, or beyond Indices, or are longer than a row, and a LastPageLen that is not from 1 to
// PageSize, make a sequence of length -1, which Append leaves as it is; State[0] says so
// (DecodeStatus), and no memory beyond the tensors is touched. The pages themselves are checked where
// they are used.
//
// The error wraps ErrUnsupported if the device cannot run the kernel, and names the argument if a
// tensor does not fit p.
func PageTable(c *vk.Cmd, t PageTableTensors, p DecodeProblem) (err error) {
	defer c.Keep(&err)
	const name = "attention: page table"
	if err := p.validateCache(); err != nil {
		return err
	}
	if p.PageSize == 0 {
		return fmt.Errorf("%s: page_size=0: a cache without pages has no table", name)
	}
	d := c.Device()
	width := p.SeqKV / p.PageSize
	if caps := d.Caps(); caps.MaxStorageBuffers < pageTableBuffers {
		return unsupported("page table: %d storage buffers are more than the device's %d", pageTableBuffers, caps.MaxStorageBuffers)
	}
	if entries := float64(p.Batch) * float64(width); entries > math.MaxInt32 {
		return unsupported("page table: %.0f entries are more than %d", entries, math.MaxInt32)
	}
	if len(t.Indices.Shape) != 1 || len(t.State.Shape) != 1 || t.State.Shape[0] < 1 {
		return fmt.Errorf("%s: indices and state have shapes %v and %v, want vectors", name, t.Indices.Shape, t.State.Shape)
	}
	err = argument.Check(name, []argument.Argument{
		argument.New("indptr", t.Indptr, true, dtype.Int32, []int{p.Batch + 1}),
		argument.New("indices", t.Indices, true, dtype.Int32, t.Indices.Shape),
		argument.New("last_page_len", t.LastPageLen, true, dtype.Int32, p.SeqLensShape()),
	}, []argument.Argument{
		argument.New("block_table", t.BlockTable, true, dtype.Int32, p.BlockTableShape()),
		argument.New("seq_lens", t.SeqLens, true, dtype.Int32, p.SeqLensShape()),
		argument.New("state", t.State.Slice(0, 0, 1), true, dtype.Int32, []int{1}),
	})
	if err != nil {
		return err
	}
	indices := t.Indices.Shape[0]
	vk.Narrow(&t.Indptr, &t.Indices, &t.LastPageLen, &t.BlockTable, &t.SeqLens, &t.State)
	module, err := shaders.Get("attention_page_table", "")
	if err != nil {
		return err
	}
	spec := pageTableSpec{WorkgroupSize: advanceThreads, PageSize: uint32(p.PageSize)}
	kernel, err := vk.CachedKernel[pageTableParams](d, module.Name, module.SPIRV, spec, vk.KernelOptions{})
	if err != nil {
		return err
	}
	kernel.Dispatch(c, vk.Groups{X: min(groups(p.Batch*width, advanceThreads), d.Caps().MaxWorkgroupCount[0])}, pageTableParams{
		Batch: uint32(p.Batch), Width: uint32(width), NumIndices: int32(indices), NewKeys: int32(p.NewKeys),
		IndptrOffset: uint32(t.Indptr.Offset), IndicesOffset: uint32(t.Indices.Offset), LastPageLenOffset: uint32(t.LastPageLen.Offset),
		BlockTableOffset: uint32(t.BlockTable.Offset), BlockTableStrideB: stride(&t.BlockTable, 0),
		SeqLensOffset: uint32(t.SeqLens.Offset), StateOffset: uint32(t.State.Offset),
	}, t.Indptr, t.Indices, t.LastPageLen, t.BlockTable, t.SeqLens, t.State)
	return c.Err()
}

// pageTableBuffers is the number of bindings of attention_page_table.comp.
const pageTableBuffers = 6

// pageTableSpec is the specialization of attention_page_table.comp.
type pageTableSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	PageSize      uint32 `glsl:"PAGE_SIZE"`
}

// pageTableParams is the push-constant block of attention_page_table.comp.
type pageTableParams struct {
	Batch             uint32 `glsl:"batch"`
	Width             uint32 `glsl:"width"`
	NumIndices        int32  `glsl:"num_indices"`
	NewKeys           int32  `glsl:"new_keys"`
	IndptrOffset      uint32 `glsl:"indptr_offset"` // elements, like all that follow
	IndicesOffset     uint32 `glsl:"indices_offset"`
	LastPageLenOffset uint32 `glsl:"last_page_len_offset"`
	BlockTableOffset  uint32 `glsl:"block_table_offset"`
	BlockTableStrideB uint32 `glsl:"block_table_stride_b"`
	SeqLensOffset     uint32 `glsl:"seq_lens_offset"`
	StateOffset       uint32 `glsl:"state_offset"`
}

// PageLists returns the pages of the cache as PageTable reads them, for kernels of others: where the
// list of each sequence begins, (batch+1), the lists, and how many keys the last page of each has, 0
// of a sequence without. Reserved pages that have no keys are left out; a contiguous cache has no
// lists, which is an error.
func (k *KVCache) PageLists(lens []int) (indptr, indices, lastPageLen []int32, err error) {
	if k.contiguous() {
		return nil, nil, nil, fmt.Errorf("attention: cache: it has no pages")
	}
	if len(lens) != k.config.Batch {
		return nil, nil, nil, fmt.Errorf("attention: cache: %d lengths of %d sequences", len(lens), k.config.Batch)
	}
	indptr = []int32{0}
	for b, n := range lens {
		pages := k.slotsFor(n)
		if n < 0 || pages > len(k.table[b]) {
			return nil, nil, nil, fmt.Errorf("attention: cache: sequence %d has no pages for %d keys", b, n)
		}
		indices = append(indices, k.table[b][:pages]...)
		indptr = append(indptr, int32(len(indices)))
		lastPageLen = append(lastPageLen, int32(n-max(pages-1, 0)*k.config.PageSize))
	}
	return indptr, indices, lastPageLen, nil
}
