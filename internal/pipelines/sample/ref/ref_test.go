package ref

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/pipelines/sample"
)

// frequencies returns how often tokens are drawn, of n draws that roundings do not decide.
func frequencies(t *testing.T, logits, seen []float64, f sample.Filters, n int) []float64 {
	p := sample.Problem{Rows: 1, Vocabulary: len(logits), Filters: f}
	counts, sure := make([]float64, len(logits)), 0.0
	for i := range n {
		if list := Tokens(logits, seen, []float64{7, 8, 1, float64(i)}, p); len(list) == 1 {
			counts[list[0]]++
			sure++
		}
	}
	require.Greater(t, sure, 0.99*float64(n))
	for i := range counts {
		counts[i] /= sure
	}
	return counts
}

// TestFrequencies compares frequencies with probabilities that are worked out by hand, within five deviations.
func TestFrequencies(t *testing.T) {
	log := func(weights ...float64) (x []float64) {
		for _, w := range weights {
			x = append(x, math.Log(w))
		}
		return x
	}
	x := log(1, 4, 2, 1, 8)
	for _, c := range []struct {
		name   string
		f      sample.Filters
		logits []float64
		want   []float64 // weights
	}{
		{"temperature 1", sample.Filters{Temperature: 1}, x, []float64{1, 4, 2, 1, 8}},
		{"temperature 1/2", sample.Filters{Temperature: 0.5}, x, []float64{1, 16, 4, 1, 64}},
		{"top-k 2", sample.Filters{Temperature: 1, TopK: 2}, x, []float64{0, 4, 0, 0, 8}},
		{"top-k with equals", sample.Filters{Temperature: 1, TopK: 4}, x, []float64{1, 4, 2, 1, 8}},
		{"top-p below 8/16", sample.Filters{Temperature: 1, TopP: 0.49}, x, []float64{0, 0, 0, 0, 8}},
		{"top-p above 8/16", sample.Filters{Temperature: 1, TopP: 0.51}, x, []float64{0, 4, 0, 0, 8}},
		{"top-p of what top-k keeps", sample.Filters{Temperature: 1, TopK: 3, TopP: 0.84}, x, []float64{0, 4, 0, 0, 8}},
		{"top-p of all", sample.Filters{Temperature: 1, TopP: 0.84}, x, []float64{0, 4, 2, 0, 8}},
		{"min-p", sample.Filters{Temperature: 1, MinP: 0.24}, x, []float64{0, 4, 2, 0, 8}},
		{"min-p and temperature", sample.Filters{Temperature: 0.5, MinP: 0.24}, x, []float64{0, 16, 0, 0, 64}},
		{"penalty", sample.Filters{Temperature: 1, RepetitionPenalty: 2}, log(1./2, 1./4, 1, 16, 4), []float64{1. / 2, 1. / 16, 1, 4, 4}},
		{"infinite", sample.Filters{Temperature: 1}, []float64{math.Inf(1), math.NaN(), 5, math.Inf(-1), math.Inf(1)}, []float64{1, 0, 0, 0, 1}},
	} {
		sum, n := 0.0, 20000
		for _, w := range c.want {
			sum += w
		}
		got := frequencies(t, c.logits, []float64{2 + 8}, c.f, n)
		for v, w := range c.want {
			p := w / sum
			require.InDelta(t, p, got[v], 5*math.Sqrt(p*(1-p)/float64(n)), "%s, token %d", c.name, v)
		}
	}
}

// TestGreedy has ties, penalties of both signs, and rows without a token.
func TestGreedy(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		logits []float64
		seen   float64
		want   []int
	}{
		{[]float64{1, 3, 3, 2}, 0, []int{1}},
		{[]float64{nan, -inf, -2, -2}, 0, []int{2}},
		{[]float64{nan, -inf}, 0, []int{-1}},
		{[]float64{3, 2, inf}, 0, []int{2}},
		{[]float64{3, 2, 1}, 1, []int{1}},                                          // 3 / 2
		{[]float64{-3, -4, -7}, 3, []int{0}},                                       // -6, -8, -7
		{[]float64{-3, -4, -5}, 1, []int{1}},                                       // -6
		{[]float64{4, 2, 1}, 1, []int{0, 1}},                                       // 4 / 2, rounded, or 2
		{[]float64{1, 3, 3, 3}, 6, []int{3}}, {[]float64{1, 3, 3, 1}, 6, []int{1}}, // equal after the penalty
		{[]float64{0, math.Copysign(0, -1), -1}, 3, []int{0}}, // zeros are equal
		{[]float64{4, 2 * (1 + 0x1p-20), 1}, 1, []int{1}},     // beyond roundings
	} {
		p := sample.Problem{Rows: 1, Vocabulary: len(c.logits), Filters: sample.Filters{RepetitionPenalty: 2}}
		require.Equal(t, c.want, Tokens(c.logits, []float64{c.seen}, nil, p), "%v", c.logits)
	}
}

// TestSure wants roundings to decide few rows of many tokens, with all filters.
func TestSure(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	f := sample.Filters{Temperature: 0.7, TopK: 300, TopP: 0.9, MinP: 0.001, RepetitionPenalty: 1.1}
	p, unsure := sample.Problem{Rows: 1, Vocabulary: 2000, Filters: f}, 0
	logits, seen := make([]float64, p.Vocabulary), make([]float64, p.SeenWords())
	for i := range 500 {
		for v := range logits {
			logits[v] = float64(float32(3 * rng.NormFloat64()))
		}
		for w := range seen {
			seen[w] = float64(int32(rng.Uint32()))
		}
		if len(Tokens(logits, seen, []float64{1, 2, 3, float64(i)}, p)) > 1 {
			unsure++
		}
	}
	require.Less(t, unsure, 5)
}
