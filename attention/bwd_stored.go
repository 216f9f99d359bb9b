package attention

import (
	"errors"
	"reflect"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// storeKernel names the kernel that computes dQ and stores P and dX.
func (c *BackwardConfig) storeKernel(t dtype.DType) string {
	return c.Impl.kernel("attention_bwd_dq", t) + "_stored"
}

// stored reports whether P and dX pass through memory.
func (c *BackwardConfig) stored() bool { return c.Stored != (BackwardTile{}) }

// feasibleStored is Feasible for kernels that pass P and dX through memory.
func (c *BackwardConfig) feasibleStored(caps *vk.Caps, p *Problem) error {
	t := c.Stored
	switch {
	case c.Impl != CoopMat2 && c.Impl != CoopMat || p.DType == dtype.Float32:
		return unsupported("%v: no kernel stores weights of %v", c.Impl, p.DType)
	case c.Chunk < 0:
		return unsupported("%v: chunk=%d is negative", c.Impl, c.Chunk)
	}
	if n := uint32(reflect.TypeFor[withFeatures[bwdStoreFeaturesParams]]().Size()); !p.Plain() && n > caps.MaxPushConstantsBytes {
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
	case t.Subgroups < 1 || t.RowTiles < 1 || t.BlockN < 1:
		return unsupported("%v: a tile size of %+v is not positive", c.Impl, t)
	case block%c.DQ.BlockN != 0 || block%8 != 0:
		return unsupported("%v: by%d does not divide a block of %d rows, or 8 does not", c.Impl, c.DQ.BlockN, block)
	case t.BlockN%n != 0 || block%t.BlockN != 0:
		return unsupported("%v: by%d is not a multiple of the matrix size %d that divides a block of %d rows", c.Impl, t.BlockN, n, block)
	case block%(t.RowTiles*m) != 0 || t.Subgroups%(block/(t.RowTiles*m)) != 0:
		return unsupported("%v: %d subgroups of %d keys do not share out a block of %d keys evenly", c.Impl, t.Subgroups, t.RowTiles*m, block)
	}
	if err := argument.FitsWorkgroup("attention", caps, c.Impl, t.Subgroups*int(caps.SubgroupSize)); err != nil {
		return err
	}
	width := c.productsWidth(caps, p, shape)
	operands := t.BlockN * (block/8 + 1 + width/8 + 1) * 16
	sums := t.Subgroups * m * (width*block/(t.Subgroups*t.RowTiles*m)/4 + 1) * 16
	if err := argument.FitsShared("attention", caps, c.Impl, max(operands, sums)); err != nil {
		return err
	}
	chunk, limit := c.chunk(caps, p), c.storedLimit(caps, p)
	bytes := float64(chunk.keyHeads*chunk.members) * c.headBytes(caps, p)
	bytes += 4 * float64(size(c.sumsShape(caps, p))+size(c.biasSumsShape(caps, p)))
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
			if k.bias != nil {
				k.sumBias(head, member, n)
			}
		}
	}
	return b.c.Err()
}

// storedKernels are the kernels of a call that passes P and dX through memory.
type storedKernels struct {
	*backward
	rowKernel            kernelOf[bwdStoreParams, bwdStoreFeaturesParams]
	values, keys         productsKernel                                // dV, and dK
	bias                 *vk.Kernel[withFeatures[bwdStoredBiasParams]] // nil: none
	pageParts            uint32                                        // workgroups of bias of a page
	pageRoom             pageRoom
	rowBlocks, keyBlocks uint32
}

