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

// TestManyBlocks has fewer workgroups than blocks: each takes several, and the first still writes sum once.
func TestManyBlocks(t *testing.T) {
	d := vktest.Open(t, func(o *vk.Options) { o.Lower = func(c *vk.Caps) { c.MaxWorkgroupCount[0] = 3 } })
	c := &call.NormLinear{Problem: normlinear.Problem{Rows: 2, In: 50, Out: 61, GLU: true, Residual: true, Eps: 1e-5, DType: dtype.Float16}}
	call.Test(t, d, c, nil, kit.Forward)
}
