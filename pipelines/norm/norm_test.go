package norm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/shaders/layouttest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Most returns how many columns a configuration can take, at most cols. It is three less than a
// multiple of vectors: the sum of a power of two equal elements would be exact.
func (c *Config) Most(caps *vk.Caps, format dtype.DType, cols int) int {
	if c.Loads == 0 {
		return cols
	}
	return min(cols, c.Loads*c.team(caps)*vecBytes/format.Size()-3)
}

// TestLayouts compares every Go mirror of this package with its shader.
func TestLayouts(t *testing.T) {
	bwd := layouttest.Of(bwdParams{}, bwdSpec{}, "S", "DY", "DSum", "W", "Mean", "Rstd", "DX", "DResidual", "Parts")
	layouttest.CheckAll(t, "norm_", map[string]layouttest.Row{
		"norm_fwd":      layouttest.Of(fwdParams{}, fwdSpec{}, "X", "Residual", "W", "Y", "Sum", "Mean", "Rstd"),
		"norm_fwd_bias": layouttest.Of(fwdBiasParams{}, fwdSpec{}, "X", "Residual", "W", "Y", "Sum", "Mean", "Rstd", "B"),
		"norm_bwd":      bwd,
		"norm_bwd_bias": bwd,
	})
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