func (b *backward) newStoredKernels() (k storedKernels, err error) {
	p, config, d := &b.p, &b.config, b.c.Device()
	caps := d.Caps()
	block := config.DQ.owned(caps, config.Impl, p.DType)
	k.backward, k.rowBlocks, k.keyBlocks, k.pageRoom = b, groups(p.SeqQ, block), groups(p.SeqKV, block), newPageRoom(p, block)
	if limit := caps.MaxWorkgroupCount[1]; max(k.rowBlocks, k.keyBlocks) > limit {
		return k, unsupported("backward: seq_q=%d by seq_kv=%d makes %d by %d blocks, more than the device's %d workgroups", p.SeqQ, p.SeqKV, k.rowBlocks, k.keyBlocks, limit)
	}
	shape, err := matrixShape(caps, config.Impl, p.DType)
	if err != nil {
		return k, err
	}
	if config.packed(caps) {
		if known, err := chips.AsksQuads(d, p.DType, shape); err != nil || !known {
			return k, errors.Join(err, unsupported("backward: the device keeps matrices in another way than its driver is known to"))
		}
	}
	store := bwdStoreSpec{b.matrixSpec(config.DQ, argument.Aligned(8, b.dq, b.q, b.k, b.v, b.do)), config.packed(caps)}
	k.rowKernel = newKernelOf[bwdStoreParams, bwdStoreFeaturesParams](
		b.c, moduleOf(config.storeKernel(p.DType), p), p.DType.Short(), p.Plain(), store, newFeatureSpec(p), matrixKernelOptions(d))
	k.values, k.keys = b.newProductsKernel(p.ValueHeadDim(), shape), b.newProductsKernel(p.HeadDim, shape)
	k.bias, err = k.newStoredBias()
	return k, err
}

// A productsKernel has no features unless p.cutsPages.
type productsKernel = kernelOf[bwdProductsParams, bwdProductsFeaturesParams]

// newProductsKernel returns the kernel of dV or dK, which have dim columns.
func (b *backward) newProductsKernel(dim int, shape vk.CoopMatShape) productsKernel {
	p, config, d := &b.p, &b.config, b.c.Device()
	spec := config.productsSpec(d.Caps(), p, dim, shape, argument.Aligned(8, b.q, b.do, b.dk, b.dv))
	return newKernelOf[bwdProductsParams, bwdProductsFeaturesParams](
		b.c, config.productsKernel(d.Caps(), p), p.DType.Short(), !p.cutsPages(), spec, newPageSpec(p), matrixKernelOptions(d))
}

// store records the kernel of dQ for the chunk of heads that begins with a key head and a member of
// its group.
func (k *storedKernels) store(head, member int, n storedChunk) {
	p := &k.p
	perKV, heads := p.NumHeads/p.NumKVHeads, n.keyHeads*n.members
	all := newBwdParams(k.do, k.q, k.k, k.v, *p)
	params := bwdStoreParams{
		SeqQ: all.SeqQ, SeqKV: all.SeqKV, bwdInputs: all.bwdInputs,
		DX:        placeOf(k.dq),
		FirstHead: uint32(head*perKV + member), Heads: uint32(heads), Members: uint32(n.members),
		PagesOffset: uint32(k.pages.Offset / 4),
	}
	headBytes := float64(p.SeqKV) * float64((p.HeadDim+p.ValueHeadDim())*p.DType.Size()) / float64(n.members)
	k.rowKernel.dispatch(k.c, k.headGroups(heads, headBytes, k.rowBlocks), params, bwdStoreFeaturesParams{params, k.pageRoom}, k.features(),
		k.q, k.k, k.v, k.do, k.rows, k.dq, k.pages)
}

