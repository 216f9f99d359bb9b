package attention

import (
	"errors"
	"reflect"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// bwdStoredKernels names the kernel of each path that computes dQ and stores P and dX.
var bwdStoredKernels = [...]string{CoopMat2: "attention_bwd_dq_coopmat2_stored", CoopMat: "attention_bwd_dq_coopmat_stored"}

// stored reports whether P and dX pass through memory.
func (c *BackwardConfig) stored() bool { return c.Stored != (BackwardTile{}) }

// storedBytes bounds the memory for P and dX. It holds two heads of 16384 rows and keys under a
// causal mask, or one head without a mask. Less memory makes more launches, and the end of each
// leaves a part of the device idle.
const storedBytes = 5 << 28

// A device is busy with storedRounds times as many blocks of keys as compute units, even if some
// blocks have more rows than others.
const storedRounds = 4

// pageCount returns the number of pages of P of a head; dX has as many. A page is a block of rows
// by a block of keys of which some row sees some key. shaders/lib/pages.glsl has the same formulas.
func pageCount(p *Problem, block int) int {
	blocks, most := int(groups(p.SeqQ, block)), int(groups(p.SeqKV, block))
	if !p.Causal {
		return blocks * most
	}
	first := 1 - floorDiv(-p.Mask().Shift, block) // pages of block i: i + first, from 0 to most
	some := min(max(-first, 0), blocks)
	full := min(max(most-first, some), blocks)
	return (full-some)*(some+full-1+2*first)/2 + (blocks-full)*most
}

// floorDiv returns a/b rounded down.
func floorDiv(a, b int) int {
	if a < 0 {
		return -((b - 1 - a) / b)
	}
	return a / b
}

// A storedChunk is the set of heads whose P and dX are stored at a time: members of the heads that
// read each of keyHeads key heads. If these are not all members of the group, their sums wait in
// memory.
type storedChunk struct{ keyHeads, members int }

// pagesShape returns the shape of bwdWorkspace.pages, nil if there are none.
func (c *BackwardConfig) pagesShape(caps *vk.Caps, p *Problem) []int {
	if !c.stored() {
		return nil
	}
	chunk, block := c.chunk(caps, p), c.DQ.owned(caps, c.Impl, p.DType)
	return []int{chunk.keyHeads * chunk.members, max(pageCount(p, block), 1), block, block}
}

// sumsShape returns the shape of bwdWorkspace.sums, nil if there are none.
func (c *BackwardConfig) sumsShape(caps *vk.Caps, p *Problem) []int {
	if !c.stored() {
		return nil
	}
	chunk := c.chunk(caps, p)
	if chunk.members == p.NumHeads/p.NumKVHeads {
		return nil
	}
	return []int{2, chunk.keyHeads, c.keyHeadSums(caps, p)}
}

// keyHeadSums returns the number of elements of dK, or dV, of a key head in whole matrices.
func (c *BackwardConfig) keyHeadSums(caps *vk.Caps, p *Problem) int {
	shape, err := matrixShape(caps, c.Impl, p.DType)
	if err != nil {
		return 0
	}
	block, spec := c.DQ.owned(caps, c.Impl, p.DType), c.productsSpec(caps, p, shape, true)
	return int(groups(p.SeqKV, block)) * block * spec.width()
}

// chunk returns the heads that are stored at a time: as many as there is memory for, in chunks of
// about equal size. If whole groups of heads do not keep the device busy, or one group does not
// fit, a chunk has some members of each group.
func (c *BackwardConfig) chunk(caps *vk.Caps, p *Problem) storedChunk {
	keyHeads, members, block := p.Batch*p.NumKVHeads, p.NumHeads/p.NumKVHeads, c.DQ.owned(caps, c.Impl, p.DType)
	most := c.Chunk
	if most == 0 {
		limit := c.storedLimit(caps, p)
		heads := func(limit float64) int {
			return max(int(min(limit/c.headBytes(caps, p), float64(keyHeads*members))), 1)
		}
		if most = heads(limit); most < keyHeads*members && members > 1 {
			most = heads(limit - 8*float64(min(most, keyHeads))*float64(c.keyHeadSums(caps, p)))
		}
	}
	even := func(n, most int) int { return int(groups(n, int(groups(n, most)))) }
	units := int(caps.ComputeUnits)
	if units == 0 {
		units = unknownUnits
	}
	if whole := min(most/members, keyHeads); whole == keyHeads || whole > 0 && (members == 1 || whole*int(groups(p.SeqKV, block)) >= storedRounds*units) {
		return storedChunk{even(keyHeads, whole), members}
	}
	return storedChunk{even(keyHeads, min(most, keyHeads)), even(members, min(max(most/keyHeads, 1), members))}
}

// storedLimit returns the most bytes of P and dX. They share one storage buffer with the rest of
// the workspace. With Chunk the device alone limits them.
func (c *BackwardConfig) storedLimit(caps *vk.Caps, p *Problem) float64 {
	rest := *c
	rest.Stored = BackwardTile{}
	limit := float64(min(caps.MaxStorageBufferRange, caps.MaxAllocationBytes)) - float64(alignWorkspace(workspaceBytes(rest.workspaceShapes(caps, p))))
	if c.Chunk == 0 {
		limit = min(limit, storedBytes)
	}
	return limit
}

// headBytes returns the bytes of P and dX of a head.
func (c *BackwardConfig) headBytes(caps *vk.Caps, p *Problem) float64 {
	block := c.DQ.owned(caps, c.Impl, p.DType)
	return 4 * float64(max(pageCount(p, block), 1)) * float64(block*block)
}

// feasibleStored is Feasible for kernels that pass P and dX through memory.
func (c *BackwardConfig) feasibleStored(caps *vk.Caps, p *Problem) error {
	t := c.Stored
	switch {
	case c.Impl != CoopMat2 && c.Impl != CoopMat || p.DType == dtype.Float32:
		return unsupported("%v: no kernel stores weights of %v", c.Impl, p.DType)
	case !p.Plain():
		return unsupported("%v: no kernel stores weights with %s", c.Impl, strings.Join(p.Features(), ", "))
	case c.Chunk < 0:
		return unsupported("%v: chunk=%d is negative", c.Impl, c.Chunk)
	}
	if n := uint32(reflect.TypeFor[bwdStoreParams]().Size()); n > caps.MaxPushConstantsBytes {
		return unsupported("%v: storing weights takes %d bytes of push constants, more than the device's %d", c.Impl, n, caps.MaxPushConstantsBytes)
	}
	if err := c.DQ.feasibleMatrix(caps, c.Impl, *p); err != nil {
		return err
	}
	shape, err := matrixShape(caps, c.Impl, p.DType)
	if err != nil {
		return err
	}
	m, n, block := int(shape.M), int(shape.N), c.DQ.owned(caps, c.Impl, p.DType)
	switch {
	case t.Subgroups < 1 || t.RowTiles < 1 || t.Stream < 1:
		return unsupported("%v: a tile size of %v is not positive", c.Impl, t)
	case block%c.DQ.Stream != 0 || block%8 != 0:
		return unsupported("%v: stream=%d does not divide a block of %d rows, or 8 does not", c.Impl, c.DQ.Stream, block)
	case t.Stream%n != 0 || block%t.Stream != 0:
		return unsupported("%v: stream=%d is not a multiple of the matrix size %d that divides a block of %d rows", c.Impl, t.Stream, n, block)
	case block%(t.RowTiles*m) != 0 || t.Subgroups%(block/(t.RowTiles*m)) != 0:
		return unsupported("%v: %d subgroups of %d keys do not share out a block of %d keys evenly", c.Impl, t.Subgroups, t.RowTiles*m, block)
	}
	if err := fitsWorkgroup(caps, c.Impl, t.Subgroups*int(caps.SubgroupSize)); err != nil {
		return err
	}
	spec := c.productsSpec(caps, p, shape, true)
	width := spec.width()
	slabs := t.Stream * (block/8 + 1 + width/8 + 1) * 16
	sums := t.Subgroups * m * (width*block/(t.Subgroups*t.RowTiles*m)/4 + 1) * 16
	if err := fitsShared(caps, c.Impl, max(slabs, sums)); err != nil {
		return err
	}
	chunk, limit := c.chunk(caps, p), c.storedLimit(caps, p)
	bytes := float64(chunk.keyHeads*chunk.members) * c.headBytes(caps, p)
	if sums := c.sumsShape(caps, p); sums != nil {
		bytes += 4 * float64(elementsOf(sums))
	}
	if bytes > limit {
		return unsupported("%v: the weights of %d heads at a time take %.0f bytes, more than the %.0f that there are for them", c.Impl, chunk.keyHeads*chunk.members, bytes, max(limit, 0))
	}
	return nil
}

// recordStored records two kernels per chunk of heads: one computes dQ and stores P and dX, the
// other computes the products dV and dK.
func (b *backward) recordStored() error {
	k, err := b.newStoredKernels()
	if err != nil {
		return err
	}
	chunk := b.config.chunk(b.c.Device().Caps(), &b.p)
	heads, members := b.p.Batch*b.p.NumKVHeads, b.p.NumHeads/b.p.NumKVHeads
	for head := 0; head < heads; head += chunk.keyHeads {
		for member := 0; member < members; member += chunk.members {
			n := storedChunk{min(chunk.keyHeads, heads-head), min(chunk.members, members-member)}
			k.store(head, member, n)
			k.sum(head, member, n)
		}
	}
	return b.c.Err()
}

// storedKernels are the kernels of a call that passes P and dX through memory.
type storedKernels struct {
	*backward
	rowKernel            *vk.Kernel[bwdStoreParams]
	products             *vk.Kernel[bwdProductsParams]
	rowBlocks, keyBlocks uint32
}

func (b *backward) newStoredKernels() (k storedKernels, err error) {
	p, config, d := &b.p, &b.config, b.c.Device()
	caps := d.Caps()
	block := config.DQ.owned(caps, config.Impl, p.DType)
	k.backward, k.rowBlocks, k.keyBlocks = b, groups(p.SeqQ, block), groups(p.SeqKV, block)
	if limit := caps.MaxWorkgroupCount[1]; max(k.rowBlocks, k.keyBlocks) > limit {
		return k, unsupported("backward: seq_q=%d by seq_kv=%d makes %d by %d blocks, more than the device's %d workgroups", p.SeqQ, p.SeqKV, k.rowBlocks, k.keyBlocks, limit)
	}
	shape, err := matrixShape(caps, config.Impl, p.DType)
	if err != nil {
		return k, err
	}
	if config.fragments(caps) {
		if known, err := chips.AsksQuads(d, p.DType, shape); err != nil || !known {
			return k, errors.Join(err, unsupported("backward: the device keeps matrices in another way than its driver is known to"))
		}
	}
	if k.rowKernel, err = b.storeKernel(shape); err != nil {
		return k, err
	}
	module, err := shaders.Get(config.productsKernel(caps), p.DType.Short())
	if err != nil {
		return k, err
	}
	spec := config.productsSpec(caps, p, shape, aligned(8, &b.q, &b.do, &b.dk, &b.dv))
	k.products, err = vk.CachedKernel[bwdProductsParams](d, module.Name, module.SPIRV, spec, chips.MatrixOptions(caps))
	return k, err
}

// store records the kernel of dQ for the chunk of heads that begins with a key head and a member of
// its group.
func (k *storedKernels) store(head, member int, n storedChunk) {
	p := &k.p
	perKV, heads := p.NumHeads/p.NumKVHeads, n.keyHeads*n.members
	all := newBwdParams(k.do, k.q, k.k, k.v, *p)
	params := bwdStoreParams{
		SeqQ: all.SeqQ, SeqKV: all.SeqKV, bwdInputs: all.bwdInputs,
		DX:       placeOf(k.dq),
		NumHeads: uint32(p.NumHeads), FirstHead: uint32(head*perKV + member), Heads: uint32(heads), Members: uint32(n.members),
		PagesOffset: uint32(k.pages.Offset / 4),
	}
	headBytes := 2 * float64(p.SeqKV) * float64(p.HeadDim*p.DType.Size()) / float64(n.members)
	k.rowKernel.Dispatch(k.c, k.headGroups(heads, headBytes, k.rowBlocks), params, k.q, k.k, k.v, k.do, k.rows, k.dq, k.pages)
}

// sum records the products for a chunk.
func (k *storedKernels) sum(head, member int, n storedChunk) {
	p := &k.p
	params := bwdProductsParams{
		SeqQ: uint32(p.SeqQ), SeqKV: uint32(p.SeqKV), HeadsPerKV: uint32(p.NumHeads / p.NumKVHeads), NumKVHeads: uint32(p.NumKVHeads),
		CausalShift: int32(p.Mask().Shift), FirstHead: uint32(head), Heads: uint32(n.keyHeads),
		FirstMember: uint32(member), Members: uint32(n.members), PagesOffset: uint32(k.pages.Offset / 4),
	}
	g := k.headGroups(n.keyHeads, float64(n.members)*float64(p.SeqQ)*float64(p.HeadDim*p.DType.Size()), k.keyBlocks)
	sums := [2]vk.Tensor{k.dv, k.dk} // every binding needs a tensor
	if !k.sums.IsZero() {
		for i := range sums {
			sums[i] = k.sums
			sums[i].Shape, sums[i].Strides = k.sums.Shape[1:], k.sums.Strides[1:]
			sums[i].Offset += i * k.sums.Strides[0]
			sums[i] = sums[i].Narrow()
		}
	}
	params.setTensors(k.do, k.dv, sums[0], 0, 1)
	k.products.Dispatch(k.c, g, params, k.pages, k.do, k.dv, sums[0])
	params.setTensors(k.q, k.dk, sums[1], 1, float32(p.EffectiveScale()))
	k.products.Dispatch(k.c, g, params, k.pages, k.q, k.dk, sums[1])
}

// headGroups returns a dispatch over heads, in groups whose heads take turns with their blocks
// (groupHeads). The last group may have fewer heads.
func (b *backward) headGroups(heads int, headBytes float64, blocks uint32) vk.Groups {
	limit := b.c.Device().Caps().MaxWorkgroupCount
	n := 1
	if b.p.Causal {
		n = min(max(int(groupBytes/headBytes), 1), maxGroup, heads, int(limit[0]))
	}
	n = max(n, int(groups(heads, int(limit[2]))))
	return vk.Groups{X: uint32(n), Y: blocks, Z: groups(heads, n)}
}

// storeKernel returns the kernel that computes dQ and stores P and dX.
func (b *backward) storeKernel(shape vk.CoopMatShape) (*vk.Kernel[bwdStoreParams], error) {
	d, p := b.c.Device(), &b.p
	spec, err := b.storeSpec(shape, aligned(8, &b.dq, &b.q, &b.k, &b.v, &b.do))
	if err != nil {
		return nil, err
	}
	module, err := shaders.Get(bwdStoredKernels[b.config.Impl], p.DType.Short())
	if err != nil {
		return nil, err
	}
	return vk.CachedKernel[bwdStoreParams](d, module.Name, module.SPIRV, spec, matrixKernelOptions(d))
}

// storeSpec returns its specialization.
func (b *backward) storeSpec(shape vk.CoopMatShape, isAligned bool) (spec bwdStoreSpec, err error) {
	if spec.Matrix, err = b.matrixSpec(b.config.DQ, isAligned); err != nil {
		return spec, err
	}
	spec.Fragments = b.config.fragments(b.c.Device().Caps())
	return spec, nil
}

// fragments reports whether weights lie in memory in the order of right matrices.
func (c *BackwardConfig) fragments(caps *vk.Caps) bool {
	return chips.Quads(caps) && !c.DQ.Detour && c.DQ.Stream%32 == 0 && (c.Stored.RowTiles == 2 || c.Stored.RowTiles == 4)
}

// productsKernel names the kernel of the products.
func (c *BackwardConfig) productsKernel(caps *vk.Caps) string {
	if c.fragments(caps) {
		return "attention_bwd_products_fragmented"
	}
	return "attention_bwd_products"
}

// productsSpec returns the specialization of attention_bwd_products.
func (c *BackwardConfig) productsSpec(caps *vk.Caps, p *Problem, shape vk.CoopMatShape, isAligned bool) bwdProductsSpec {
	t := c.Stored
	subgroupsK := c.DQ.owned(caps, c.Impl, p.DType) / (t.RowTiles * int(shape.M))
	subgroupsD := t.Subgroups / max(subgroupsK, 1)
	return bwdProductsSpec{
		WorkgroupSize: uint32(t.Subgroups) * caps.SubgroupSize,
		SubgroupsK:    uint32(subgroupsK),
		SubgroupsD:    uint32(subgroupsD),
		MatM:          shape.M,
		MatN:          shape.N,
		TilesK:        uint32(t.RowTiles),
		TilesD:        groups(p.HeadDim, subgroupsD*int(shape.N)),
		Slab:          uint32(t.Stream),
		HeadDim:       uint32(p.HeadDim),
		Causal:        p.Causal,
		Aligned:       isAligned,
		LoadAhead:     uint32(t.LoadAhead),
	}
}

// width returns the columns that a workgroup computes, at least head_dim.
func (s *bwdProductsSpec) width() int { return int(s.SubgroupsD * s.TilesD * s.MatN) }

// bwdStoreParams is the push-constant block of lib/params_bwd.glsl with STORE.
type bwdStoreParams struct {
	SeqQ  uint32 `glsl:"seq_q"`
	SeqKV uint32 `glsl:"seq_kv"`
	bwdInputs
	DX          place  `glsl:"dx"` // dQ
	NumHeads    uint32 `glsl:"num_heads"`
	FirstHead   uint32 `glsl:"first_head"`
	Heads       uint32 `glsl:"heads"`
	Members     uint32 `glsl:"members"`
	PagesOffset uint32 `glsl:"pages_offset"` // uvec4
}

// bwdStoreSpec is the specialization of attention_bwd_dq_matrix.comp with STORE.
type bwdStoreSpec struct {
	Matrix    bwdMatrixSpec
	Fragments bool `glsl:"FRAGMENTS"`
}

// bwdProductsParams is the push-constant block of attention_bwd_products.comp.
type bwdProductsParams struct {
	SeqQ        uint32  `glsl:"seq_q"`
	SeqKV       uint32  `glsl:"seq_kv"`
	HeadsPerKV  uint32  `glsl:"heads_per_kv"`
	NumKVHeads  uint32  `glsl:"num_kv_heads"`
	CausalShift int32   `glsl:"causal_shift"`
	FirstHead   uint32  `glsl:"first_head"`
	Heads       uint32  `glsl:"heads"`
	FirstMember uint32  `glsl:"first_member"`
	Members     uint32  `glsl:"members"`
	PagesOffset uint32  `glsl:"pages_offset"` // uvec4
	SumsOffset  uint32  `glsl:"sums_offset"`  // float32
	Which       uint32  `glsl:"which"`
	Scale       float32 `glsl:"scale"`
	Y           place   `glsl:"y"`  // elements, like all that follow
	DX          place   `glsl:"dx"` // dV, or dK
}

// setTensors sets the other factor y, the result dx, its sums, which of P and dX is multiplied, and
// the scale.
func (s *bwdProductsParams) setTensors(y, dx, sums vk.Tensor, which uint32, scale float32) {
	s.Which, s.Scale, s.SumsOffset = which, scale, uint32(sums.Offset)
	s.Y, s.DX = placeOf(y), placeOf(dx)
}

// bwdProductsSpec is the specialization of attention_bwd_products.comp.
type bwdProductsSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	SubgroupsK    uint32 `glsl:"SUBGROUPS_K"`
	SubgroupsD    uint32 `glsl:"SUBGROUPS_D"`
	MatM          uint32 `glsl:"MAT_M"`
	MatN          uint32 `glsl:"MAT_N"`
	TilesK        uint32 `glsl:"TILES_K"`
	TilesD        uint32 `glsl:"TILES_D"`
	Slab          uint32 `glsl:"SLAB"`
	HeadDim       uint32 `glsl:"HEAD_DIM"`
	Causal        bool   `glsl:"CAUSAL"`
	Aligned       bool   `glsl:"ALIGNED"`
	LoadAhead     uint32 `glsl:"FENCE"`
}
