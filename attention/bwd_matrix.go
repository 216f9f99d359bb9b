package attention

import "github.com/flashvk/flashvk/internal/chips"

// bwdMatrixSpec is the specialization of attention_bwd_dkv_matrix.comp and
// attention_bwd_dq_matrix.comp (shaders/lib/bwd_matrix_constants.glsl).
type bwdMatrixSpec struct {
	matrixSpec
	ColRun     uint32 `glsl:"COL_RUN"`
	SameLayout bool   `glsl:"SAME_LAYOUT"`
	Lockstep   bool   `glsl:"LOCKSTEP"`
	RowTiles   uint32 `glsl:"ROW_TILES"`
	Stream     uint32 `glsl:"STREAM"`
	HeadDim    uint32 `glsl:"HEAD_DIM"`
	Causal     bool   `glsl:"CAUSAL"`
	Aligned    bool   `glsl:"ALIGNED"`
	Prefetch   bool   `glsl:"PREFETCH"`
	PeelMask   bool   `glsl:"SPLIT_LOOP"`
	LoadAhead  uint32 `glsl:"FENCE"`
}

// bwdTurnsSpec is the specialization of the kernels that own dK and dV, or dQ.
type bwdTurnsSpec struct {
	Matrix  bwdMatrixSpec
	Grouped bool `glsl:"GROUPED"`
}

// matrixKernel returns a kernel of a matrix path, such as attention_bwd_dkv_coopmat2.
func (b *backward) matrixKernel(name string, tile BackwardTile, grouped, isAligned bool) (k kernel[bwdParams], err error) {
	d, p := b.c.Device(), &b.p
	spec, err := b.matrixSpec(tile, isAligned)
	if err != nil {
		return k, err
	}
	return newKernel[bwdParams](d, name, p.DType.Short(), p, bwdTurnsSpec{spec, grouped}, matrixKernelOptions(d))
}

// matrixSpec returns the specialization for a tile.
func (b *backward) matrixSpec(tile BackwardTile, isAligned bool) (bwdMatrixSpec, error) {
	d, p := b.c.Device(), &b.p
	shape, layout, err := matrixLayout(d, b.config.Impl, p.DType, tile.Detour)
	if err != nil {
		return bwdMatrixSpec{}, err
	}
	return bwdMatrixSpec{
		matrixSpec: newMatrixSpec(d, tile.Subgroups, shape, &layout),
		ColRun:     uint32(layout.ColRun),
		SameLayout: layout.SameAsAcc,
		Lockstep:   chips.Lavapipe(d.Caps()),
		RowTiles:   uint32(tile.RowTiles),
		Stream:     uint32(tile.Stream),
		HeadDim:    uint32(p.HeadDim),
		Causal:     p.Causal,
		Aligned:    isAligned,
		Prefetch:   tile.Prefetch,
		PeelMask:   tile.PeelMask,
		LoadAhead:  uint32(tile.LoadAhead),
	}, nil
}
