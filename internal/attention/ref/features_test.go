package ref

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
)

// implementations are all that this package has.
var implementations = map[string]func(o, lse []float64, in Inputs[float64], p attention.Problem) error{
	"forward": Forward[float64],
	"plain":   Plain[float64],
}

// weights returns the weights that implementations give to the keys of p for
// the given tensors, and LSE. V is the unit matrix, so that O shows the weights;
// the product of row i and key j is x[i]*y[j].
func weights(t *testing.T, p attention.Problem, in Inputs[float64], x, y []float64, check func(name string, P [][]float64, lse []float64)) {
	p.HeadDim, p.ValueDim = 8, 8*((len(y)+7)/8)
	if p.Scale == 0 {
		p.Scale = 1
	}
	in.Q, in.K, in.V = make([]float64, len(x)*8), make([]float64, len(y)*8), make([]float64, len(y)*p.ValueDim)
	for i := range x {
		in.Q[i*8] = x[i]
	}
	for j := range y {
		in.K[j*8] = y[j]
		in.V[j*p.ValueDim+j] = 1
	}
	for name, forward := range implementations {
		o, lse := make([]float64, len(x)*p.ValueDim), make([]float64, len(x))
		require.NoError(t, forward(o, lse, in, p), name)
		P := make([][]float64, len(x))
		for i := range P {
			P[i] = o[i*p.ValueDim:][:len(y)]
		}
		check(name, P, lse)
	}
}

var one = attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1}

func ones(n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = 1
	}
	return x
}

// TestScoresByHand: what softcap, ALiBi and bias make of scores, alone and in their order.
func TestScoresByHand(t *testing.T) {
	p := one
	p.SeqQ, p.SeqKV = 2, 3 // a shift of 1
	bias := []float64{0.5, -1, 2, 1, 0, math.Inf(-1)}
	for _, c := range []struct {
		change func(*attention.Problem)
		want   func(s float64, i, j int) float64
	}{
		{func(*attention.Problem) {}, func(s float64, _, _ int) float64 { return s }},
		{func(p *attention.Problem) { p.Softcap = 2 }, func(s float64, _, _ int) float64 { return 2 * math.Tanh(s/2) }},
		{func(p *attention.Problem) { p.ALiBi = attention.ALiBiPerHead }, func(s float64, i, j int) float64 { return s - 0.25*math.Abs(float64(i+1-j)) }},
		{
			func(p *attention.Problem) { p.ALiBi, p.CausalAlign = attention.ALiBiPerBatchHead, attention.TopLeft },
			func(s float64, i, j int) float64 { return s - 0.25*math.Abs(float64(i-j)) },
		},
		{func(p *attention.Problem) { p.Bias = attention.Bias{On: true, Rows: true} }, func(s float64, i, j int) float64 { return s + bias[i*3+j] }},
		{func(p *attention.Problem) { p.Bias = attention.Bias{On: true} }, func(s float64, _, j int) float64 { return s + bias[j] }},
		{
			func(p *attention.Problem) {
				p.Softcap, p.ALiBi, p.Bias, p.Scale = 3, attention.ALiBiPerHead, attention.Bias{On: true, Rows: true}, -0.5
			},
			func(s float64, i, j int) float64 {
				return 3*math.Tanh(-0.5*s/3) + bias[i*3+j] - 0.25*math.Abs(float64(i+1-j))
			},
		},
	} {
		p, in := p, Inputs[float64]{}
		c.change(&p)
		if p.ALiBi != attention.ALiBiOff {
			in.ALiBiSlopes = []float64{0.25}
		}
		if p.Bias.On {
			in.Bias = bias[:product(p.BiasShape())]
		}
		x, y := []float64{1, -2}, []float64{3, 0.5, -1}
		weights(t, p, in, x, y, func(name string, P [][]float64, lse []float64) {
			for i := range x {
				sum := 0.0
				for j := range y {
					sum += math.Exp(c.want(x[i]*y[j], i, j))
				}
				require.InDelta(t, math.Log(sum), lse[i], 1e-6, "%s %v", name, p)
				for j := range y {
					require.InDelta(t, math.Exp(c.want(x[i]*y[j], i, j))/sum, P[i][j], 1e-6, "%s %v row %d key %d", name, p, i, j)
				}
			}
		})
	}
}

