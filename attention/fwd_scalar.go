package attention

import (
	"github.com/flashvk/flashvk/vk"
)

// fwdScalarSpec is the specialization of attention_fwd_scalar.comp.
type fwdScalarSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	ThreadsX      uint32 `glsl:"THREADS_X"`
	BlockM        uint32 `glsl:"BLOCK_M"`
	BlockN        uint32 `glsl:"BLOCK_N"`
	Depth         uint32 `glsl:"DEPTH"`
	ValueRows     uint32 `glsl:"VALUE_ROWS"`
	HeadDim       uint32 `glsl:"HEAD_DIM"`
	Causal        bool   `glsl:"CAUSAL"`
	Aligned       bool   `glsl:"ALIGNED"`
	WriteLSE      bool   `glsl:"WRITE_LSE"`
	SplitKV       bool   `glsl:"SPLIT_KV"`
}

// forwardScalar records attention_fwd_scalar.
func forwardScalar(c *vk.Cmd, o, lse, q, k, v vk.Tensor, p Problem, in *Tensors, config Config) error {
	kernel, err := newKernel[fwdParams](c.Device(), config.kernel(p.DType), p.DType.Short(), &p, fwdScalarSpec{
		WorkgroupSize: uint32(config.Threads),
		ThreadsX:      uint32(config.ThreadsX),
		BlockM:        uint32(config.BlockM),
		BlockN:        uint32(config.BlockN),
		Depth:         uint32(config.Depth),
		ValueRows:     uint32(config.ValueRows),
		HeadDim:       uint32(p.HeadDim),
		Causal:        p.Causal,
		Aligned:       aligned(4, &q, &k, &v),
		WriteLSE:      !lse.IsZero(),
		SplitKV:       config.Splits > 1,
	}, vk.KernelOptions{})
	if err != nil {
		return err
	}
	return dispatchFwd(c, kernel, o, lse, q, k, v, p, in, config)
}
