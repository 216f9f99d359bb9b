package call

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/mixture/ref"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestPlaces wants each layout to have a place of its own, so that a kernel that takes one for another is
// found out.
func TestPlaces(t *testing.T) {
	for _, x := range []struct {
		shape  []int
		packed bool
		want   int // of packed sequences, SBHD is BSHD
	}{{[]int{2, 3, 5, 8}, false, 8}, {[]int{5, 3, 8}, true, 7}} {
		seen := map[string]bool{}
		for _, letter := range AlignedLayouts + OddLayouts {
			seen[fmt.Sprint(*place(byte(letter), x.shape, x.packed))] = true
		}
		require.Len(t, seen, x.want)
	}
}

// TestOutliersFit: dropout makes no weighted value of float16 infinite. (Where a key with an outlier
// had all the weight, O of the reference was 85,800.)
func TestOutliersFit(t *testing.T) {
	a := &Attention{Data: Data{Kind: OutlierKind, Seed: 7}, Sizes: Sizes{V: 700}}
	a.Problem = attention.Problem{
		Batch: 2, NumHeads: 1, NumKVHeads: 1, SeqQ: 3, SeqKV: 300, HeadDim: 56, DType: dtype.Float16,
		Dropout: attention.Dropout{P: 0.65},
	}
	most := 0.0
	for _, v := range Inputs(a)["v"] {
		most = max(most, math.Abs(v))
	}
	require.InDelta(t, 60000, most*a.Dropout.KeepScale(), 100)
}

// TestMixtureLoudest wants moderate outputs of all tokens where the reference looks at a few. Of the sample
// alone they were, and another token had a deviation of e^-77: seed 24001 of the H200.
func TestMixtureLoudest(t *testing.T) {
	m := &Mixture{
		Problem: mixture.Problem{Tokens: 21345, Heads: 1, In: 19, Hidden: 129}, Direction: Direction{Backward: true}, DLoss: 3.66,
		Data: Data{Kind: OutlierKind, Seed: 17418481913370810790, Sample: 40, Magnitude: 0.8832497596740723, Second: 1.8121992349624634},
	}
	x := Inputs(m)
	var in ref.Inputs
	Bind(x, &in)
	require.Less(t, tolerance.Largest(ref.Outputs(in, m.Problem).LogSigma), 16.0)
}

// TestSampleSure wants nearly all rows of drawn calls to be compared, the others being those that roundings decide.
func TestSampleSure(t *testing.T) {
	rows, sure := 0, 0
	for i := range uint64(80) {
		s := drawn(drawSample)(rand.New(rand.NewPCG(1, i/4)), rand.New(rand.NewPCG(2, i)), Space{Work: 1e6}).(*Sample)
		rows, sure = rows+s.Rows, sure+len(s.Want(Inputs(s), kit.Forward)["tokens"].Want)
	}
	require.Greater(t, float64(sure), 0.97*float64(rows))
}