// TestBiasBroadcast: each of the axes is there or shared.
func TestBiasBroadcast(t *testing.T) {
	p := attention.Problem{Batch: 2, NumHeads: 2, NumKVHeads: 1, SeqQ: 3, SeqKV: 2, HeadDim: 8}
	for axes := range 8 {
		p.Bias = attention.Bias{On: true, Batch: axes&1 != 0, Heads: axes&2 != 0, Rows: axes&4 != 0}
		d := newData(p)
		clear(d.in.Q)
		d.in.Bias = make([]float64, product(p.BiasShape()))
		for i := range d.in.Bias {
			d.in.Bias[i] = float64(i) / 3
		}
		for name, forward := range implementations {
			require.NoError(t, forward(d.o, d.lse, d.in, p))
			for _, r := range AllRows(d.in, p) {
				at := 0
				if p.Bias.Batch {
					at = r.Batch
				}
				if p.Bias.Heads {
					at = at*2 + r.Head
				}
				if p.Bias.Rows {
					at = at*3 + r.Row
				}
				want := math.Log(math.Exp(float64(2*at)/3) + math.Exp(float64(2*at+1)/3))
				require.InDelta(t, want, d.lse[(r.Batch*2+r.Head)*3+r.Row], 1e-5, "%s %v %v", name, p.Bias, r)
			}
		}
	}
}

// TestSinks: one more term of the sum; a row that sees nothing has the sink as
// its LSE.
func TestSinks(t *testing.T) {
	p := one
	p.SeqQ, p.SeqKV, p.Causal, p.Sinks = 4, 2, true, true
	for _, sink := range []float64{0.5, 30, -200, math.Inf(-1)} {
		weights(t, p, Inputs[float64]{Sinks: []float64{sink}}, ones(4), []float64{1, 2}, func(name string, P [][]float64, lse []float64) {
			require.Equal(t, [][]float64{{0, 0}, {0, 0}}, P[:2], name)
			if math.IsInf(sink, -1) {
				require.Equal(t, sink, lse[0], name)
			} else {
				require.InDelta(t, sink, lse[0], 1e-4, name)
			}
			sum := math.Exp(sink) + math.E + math.Exp(2)
			require.InDelta(t, math.Log(sum), lse[3], 1e-5, name)
			require.InDelta(t, math.E/sum, P[3][0], 1e-6, name)
			require.InDelta(t, math.Exp(2)/sum, P[3][1], 1e-6, name)
		})
	}
	p.NumHeads, p.NumKVHeads, p.HeadDim = 2, 2, 8
	d := newData(p)
	d.in.Sinks = []float64{-3, 5}
	require.NoError(t, Forward(d.o, d.lse, d.in, p))
	require.Equal(t, []float64{-3, 5}, []float64{d.lse[0], d.lse[4]})
}

// TestMasksByHand: window and key mask show exactly the keys of the drawings.
func TestMasksByHand(t *testing.T) {
	p := one
	p.SeqQ, p.SeqKV = 3, 5
	p.Window, p.KeyMask = attention.Window{On: true, Left: 1, Right: 1}, true
	in := Inputs[float64]{KeyMask: []bool{true, false, true, true, false}}
	weights(t, p, in, ones(3), make([]float64, 5), func(name string, P [][]float64, lse []float64) {
		want := [][]float64{{0, 0, 0.5, 0.5, 0}, {0, 0, 0.5, 0.5, 0}, {0, 0, 0, 1, 0}}
		for i := range want {
			require.InDeltaSlice(t, want[i], P[i], 1e-6, "%s row %d", name, i)
		}
		require.InDelta(t, math.Ln2, lse[0], 1e-6, name)
		require.InDelta(t, 0, lse[2], 1e-6, name)
	})
	in.KeyMask = make([]bool, 5)
	weights(t, p, in, ones(3), make([]float64, 5), func(name string, P [][]float64, lse []float64) {
		require.Equal(t, make([]float64, 5), P[1], name)
		require.Equal(t, math.Inf(-1), lse[1], name)
	})
}

// TestDropout: weights are dropped where the problem's counter says, the others
// grow, LSE does not see it.
func TestDropout(t *testing.T) {
	p := one
	p.SeqQ, p.SeqKV = 5, 24
	p.Dropout = attention.Dropout{P: 0.75, Seeded: true, Seed: 3, Offset: 1 << 40}
	weights(t, p, Inputs[float64]{}, ones(5), make([]float64, 24), func(name string, P [][]float64, lse []float64) {
		kept := 0
		for i := range P {
			row := p.DropoutRow(0, 0, i)
			for j, w := range P[i] {
				want := 0.0
				if row.Kept(j) {
					want = 4.0 / 24
					kept++
				}
				require.InDelta(t, want, w, 1e-6, "%s row %d key %d", name, i, j)
			}
			require.InDelta(t, math.Log(24), lse[i], 1e-5, name)
		}
		require.Positive(t, kept)
	})
}

