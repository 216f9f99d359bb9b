package trial

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
)

var (
	attentionFirst = flag.Int("attention-first", 0, "number of the first problem of TestAttentionProblems")
	attentionCount = flag.Int("attention-count", 24, "how many problems TestAttentionProblems checks")
	attentionSoft  = flag.Bool("attention-soft", true, "problems of TestAttentionProblems are for a software driver")
	attentionImpl  = flag.String("attention-impl", "", "path of TestAttentionProblems, all if empty")
	attentionJSON  = flag.String("attention-problem", "", "the one problem that TestAttentionProblems checks")
)

// attentionFamily is the number of problems of a family, which come in a row.
const attentionFamily = 8

// drawAttentionNumber draws problem n of the tests' seed.
func drawAttentionNumber(n int, s call.Space) *attentionProblem {
	family := rand.New(rand.NewPCG(1, uint64(n/attentionFamily)))
	return drawAttention(family, rand.New(rand.NewPCG(2, uint64(n))), s).(*attentionProblem)
}

// TestAttentionProblems checks problems on the device.
func TestAttentionProblems(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t, vktest.NoValidation)
	r := newTestRunner(t, d)
	if *attentionJSON != "" {
		p := new(attentionProblem)
		require.NoError(t, json.Unmarshal([]byte(*attentionJSON), p))
		require.NoError(t, p.Supports(d.Caps()))
		require.NoError(t, p.Check(context.Background(), r))
		return
	}
	s := call.Space{Soft: *attentionSoft, Work: 2e7}
	if *attentionImpl != "" {
		s.Impls = []string{*attentionImpl}
	}
	refused := 0
	for n := *attentionFirst; n < *attentionFirst+*attentionCount; n++ {
		p := drawAttentionNumber(n, s)
		if err := p.Supports(d.Caps()); err != nil {
			refused++
			continue
		}
		if err := p.Check(context.Background(), r); err != nil {
			text, _ := json.Marshal(p)
			t.Errorf("%d: %v\n%v\n%s", n, err, p, text)
		}
	}
	t.Logf("%d of %d refused", refused, *attentionCount)
	require.Less(t, refused, *attentionCount)
}

// TestAttentionDraw wants every problem, and every step to a smaller one, to be valid on the device
// that configurations are drawn for, and to be the same after JSON.
func TestAttentionDraw(t *testing.T) {
	vktest.Sequential(t)
	for _, s := range []call.Space{{Work: 1e8}, {Soft: true, Work: 2e7}, {Impls: []string{"coopmat2"}, DTypes: []dtype.DType{dtype.Float32}, Work: 1e6}} {
		refused := 0
		for n := range 1000 {
			p := drawAttentionNumber(n, s)
			require.NoError(t, p.Case.Problem.Validate(), "%d: %v", n, p)
			if p.Supports(typicalCaps(s.Soft)) != nil {
				refused++
			}
			same := roundTrip(t, p)
			require.Equal(t, p, same, "%d", n)
			require.Equal(t, p, drawAttentionNumber(n, s))
			for _, q := range p.Smaller() {
				require.NoError(t, q.(*attentionProblem).Case.Problem.Validate())
				require.NotEqual(t, p.String(), q.String())
			}
		}
		require.Less(t, refused, 10, "of 1000")
	}
}

func roundTrip(t *testing.T, p *attentionProblem) Problem {
	text, err := json.Marshal(p)
	require.NoError(t, err)
	same := attentionKernel().New()
	require.NoError(t, json.Unmarshal(text, same))
	return same
}

// TestAttentionShrinks says that repeated steps to a smaller problem, the first or any, come to an
// end.
func TestAttentionShrinks(t *testing.T) {
	vktest.Sequential(t)
	for n := range 40 {
		rng := rand.New(rand.NewPCG(3, uint64(n)))
		for _, pick := range []func(list []Problem) Problem{
			func(list []Problem) Problem { return list[0] },
			func(list []Problem) Problem { return one(rng, list...) },
		} {
			p := Problem(drawAttentionNumber(n*attentionFamily, call.Space{Work: 1e7}))
			for steps := 0; len(p.Smaller()) > 0; steps++ {
				require.Less(t, steps, 3000, "%v", p)
				p = pick(p.Smaller())
			}
		}
	}
}

