package attention

import (
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// fwdCoopMat2Spec is the specialization of attention_fwd_coopmat2.comp.
type fwdCoopMat2Spec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	NumSubgroups  uint32 `glsl:"NUM_SUBGROUPS"`
	MatM          uint32 `glsl:"MAT_M"`
	MatN          uint32 `glsl:"MAT_N"`
	RowTiles      uint32 `glsl:"ROW_TILES"`
	BlockN        uint32 `glsl:"BLOCK_N"`
	HeadDim       uint32 `glsl:"HEAD_DIM"`
	Causal        bool   `glsl:"CAUSAL"`
	Aligned       bool   `glsl:"ALIGNED"`
	WriteLSE      bool   `glsl:"WRITE_LSE"`
	Prefetch      bool   `glsl:"PREFETCH"`
	LazyRescale   bool   `glsl:"LAZY_RESCALE"`
}

// forwardCoopMat2 records attention_fwd_coopmat2.
func forwardCoopMat2(c *vk.Cmd, o, lse, q, k, v vk.Tensor, p Problem, config Config) error {
	d := c.Device()
	shape, err := matrixShape(d.Caps(), CoopMat2, p.DType)
	if err != nil {
		return err
	}
	module, err := shaders.Get("attention_fwd_coopmat2", p.DType.Short())
	if err != nil {
		return err
	}
	kernel, err := vk.CachedKernel[fwdParams](d, module.Name, module.SPIRV, fwdCoopMat2Spec{
		WorkgroupSize: uint32(config.Subgroups) * d.Caps().SubgroupSize,
		NumSubgroups:  uint32(config.Subgroups),
		MatM:          shape.M,
		MatN:          shape.N,
		RowTiles:      uint32(config.RowTiles),
		BlockN:        uint32(config.BlockN),
		HeadDim:       uint32(p.HeadDim),
		Causal:        p.Causal,
		Aligned:       aligned(8, &q, &k, &v, &o),
		WriteLSE:      !lse.IsZero(),
		Prefetch:      config.Prefetch,
		LazyRescale:   config.Lazy,
	}, matrixKernelOptions(d))
	if err != nil {
		return err
	}
	return dispatchFwd(c, kernel, o, lse, q, k, v, p, config.Subgroups*config.RowTiles*int(shape.M))
}

// matrixKernelOptions asks for what kernels with cooperative matrices rely on:
// subgroups of the size that the matrix shapes are given for, all full.
func matrixKernelOptions(d *vk.Device) vk.KernelOptions {
	return vk.KernelOptions{SubgroupSize: d.Caps().SubgroupSize, FullSubgroups: true}
}