// TestVarlen: packed sequences are the sequences one by one; rows of none keep
// what the outputs hold.
func TestVarlen(t *testing.T) {
	p := small
	p.Batch, p.SeqQ, p.SeqKV, p.Causal, p.ValueDim, p.DType = 4, 9, 12, true, 16, dtype.Float32
	p.ALiBi, p.KeyMask = attention.ALiBiPerBatchHead, true
	p.Dropout = attention.Dropout{P: 0.3, Seeded: true, Seed: 5}
	p.Varlen = attention.Varlen{On: true, TotalQ: 20, TotalKV: 25}
	d := newData(p)
	d.in.CuSeqlensQ, d.in.CuSeqlensKV = []int32{0, 9, 9, 10, 18}, []int32{0, 5, 8, 9, 21}
	d.in.ALiBiSlopes = newData(p).in.Q[:24]
	d.in.KeyMask = make([]bool, 4*12)
	for i := range d.in.KeyMask {
		d.in.KeyMask[i] = i%5 != 2
	}
	for name, forward := range implementations {
		for i := range d.o {
			d.o[i] = 77
		}
		for i := range d.lse {
			d.lse[i] = 77
		}
		require.NoError(t, forward(d.o, d.lse, d.in, p), name)
		for b := range 4 {
			checkSequence(t, name, d, forward, b)
		}
		for i := 18 * 6 * 16; i < len(d.o); i++ {
			require.Equal(t, 77.0, d.o[i], name)
		}
		require.Equal(t, []float64{77, 77}, d.lse[18:20], name)
	}
	require.Len(t, AllRows(d.in, p), 18*6)
	rows := SampleRows(d.in, p, 30)
	require.Equal(t, []Row{{0, 0, 0}, {3, 5, 7}}, []Row{rows[0], rows[29]})
	o, lse := make([]float64, 30*16), make([]float64, 30)
	require.NoError(t, Forward(d.o, d.lse, d.in, p))
	require.NoError(t, ForwardRows(o, lse, d.in, p, rows))
	wantO, wantLSE := make([]float64, 30*16), make([]float64, 30)
	for x, r := range rows {
		at, atLSE := d.in.At(p, r)
		copy(wantO[x*16:], d.o[at*16:][:16])
		wantLSE[x] = d.lse[atLSE]
	}
	require.InDeltaSlice(t, wantO, o, 1e-14)
	require.InDeltaSlice(t, wantLSE, lse, 1e-14)
	require.EqualError(t, ForwardRows(o[:16], nil, d.in, p, []Row{{2, 0, 1}}),
		"attention: row (2, 0, 1) is outside (batch, num_heads, seq_q) = (4, 6, 9)")
	d.in.CuSeqlensKV[2] = 99
	require.EqualError(t, Forward(d.o, nil, d.in, p), "attention: cu_seqlens_kv[2]=99 is beyond the tensor, total_kv=25")
}

// checkSequence computes sequence b of d on its own, as the only one of a batch
// that is not packed, head by head.
func checkSequence(t *testing.T, name string, d *data, forward func(o, lse []float64, in Inputs[float64], p attention.Problem) error, b int) {
	q0, k0 := int(d.in.CuSeqlensQ[b]), int(d.in.CuSeqlensKV[b])
	seqQ, seqKV := int(d.in.CuSeqlensQ[b+1])-q0, int(d.in.CuSeqlensKV[b+1])-k0
	if seqQ == 0 {
		return
	}
	for h := range 6 {
		p := d.p
		p.Batch, p.NumHeads, p.NumKVHeads, p.SeqQ, p.SeqKV, p.Varlen = 1, 1, 1, seqQ, seqKV, attention.Varlen{}
		p.ALiBi = attention.ALiBiPerHead
		p.Dropout.Offset = uint64(b*6 + h)
		in := Inputs[float64]{ALiBiSlopes: d.in.ALiBiSlopes[b*6+h:][:1], KeyMask: d.in.KeyMask[b*12:][:seqKV]}
		for i := range seqQ {
			in.Q = append(in.Q, d.in.Q[((q0+i)*6+h)*24:][:24]...)
		}
		for j := range seqKV {
			in.K = append(in.K, d.in.K[((k0+j)*2+h/3)*24:][:24]...)
			in.V = append(in.V, d.in.V[((k0+j)*2+h/3)*16:][:16]...)
		}
		o, lse := make([]float64, seqQ*16), make([]float64, seqQ)
		require.NoError(t, forward(o, lse, in, p))
		for i := range seqQ {
			at := q0 + i
			require.InDeltaSlice(t, o[i*16:][:16], d.o[(at*6+h)*16:][:16], 1e-14, "%s sequence %d head %d row %d", name, b, h, i)
			require.InDelta(t, lse[i], d.lse[h*20+at], 1e-14, "%s sequence %d head %d row %d", name, b, h, i)
		}
	}
}

