package ref

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
)

// bounds returns the bounds of d, its gradients and plain's.
func (d *data) bounds(t testing.TB) (b GradientBound, want, plain Gradients, s GradientScope) {
	want, s, err := Backward(d.up, d.in, d.p)
	require.NoError(t, err)
	plain, err = backwards["plain"](d.up, d.in, d.p)
	require.NoError(t, err)
	return GradientBounds(want, plain, s, d.p), want, plain, s
}

// A bounded is a gradient of two results with its bound.
type bounded struct {
	name      string
	got, want []float64
	bound     float64
}

// gradients pairs the gradients of two results with bounds.
func gradients(got, want Gradients, b GradientBound) []bounded {
	return []bounded{
		{"dq", got.DQ, want.DQ, b.DQ}, {"dk", got.DK, want.DK, b.DK}, {"dv", got.DV, want.DV, b.DV},
		{"dbias", got.DBias, want.DBias, b.DBias}, {"dsinks", got.DSinks, want.DSinks, b.DSinks},
	}
}

var dropped = attention.Dropout{P: 0.3, Seeded: true, Seed: 8, Offset: 1 << 33}

// bwdProblems are the features, alone and together.
var bwdProblems = map[string]func(p *attention.Problem){
	"plain":        func(*attention.Problem) {},
	"scale":        func(p *attention.Problem) { p.Scale = -0.4 },
	"causal":       func(p *attention.Problem) { p.Causal = true },
	"top-left":     func(p *attention.Problem) { p.Causal, p.CausalAlign = true, attention.TopLeft },
	"sees-nothing": func(p *attention.Problem) { p.Causal, p.SeqQ, p.SeqKV = true, p.SeqQ+2, p.SeqQ },
	"one-key":      func(p *attention.Problem) { p.SeqKV = 1 },
	"softcap":      func(p *attention.Problem) { p.Softcap = 2 },
	"alibi":        func(p *attention.Problem) { p.ALiBi = attention.ALiBiPerHead },
	"alibi-batch":  func(p *attention.Problem) { p.ALiBi, p.CausalAlign = attention.ALiBiPerBatchHead, attention.TopLeft },
	"window": func(p *attention.Problem) {
		p.Window = attention.Window{On: true, Left: p.SeqKV / 3, Right: p.SeqKV / 5}
	},
	"key-mask":      func(p *attention.Problem) { p.KeyMask = true },
	"sinks":         func(p *attention.Problem) { p.Sinks = true },
	"sinks-empty":   func(p *attention.Problem) { p.Sinks, p.Causal, p.SeqQ, p.SeqKV = true, true, p.SeqQ+2, p.SeqQ },
	"bias":          func(p *attention.Problem) { p.Bias = attention.Bias{On: true, Heads: true} },
	"bias-own-type": func(p *attention.Problem) { p.Bias = attention.Bias{On: true, Batch: true, Rows: true} },
	"value-dim":     func(p *attention.Problem) { p.ValueDim = 40 },
	"dropout":       func(p *attention.Problem) { p.Dropout = dropped },
	"mha":           func(p *attention.Problem) { p.NumKVHeads = p.NumHeads },
	"mqa":           func(p *attention.Problem) { p.NumKVHeads = 1 },
	"dropout-sinks": func(p *attention.Problem) { p.Dropout, p.Sinks = dropped, true },
	"softcap-bias":  func(p *attention.Problem) { p.Softcap, p.Bias = 1.5, attention.Bias{On: true, Heads: true} },
	"all": func(p *attention.Problem) {
		p.Causal, p.Softcap, p.ALiBi, p.Sinks, p.ValueDim, p.KeyMask, p.Dropout = true, 3, attention.ALiBiPerBatchHead, true, 16, true, dropped
		p.Bias, p.Window = attention.Bias{On: true, Batch: true, Rows: true}, attention.Window{On: true, Left: p.SeqKV / 2}
	},
}

