package attention

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// fwdSplitSpec is the specialization of attention_fwd_split_coopmat2.comp and
// attention_fwd_split_coopmat.comp.
type fwdSplitSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	NumSubgroups  uint32 `glsl:"NUM_SUBGROUPS"`
	MatM          uint32 `glsl:"MAT_M"`
	MatN          uint32 `glsl:"MAT_N"`
	Length        uint32 `glsl:"LENGTH"`
	RowRun        uint32 `glsl:"ROW_RUN"`
	RowLanes      uint32 `glsl:"ROW_LANES"`
	SameLayout    bool   `glsl:"SAME_LAYOUT"`
	Lockstep      bool   `glsl:"LOCKSTEP"`
	RowTiles      uint32 `glsl:"ROW_TILES"`
	BlockN        uint32 `glsl:"BLOCK_N"`
	HeadDim       uint32 `glsl:"HEAD_DIM"`
	Causal        bool   `glsl:"CAUSAL"`
	Aligned       bool   `glsl:"ALIGNED"`
	WriteLSE      bool   `glsl:"WRITE_LSE"`
	Prefetch      bool   `glsl:"PREFETCH"`
	SplitLoop     bool   `glsl:"SPLIT_LOOP"`
}

// forwardSplit records attention_fwd_split_coopmat2 or
// attention_fwd_split_coopmat: float32 tensors on matrices of float16.
func forwardSplit(c *vk.Cmd, o, lse, q, k, v vk.Tensor, p Problem, config Config) error {
	d := c.Device()
	shape, err := matrixShape(d.Caps(), config.Impl, p.DType)
	if err != nil {
		return err
	}
	layout, err := layoutOf(d, dtype.Float16, shape)
	if err != nil {
		return err
	}
	if config.Detour {
		layout.RowRun, layout.RowLanes, layout.SameAsAcc = 1, 0, false
	}
	name := "attention_fwd_split_coopmat2"
	if config.Impl == CoopMat {
		name = "attention_fwd_split_coopmat"
	}
	module, err := shaders.Get(name, p.DType.Short())
	if err != nil {
		return err
	}
	plain, err := vk.CachedKernel[fwdParams](d, module.Name, module.SPIRV, fwdSplitSpec{
		WorkgroupSize: uint32(config.Subgroups) * d.Caps().SubgroupSize,
		NumSubgroups:  uint32(config.Subgroups),
		MatM:          shape.M,
		MatN:          shape.N,
		Length:        uint32(layout.Length),
		RowRun:        uint32(layout.RowRun),
		RowLanes:      uint32(layout.RowLanes),
		SameLayout:    layout.SameAsAcc,
		Lockstep:      lavapipe(d.Caps()),
		RowTiles:      uint32(config.RowTiles),
		BlockN:        uint32(config.BlockN),
		HeadDim:       uint32(p.HeadDim),
		Causal:        p.Causal,
		Aligned:       aligned(4, &q, &k, &v),
		WriteLSE:      !lse.IsZero(),
		Prefetch:      config.Prefetch,
		SplitLoop:     config.SplitLoop,
	}, matrixKernelOptions(d))
	if err != nil {
		return err
	}
	return dispatchFwd(c, kernel[fwdParams]{plain: plain}, o, lse, q, k, v, p, nil, config)
}

// feasibleSplit is what the split kernels demand of tile sizes, in place of
// what the kernels of 16-bit tensors demand: the shared memory, but for the
// scratch of the coopmat path, or why there is no kernel.
func (c Config) feasibleSplit(p Problem, m, n int) (sharedBytes int, err error) {
	if c.Fence != 0 {
		return 0, unsupported("%v: fence=%d, but kernels of %v have no fences", c.Impl, c.Fence, p.DType)
	}
	if rows := 2 * c.BlockN; rows%(c.RowTiles*m) != 0 { // STAGE_ROWS of lib/tile_split.glsl
		return 0, unsupported("%v: %d rows of a subgroup do not divide the %d rows of a tile", c.Impl, c.RowTiles*m, rows)
	}
	row8 := (p.HeadDim + n - 1) / n * n / 8
	sharedBytes = 5 * c.BlockN * (row8 + 1) * 16      // tile, lib/tile_split.glsl
	sharedBytes += c.Subgroups * (c.RowTiles*m*4 + 8) // q_exponents and tile_tops
	return sharedBytes, nil
}

// splitTable is fwdTable for float32 tensors on matrices. Tiles take twice
// the shared memory of 16-bit ones and more: 5 * BlockN rows of head_dim.
var splitTable = []fwdRow{
	{family: "hopper", headDim: 64, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 1, BlockN: 32, Prefetch: true, SplitLoop: true}},
	{family: "hopper", headDim: 128, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 1, BlockN: 16, Prefetch: true, SplitLoop: true}},
	{family: "hopper", headDim: 64, Config: Config{Impl: CoopMat, Subgroups: 4, RowTiles: 1, BlockN: 32, Prefetch: true, SplitLoop: true}},
	{family: "hopper", headDim: 128, Config: Config{Impl: CoopMat, Subgroups: 8, RowTiles: 1, BlockN: 16, SplitLoop: true}},

	// Small tiles, as in fwdTable.
	{family: "lavapipe", headDim: 40, Config: Config{Impl: CoopMat2, Subgroups: 2, RowTiles: 1, BlockN: 16}},
	{family: "lavapipe", headDim: 256, Config: Config{Impl: CoopMat2, Subgroups: 2, RowTiles: 1, BlockN: 8}},
	{family: "lavapipe", headDim: 40, Config: Config{Impl: CoopMat, Subgroups: 2, RowTiles: 1, BlockN: 16}},
	{family: "lavapipe", headDim: 256, Config: Config{Impl: CoopMat, Subgroups: 2, RowTiles: 1, BlockN: 8}},

	// Any device with matrices, with less and less shared memory.
	{headDim: 64, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 1, BlockN: 32, SplitLoop: true}},
	{headDim: 256, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 1, BlockN: 16, SplitLoop: true}},
	{headDim: 64, Config: Config{Impl: CoopMat, Subgroups: 4, RowTiles: 1, BlockN: 32, SplitLoop: true}},
	{headDim: 256, Config: Config{Impl: CoopMat, Subgroups: 4, RowTiles: 1, BlockN: 16, SplitLoop: true}},
	{headDim: 256, Config: Config{Impl: CoopMat, Subgroups: 2, RowTiles: 1, BlockN: 16, SplitLoop: true}},
}
