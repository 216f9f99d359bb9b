package engine

import (
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// scalarSpec is the specialization of gemm_scalar.comp.
type scalarSpec struct {
	WorkgroupSize uint32       `glsl:"WORKGROUP_SIZE"`
	ThreadsX      uint32       `glsl:"THREADS_X"`
	BlockM        uint32       `glsl:"BLOCK_M"`
	BlockN        uint32       `glsl:"BLOCK_N"`
	BlockK        uint32       `glsl:"BLOCK_K"`
	GroupM        uint32       `glsl:"GROUP_M"`
	AByK          bool         `glsl:"A_BY_K"`
	BByK          bool         `glsl:"B_BY_K"`
	Partial       bool         `glsl:"PARTIAL"`
	Epilogue      EpilogueSpec `glsl:"epilogue"`
}

// newScalarSpec returns the constants for p.
func newScalarSpec(args Args, p Problem, config Config) scalarSpec {
	return scalarSpec{
		WorkgroupSize: uint32(config.Threads),
		ThreadsX:      uint32(config.ThreadsX),
		BlockM:        uint32(config.BlockM),
		BlockN:        uint32(config.BlockN),
		BlockK:        uint32(config.BlockK),
		GroupM:        uint32(config.GroupM),
		AByK:          !p.TransA,
		BByK:          p.TransB,
		Partial:       config.Splits > 1,
		Epilogue:      NewEpilogueSpec(args, p),
	}
}

// multiplyScalar records gemm_scalar.
func multiplyScalar(c *vk.Cmd, args Args, p Problem, config Config) error {
	module, err := shaders.Get("gemm_scalar", p.DType.Short())
	if err != nil {
		return err
	}
	kernel, err := vk.CachedKernel[Params](c.Device(), module.Name, module.SPIRV, newScalarSpec(args, p, config), vk.KernelOptions{})
	if err != nil {
		return err
	}
	return Dispatch(c, kernel, args, p, config)
}
