package attention

import (
	"fmt"
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// PageTableTensors are the inputs and outputs of PageTable. They are contiguous, except for the
// rows of BlockTable.
//
//	tensor       shape                                    format
//	Indptr       (batch+1): where the pages of a sequence begin in Indices, and where the last ones end  int32
//	Indices      (any number): pages                      int32
//	LastPageLen  (batch): keys in the last page           int32
//	BlockTable   (batch, seq_kv/page_size)                int32, written
//	SeqLens      (batch)                                  int32, written
//	State        that of Decode; only State[0] is used
type PageTableTensors struct {
	Indptr, Indices, LastPageLen vk.Tensor
	BlockTable, SeqLens, State   vk.Tensor
}

// PageTable makes BlockTable and SeqLens of Append and Decode from concatenated lists of pages
// (CSR), FlashInfer's paged_kv_indptr, paged_kv_indices and paged_kv_last_page_len:
//
//	n                = Indptr[b+1] - Indptr[b]
//	BlockTable[b, i] = Indices[Indptr[b] + i]    i < n, else -1
//	SeqLens[b]       = (n-1)*PageSize + LastPageLen[b] - NewKeys
//
// As in FlashInfer, the lists have pages for the new keys before these are appended, and
// LastPageLen counts the new keys. A sequence without pages has no keys. For pages of 8, 2 new
// keys, Indptr 0 2 3 3, Indices 7 4 1 and LastPageLen 5 2 0
//
//	BlockTable   7  4    SeqLens  11
//	             1 -1              0
//	            -1 -1             -1
//
// The last sequence has no page for its new keys, so its length is -1. A sequence also gets the
// length -1 if its list goes down, goes beyond Indices or is longer than a row, or if its
// LastPageLen is not from 1 to PageSize. Append leaves such a sequence alone, State[0] reports it
// (DecodeStatus), and no memory beyond the tensors is touched. Append and Decode check the pages
// themselves.
//
// PageTable runs once for all layers when the lists have changed; a recorded PageTable reads them
// again.
//
// The error wraps vk.ErrUnsupported if the device cannot run the kernel, and names the argument if a
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

// PageLists returns the pages of the cache in the form that PageTable reads, for other kernels:
// indptr (batch+1), where the list of each sequence begins; indices, the lists; lastPageLen, how
// many keys the last page of each sequence has, 0 for a sequence without pages. Reserved pages
// without keys are left out. A contiguous cache has no lists: that is an error.
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
