package gmm_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestMerge merges groups of one component each. Some are far from y, some likelier than others
// by 1e4.
func TestMerge(t *testing.T) {
	d := vktest.Open(t)
	for i, size := range [][2]int{{1, 1}, {70, 2}, {130, 10}} {
		c := newCall(gmm.Problem{Tokens: size[0], Components: size[1]})
		c.Call, c.Magnitude = call.GMMMerge, []float64{1, 1e4}[i%2]
		x := call.Inputs(c)
		for t := 0; t < c.Tokens; t += 3 {
			x["y"][t] = float64(float32(x["y"][t] * 1e25)) // z²/2 is infinite
		}
		c.Adjust(x)
		k, record, err := call.Case(d.Caps(), c, kit.Forward, x)
		require.NoError(t, err)
		k.Layout = []guard.Layout{guard.Packed, guard.Padded}[i%2]
		for _, out := range k.Tensors {
			for j, w := range out.Want { // some are beyond float32
				out.Want[j] = float64(float32(w))
			}
		}
		k.Test(t, d, record)
	}
}

// TestMergeErrors has the message of states that do not fit.
func TestMergeErrors(t *testing.T) {
	d := vktest.Open(t)
	c, err := d.NewCmd("errors")
	require.NoError(t, err)
	t.Cleanup(c.Close)
	x := vktest.Tensor(t, d, dtype.Float32, 2, 4, gmm.StateSize)
	p, none := gmm.Problem{Tokens: 4, Components: 1}, gmm.Tensors{}
	require.NoError(t, gmm.Merge(c, x, none, p, gmm.Options{}))
	require.EqualError(t, gmm.Merge(c, vk.Tensor{}, none, p, gmm.Options{}), "gmm: states has shape [], want [groups 4 8]")
	require.EqualError(t, gmm.Merge(c, x, none, gmm.Problem{Tokens: 5, Components: 1}, gmm.Options{}), "gmm: states has shape [2 4 8] and strides [32 8 1], want shape [2 5 8]")
	odd := x
	odd.Shape, odd.Offset = []int{1, 4, 8}, 2
	require.EqualError(t, gmm.Merge(c, odd, none, p, gmm.Options{}), "gmm: states has offset 2 and strides [32 8 1]: not multiples of 4 elements")
}

// TestSaturate has gradients that float16 cannot hold, and wants its largest number instead.
func TestSaturate(t *testing.T) {
	d := vktest.Open(t)
	g := newCall(gmm.Problem{Tokens: 2, Components: 1, Grad: dtype.Some(dtype.Float16)})
	g.Interleaved = true
	for _, most := range []float64{65504, math.Inf(1)} {
		c := guard.Case{Tensors: []guard.Tensor{
			{Name: "p", Shape: []int{2, 1, 3}, Values: []float64{0, 3, -10, 0, 0, 0}},
			{Name: "y", Shape: []int{2}, Values: []float64{1, 2}},
			{Name: "dp", DType: dtype.Float16, Shape: []int{2, 1, 3}, Want: []float64{0, most, -most, 0, -1, -1.5}, Bound: 1e-3},
		}}
		g.Saturate = !math.IsInf(most, 1)
		c.Test(t, d, func(cmd *vk.Cmd, x map[string]vk.Tensor) error { return g.Record(cmd, x, nil, kit.Backward) })
	}
}
