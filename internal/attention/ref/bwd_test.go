package ref

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/diff/fd"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
)

// bwdData is one problem with inputs for all features that it has, upstream
// gradients, and room for results.
type bwdData struct {
	data
	up Upstream[float64]
	g  Gradients
}

func newBwdData(p attention.Problem) *bwdData {
	d := &bwdData{data: *newData(p), g: NewGradients(p)}
	rng := rand.New(rand.NewPCG(2, 2))
	normal := func(n int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = float64(p.DType.Round(float32(rng.NormFloat64())))
		}
		return x
	}
	d.up = Upstream[float64]{DO: normal(len(d.o)), DLSE: normal(len(d.lse))}
	if p.Bias.On {
		d.in.Bias = normal(product(p.BiasShape()))
		for i := range d.in.Bias {
			if i%7 == 3 {
				d.in.Bias[i] = math.Inf(-1)
			}
		}
	}
	if p.ALiBi != attention.ALiBiOff {
		d.in.ALiBiSlopes = normal(product(p.SlopesShape()))
	}
	if p.Sinks {
		d.in.Sinks = normal(p.NumHeads)
		if p.NumHeads > 1 {
			d.in.Sinks[1] = math.Inf(-1)
		}
	}
	if p.KeyMask {
		d.in.KeyMask = make([]bool, product(p.KeyMaskShape()))
		for i := range d.in.KeyMask {
			d.in.KeyMask[i] = i%3 != 1
		}
	}
	return d
}

// loss is what the upstream gradients are those of. Rows whose LSE is -Inf have
// no part in it.
func (d *bwdData) loss(t testing.TB) float64 {
	require.NoError(t, Forward(d.o, d.lse, d.in, d.p))
	sum := 0.0
	for i, x := range d.o {
		sum += x * d.up.DO[i]
	}
	for i, x := range d.lse {
		if !math.IsInf(x, -1) && d.up.DLSE != nil {
			sum += x * d.up.DLSE[i]
		}
	}
	return sum
}

// checkFinite compares the gradients of d with central differences of the loss,
// for every element of every input that is finite.
func (d *bwdData) checkFinite(t testing.TB) {
	require.NoError(t, Backward(d.g, d.up, d.in, d.p))
	for _, x := range []struct {
		name      string
		got, vary []float64
	}{{"dq", d.g.DQ, d.in.Q}, {"dk", d.g.DK, d.in.K}, {"dv", d.g.DV, d.in.V}, {"dbias", d.g.DBias, d.in.Bias}, {"dsinks", d.g.DSinks, d.in.Sinks}} {
		var finite []int
		var at []float64
		for i, y := range x.vary {
			if math.IsInf(y, -1) {
				require.Zero(t, x.got[i], "%s[%d] of -Inf", x.name, i)
				continue
			}
			finite, at = append(finite, i), append(at, y)
		}
		if len(at) == 0 {
			continue
		}
		want := fd.Gradient(nil, func(y []float64) float64 {
			for n, i := range finite {
				x.vary[i] = y[n]
			}
			return d.loss(t)
		}, at, &fd.Settings{Formula: fd.Central})
		for n, i := range finite {
			x.vary[i] = at[n]
			require.InDelta(t, want[n], x.got[i], 2e-7*(1+math.Abs(want[n])), "%s[%d] of %v", x.name, i, d.p)
		}
	}
}

// tiny is small enough for finite differences, with a group of heads, two
// batches and more keys than rows.
var tiny = attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 3, SeqKV: 5, HeadDim: 8, DType: dtype.Float32}