// TestGradientBounds: above plain's own error, below the ceilings, which hold
// whatever plain is, and of the size that the format suggests.
func TestGradientBounds(t *testing.T) {
	for _, dt := range dtype.All() {
		p := small
		p.DType, p.SeqKV, p.Bias, p.Sinks = dt, 60, attention.Bias{On: true, Heads: true}, true
		d := newData(p)
		bound, want, plain, s := d.bounds(t)
		most := gradientCeilings(s, p)
		list := gradients(plain, want, bound)
		for i, x := range list {
			ceiling := gradients(plain, want, most)[i].bound
			require.GreaterOrEqual(t, x.bound, 2*guard.Off(x.got, x.want), "%v %s", dt, x.name)
			require.Less(t, x.bound, ceiling, "%v %s", dt, x.name)
			require.Less(t, ceiling, 2e4*x.bound, "%v %s", dt, x.name)
			if x.name != "dsinks" {
				require.Less(t, x.bound, 40*dt.Eps()*largest(x.want), "%v %s", dt, x.name)
			}
			for _, broken := range []float64{7, math.NaN(), math.Inf(1)} {
				good := x.got[3]
				x.got[3] = broken * 1e9
				require.Equal(t, ceiling, gradients(plain, want, GradientBounds(want, plain, s, p))[i].bound, "%v %s", dt, x.name)
				x.got[3] = good
			}
		}
	}
}

// TestGradientBoundOneKey: dQ and dK are 0 and plain cancels exactly; the bound
// leaves room for a sum in another order, and no more.
func TestGradientBoundOneKey(t *testing.T) {
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 100, SeqKV: 1, HeadDim: 64, DType: dtype.Float16}
	d := newData(p)
	d.up.DLSE = nil
	bound, _, plain, _ := d.bounds(t)
	require.Zero(t, largest(plain.DQ))
	require.Greater(t, bound.DQ, 1e-7)
	require.Less(t, bound.DQ, 1e-4)
	require.Less(t, bound.DK, 1e-2)
}

// TestGradientScope: weights of two keys, 1/4 and 3/4 in two rows of each of
// two heads, and a sink that doubles the sum.
func TestGradientScope(t *testing.T) {
	p := attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 1, SeqQ: 2, SeqKV: 2, HeadDim: 8, Scale: 1, Sinks: true, Bias: attention.Bias{On: true}}
	d := newData(p)
	clear(d.in.Q)
	d.in.Bias = []float64{0, math.Log(3)}
	d.in.Sinks = []float64{math.Log(4), math.Log(4)}
	d.up.DO = make([]float64, 32)
	d.up.DO[8], d.up.DO[9] = 3, -4
	d.in.V = make([]float64, 16)
	d.in.V[3] = 2
	d.up.DLSE = []float64{0, -3, 0, 1}
	_, s, err := Backward(d.up, d.in, p)
	require.NoError(t, err)
	require.InDelta(t, 4*3.0/8, s.KeyWeight, 1e-12)
	require.InDelta(t, 4*3.0/8, s.BiasWeight, 1e-12)
	require.InDelta(t, 2*0.5, s.SinkWeight, 1e-12)
	require.InDelta(t, math.Log(8), s.LSE, 1e-12)
	require.Equal(t, []float64{10, 3, 4}, []float64{s.DP, s.DLSE, s.DO})
}

// TestGradientBoundSink: where a sink has nearly all the weight, equal weights of a key are rounded
// to steps of 2^-40 by a kernel of float32 on matrices, all in the same direction.
func TestGradientBoundSink(t *testing.T) {
	p := attention.Problem{
		Batch: 1, NumHeads: 4, NumKVHeads: 1, SeqQ: 1000, SeqKV: 1, HeadDim: 64, DType: dtype.Float32, Sinks: true,
		Dropout: attention.Dropout{P: 0.9, Seeded: true},
	}
	d := newData(p)
	clear(d.in.Q)
	for i := range d.in.Sinks {
		d.in.Sinks[i] = 22.4
	}
	bound, want, _, _ := d.bounds(t)
	weight := math.Exp(-22.4)
	off := math.Abs(math.Round(weight*0x1p40)/0x1p40/weight - 1)
	require.Greater(t, off, 1e-3)
	require.Less(t, off*largest(want.DV), bound.DV)
	require.Less(t, bound.DV, 0.1*largest(want.DV))
}