// TestAttentionDistribution wants every feature alone and together with each other one, and every
// path, format and class with and without features in both passes.
func TestAttentionDistribution(t *testing.T) {
	vktest.Sequential(t)
	seen := make(map[string]int)
	wide := 0
	const draws = 4000
	for n := range draws {
		p := drawAttentionNumber(n*attentionFamily, call.Space{Work: 1e8})
		c, a := &p.Case, &p.Case.Problem
		on := a.Features()
		seen[fmt.Sprintf("features %d", min(len(on), 3))]++
		switch len(on) {
		case 1:
			seen[on[0]]++
		case 2:
			seen[on[0]+" "+on[1]]++
		}
		seen[fmt.Sprintf("%v backward=%v %v plain=%v", p.Impl, p.Backward, a.DType, a.Plain())]++
		stored := p.BackwardConfig != nil && p.BackwardConfig.Stored != attention.BackwardTile{}
		for what, is := range map[string]bool{
			"splits":       p.Config != nil && p.Config.Splits > 1,
			"stripes":      p.Config != nil && p.Config.Stripes > 1,
			"packed heads": !p.Backward && a.Plain() && a.SeqQ == 1 && a.NumHeads > a.NumKVHeads,
			"decoding":     a.SeqQ <= 16 && a.SeqKV > 1000,
			"fused":        p.BackwardConfig != nil && p.BackwardConfig.Fused != attention.BackwardTile{},
			"stored":       stored && a.Plain(),
			"tiles":        p.BackwardConfig != nil && p.BackwardConfig.DKV != attention.BackwardTile{},
			"config":       p.Config != nil,
			"on decode":    p.DecodeConfig != nil,
			"hidden tiles": a.KeyMask && c.Mask != attntest.RandomMask && a.SeqKV > 128,
			"wide":         c.Sample > 0, "outliers": c.Outliers, "sizes": c.Sizes.Q != 0, "dlse": c.DLSE, "no lse": c.NoLSE,
			"stored, window": stored && a.Window.On, "stored, varlen": stored && a.Varlen.On, "stored, bias": stored && a.Bias.On && a.Softcap == 0,
			"hiding bias": c.HidingBias, "top-left": a.CausalAlign == attention.TopLeft, "negative": a.Scale < 0,
			"float32 coopmat2, key mask and causal": a.DType == dtype.Float32 && p.Impl == attention.CoopMat2 && a.KeyMask && a.Causal,
		} {
			if is {
				seen[what]++
			}
		}
		if blocks := a.Batch * a.NumHeads * ((a.SeqQ + wideBlockRows - 1) / wideBlockRows); c.Sample > 0 && blocks >= 500 {
			wide++
		}
	}
	names := []string{"value_dim", "window", "softcap", "alibi", "bias", "key_mask", "sinks", "varlen", "dropout"}
	for i, a := range names {
		require.Greater(t, seen[a], 60, a)
		for _, b := range names[i+1:] {
			require.Greater(t, seen[a+" "+b], 10, "%s and %s", a, b)
		}
	}
	for _, impl := range attention.Impls() {
		for _, format := range dtype.All() {
			for _, backward := range []bool{false, true} {
				for _, plain := range []bool{false, true} {
					key := fmt.Sprintf("%v backward=%v %v plain=%v", impl, backward, format, plain)
					require.Greater(t, seen[key], 3, key)
				}
			}
		}
	}
	for _, what := range []string{
		"splits", "stripes", "packed heads", "decoding", "fused", "stored", "stored, window", "stored, varlen", "stored, bias", "tiles", "config", "on decode", "hidden tiles", "wide", "outliers", "sizes", "dlse", "no lse",
		"hiding bias", "top-left", "negative", "float32 coopmat2, key mask and causal",
	} {
		require.Greater(t, seen[what], 10, what)
	}
	require.Greater(t, wide, draws/20, "of %d with a sample", seen["wide"])
	var lines []string
	for what, n := range seen {
		lines = append(lines, fmt.Sprintf("%5.1f%%  %s", 100*float64(n)/draws, what))
	}
	slices.Sort(lines)
	t.Logf("%d wide\n%s", wide, strings.Join(lines, "\n"))
}

// BenchmarkAttentionHost times the work of the host for a problem, without the device and the
// copies to it: the reference, tolerances, values and comparisons. The result that is checked here
// is the reference, computed twice more.
func BenchmarkAttentionHost(b *testing.B) {
	for i := range b.N {
		require.NoError(b, drawAttentionNumber(i, call.Space{Work: 1e8}).check(attntest.Reference, attntest.BackwardReference))
	}
}

// An attentionMistake is a wrong implementation, in contiguous memory.
type attentionMistake struct {
	name     string
	forward  func(o, lse []float64, in ref.Inputs[float64], p attention.Problem) error
	backward func(g ref.Gradients, o, lse []float64, up ref.Upstream[float64], in ref.Inputs[float64], p attention.Problem) error
}

