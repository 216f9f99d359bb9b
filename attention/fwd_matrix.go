package attention

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/vk"
)

// matrixSpec is lib/matrix_constants.glsl: how a workgroup has the matrices of a device.
type matrixSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	NumSubgroups  uint32 `glsl:"NUM_SUBGROUPS"`
	MatM          uint32 `glsl:"MAT_M"`
	MatN          uint32 `glsl:"MAT_N"`
	Length        uint32 `glsl:"LENGTH"`
	RowRun        uint32 `glsl:"ROW_RUN"`
	RowLanes      uint32 `glsl:"ROW_LANES"`
}

func newMatrixSpec(d *vk.Device, subgroups int, shape vk.CoopMatShape, layout *chips.MatrixLayout) matrixSpec {
	return matrixSpec{
		WorkgroupSize: uint32(subgroups) * d.Caps().SubgroupSize,
		NumSubgroups:  uint32(subgroups),
		MatM:          shape.M,
		MatN:          shape.N,
		Length:        uint32(layout.Length),
		RowRun:        uint32(layout.RowRun),
		RowLanes:      uint32(layout.RowLanes),
	}
}

// fwdTileSpec is what kernels on matrices have of a problem and its tiles.
type fwdTileSpec struct {
	RowTiles uint32 `glsl:"ROW_TILES"`
	BlockN   uint32 `glsl:"BLOCK_N"`
	HeadDim  uint32 `glsl:"HEAD_DIM"`
	Causal   bool   `glsl:"CAUSAL"`
	Aligned  bool   `glsl:"ALIGNED"`
	WriteLSE bool   `glsl:"WRITE_LSE"`
}

// fwdMatrixSpec is the specialization of attention_fwd_matrix.comp.
type fwdMatrixSpec struct {
	matrixSpec
	SameLayout bool `glsl:"SAME_LAYOUT"`
	Lockstep   bool `glsl:"LOCKSTEP"`
	fwdTileSpec
	Prefetch  bool   `glsl:"PREFETCH"`
	PeelMask  bool   `glsl:"SPLIT_LOOP"`
	LoadAhead uint32 `glsl:"FENCE"`
	SplitKV   bool   `glsl:"SPLIT_KV"`
	KeysFirst bool   `glsl:"KEYS_FIRST"`
}

// forwardMatrix records attention_fwd_coopmat2 or attention_fwd_coopmat, for
// float32 tensors attention_fwd_f32x2_coopmat2 or attention_fwd_f32x2_coopmat.
func forwardMatrix(c *vk.Cmd, o, lse, q, k, v vk.Tensor, p Problem, in *Tensors, config Config) error {
	d := c.Device()
	spec, err := newFwdMatrixSpec(d, o, lse, q, k, v, p, config)
	if err != nil {
		return err
	}
	kernel, err := newKernel[fwdParams](d, config.kernel(p.DType), p.DType.Short(), &p, spec, matrixKernelOptions(d))
	if err != nil {
		return err
	}
	return dispatchFwd(c, kernel, o, lse, q, k, v, p, in, config)
}

// matrixLayout returns the matrices of a path for tensors of a format, and their layout: which
// invocation holds which element. With the detour the layout counts as unknown.
func matrixLayout(d *vk.Device, impl Impl, t dtype.DType, detour bool) (shape vk.CoopMatShape, layout chips.MatrixLayout, err error) {
	if shape, err = matrixShape(d.Caps(), impl, t); err != nil {
		return shape, layout, err
	}
	if t == dtype.Float32 {
		t = dtype.Float16
	}
	if layout, err = chips.LayoutOf(d, t, shape); err == nil && detour {
		layout.Forget()
	}
	return shape, layout, err
}

// asksQuads returns an error that begins with of, unless the device keeps matrices of a path and format in
// NVIDIA's order. Only the device can tell (chips.AsksQuads).
func asksQuads(d *vk.Device, of any, impl Impl, t dtype.DType) error {
	shape, err := matrixShape(d.Caps(), impl, t)
	if err != nil {
		return err
	}
	quads, err := chips.AsksQuads(d, t, shape)
	if err == nil && !quads {
		err = unsupported("%v: the driver does not keep elements of matrices where NVIDIA's 580 does", of)
	}
	return err
}

// newFwdMatrixSpec returns the specialization for a call.
func newFwdMatrixSpec(d *vk.Device, o, lse, q, k, v vk.Tensor, p Problem, config Config) (fwdMatrixSpec, error) {
	shape, layout, err := matrixLayout(d, config.Impl, p.DType, config.Detour)
	if err != nil {
		return fwdMatrixSpec{}, err
	}
	isAligned := aligned(8, &q, &k, &v, &o)
	if p.DType == dtype.Float32 {
		isAligned = aligned(4, &k, &v)
	}
	return fwdMatrixSpec{
		matrixSpec: newMatrixSpec(d, config.Subgroups, shape, &layout),
		SameLayout: layout.SameAsAcc,
		Lockstep:   chips.Lavapipe(d.Caps()),
		fwdTileSpec: fwdTileSpec{
			RowTiles: uint32(config.RowTiles),
			BlockN:   uint32(config.BlockN),
			HeadDim:  uint32(p.HeadDim),
			Causal:   p.Causal,
			Aligned:  isAligned,
			WriteLSE: !lse.IsZero(),
		},
		Prefetch:  config.Prefetch,
		PeelMask:  config.PeelMask,
		LoadAhead: uint32(config.LoadAhead),
		SplitKV:   config.Splits > 1,
		KeysFirst: config.KeysFirst,
	}, nil
}

// matrixKernelOptions is chips.MatrixOptions.
func matrixKernelOptions(d *vk.Device) vk.KernelOptions { return chips.MatrixOptions(d.Caps()) }