// TestHiddenMayBeAnything: NaN and Inf in keys that masks hide reach no row
// that does not see them.
func TestHiddenMayBeAnything(t *testing.T) {
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 8, SeqKV: 12, HeadDim: 8, DType: dtype.Float32}
	p.Window, p.KeyMask, p.Bias = attention.Window{On: true, Left: 2, Right: 1}, true, attention.Bias{On: true, Rows: true}
	d := newData(p)
	d.in.KeyMask = []bool{true, true, true, true, true, true, false, true, true, true, true, true}
	d.in.Bias = make([]float64, 8*12)
	d.in.Bias[7*12+10] = math.Inf(-1)
	for name, forward := range implementations {
		require.NoError(t, forward(d.o, d.lse, d.in, p))
		for j := range p.SeqKV {
			in := d.in
			in.K, in.V = append([]float64(nil), in.K...), append([]float64(nil), in.V...)
			for e := range 8 {
				in.K[j*8+e] = math.NaN()
				in.V[j*8+e] = []float64{math.NaN(), math.Inf(1)}[e%2]
			}
			o, lse := make([]float64, len(d.o)), make([]float64, len(d.lse))
			require.NoError(t, forward(o, lse, in, p))
			for i := range p.SeqQ {
				if lo, hi := p.Mask().Keys(i); lo <= j && j < hi && j != 6 && (i != 7 || j != 10) {
					if name == "forward" {
						require.True(t, math.IsNaN(o[i*8]), "row %d sees key %d", i, j)
					}
					continue
				}
				require.InDeltaSlice(t, d.o[i*8:][:8], o[i*8:][:8], 1e-6, "%s row %d key %d", name, i, j)
				require.InDelta(t, d.lse[i], lse[i], 1e-6, "%s row %d key %d", name, i, j)
			}
		}
	}
}

// TestFeatureInputs: a tensor that the problem does not have, or that it has and
// is not given, is named.
func TestFeatureInputs(t *testing.T) {
	for _, c := range []struct {
		change func(*attention.Problem, *Inputs[float64])
		want   string
	}{
		{func(_ *attention.Problem, in *Inputs[float64]) { in.Sinks = ones(6) }, "attention: sinks is given, but the problem has none"},
		{func(p *attention.Problem, _ *Inputs[float64]) { p.Sinks = true }, "attention: sinks has 0 elements, want 6 of shape [6]"},
		{func(p *attention.Problem, in *Inputs[float64]) {
			p.ALiBi, in.ALiBiSlopes = attention.ALiBiPerBatchHead, ones(6)
		}, "attention: alibi_slopes has 6 elements, want 12 of shape [2 6]"},
		{func(p *attention.Problem, in *Inputs[float64]) {
			p.Bias, in.Bias = attention.Bias{On: true, Heads: true}, ones(150)
		}, "attention: bias has 150 elements, want 900 of shape [1 6 1 150]"},
		{func(p *attention.Problem, in *Inputs[float64]) { p.KeyMask, in.KeyMask = true, make([]bool, 3) }, "attention: key_mask has 3 elements, want 300 of shape [2 150]"},
		{func(p *attention.Problem, _ *Inputs[float64]) { p.ValueDim = 32 }, "attention: v has 14400 elements, want 19200 of shape [2 2 150 32]"},
	} {
		d := newData(small)
		c.change(&d.p, &d.in)
		for name, forward := range implementations {
			require.EqualError(t, forward(d.o, d.lse, d.in, d.p), c.want, name)
		}
	}
}

// TestFeatureScope: the magnitudes that features add to.
func TestFeatureScope(t *testing.T) {
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 2, HeadDim: 8, Scale: 1}
	in := Inputs[float64]{Q: []float64{3, 4, 0, 0, 0, 0, 0, 0}, K: make([]float64, 16), V: ones(16)}
	in.K[9] = 2
	p.Softcap = 6
	require.Equal(t, Scope{Product: 10, Logit: 6, V: 1}, Measure(in, p))
	p.Bias.On, in.Bias = true, []float64{-3, math.Inf(-1)}
	p.ALiBi, in.ALiBiSlopes = attention.ALiBiPerHead, []float64{0.5}
	p.Dropout = attention.Dropout{P: 0.5, Seeded: true}
	require.Equal(t, Scope{Product: 10, Logit: 6 + 3 + 1, V: 2}, Measure(in, p))
	p.Sinks, in.Sinks = true, []float64{-20}
	require.Equal(t, 20.0, Measure(in, p).Logit)
}