// TestGradientBoundSoftcap: where products of a score cancel, their roundings to 2^-22 move the slope
// of a Softcap, and all of dQ of a row that sees one key.
func TestGradientBoundSoftcap(t *testing.T) {
	p := attention.Problem{
		Batch: 1, NumHeads: 8, NumKVHeads: 1, SeqQ: 33, SeqKV: 1, HeadDim: 64, DType: dtype.Float32, Scale: 2, Softcap: 0.5,
	}
	d := newData(p)
	bound, want, _, s := d.bounds(t)
	rng, worst := rand.New(rand.NewPCG(3, 3)), 0.0
	for row := range p.NumHeads * p.SeqQ {
		x := 0.0
		for i, k := range d.in.K {
			x += p.Scale * d.in.Q[row*p.HeadDim+i] * k * (1 + 0x1p-22*(2*rng.Float64()-1))
		}
		slope := 1 - math.Pow(math.Tanh(x/p.Softcap), 2)
		for i, k := range d.in.K {
			worst = max(worst, math.Abs(p.Scale*d.up.DLSE[row]*slope*k-want.DQ[row*p.HeadDim+i]))
		}
	}
	require.Less(t, worst, bound.DQ)
	require.Greater(t, worst, bound.DQ*half32(s, p)/(half32(s, p)+slopeError(&s, p)), "the term decides")
}

// half32 is the error that GradientBounds counts for float32 beside slopeError.
func half32(s GradientScope, p attention.Problem) float64 {
	return roundoff32 * (1 + s.LSE + p.Softcap)
}

// TestGradientBoundScore: a product and a bias that cancel are exact in plain, but not to the base 2,
// in which kernels compute. That is an error of the weight, however small LSE is. Beside a sink that
// has nearly all the weight it is the error of a small weight, and LSE says nothing about it.
func TestGradientBoundScore(t *testing.T) {
	for _, sink := range []bool{false, true} {
		p := attention.Problem{
			Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 64, SeqKV: 1, HeadDim: 8, DType: dtype.Float32, Scale: 1, Sinks: sink,
			Bias: attention.Bias{On: true, Rows: true, DType: dtype.Float32},
		}
		d := newData(p)
		clear(d.in.Q)
		clear(d.in.K)
		clear(d.up.DO)
		d.in.K[0] = 1
		least, small := 64.0, 1.0
		if sink {
			const most = 8
			least, d.in.Sinks[0], small = 512, most, 1/(1+math.Exp(most))
		}
		at, worst := 0, 0.0
		for row := range p.SeqQ {
			product := least + float64(row)
			d.in.Q[row*p.HeadDim], d.in.Bias[row] = product, -product
			bias := float64(float32(-product * math.Log2E))
			weight := math.Exp2(float64(float32(product*float64(float32(math.Log2E)) + bias)))
			if off := math.Abs(weight-1) * small; off > worst {
				at, worst = row, off
			}
		}
		d.up.DO[at*p.HeadDim] = 1
		bound, want, plain, s := d.bounds(t)
		require.Less(t, worst, bound.DV, "%v", sink)
		require.Greater(t, worst, bound.DV/16, "%v", sink)
		if s.Valued, s.Parts = 0, 0; !sink {
			s.Score, s.Product = 0, 0
		}
		require.Greater(t, worst, GradientBounds(want, plain, s, p).DV, "the term decides: %v", sink)
	}
}

// TestGradientBoundParts: where one product makes nearly all of a score, the errors of its parts do not average, and matrix units
// cut a bit off at each addition of something small that follows. Plain rounds each to nothing.
func TestGradientBoundParts(t *testing.T) {
	p := attention.Problem{Batch: 1, NumHeads: 64, NumKVHeads: 1, SeqQ: 1, SeqKV: 1, HeadDim: 64, DType: dtype.Float32, Scale: 1}
	d := newData(p)
	clear(d.up.DO)
	clear(d.in.K)
	d.in.K[0] = 21.7
	for i := 16; i < p.HeadDim; i += 8 {
		d.in.K[i] = -1e-6
	}
	at, worst := 0, 0.0
	for head := range p.NumHeads {
		q := d.in.Q[head*p.HeadDim:][:p.HeadDim]
		for i := range q {
			q[i] = 1
		}
		q[0] = 23 + float64(head)/128
		score, exact := 0.0, 0.0
		for i, x := range q {
			exact += x * d.in.K[i]
			score += inParts(x, d.in.K[i])
			if i%8 == 7 {
				score = cutOff(score)
			}
		}
		if off := math.Abs(math.Expm1(score - exact)); off > worst {
			at, worst = head, off
		}
	}
	d.up.DO[at*p.HeadDim] = 1
	bound, want, plain, s := d.bounds(t)
	require.Less(t, worst, bound.DV)
	s.Parts = 0
	require.Greater(t, worst, GradientBounds(want, plain, s, p).DV, "the term decides")
}

