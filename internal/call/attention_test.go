package call

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
)

// drawAttentionNumber draws a problem of family n of the tests' seed.
func drawAttentionNumber(n int, s Space) *Attention {
	return drawAttention(rand.New(rand.NewPCG(1, uint64(n))), rand.New(rand.NewPCG(2, uint64(n*8))), s).(*Attention)
}

// TestAttentionDistribution wants every feature alone and together with each other one, and every
// path, format and class with and without features in both passes.
func TestAttentionDistribution(t *testing.T) {
	vktest.Sequential(t)
	seen := make(map[string]int)
	wide := 0
	const draws = 4000
	for n := range draws {
		a := drawAttentionNumber(n, Space{Work: 1e8})
		on := a.Features()
		seen[fmt.Sprintf("features %d", min(len(on), 3))]++
		switch len(on) {
		case 1:
			seen[on[0]]++
		case 2:
			seen[on[0]+" "+on[1]]++
		}
		seen[fmt.Sprintf("%v backward=%v %v plain=%v", a.Impl, a.Backward, a.DType, a.Plain())]++
		stored := a.BackwardConfig != nil && a.BackwardConfig.Stored != attention.BackwardTile{}
		for what, is := range map[string]bool{
			"splits":       a.Config != nil && a.Config.Splits > 1,
			"stripes":      a.Config != nil && a.Config.Stripes > 1,
			"packed heads": !a.Backward && a.Plain() && a.SeqQ == 1 && a.NumHeads > a.NumKVHeads,
			"decoding":     a.SeqQ <= 16 && a.SeqKV > 1000,
			"fused":        a.BackwardConfig != nil && a.BackwardConfig.Fused != attention.BackwardTile{},
			"stored":       stored && a.Plain(),
			"tiles":        a.BackwardConfig != nil && a.BackwardConfig.DKV != attention.BackwardTile{},
			"config":       a.Config != nil,
			"on decode":    a.DecodeConfig != nil,
			"hidden tiles": a.KeyMask && a.Mask != RandomMask && a.SeqKV > 128,
			"wide":         a.Sample > 0, "outliers": a.Kind == OutlierKind, "sizes": a.Sizes.Q != 0, "dlse": a.DLSE, "no lse": a.NoLSE,
			"stored, window": stored && a.Window.On, "stored, varlen": stored && a.Varlen.On, "stored, bias": stored && a.Bias.On && a.Softcap == 0,
			"hiding bias": a.HidingBias, "top-left": a.CausalAlign == attention.TopLeft, "negative": a.Scale < 0,
			"float32 coopmat2, key mask and causal": a.DType == dtype.Float32 && a.Impl == attention.CoopMat2 && a.KeyMask && a.Causal,
		} {
			if is {
				seen[what]++
			} else {
				seen[what] += 0
			}
		}
		if blocks := a.Batch * a.NumHeads * ((a.SeqQ + wideBlockRows - 1) / wideBlockRows); a.Sample > 0 && blocks >= 500 {
			wide++
		}
	}
	least := map[string]int{}
	names := []string{"value_dim", "window", "softcap", "alibi", "bias", "key_mask", "sinks", "varlen", "dropout"}
	for i, a := range names {
		least[a] = 60
		for _, b := range names[i+1:] {
			least[a+" "+b] = 10
		}
	}
	for what := range seen {
		if _, ok := least[what]; !ok && !strings.Contains(what, "backward=") {
			least[what] = 10
		}
	}
	for _, impl := range attention.Impls() {
		for _, format := range dtype.All() {
			for _, of := range []string{"false %v plain=false", "false %v plain=true", "true %v plain=false", "true %v plain=true"} {
				least[fmt.Sprintf("%v backward="+of, impl, format)] = 3
			}
		}
	}
	for what, n := range least {
		require.Greater(t, seen[what], n, what)
	}
	require.Greater(t, wide, draws/20, "of %d with a sample", seen["wide"])
	for _, what := range slices.Sorted(maps.Keys(seen)) {
		t.Logf("%5.1f%%  %s", 100*float64(seen[what])/draws, what)
	}
}

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
