package attention

import (
	"github.com/flashvk/flashvk/vk"
)

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
	return cached[withFeatures[bwdStoredBiasParams]](d, storedBias, p.DType.Short(), withFeatureSpec[bwdStoredBiasSpec]{
		bwdStoredBiasSpec{
			WorkgroupSize: sumThreads,
			BlockM:        uint32(block),
			Fragments:     config.fragments(caps),
			SumBatches:    p.Bias.Rows && !p.Bias.Batch,
			SumHeads:      p.Bias.Rows && !p.Bias.Heads,
			SumRows:       !p.Bias.Rows,
		},
		features,
	}, vk.KernelOptions{})
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
	f, step := k.features(), int(k.c.Device().Caps().MaxWorkgroupCount[2])
	for first := 0; first < heads; first += step {
		params.First, g.Z = uint32(first), uint32(min(step, heads-first))
		tensors := append([]vk.Tensor{k.pages, sums, out}, f.tensors[:]...)
		k.bias.Dispatch(k.c, g, withFeatures[bwdStoredBiasParams]{params, f.params}, tensors...)
	}
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
	Fragments     bool   `glsl:"FRAGMENTS"`
	SumBatches    bool   `glsl:"SUM_BATCHES"`
	SumHeads      bool   `glsl:"SUM_HEADS"`
	SumRows       bool   `glsl:"SUM_ROWS"`
}
