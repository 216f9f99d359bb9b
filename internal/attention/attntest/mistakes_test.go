package attntest

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk/kit"
)

// A mistake makes another problem of a case, other inputs, or other results.
type mistake struct {
	name    string
	problem func(p *attention.Problem)
	inputs  func(c *Case, x call.Values)
	results func(c *Case, out call.Outputs)
	passes  []kit.Pass // that must find it; nil: both
	random  bool       // random calls must find it, too
}

// of returns the change of a tensor's numbers.
func of(name string, f func(i int, x float64) float64) func(c *Case, x call.Values) {
	return func(_ *Case, x call.Values) {
		for i, v := range x[name] {
			x[name][i] = f(i, v)
		}
	}
}

// first makes all of n parts of a tensor the first one.
func first(name string, parts func(p *attention.Problem) int) func(c *Case, x call.Values) {
	return func(c *Case, x call.Values) {
		size := len(x[name]) / parts(&c.Problem)
		for at := size; at < len(x[name]); at += size {
			copy(x[name][at:at+size], x[name])
		}
	}
}

// scaled multiplies a result.
func scaled(name string, by func(p *attention.Problem) float64) func(c *Case, out call.Outputs) {
	return func(c *Case, out call.Outputs) {
		for i := range out[name].Want {
			out[name].Want[i] *= by(&c.Problem)
		}
	}
}

// hide hides the key at a distance from the key of each row.
func hide(distance int) func(c *Case, x call.Values) {
	return func(c *Case, x call.Values) {
		for at := range x["bias"] {
			if row := at / c.SeqKV % c.SeqQ; c.Bias.Rows && at%c.SeqKV == row+c.Problem.Mask().Shift+distance {
				x["bias"][at] = math.Inf(-1)
			}
		}
	}
}

var (
	forward, backward = []kit.Pass{kit.Forward}, []kit.Pass{kit.Backward}

	batches  = func(p *attention.Problem) int { return p.Batch }
	constant = func(by float64) func(*attention.Problem) float64 {
		return func(*attention.Problem) float64 { return by }
	}
	upstream = func(p *attention.Problem) float64 { return 1 / p.EffectiveScale() }
	bits8    = func(_ int, v float64) float64 { return float64(dtype.FromE4M3(dtype.ToE4M3(float32(v)))) }
	negated  = func(_ int, v float64) float64 { return -v }
)