// TestFiniteDifferences: each feature alone, then pairs, then all of them.
func TestFiniteDifferences(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: nothing here is concurrent")
	}
	dropout := attention.Dropout{P: 0.4, Seeded: true, Seed: 5, Offset: 1 << 33}
	for name, change := range map[string]func(p *attention.Problem){
		"plain":        func(*attention.Problem) {},
		"scale":        func(p *attention.Problem) { p.Scale = -0.7 },
		"causal":       func(p *attention.Problem) { p.Causal = true },
		"top-left":     func(p *attention.Problem) { p.Causal, p.CausalAlign = true, attention.TopLeft },
		"sees-nothing": func(p *attention.Problem) { p.Causal, p.SeqQ, p.SeqKV = true, 5, 3 },
		"one-key":      func(p *attention.Problem) { p.SeqKV = 1 },
		"window":       func(p *attention.Problem) { p.Window = attention.Window{On: true, Left: 1, Right: 1} },
		"softcap":      func(p *attention.Problem) { p.Softcap = 0.8 },
		"alibi":        func(p *attention.Problem) { p.ALiBi = attention.ALiBiPerHead },
		"alibi-batch":  func(p *attention.Problem) { p.ALiBi, p.CausalAlign = attention.ALiBiPerBatchHead, attention.TopLeft },
		"key-mask":     func(p *attention.Problem) { p.KeyMask = true },
		"sinks":        func(p *attention.Problem) { p.Sinks = true },
		"sinks-empty":  func(p *attention.Problem) { p.Sinks, p.Causal, p.SeqQ, p.SeqKV = true, true, 5, 3 },
		"value-dim":    func(p *attention.Problem) { p.ValueDim = 16 },
		"dropout":      func(p *attention.Problem) { p.Dropout = dropout },
		"mha":          func(p *attention.Problem) { p.NumKVHeads = 4 },
		"mqa":          func(p *attention.Problem) { p.NumKVHeads = 1 },
		"dropout-sinks": func(p *attention.Problem) {
			p.Dropout, p.Sinks = dropout, true
		},
		"softcap-bias": func(p *attention.Problem) {
			p.Softcap, p.Bias = 1.5, attention.Bias{On: true, Heads: true}
		},
		"all": func(p *attention.Problem) {
			p.Causal, p.Softcap, p.ALiBi, p.KeyMask, p.Sinks, p.ValueDim, p.Dropout = true, 2, attention.ALiBiPerBatchHead, true, true, 16, dropout
			p.Window, p.Bias = attention.Window{On: true, Left: 2}, attention.Bias{On: true, Batch: true, Rows: true}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := tiny
			change(&p)
			newBwdData(p).checkFinite(t)
		})
	}
	for axes := range 8 {
		p := tiny
		p.Bias = attention.Bias{On: true, Batch: axes&1 != 0, Heads: axes&2 != 0, Rows: axes&4 != 0}
		t.Run("bias-"+p.Bias.String(), func(t *testing.T) { newBwdData(p).checkFinite(t) })
	}
	t.Run("no-dlse", func(t *testing.T) {
		d := newBwdData(tiny)
		d.up.DLSE = nil
		d.checkFinite(t)
	})
	t.Run("varlen", func(t *testing.T) {
		p := tiny
		p.Batch, p.Causal, p.Sinks, p.Bias = 5, true, true, attention.Bias{On: true, Batch: true, Rows: true}
		p.Varlen = attention.Varlen{On: true, TotalQ: 8, TotalKV: 11}
		d := newBwdData(p)
		// Sequences of 3x5, 0x2, 1x0, 3x1 and 0x0, then a row and three keys that are in none.
		d.in.CuSeqlensQ, d.in.CuSeqlensKV = []int32{0, 3, 3, 4, 7, 7}, []int32{0, 5, 7, 7, 8, 8}
		d.checkFinite(t)
	})
}

// TestBackwardUnused: rows and keys that are in no sequence keep what the
// gradients hold; a sequence without rows gives its keys 0.
func TestBackwardUnused(t *testing.T) {
	p := tiny
	p.Varlen = attention.Varlen{On: true, TotalQ: 4, TotalKV: 8}
	d := newBwdData(p)
	d.in.CuSeqlensQ, d.in.CuSeqlensKV = []int32{0, 0, 3}, []int32{0, 2, 7}
	for name, backward := range backwards {
		for _, x := range [][]float64{d.g.DQ, d.g.DK, d.g.DV} {
			for i := range x {
				x[i] = 77
			}
		}
		require.NoError(t, backward(d.g, d.up, d.in, p), name)
		require.NotContains(t, d.g.DQ[:3*4*8], 77.0, name)
		require.Equal(t, fill(77, 4*8), d.g.DQ[3*4*8:], name)
		for _, x := range [][]float64{d.g.DK, d.g.DV} {
			require.Equal(t, make([]float64, 2*2*8), x[:2*2*8], name)
			require.NotContains(t, x[2*2*8:7*2*8], 77.0, name)
			require.Equal(t, fill(77, 2*8), x[7*2*8:], name)
		}
	}
}

