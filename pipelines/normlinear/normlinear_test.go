package normlinear

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/shaders/layouttest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestLayouts compares every Go mirror of this package with its shader.
func TestLayouts(t *testing.T) {
	layouttest.CheckAll(t, "normlinear", map[string]layouttest.Row{
		"normlinear": layouttest.Of(params{}, spec{}, "X", "Residual", "NormW", "W", "Bias", "Y", "Sum"),
	})
}

// TestChoose has the tile sizes of projections on an H200.
func TestChoose(t *testing.T) {
	caps := &vk.Caps{
		ScalarBlockLayout: true, Storage16: true, ComputeUnits: 132, MaxSharedMemoryBytes: 49152, MaxWorkgroupInvocations: 1024,
		MaxWorkgroupSize: [3]uint32{1024, 1024, 64},
	}
	for _, x := range []struct {
		in, out int
		glu     bool
		want    string
	}{
		{576, 960, false, "t1x128 rows4 steps1"},
		{576, 1536, true, "t1x128 rows4 steps1"},
		{576, 49152, false, "t4x32 rows8 steps1"},
		{2048, 3072, false, "t1x128 rows4 steps1"},
		{4096, 14336, true, "t1x128 rows8 steps1"},
	} {
		p := Problem{Rows: 1, In: x.in, Out: x.out, GLU: x.glu, DType: dtype.BFloat16}
		plan, err := Choose(caps, p, kit.Forward, Options{})
		require.NoError(t, err)
		require.Equal(t, x.want, plan.String())
	}
}
