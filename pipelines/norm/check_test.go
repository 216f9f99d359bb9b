package norm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestErrors has the message of each argument that does not fit.
func TestErrors(t *testing.T) {
	d := vktest.Open(t)
	tensor := func(format dtype.DType, shape ...int) vk.Tensor { return vktest.Tensor(t, d, format, shape...) }
	none := vk.Tensor{}
	f16, f32 := dtype.Float16, dtype.Float32
	x, y, w, row, row2 := tensor(f16, 3, 8), tensor(f16, 3, 8), tensor(f32, 8), tensor(f32, 3), tensor(f32, 3)
	dx, dw := tensor(f16, 3, 8), tensor(f32, 8)
	good := Problem{Rows: 3, Cols: 8, DType: f16}
	c, err := d.NewCmd("errors")
	require.NoError(t, err)
	t.Cleanup(c.Close)
	forward := func(y, sum, mean, rstd, x, residual, w vk.Tensor, p Problem) error {
		c.Reset()
		return Forward(c, Tensors{X: x, Residual: residual, W: w, Y: y, Sum: sum, Mean: mean, RStd: rstd}, p, Options{})
	}
	backward := func(dresidual, dsum vk.Tensor, workspace *vk.Buffer) error {
		c.Reset()
		saved := Tensors{X: x, W: w, Mean: row, RStd: row2}
		return Backward(c, saved, Gradients{DY: y, DSum: dsum, DX: dx, DResidual: dresidual, DW: dw}, good, Options{Workspace: workspace})
	}
	require.NoError(t, forward(y, none, row, row2, x, none, w, good))
	require.EqualError(t, forward(y, none, row, row2, x, x, w, good), "norm: residual is given, but the problem has none")
	require.EqualError(t, forward(y, none, none, row2, x, none, w, good), "norm: mean has no buffer")
	require.EqualError(t, forward(y, none, row, none, x, none, w, good), "norm: mean is given, but the problem has none")
	require.EqualError(t, forward(x, none, row, row2, x, none, w, good), "norm: y overlaps x: outputs need memory of their own")
	require.EqualError(t, forward(y, none, row, row2, x, none, x, good), "norm: w is float16, want float32")
	require.EqualError(t, forward(y, none, row, row2, tensor(f16, 8, 3), none, w, good), "norm: x has shape [8 3] and strides [3 1], want shape [3 8]")
	require.EqualError(t, forward(y, none, row, row2, x.Permute(1, 0), none, w, Problem{Rows: 8, Cols: 3, DType: f16}), "norm: x has strides [1 8]: the last axis is not contiguous")
	residual := good
	residual.Residual = true
	require.EqualError(t, forward(y, none, row, row2, x, x, w, residual), "norm: sum has no buffer")
	require.EqualError(t, forward(y, none, row, row2, x, none, w, Problem{}), "norm: rows=0 is not positive")

	small, err := d.NewBuffer("workspace", 4)
	require.NoError(t, err)
	t.Cleanup(small.Close)
	want, err := Workspace(d.Caps(), good, kit.Backward, Options{})
	require.NoError(t, err)
	err = backward(none, none, small)
	require.ErrorContains(t, err, "norm: workspace has 4 bytes, want ")
	whole, err := d.NewBuffer("workspace", want)
	require.NoError(t, err)
	t.Cleanup(whole.Close)
	require.NoError(t, backward(none, none, whole))
	require.EqualError(t, backward(dx, none, nil), "norm: dresidual is given, but the problem has none")
	require.EqualError(t, backward(none, y, nil), "norm: dsum is given, but the problem has none")
}

// TestChoose checks how rows are shared on devices that are not here.
func TestChoose(t *testing.T) {
	h200 := vk.Caps{
		SubgroupSize: 32, MinSubgroupSize: 32, MaxSubgroupSize: 32, SubgroupOps: vk.SubgroupBasic | vk.SubgroupArithmetic, ComputeFullSubgroups: true,
		MaxWorkgroupInvocations: 1024, MaxWorkgroupSize: [3]uint32{1024, 1024, 64}, MaxSharedMemoryBytes: 49152, ScalarBlockLayout: true, Storage16: true,
		ComputeUnits: 132, MaxWorkgroupCount: [3]uint32{1 << 30, 65535, 65535},
	}
	least := h200
	least.ComputeFullSubgroups, least.MaxWorkgroupInvocations, least.MaxWorkgroupSize[0], least.MaxSharedMemoryBytes = false, 128, 128, 16384
	for _, c := range []struct {
		caps *vk.Caps
		p    Problem
		want string
	}{
		{&h200, Problem{Rows: 9, Cols: 512, DType: dtype.BFloat16}, "wg256 subgroup loads2 rows1 groups4 ahead"},
		{&h200, Problem{Rows: 9, Cols: 512}, "wg256 subgroup loads4 rows1 groups4 ahead"},
		{&h200, Problem{Rows: 9, Cols: 513}, "wg64 loads3 rows1 groups16 ahead"},
		{&h200, Problem{Rows: 9, Cols: 4096, DType: dtype.BFloat16}, "wg128 loads4 rows1 groups8 ahead"},
		{&h200, Problem{Rows: 9, Cols: 16384}, "wg1024 loads4 rows1 groups4 ahead"},
		{&h200, Problem{Rows: 9, Cols: 16385}, "wg1024 rows1 groups4 ahead"},
		{&least, Problem{Rows: 9, Cols: 1}, "wg64 loads1 rows1 groups16 ahead"},
		{&least, Problem{Rows: 9, Cols: 2049}, "wg128 rows1 groups8 ahead"},
	} {
		got, err := Choose(c.caps, c.p, kit.Forward, Options{})
		require.NoError(t, err)
		require.Equal(t, c.want, got.String())
		require.NoError(t, got.Feasible(c.caps, c.p))
	}
	few := h200
	few.SubgroupSize, few.MinSubgroupSize, few.MaxSubgroupSize, few.MaxWorkgroupSubgroups = 8, 8, 8, 16
	c := Config{Threads: 128, SubgroupTeam: true, Loads: 1, Rows: 1, Groups: 1}
	require.NoError(t, c.Feasible(&few, Problem{Rows: 1, Cols: 1}))
	c.Threads = 256
	require.EqualError(t, c.Feasible(&few, Problem{Rows: 1, Cols: 1}), "norm: workgroup of 256 invocations is more than 16 subgroups of 8: unsupported on this device")
	none := h200
	none.SubgroupOps = vk.SubgroupBasic
	_, err := Choose(&none, Problem{Rows: 1, Cols: 1}, kit.Forward, Options{})
	require.ErrorIs(t, err, vk.ErrUnsupported)
	require.EqualError(t, err, "norm: the device has no subgroup arithmetic: unsupported on this device")
}
