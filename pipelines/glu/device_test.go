package glu_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/glu"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestDrawn checks drawn calls.
func TestDrawn(t *testing.T) {
	d := vktest.Open(t, vktest.WholeBuffers)
	require.NoError(t, call.TestDrawn(t, d, "glu", 60, call.Space{Thorough: vktest.Thorough(d)}, nil))
}

// TestExtremes has gates up to the largest numbers of each format, and those where activations change,
// with factors that keep results within the format. Nothing may be NaN.
func TestExtremes(t *testing.T) {
	d := vktest.Open(t)
	for _, format := range dtype.All() {
		for a := glu.SiLU; a <= glu.GELUTanh; a++ {
			c := &call.GLU{Problem: glu.Problem{Rows: 1, Cols: 400, Activation: a, DType: format}}
			x := call.Inputs(c)
			for i := range c.Cols {
				size := math.Pow(2, float64(i/2)/12.5*math.Log2(call.Most(format))/16)
				gate := math.Copysign(size, float64(i%2)-0.5)
				x["g"][i] = float64(format.Round(float32(gate)))
				for _, factor := range []string{"u", "dy"} {
					x[factor][i] = float64(format.Round(float32(x[factor][i] / 8)))
				}
			}
			call.Test(t, d, c, x, kit.Forward, kit.Backward)
		}
	}
}