var mistakes = []mistake{
	{name: "causal ignored", problem: func(p *attention.Problem) { p.Causal = false }},
	{name: "causal off by one", problem: func(p *attention.Problem) {
		if p.Causal && !p.Window.On {
			p.Causal, p.Window = false, attention.Window{On: true, Left: attention.Unlimited, Right: 1}
		}
	}},
	{name: "causal one too few", inputs: hide(0)},
	{name: "top-left and bottom-right swapped", problem: func(p *attention.Problem) { p.CausalAlign = 1 - p.CausalAlign }},
	{name: "scale ignored", problem: func(p *attention.Problem) { p.Scale = 0 }},
	{name: "sign of scale lost", problem: func(p *attention.Problem) { p.Scale = math.Abs(p.Scale) }},
	{name: "window ignored", problem: func(p *attention.Problem) { p.Window = attention.Window{} }},
	{name: "window: one key more to the left", problem: func(p *attention.Problem) { p.Window.Left += min(1, p.Window.Left+1) }, random: true},
	{name: "window: one key fewer to the right", problem: func(p *attention.Problem) { p.Window.Right = max(p.Window.Right-1, min(p.Window.Right, 0)) }},
	{name: "window: open to the right", problem: func(p *attention.Problem) { p.Window.Right -= p.Window.Right + 1 }},
	{name: "softcap ignored", problem: func(p *attention.Problem) { p.Softcap = 0 }},
	{name: "softcap twice as large", problem: func(p *attention.Problem) { p.Softcap *= 2 }},
	{name: "dropout ignored", problem: func(p *attention.Problem) { p.Dropout.P = 0 }},
	{name: "dropout: offset of 32 bits", problem: func(p *attention.Problem) { p.Dropout.Offset &= 1<<32 - 1<<2 }},
	{name: "dropout: seed of 32 bits", problem: func(p *attention.Problem) { p.Dropout.Seed &= 1<<32 - 1 }},
	{name: "dropout not scaled", results: scaled("o", func(p *attention.Problem) float64 { return 1 - p.Dropout.P }), passes: forward},

	{name: "keys of the first batch", inputs: first("k", batches)},
	{name: "values of the first batch", inputs: first("v", batches)},
	{name: "keys of the first head", inputs: first("k", func(p *attention.Problem) int { return p.Batch * p.NumKVHeads })},
	{name: "ALiBi ignored", inputs: of("alibi_slopes", func(int, float64) float64 { return 0 })},
	{name: "ALiBi of the first batch", inputs: first("alibi_slopes", batches)},
	{name: "ALiBi of the head before", inputs: func(_ *Case, x call.Values) {
		copy(x["alibi_slopes"][min(1, len(x["alibi_slopes"])):], x["alibi_slopes"])
	}},
	{name: "bias ignored", inputs: of("bias", func(_ int, v float64) float64 { return min(v, 0) + math.Abs(min(max(v, -1e9), 0)) })},
	{name: "bias scaled", inputs: func(c *Case, x call.Values) {
		of("bias", func(_ int, v float64) float64 { return v * c.EffectiveScale() })(c, x)
	}},
	{name: "bias of the first batch", inputs: first("bias", func(p *attention.Problem) int { return max(1, p.BiasShape()[0]) })},
	{name: "bias of the first head", inputs: first("bias", func(p *attention.Problem) int { return p.BiasShape()[0] * p.BiasShape()[1] })},
	{name: "bias of the first row", inputs: first("bias", func(p *attention.Problem) int { return p.BiasShape()[0] * p.BiasShape()[1] * p.BiasShape()[2] })},
	{name: "key mask ignored", inputs: of("key_mask", func(int, float64) float64 { return 1 })},
	{name: "key mask inverted", inputs: of("key_mask", func(_ int, v float64) float64 { return 1 - v })},
	{name: "key mask of the first batch", inputs: first("key_mask", batches)},
	{name: "a tile of 16 hidden keys counts", inputs: func(c *Case, x call.Values) {
		for j := 0; j+16 <= len(x["key_mask"]); j += c.SeqKV {
			copy(x["key_mask"][j:j+16], slices.Repeat([]float64{1}, 16))
		}
	}, random: true},
	{name: "sinks ignored", inputs: of("sinks", func(int, float64) float64 { return math.Inf(-1) })},
	{name: "sinks scaled", inputs: func(c *Case, x call.Values) {
		of("sinks", func(_ int, v float64) float64 { return v * c.EffectiveScale() })(c, x)
	}, random: true},
	{name: "sink of the first head", inputs: first("sinks", func(p *attention.Problem) int { return p.NumHeads })},
	{name: "q of 8 bits", inputs: of("q", bits8)},
	{name: "float32 with keys of bfloat16", inputs: func(c *Case, x call.Values) {
		for i, v := range x["k"] {
			if c.DType == dtype.Float32 {
				x["k"][i] = float64(dtype.BFloat16.Round(float32(v)))
			}
		}
	}, random: true},
	{name: "v of 8 bits", inputs: of("v", bits8)},
	{name: "dO of 8 bits", inputs: of("do", bits8), passes: backward},
	{name: "dLSE ignored", inputs: of("dlse", func(int, float64) float64 { return 0 }), passes: backward, random: true},
	{name: "dLSE added", inputs: of("dlse", negated), passes: backward},

	{name: "LSE in base 2", results: scaled("lse", constant(math.Log2E)), passes: forward},
	{name: "O off by two roundings", results: func(c *Case, out call.Outputs) { scaled("o", constant(1+4*c.DType.Eps()))(c, out) }, passes: forward},
	{name: "dQ not scaled", results: scaled("dq", upstream), passes: backward},
	{name: "dK not scaled", results: scaled("dk", upstream), passes: backward},
	{name: "dV of half of a group", results: scaled("dv", constant(0.5)), passes: backward},
	{name: "dsinks negated", results: scaled("dsinks", constant(-1)), passes: backward},
	{name: "dbias scaled", results: scaled("dbias", func(p *attention.Problem) float64 { return p.EffectiveScale() }), passes: backward},
}

