package call

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
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