func fill(x float64, n int) []float64 {
	y := make([]float64, n)
	for i := range y {
		y[i] = x
	}
	return y
}

// backwards are all that this package has.
var backwards = map[string]func(g Gradients, up Upstream[float64], in Inputs[float64], p attention.Problem) error{
	"backward": Backward[float64],
	"plain": func(g Gradients, up Upstream[float64], in Inputs[float64], p attention.Problem) error {
		return fromSaved(PlainBackward[float64], g, up, in, p)
	},
}

// fromSaved calls f with O and LSE as a kernel is given them.
func fromSaved(f func(g Gradients, o, lse []float64, up Upstream[float64], in Inputs[float64], p attention.Problem) error,
	g Gradients, up Upstream[float64], in Inputs[float64], p attention.Problem,
) error {
	o, lse, err := Saved(in, p)
	if err != nil {
		return err
	}
	return f(g, o, lse, up, in, p)
}

// TestBackwardByHand: two keys with the weights 1/4 and 3/4, dO picks one column.
//
//	O = 1/4*v0 + 3/4*v1 = 5,  dP = (2, 6),  Delta = 5,  dS = (1/4*(2-5), 3/4*(6-5)) = (-3/4, 3/4)
func TestBackwardByHand(t *testing.T) {
	p := one
	p.SeqQ, p.SeqKV, p.HeadDim, p.Scale, p.DType = 1, 2, 8, 2, dtype.Float32
	in := Inputs[float64]{Q: make([]float64, 8), K: make([]float64, 16), V: make([]float64, 16)}
	in.Q[0], in.K[0], in.K[8] = 1, 1, 1+math.Log(3)/2
	in.V[1], in.V[9] = 2, 6
	up := Upstream[float64]{DO: []float64{0, 1, 0, 0, 0, 0, 0, 0}}
	for name, backward := range backwards {
		g := NewGradients(p)
		require.NoError(t, backward(g, up, in, p), name)
		require.InDelta(t, 2*(-0.75*in.K[0]+0.75*in.K[8]), g.DQ[0], 1e-5, name)
		require.InDeltaSlice(t, []float64{-1.5, 0}, g.DK[:2], 1e-5, name)
		require.InDeltaSlice(t, []float64{1.5, 0}, g.DK[8:10], 1e-5, name)
		require.InDeltaSlice(t, []float64{0, 0.25, 0, 0, 0, 0, 0, 0, 0, 0.75}, g.DV[:10], 1e-5, name)
	}
}

// TestBackwardHidden: NaN and Inf in keys that masks hide reach no gradient, and
// the keys' own are 0.
func TestBackwardHidden(t *testing.T) {
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 6, SeqKV: 12, HeadDim: 8, DType: dtype.Float32, Softcap: 3}
	p.Window, p.KeyMask = attention.Window{On: true, Left: 2, Right: 1}, true // keys 0 to 3 and 6 are hidden
	d := newBwdData(p)
	d.in.KeyMask = []bool{true, true, true, true, true, true, false, true, true, true, true, true}
	for name, backward := range backwards {
		require.NoError(t, backward(d.g, d.up, d.in, p), name)
		want := Gradients{DQ: append([]float64(nil), d.g.DQ...), DK: append([]float64(nil), d.g.DK...), DV: append([]float64(nil), d.g.DV...)}
		in := d.in
		in.K, in.V = append([]float64(nil), in.K...), append([]float64(nil), in.V...)
		for _, j := range []int{0, 1, 2, 3, 6} {
			for e := range 8 {
				in.K[j*8+e], in.V[j*8+e] = math.NaN(), []float64{math.NaN(), math.Inf(1)}[e%2]
			}
			require.Equal(t, make([]float64, 8), want.DK[j*8:][:8], "%s key %d", name, j)
			require.Equal(t, make([]float64, 8), want.DV[j*8:][:8], "%s key %d", name, j)
		}
		require.NoError(t, backward(d.g, d.up, in, p), name)
		require.Equal(t, want, d.g, name)
	}
}