// sum records the products for a chunk.
func (k *storedKernels) sum(head, member int, n storedChunk) {
	p := &k.p
	params := bwdProductsParams{
		SeqQ: uint32(p.SeqQ), SeqKV: uint32(p.SeqKV), HeadsPerKV: uint32(p.NumHeads / p.NumKVHeads), NumKVHeads: uint32(p.NumKVHeads),
		CausalShift: int32(p.Mask().Shift), FirstHead: uint32(head), Heads: uint32(n.keyHeads),
		FirstMember: uint32(member), Members: uint32(n.members), PagesOffset: uint32(k.pages.Offset / 4),
	}
	if !p.cutsPages() { // a window that ends is a causal mask further on
		params.CausalShift = int32(p.pagesShift())
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
	f := k.features()
	for i, x := range []struct {
		kernel *productsKernel
		y, dx  vk.Tensor
		scale  float64
	}{{&k.values, k.do, k.dv, p.Dropout.KeepScale()}, {&k.keys, k.q, k.dk, p.EffectiveScale()}} {
		params.Which, params.Scale, params.SumsOffset = uint32(i), float32(x.scale), uint32(sums[i].Offset)
		params.Y, params.DX = placeOf(x.y), placeOf(x.dx)
		x.kernel.dispatch(k.c, g, params, bwdProductsFeaturesParams{params, k.pageRoom}, f, k.pages, x.y, x.dx, sums[i])
	}
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

// packed reports whether weights lie in memory in the order of right matrices.
func (c *BackwardConfig) packed(caps *vk.Caps) bool {
	return chips.Quads(caps) && !c.DQ.Detour && c.DQ.BlockN%32 == 0 && (c.Stored.RowTiles == 2 || c.Stored.RowTiles == 4)
}

// productsKernel names the kernel of the products.
func (c *BackwardConfig) productsKernel(caps *vk.Caps, p *Problem) string {
	name := "attention_bwd_products"
	if c.packed(caps) {
		name += "_packed"
	}
	if p.cutsPages() {
		name += "_features"
	}
	return name
}

// productsSpec returns the specialization of attention_bwd_products for dV or dK, which have dim columns.
func (c *BackwardConfig) productsSpec(caps *vk.Caps, p *Problem, dim int, shape vk.CoopMatShape, isAligned bool) bwdProductsSpec {
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
		TilesD:        groups(dim, subgroupsD*int(shape.N)),
		BlockK:        uint32(t.BlockN),
		HeadDim:       uint32(dim),
		Causal:        newFeatureSpec(p).WindowRight, // a window that ends is a causal mask further on
		Aligned:       isAligned,
		LoadAhead:     uint32(t.LoadAhead),
	}
}

// productsWidth returns the columns that a workgroup of the products computes, at least head_dim and value_dim.
func (c *BackwardConfig) productsWidth(caps *vk.Caps, p *Problem, shape vk.CoopMatShape) int {
	s := c.productsSpec(caps, p, max(p.HeadDim, p.ValueHeadDim()), shape, true)
	return int(s.SubgroupsD * s.TilesD * s.MatN)
}

// bwdStoreParams is the push-constant block of lib/params_bwd.glsl with STORE.
type bwdStoreParams struct {
	SeqQ  uint32 `glsl:"seq_q"`
	SeqKV uint32 `glsl:"seq_kv"`
	bwdInputs
	DX          place  `glsl:"dx"` // dQ
	FirstHead   uint32 `glsl:"first_head"`
	Heads       uint32 `glsl:"heads"`
	Members     uint32 `glsl:"members"`
	PagesOffset uint32 `glsl:"pages_offset"` // uvec4
}

// bwdStoreFeaturesParams is the same with FEATURES.
type bwdStoreFeaturesParams struct {
	bwdStoreParams
	pageRoom
}

// bwdStoreSpec is the specialization of attention_bwd_dq_matrix.comp with STORE.
type bwdStoreSpec struct {
	Matrix bwdMatrixSpec
	Packed bool `glsl:"PACKED"`
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

// bwdProductsFeaturesParams is the same with FEATURES.
type bwdProductsFeaturesParams struct {
	bwdProductsParams
	pageRoom
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
	BlockK        uint32 `glsl:"BLOCK_K"`
	HeadDim       uint32 `glsl:"HEAD_DIM"`
	Causal        bool   `glsl:"CAUSAL"`
	Aligned       bool   `glsl:"ALIGNED"`
	LoadAhead     uint32 `glsl:"LOAD_AHEAD"`
}

// storedBias names the kernel that sums up the gradient of the bias from dX that is stored.
const storedBias = "attention_bwd_dbias_stored_features"

// biasOfStored reports whether the gradient of the bias is a sum of dX that is stored. With a Softcap
// dX is not dS.
func (c *BackwardConfig) biasOfStored(p *Problem) bool {
	return c.stored() && p.Bias.On && p.Softcap == 0
}

// sharedBias returns the shape of the bias if several heads that are stored share its gradient,
// else nil.
func (c *BackwardConfig) sharedBias(p *Problem) []int {
	if !c.biasOfStored(p) || !p.Bias.Rows || p.Bias.Batch && p.Bias.Heads {
		return nil
	}
	return p.BiasShape()
}

// biasSumsShape returns the shape of bwdWorkspace.biasSums, nil if all heads are stored at once.
func (c *BackwardConfig) biasSumsShape(caps *vk.Caps, p *Problem) []int {
	shape := c.sharedBias(p)
	if shape == nil {
		return nil
	}
	if chunk := c.chunk(caps, p); chunk.keyHeads == p.Batch*p.NumKVHeads && chunk.members == p.NumHeads/p.NumKVHeads {
		return nil
	}
	return shape
}

// newStoredBias returns the kernel, nil if dBias is not wanted or another's.
func (k *storedKernels) newStoredBias() (*vk.Kernel[withFeatures[bwdStoredBiasParams]], error) {
	p, config, d := &k.p, &k.config, k.c.Device()
	if !config.biasOfStored(p) || k.gradients.DBias.IsZero() {
		return nil, nil
	}
	caps := d.Caps()
	block := config.DQ.owned(caps, config.Impl, p.DType)
	k.pageParts = groups(block*block/8, sumThreads)
	if parts := k.keyBlocks * k.pageParts; parts > caps.MaxWorkgroupCount[0] {
		return nil, unsupported("backward: seq_kv=%d makes %d parts of pages, more than the device's %d workgroups", p.SeqKV, parts, caps.MaxWorkgroupCount[0])
	}
	features := newPageSpec(p)
	features.BiasF32 = newFeatureSpec(p).BiasF32
	return chips.Kernel[withFeatures[bwdStoredBiasParams]](k.c, storedBias, p.DType.Short(), withFeatureSpec[bwdStoredBiasSpec]{
		bwdStoredBiasSpec{
			WorkgroupSize: sumThreads,
			BlockM:        uint32(block),
			Packed:        config.packed(caps),
			SumBatches:    p.Bias.Rows && !p.Bias.Batch,
			SumHeads:      p.Bias.Rows && !p.Bias.Heads,
			SumRows:       !p.Bias.Rows,
		},
		features,
	}, vk.KernelOptions{}), nil
}

// sumBias records the kernel for a chunk.
func (k *storedKernels) sumBias(head, member int, n storedChunk) {
	p := &k.p
	out, sums := k.gradients.DBias, k.biasSums
	g := vk.Groups{X: k.keyBlocks * k.pageParts, Y: k.rowBlocks}
	if !p.Bias.Rows {
		out, g = k.biasParts, vk.Groups{X: k.keyBlocks, Y: 1}
	}
	if sums.IsZero() {
		sums = out // every binding needs a tensor
	}
	params := bwdStoredBiasParams{
		SeqQ: uint32(p.SeqQ), SeqKV: uint32(p.SeqKV), CausalShift: int32(p.Mask().Shift),
		Batches: uint32(p.Batch), NumHeads: uint32(p.NumHeads), NumKVHeads: uint32(p.NumKVHeads),
		FirstHead: uint32(head), Heads: uint32(n.keyHeads), FirstMember: uint32(member), Members: uint32(n.members),
		PagesOffset: uint32(k.pages.Offset / 4), pageRoom: k.pageRoom,
		SumsOffset: uint32(sums.Offset), Out: placeOf(out),
	}
	heads := n.keyHeads * n.members
	if p.Bias.Rows {
		heads = out.Shape[0] * out.Shape[1]
	}
	f := k.features()
	inSteps(k.c.Device(), heads, func(first, n uint32) {
		params.First, g.Z = first, n
		tensors := append([]vk.Tensor{k.pages, sums, out}, f.tensors[:]...)
		k.bias.Dispatch(k.c, g, withFeatures[bwdStoredBiasParams]{params, f.params}, tensors...)
	})
}

// bwdStoredBiasParams is the push-constant block of attention_bwd_dbias_stored.comp.
type bwdStoredBiasParams struct {
	SeqQ        uint32 `glsl:"seq_q"`
	SeqKV       uint32 `glsl:"seq_kv"`
	CausalShift int32  `glsl:"causal_shift"`
	Batches     uint32 `glsl:"batches"`
	NumHeads    uint32 `glsl:"num_heads"`
	NumKVHeads  uint32 `glsl:"num_kv_heads"`
	First       uint32 `glsl:"first"`
	FirstHead   uint32 `glsl:"first_head"`
	Heads       uint32 `glsl:"heads"`
	FirstMember uint32 `glsl:"first_member"`
	Members     uint32 `glsl:"members"`
	PagesOffset uint32 `glsl:"pages_offset"` // uvec4
	pageRoom
	SumsOffset uint32 `glsl:"sums_offset"` // elements, like all that follow
	Out        place  `glsl:"out"`
}

// bwdStoredBiasSpec is its specialization.
type bwdStoredBiasSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	BlockM        uint32 `glsl:"BLOCK_M"`
	Packed        bool   `glsl:"PACKED"`
	SumBatches    bool   `glsl:"SUM_BATCHES"`
	SumHeads      bool   `glsl:"SUM_HEADS"`
	SumRows       bool   `glsl:"SUM_ROWS"`
}
