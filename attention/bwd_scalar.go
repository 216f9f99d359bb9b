package attention

import (
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// bwdScalarSpec is the specialization of attention_bwd_dkv_scalar.comp and
// attention_bwd_dq_scalar.comp.
type bwdScalarSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	ThreadsX      uint32 `glsl:"THREADS_X"`
	BlockM        uint32 `glsl:"BLOCK_M"`
	BlockN        uint32 `glsl:"BLOCK_N"`
	Depth         uint32 `glsl:"DEPTH"`
	Slice         uint32 `glsl:"SLICE"`
	HeadDim       uint32 `glsl:"HEAD_DIM"`
	Causal        bool   `glsl:"CAUSAL"`
	Aligned       bool   `glsl:"ALIGNED"`
}

// backwardScalar records attention_bwd_dkv_scalar and attention_bwd_dq_scalar.
func backwardScalar(c *vk.Cmd, dq, dk, dv, do, q, k, v, rows vk.Tensor, p Problem, config BackwardConfig) error {
	kernel := func(name string, tile BackwardTile) (*vk.Kernel[bwdParams], error) {
		module, err := shaders.Get(name, p.DType.Short())
		if err != nil {
			return nil, err
		}
		return vk.CachedKernel[bwdParams](c.Device(), module.Name, module.SPIRV, bwdScalarSpec{
			WorkgroupSize: uint32(tile.Threads),
			ThreadsX:      uint32(tile.ThreadsX),
			BlockM:        uint32(tile.BlockM),
			BlockN:        uint32(tile.BlockN),
			Depth:         uint32(tile.Depth),
			Slice:         uint32(tile.Slice),
			HeadDim:       uint32(p.HeadDim),
			Causal:        p.Causal,
			Aligned:       aligned(4, &q, &k, &v, &do),
		}, vk.KernelOptions{})
	}
	dkvKernel, err := kernel("attention_bwd_dkv_scalar", config.DKV)
	if err != nil {
		return err
	}
	dqKernel, err := kernel("attention_bwd_dq_scalar", config.DQ)
	if err != nil {
		return err
	}
	params := newBwdParams(do, q, k, v, p)
	params.setDX(dk)
	params.setDV(dv)
	if err := dispatchBwd(c, dkvKernel, params, groups(p.SeqKV, config.DKV.BlockN), p.NumKVHeads, p, q, k, v, do, rows, dk, dv); err != nil {
		return err
	}
	if dq.Buffer == dk.Buffer || dq.Buffer == dv.Buffer {
		c.Barrier() // as in dispatchFwd; kernels of different buffers may overlap
	}
	params.setDX(dq)
	return dispatchBwd(c, dqKernel, params, groups(p.SeqQ, config.DQ.BlockM), p.NumHeads, p, q, k, v, do, rows, dq)
}
