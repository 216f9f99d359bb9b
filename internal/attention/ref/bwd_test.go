package ref

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/diff/fd"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
)

// loss is what the upstream gradients are those of. Rows whose LSE is -Inf have
// no part in it.
func (d *data) loss(t testing.TB) float64 {
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
func (d *data) checkFinite(t testing.TB) {
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
			newData(p).checkFinite(t)
		})
	}
	for axes := range 8 {
		p := tiny
		p.Bias = attention.Bias{On: true, Batch: axes&1 != 0, Heads: axes&2 != 0, Rows: axes&4 != 0}
		t.Run("bias-"+p.Bias.String(), func(t *testing.T) { newData(p).checkFinite(t) })
	}
	t.Run("no-dlse", func(t *testing.T) {
		d := newData(tiny)
		d.up.DLSE = nil
		d.checkFinite(t)
	})
	t.Run("varlen", func(t *testing.T) {
		p := tiny
		p.Batch, p.Causal, p.Sinks, p.Bias = 5, true, true, attention.Bias{On: true, Batch: true, Rows: true}
		p.Varlen = attention.Varlen{On: true, TotalQ: 8, TotalKV: 11}
		d := newData(p)
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
	d := newData(p)
	d.in.CuSeqlensQ, d.in.CuSeqlensKV = []int32{0, 0, 3}, []int32{0, 2, 7}
	for name, backward := range backwards {
		for _, x := range [][]float64{d.g.DQ, d.g.DK, d.g.DV} {
			for i := range x {
				x[i] = 77
			}
		}
		require.NoError(t, backward(d.g, d.up, d.in, p), name)
		require.NotContains(t, d.g.DQ[:3*4*8], 77.0, name)
		require.Equal(t, slices.Repeat([]float64{77}, 4*8), d.g.DQ[3*4*8:], name)
		for _, x := range [][]float64{d.g.DK, d.g.DV} {
			require.Equal(t, make([]float64, 2*2*8), x[:2*2*8], name)
			require.NotContains(t, x[2*2*8:7*2*8], 77.0, name)
			require.Equal(t, slices.Repeat([]float64{77}, 2*8), x[7*2*8:], name)
		}
	}
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
