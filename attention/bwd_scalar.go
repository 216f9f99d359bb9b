package attention

import "github.com/flashvk/flashvk/vk"

// bwdScalarSpec is the specialization of attention_bwd_dkv_scalar.comp and
// attention_bwd_dq_scalar.comp.
type bwdScalarSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	ThreadsX      uint32 `glsl:"THREADS_X"`
	Own           uint32 `glsl:"OWN"`
	Stream        uint32 `glsl:"STREAM"`
	Depth         uint32 `glsl:"DEPTH"`
	Slice         uint32 `glsl:"SLICE"`
	HeadDim       uint32 `glsl:"HEAD_DIM"`
	Causal        bool   `glsl:"CAUSAL"`
	Aligned       bool   `glsl:"ALIGNED"`
}

// scalarKernel returns attention_bwd_dkv_scalar or attention_bwd_dq_scalar.
func (b *backward) scalarKernel(name string, tile BackwardTile) (kernel[bwdParams], error) {
	return newKernel[bwdParams](b.c.Device(), name, b.p.DType.Short(), &b.p, bwdScalarSpec{
		WorkgroupSize: uint32(tile.Threads),
		ThreadsX:      uint32(tile.ThreadsX),
		Own:           uint32(tile.Own),
		Stream:        uint32(tile.Stream),
		Depth:         uint32(tile.Depth),
		Slice:         uint32(tile.Slice),
		HeadDim:       uint32(b.p.HeadDim),
		Causal:        b.p.Causal,
		Aligned:       aligned(4, &b.q, &b.k, &b.v, &b.do),
	}, vk.KernelOptions{})
}