// inParts multiplies as shaders/lib/f32x2.glsl does.
func inParts(x, y float64) float64 {
	split := func(x float64) (hi, lo float64) {
		hi = float64(dtype.Float16.Round(float32(x)))
		return hi, float64(dtype.Float16.Round(float32(x - hi)))
	}
	xh, xl := split(x)
	yh, yl := split(y)
	return xh*yh + xh*yl + xl*yh
}

// cutOff rounds to float32 towards zero.
func cutOff(x float64) float64 {
	y := float32(x)
	if math.Abs(float64(y)) > math.Abs(x) {
		y = math.Nextafter32(y, 0)
	}
	return float64(y)
}

// TestGradientBoundRows: where rows see one key, dP and Delta are the same sum. In float32, in two
// orders, they are not, and what is left adds up in dK over the rows.
func TestGradientBoundRows(t *testing.T) {
	p := attention.Problem{Batch: 1, NumHeads: 8, NumKVHeads: 1, SeqQ: 2000, SeqKV: 1, HeadDim: 24, DType: dtype.Float32}
	d := newData(p)
	clear(d.up.DLSE)
	bound, want, plain, s := d.bounds(t)
	dk := make([]float64, p.HeadDim)
	for row := range p.NumHeads * p.SeqQ {
		forth, back := float32(0), float32(0)
		for i := range p.HeadDim {
			j := p.HeadDim - 1 - i
			forth += float32(d.up.DO[row*p.HeadDim+i] * d.in.V[i])
			back += float32(d.up.DO[row*p.HeadDim+j] * d.in.V[j])
		}
		for i := range dk {
			dk[i] += p.EffectiveScale() * float64(forth-back) * d.in.Q[row*p.HeadDim+i]
		}
	}
	worst := largest(dk)
	require.Less(t, worst, bound.DK)
	require.Greater(t, worst, bound.DK/6)
	s.KeyTerm = 0
	require.Less(t, 2*GradientBounds(want, plain, s, p).DK, bound.DK, "the term decides")
}

// TestGradientBoundRounded: rows see one key, and one element of Q is large. Roundings of dX and of O add up in one element of dK and
// of dBias, where plain's cancel. A kernel that leaves dX in float32 has those of O alone.
func TestGradientBoundRounded(t *testing.T) {
	const seed = 1641 // of 3000, 42 decide
	p := attention.Problem{Batch: 1, NumHeads: 7, NumKVHeads: 1, SeqQ: 25, SeqKV: 1, HeadDim: 88, DType: dtype.Float16, Bias: attention.Bias{On: true}}
	p.Dropout = attention.Dropout{P: 0.64, Seeded: true, Seed: seed}
	d, rng := newData(p), rand.New(rand.NewPCG(seed, 1))
	for row := range d.up.DLSE {
		d.in.Q[row*p.HeadDim], d.up.DLSE[row] = 100, 16*rng.NormFloat64()
	}
	bound, want, plain, s := d.bounds(t)
	kernel := pairs[float64, float64]{p: p, in: &d.in, up: &d.up, round: exact, roundBias: exact}
	kernel.o, kernel.lse, _ = Saved(d.in, p)
	kernel.compute()
	s.KeyRounded, s.BiasRounded = 0, 0
	without := gradients(kernel.g, want, GradientBounds(want, plain, s, p))
	for i, x := range gradients(kernel.g, want, bound) {
		off := guard.Off(x.got, x.want)
		require.LessOrEqual(t, off, x.bound, x.name)
		require.Equal(t, x.name == "dk" || x.name == "dbias", off > without[i].bound, "the term decides")
	}
}
