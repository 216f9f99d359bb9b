package normlinear_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/normlinear"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// TestDrawn checks drawn calls.
func TestDrawn(t *testing.T) {
	d := vktest.Open(t, vktest.WholeBuffers)
	require.NoError(t, call.TestDrawn(t, d, "normlinear", 60, call.Space{Thorough: vktest.Thorough(d)}, nil))
}

// TestMatrices: matrices are for more than eight rows of bfloat16, unless they are asked for.
func TestMatrices(t *testing.T) {
	for _, x := range []struct {
		rows  int
		dtype dtype.DType
		want  string
	}{{16, dtype.BFloat16, "normlinear_coopmat"}, {8, dtype.BFloat16, "normlinear"}, {16, dtype.Float16, "normlinear"}} {
		p := normlinear.Problem{Rows: x.rows, In: 4096, Out: 6144, DType: x.dtype}
		plan, err := normlinear.Choose(call.TypicalCaps(false), p, kit.Forward, normlinear.Options{})
		require.NoError(t, err)
		require.Equal(t, []string{x.want}, plan.Kernels())
	}
}

// TestManyBlocks has fewer workgroups than blocks: each takes several, and the first still writes sum once.
func TestManyBlocks(t *testing.T) {
	d := vktest.Open(t, func(o *vk.Options) { o.Lower = func(c *vk.Caps) { c.MaxWorkgroupCount[0] = 3 } })
	c := &call.NormLinear{Problem: normlinear.Problem{Rows: 2, In: 50, Out: 61, GLU: true, Eps: 1e-5, DType: dtype.Float16}}
	call.Test(t, d, c, nil, kit.Forward)
}
