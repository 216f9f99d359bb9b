package ref

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/pipelines/xent"
)

// TestHand compares with numbers worked out by hand: two words with logits 0 and log(3) have
// probabilities 1/4 and 3/4. The second token is ignored, the third has a label that is not a word.
func TestHand(t *testing.T) {
	in := Inputs{H: []float64{1, 2, 3}, W: []float64{0, math.Log(3)}, Labels: []float64{0, -100, 7}}
	p := xent.Problem{Tokens: 3, Vocabulary: 2, Dim: 1}
	r := Compute(in, p, Division{1, 1}, true)
	require.InDelta(t, math.Log(4), r.Losses.Want[0], 1e-15)
	require.InDelta(t, math.Log(10), r.LSE.Want[1], 1e-15)
	require.Zero(t, r.Losses.Want[1])
	for _, x := range [][]float64{r.Losses.Want[2:], r.Loss.Want, r.DH.Want[2:], r.DW.Want} {
		require.True(t, math.IsNaN(x[0]))
	}
	p.Tokens, p.ZLoss, p.Sum, in.DLoss = 2, 0.5, true, []float64{2}
	in.H, in.Labels = in.H[:2], in.Labels[:2]
	r = Compute(in, p, Division{1, 1}, true)
	z := 1 + math.Log(4)
	require.InDelta(t, math.Log(4)+math.Log(4)*math.Log(4)/2, r.Loss.Want[0], 1e-15)
	require.InDeltaSlice(t, []float64{2 * (z/4 - 1), 2 * z * 3 / 4, 0, 0}, r.DX.Want, 1e-15)
	require.InDeltaSlice(t, []float64{2 * z * 3 / 4 * math.Log(3), 0}, r.DH.Want, 1e-15)
	require.InDeltaSlice(t, r.DX.Want[:2], r.DW.Want, 1e-15)
	p.Smoothing, p.ZLoss, p.Sum, in.DLoss = 0.5, 0, false, nil
	r = Compute(in, p, Division{1, 1}, true)
	require.InDelta(t, math.Log(4)-math.Log(3)/4, r.Loss.Want[0], 1e-15)
	require.InDeltaSlice(t, []float64{0.25 - 0.75, 0.75 - 0.25}, r.DX.Want[:2], 1e-15)
}