// TestBackwardErrors: one line that names the argument and the rule.
func TestBackwardErrors(t *testing.T) {
	for _, c := range []struct {
		change func(d *bwdData)
		want   string
	}{
		{func(d *bwdData) { d.p.NumKVHeads = 3 }, "attention: num_heads=4 is not a multiple of num_kv_heads=3"},
		{func(d *bwdData) { d.in.Q = nil }, "attention: q has 0 elements, want 192 of shape [2 4 3 8]"},
		{func(d *bwdData) { d.up.DO = nil }, "attention: do has 0 elements, want 192 of shape [2 4 3 8]"},
		{func(d *bwdData) { d.up.DLSE = ones(3) }, "attention: dlse has 3 elements, want 24 of shape [2 4 3]"},
		{func(d *bwdData) { d.g.DQ = d.g.DQ[1:] }, "attention: dq has 191 elements, want 192 of shape [2 4 3 8]"},
		{func(d *bwdData) { d.g.DK = nil }, "attention: dk has 0 elements, want 160 of shape [2 2 5 8]"},
		{func(d *bwdData) { d.g.DV = ones(1) }, "attention: dv has 1 elements, want 160 of shape [2 2 5 8]"},
		{func(d *bwdData) { d.g.DBias = ones(5) }, "attention: dbias is given, but the problem has none"},
		{func(d *bwdData) { d.p.Sinks, d.in.Sinks, d.g.DSinks = true, ones(4), ones(3) }, "attention: dsinks has 3 elements, want 4 of shape [4]"},
		{func(d *bwdData) { d.p.Sinks, d.in.Sinks = true, ones(4) }, ""}, // dsinks is left out
		{func(d *bwdData) { d.up.DLSE = nil }, ""},
	} {
		for name, backward := range backwards {
			d := newBwdData(tiny)
			c.change(d)
			err := backward(d.g, d.up, d.in, d.p)
			if c.want == "" {
				require.NoError(t, err, name)
				continue
			}
			require.EqualError(t, err, c.want, name)
		}
	}
}

// TestSavedErrors: O and LSE are checked, too.
func TestSavedErrors(t *testing.T) {
	d := newBwdData(tiny)
	require.EqualError(t, PlainBackward(d.g, d.o[1:], d.lse, d.up, d.in, d.p), "attention: o has 191 elements, want 192 of shape [2 4 3 8]")
	require.EqualError(t, PlainBackward(d.g, d.o, nil, d.up, d.in, d.p), "attention: lse has 0 elements, want 24 of shape [2 4 3]")
}

// TestBackwardLarge: dK[1, 0, 20] is the sum over the chunks of rows of the
// three heads that read the key.
func TestBackwardLarge(t *testing.T) {
	p := small
	p.SeqQ, p.Causal, p.Bias = 150, true, attention.Bias{On: true, Batch: true, Heads: true, Rows: true}
	d := newBwdData(p)
	require.NoError(t, Backward(d.g, d.up, d.in, p))
	sum := 0.0
	for row := range 3 * p.SeqQ {
		at := p.NumHeads*p.SeqQ + row
		sum += d.g.DBias[at*p.SeqKV+20] * d.in.Q[at*p.HeadDim+5] // dBias is dS
	}
	require.InDelta(t, sum*p.EffectiveScale(), d.g.DK[(2*p.SeqKV+20)*p.HeadDim+5], 1e-12)
}

func ExampleBackward() {
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 2, HeadDim: 8}
	in := Inputs[float32]{Q: make([]float32, 8), K: make([]float32, 16), V: make([]float32, 16)}
	up := Upstream[float32]{DO: []float32{1, 2, 3, 4, 5, 6, 7, 8}}
	g := NewGradients(p)
	if err := Backward(g, up, in, p); err != nil {
		fmt.Println(err)
	}
	fmt.Println(g.DV[:3]) // each of two equal keys has half the weight
	// Output: [0.5 1 1.5]
}