// finite replaces hidden elements, which may be NaN, so that a mistake shows as a value.
func finite(in ref.Inputs[float64]) ref.Inputs[float64] {
	in.K, in.V = slices.Clone(in.K), slices.Clone(in.V)
	for _, t := range [][]float64{in.K, in.V} {
		for i, x := range t {
			if math.IsNaN(x) || math.IsInf(x, 0) || math.Abs(x) == 28672 {
				t[i] = 0
			}
		}
	}
	return in
}

var attentionMistakes = []attentionMistake{
	{name: "none", forward: ref.Forward[float64]},
	{name: "none", backward: func(g ref.Gradients, _, _ []float64, up ref.Upstream[float64], in ref.Inputs[float64], p attention.Problem) error {
		return ref.Backward(g, up, in, p)
	}},
	{name: "first key of a tile that is all hidden", forward: func(o, lse []float64, in ref.Inputs[float64], p attention.Problem) error {
		in = finite(in)
		const tile = 16
		mask := slices.Clone(in.KeyMask)
		for b := 0; p.KeyMask && b < p.Batch; b++ {
			keys := mask[b*p.SeqKV:][:p.SeqKV]
			for j := 0; j+tile <= len(keys); j += tile {
				if !slices.Contains(keys[j:j+tile], true) {
					keys[j] = true
				}
			}
		}
		in.KeyMask = mask
		return ref.Forward(o, lse, in, p)
	}},
	{name: "a key more to the left of a window", forward: func(o, lse []float64, in ref.Inputs[float64], p attention.Problem) error {
		if p.Window.On && p.Window.Left >= 0 {
			p.Window.Left++
		}
		return ref.Forward(o, lse, finite(in), p)
	}},
	{name: "float32 with the scores of bfloat16", forward: func(o, lse []float64, in ref.Inputs[float64], p attention.Problem) error {
		if p.DType == dtype.Float32 {
			in.K = slices.Clone(in.K)
			for i, x := range in.K {
				in.K[i] = float64(dtype.BFloat16.Round(float32(x)))
			}
		}
		return ref.Forward(o, lse, in, p)
	}},
	{name: "last row of large problems", forward: func(o, lse []float64, in ref.Inputs[float64], p attention.Problem) error {
		last := slices.Clone(o[len(o)-p.ValueHeadDim():])
		err := ref.Forward(o, lse, in, p)
		if p.Batch*p.NumHeads > 20 && !p.Varlen.On {
			copy(o[len(o)-p.ValueHeadDim():], last)
		}
		return err
	}},
	{name: "dK of one head of a group", backward: func(g ref.Gradients, _, _ []float64, up ref.Upstream[float64], in ref.Inputs[float64], p attention.Problem) error {
		err := ref.Backward(g, up, in, p)
		if p.NumHeads > p.NumKVHeads {
			for i := range g.DK {
				g.DK[i] /= float64(p.NumHeads / p.NumKVHeads)
			}
		}
		return err
	}},
	{name: "dLSE left out", backward: func(g ref.Gradients, _, _ []float64, up ref.Upstream[float64], in ref.Inputs[float64], p attention.Problem) error {
		up.DLSE = nil
		return ref.Backward(g, up, in, p)
	}},
	{name: "dBias of another batch", backward: func(g ref.Gradients, _, _ []float64, up ref.Upstream[float64], in ref.Inputs[float64], p attention.Problem) error {
		err := ref.Backward(g, up, in, p)
		if p.Bias.Batch && p.Batch > 1 {
			n := len(g.DBias) / p.Batch
			copy(g.DBias[n:2*n], slices.Clone(g.DBias[:n]))
		}
		return err
	}},
}

// TestAttentionMistakes says that problems find wrong implementations, and pass a right one.
func TestAttentionMistakes(t *testing.T) {
	vktest.Sequential(t)
	for _, m := range attentionMistakes {
		t.Run(m.name, func(t *testing.T) {
			for n := range 400 {
				p := drawAttentionNumber(n*attentionFamily, call.Space{Soft: true, Work: 3e5})
				if p.Backward != (m.backward != nil) {
					continue
				}
				forward := attntest.Reference
				if m.forward != nil {
					forward = attntest.Contiguous(m.forward)
				}
				err := p.check(forward, attntest.ContiguousBackward(m.backward))
				if m.name == "none" {
					require.NoError(t, err, "%d: %v", n, p)
				} else if err != nil {
					t.Logf("%d: %v\n%v", n, err, p)
					return
				}
			}
			if m.name != "none" {
				t.Error("no problem finds it")
			}
		})
	}
}
