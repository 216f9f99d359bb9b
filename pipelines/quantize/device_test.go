package quantize_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/quantize"
	"github.com/flashvk/flashvk/vk/kit"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// TestDrawn checks drawn calls.
func TestDrawn(t *testing.T) {
	d := vktest.Open(t, vktest.WholeBuffers)
	require.NoError(t, call.TestDrawn(t, d, "quantize", 40, call.Space{Thorough: vktest.Thorough(d)}, nil))
}

// TestEdges has rows whose scale is 1, with numbers in the middle of two elements, or at the edge of
// what it can be; zeros follow in each.
func TestEdges(t *testing.T) {
	nan, inf, least := math.NaN(), math.Inf(1), float64(math.Nextafter32(0x1p-100, 0))
	rows := [][]float64{
		{127, 0.5, 1.5, -2.5, -126.5}, {448, 17, -19, 0x1p-10, 3 * 0x1p-10, 432, 15.5 * 0x1p-10}, {0x1p-100, -least}, {least, -least},
		{math.MaxFloat32, -1e38}, {nan, 1}, {nan, nan}, {-inf, 1e38}, {1e-45, 1e-45}, {65468 + 8, -70000, 1}, {math.Copysign(0, -1)},
	}
	for _, q := range dtype.Quants() {
		c := &call.Quantize{Problem: quantize.Problem{Batch: 1, Heads: 1, Rows: len(rows), Cols: 32, Quant: q, Block: 1}}
		c.Tidy()
		x := call.Values{"x": make([]float64, len(rows)*c.Cols)}
		for i, row := range rows {
			copy(x["x"][i*c.Cols:], row)
		}
		t.Run(q.String(), func(t *testing.T) { call.Test(t, vktest.Open(t), c, x, kit.Forward) })
	}
}

// TestWorkspace wants memory for the maxima of parts to be refused if there is too little of it.
func TestWorkspace(t *testing.T) {
	d := vktest.Open(t)
	p := quantize.Problem{Batch: 1, Heads: 1, Rows: 64, Cols: 1024, Quant: dtype.QuantInt8, Whole: true}
	shape := []int{1, 1, p.Rows, p.Cols}
	x := quantize.Tensors{X: vktest.Tensor(t, d, dtype.Float32, shape...), Y: vktest.Tensor(t, d, dtype.Int8, shape...), Scale: vktest.Tensor(t, d, dtype.Float32, 1)}
	c, err := d.NewCmd("workspace")
	require.NoError(t, err)
	defer c.Close()
	err = quantize.Forward(c, x, p, quantize.Options{Workspace: vktest.Tensor(t, d, dtype.Float32, 15).Buffer})
	require.EqualError(t, err, "quantize: workspace has 60 bytes, want 64")
}
