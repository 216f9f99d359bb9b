package attention

import (
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// fwdCoopMatSpec is the specialization of attention_fwd_coopmat.comp.
type fwdCoopMatSpec struct {
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
	SameLayout    bool   `glsl:"SAME_LAYOUT"`
	Lockstep      bool   `glsl:"LOCKSTEP"`
}

// forwardCoopMat records attention_fwd_coopmat.
func forwardCoopMat(c *vk.Cmd, o, lse, q, k, v vk.Tensor, p Problem, config Config) error {
	d := c.Device()
	shape, err := matrixShape(d.Caps(), CoopMat, p.DType)
	if err != nil {
		return err
	}
	same := false
	if !config.Detour {
		if same, err = sameLayout(d, p.DType, shape); err != nil {
			return err
		}
	}
	module, err := shaders.Get("attention_fwd_coopmat", p.DType.Short())
	if err != nil {
		return err
	}
	kernel, err := vk.CachedKernel[fwdParams](d, module.Name, module.SPIRV, fwdCoopMatSpec{
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
		SameLayout:    same,
		Lockstep:      lavapipe(d.Caps()),
	}, matrixKernelOptions(d))
	if err != nil {
		return err
	}
	return dispatchFwd(c, kernel, o, lse, q, k, v, p, config.Subgroups*config.RowTiles*int(shape.M))
}
