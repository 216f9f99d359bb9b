package attention

import (
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// bwdMatrixSpec is the specialization of attention_bwd_dkv_matrix.comp and
// attention_bwd_dq_matrix.comp (shaders/lib/bwd_matrix_constants.glsl).
type bwdMatrixSpec struct {
	matrixSpec
	ColRun     uint32 `glsl:"COL_RUN"`
	SameLayout bool   `glsl:"SAME_LAYOUT"`
	Lockstep   bool   `glsl:"LOCKSTEP"`
	RowTiles   uint32 `glsl:"ROW_TILES"`
	BlockN     uint32 `glsl:"BLOCK_N"`
	HeadDim    uint32 `glsl:"HEAD_DIM"`
	Causal     bool   `glsl:"CAUSAL"`
	Aligned    bool   `glsl:"ALIGNED"`
	Prefetch   bool   `glsl:"PREFETCH"`
	PeelMask   bool   `glsl:"PEEL_MASK"`
	LoadAhead  uint32 `glsl:"LOAD_AHEAD"`
}

// bwdTurnsSpec is the specialization of the kernels that own dK and dV, or dQ.
type bwdTurnsSpec struct {
	Matrix  bwdMatrixSpec
	Grouped bool `glsl:"GROUPED"`
}

// matrixKernel returns a kernel of a matrix path, such as attention_bwd_dkv_coopmat2.
func (b *backward) matrixKernel(name string, tile BackwardTile, grouped, isAligned bool) kernel[bwdParams] {
	return newKernel[bwdParams](b.c, name, b.p.DType.Short(), &b.p, bwdTurnsSpec{b.matrixSpec(tile, isAligned), grouped}, matrixKernelOptions(b.c.Device()))
}

// matrixSpec returns the specialization for a tile. It keeps an error in c.
func (b *backward) matrixSpec(tile BackwardTile, isAligned bool) bwdMatrixSpec {
	d, p := b.c.Device(), &b.p
	shape, layout, err := matrixLayout(d, b.config.Impl, p.DType, tile.Detour)
	b.c.Keep(&err)
	return bwdMatrixSpec{
		matrixSpec: newMatrixSpec(d, tile.Subgroups, shape, &layout),
		ColRun:     uint32(layout.ColRun),
		SameLayout: layout.SameAsAcc,
		Lockstep:   chips.Lavapipe(d.Caps()),
		RowTiles:   uint32(tile.RowTiles),
		BlockN:     uint32(tile.BlockN),
		HeadDim:    uint32(p.HeadDim),
		Causal:     p.Causal,
		Aligned:    isAligned,
		Prefetch:   tile.Prefetch,
		PeelMask:   tile.PeelMask,
		LoadAhead:  uint32(tile.LoadAhead),
	}
}

// tileSpec has the constants of a tile for kernels of the scalar and the unfused path.
type tileSpec struct {
	blockSpec
	Depth uint32 `glsl:"DEPTH"`
}

func (t *BackwardTile) spec() tileSpec {
	return tileSpec{newBlockSpec(t.Threads, t.ThreadsX, t.BlockM, t.BlockN), uint32(t.Depth)}
}

// bwdScalarSpec is the specialization of attention_bwd_dkv_scalar.comp and
// attention_bwd_dq_scalar.comp.
type bwdScalarSpec struct {
	tileSpec
	StageRows uint32 `glsl:"STAGE_ROWS"`
	HeadDim   uint32 `glsl:"HEAD_DIM"`
	Causal    bool   `glsl:"CAUSAL"`
	Aligned   bool   `glsl:"ALIGNED"`
}

// scalarKernel returns attention_bwd_dkv_scalar or attention_bwd_dq_scalar.
func (b *backward) scalarKernel(name string, tile BackwardTile) kernel[bwdParams] {
	return newKernel[bwdParams](b.c, name, b.p.DType.Short(), &b.p, bwdScalarSpec{
		tileSpec: tile.spec(), StageRows: uint32(tile.StageRows), HeadDim: uint32(b.p.HeadDim), Causal: b.p.Causal,
		Aligned: argument.Aligned(4, b.q, b.k, b.v, b.do),
	}, vk.KernelOptions{})
}