// few reports whether a case is one that every path runs, however long its kernels take to compile.
func few(c *Case) bool {
	most := 24
	if c.DType == dtype.Float32 {
		most = 8
	}
	plain := c.Plain() && c.HeadDim <= most
	return (plain || len(c.Features()) >= Several && c.DType == dtype.Float16) && c.FLOPs() < 5e6
}

func drawn(pass kit.Pass) (list []*Case) {
	for n := range uint64(200) {
		c := call.All()[0].Draw(rand.New(rand.NewPCG(1, n)), rand.New(rand.NewPCG(2, n)), call.Space{Soft: true, Work: 1e5})
		if a := c.(*call.Attention); a.Sample == 0 && a.Pass() == pass {
			list = append(list, &Case{Attention: *a, want: new(memo)})
		}
	}
	return list
}

// TestMistakes wants some stand-in case that every path runs, and some random call, to be farther
// from the results with a mistake than its bounds allow.
func TestMistakes(t *testing.T) {
	vktest.Sequential(t)
	for _, pass := range []kit.Pass{kit.Forward, kit.Backward} {
		cases := StandIns(slices.DeleteFunc(Cases(Short, pass), func(c *Case) bool { return !few(c) }))
		for source, list := range map[string][]*Case{"cases": cases, "drawn": drawn(pass)} {
			slices.SortStableFunc(list, func(a, b *Case) int { return cmp.Compare(a.FLOPs(), b.FLOPs()) })
			for _, m := range mistakes {
				if (m.passes == nil || slices.Contains(m.passes, pass)) && (m.random || source == "cases") {
					t.Run(fmt.Sprintf("%v/%s/%s", pass, source, m.name), func(t *testing.T) {
						t.Parallel()
						require.True(t, slices.ContainsFunc(list, func(c *Case) bool { return m.shows(c, pass) }))
					})
				}
			}
		}
	}
}

func (m *mistake) shows(c *Case, pass kit.Pass) bool {
	x := call.Inputs(c)
	want, wrong := c.Want(x, pass), *c
	wrong.want = nil
	if m.problem != nil {
		m.problem(&wrong.Problem)
		if wrong.Problem == c.Problem || wrong.Validate() != nil {
			return false
		}
	}
	if m.inputs != nil {
		m.inputs(&wrong, x)
	}
	got := wrong.Want(x, pass)
	if m.results != nil {
		m.results(&wrong, got)
	}
	for _, tensor := range c.Tensors() {
		ofPass := tensor.Role == call.Gradient && pass == kit.Backward || tensor.Role == call.Output && pass == kit.Forward
		if w, ok := want.Of(tensor.Name); ok && ofPass && !tensor.Off {
			for i, v := range w.Want {
				bound := w.Bound
				if w.Bounds != nil {
					bound = w.Bounds[i]
				}
				if g := got[tensor.Name].Want[i]; g != v && !(math.Abs(g-v) <= bound) {
					return true
				}
			}
		}
	}
	return false
}

// TestSets: each case is valid and has a name of its own, and the cases of a set cost what Set says.
func TestSets(t *testing.T) {
	for set, most := range []struct{ each, all float64 }{Short: {0.2e9, 1.4e9}, Full: {1e10, 1e11}} {
		for _, pass := range []kit.Pass{kit.Forward, kit.Backward} {
			names, all := map[string]bool{}, 0.0
			for _, c := range Cases(Set(set), pass) {
				require.NoError(t, c.Validate(), c.Name)
				require.False(t, names[c.Name], "%s twice", c.Name)
				require.LessOrEqual(t, c.FLOPs(), most.each, c.Name)
				names[c.Name] = true
				all += c.FLOPs()
			}
			require.LessOrEqual(t, all, most.all)
		}
	}
}
