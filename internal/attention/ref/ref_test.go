package ref

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
)

// data is one problem with random inputs and room for results.
type data struct {
	p      attention.Problem
	in     Inputs[float64]
	o, lse []float64
}

func newData(p attention.Problem) *data {
	rng := rand.New(rand.NewPCG(1, 1))
	normal := func(n int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = float64(p.DType.Round(float32(rng.NormFloat64())))
		}
		return x
	}
	return &data{
		p: p,
		in: Inputs[float64]{
			Q: normal(product(p.QShape())), K: normal(product(p.KShape())), V: normal(product(p.VShape())),
		},
		o: make([]float64, product(p.OShape())), lse: make([]float64, product(p.LSEShape())),
	}
}

func (d *data) forward(t *testing.T) *data {
	require.NoError(t, Forward(d.o, d.lse, d.in, d.p))
	return d
}

func float32s(x []float64) []float32 {
	y := make([]float32, len(x))
	for i := range x {
		y[i] = float32(x[i])
	}
	return y
}

func inputs32(in Inputs[float64]) Inputs[float32] {
	return Inputs[float32]{Q: float32s(in.Q), K: float32s(in.K), V: float32s(in.V)}
}

var small = attention.Problem{Batch: 2, NumHeads: 6, NumKVHeads: 2, SeqQ: 37, SeqKV: 150, HeadDim: 24, DType: dtype.Float16}

// TestHandValues: two keys whose scores differ by log(3) have weights 1/4 and
// 3/4, and their sum is 4 times the smaller exponential.
func TestHandValues(t *testing.T) {
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 2, SeqKV: 2, HeadDim: 8, Scale: 2}
	q := make([]float64, 16)
	k := make([]float64, 16)
	v := make([]float64, 16)
	q[0], q[8] = 1, -1
	k[0], k[8] = 5, 5+math.Log(3)/2
	v[0], v[8], v[1] = 4, 8, -4
	for name, forward := range implementations {
		o, lse := make([]float64, 16), make([]float64, 2)
		require.NoError(t, forward(o, lse, Inputs[float64]{Q: q, K: k, V: v}, p))
		require.InDeltaSlice(t, []float64{7, -1, 0, 0, 0, 0, 0, 0, 5, -3, 0, 0, 0, 0, 0, 0}, o, 1e-5, name)
		require.InDeltaSlice(t, []float64{10 + math.Log(4), -10 + math.Log(4.0/3)}, lse, 1e-5, name)

		p := p
		p.Causal = true // the first row sees the first key only
		require.NoError(t, forward(o, lse, Inputs[float64]{Q: q, K: k, V: v}, p), name)
		require.InDeltaSlice(t, []float64{4, -4, 0, 0, 0, 0, 0, 0, 5, -3}, o[:10], 1e-5, name)
		require.InDelta(t, 10, lse[0], 1e-5, name)

		p.SeqKV = 1 // bottom-right: now it sees nothing
		require.NoError(t, forward(o, lse, Inputs[float64]{Q: q, K: k[:8], V: v[:8]}, p), name)
		require.Equal(t, make([]float64, 8), o[:8], name)
		require.Equal(t, math.Inf(-1), lse[0], name)
		require.Equal(t, []float64{4, -4}, o[8:10], name)
		require.InDelta(t, -10, lse[1], 1e-5, name)
	}
}

// TestNoLSE: without LSE the result is the same.
func TestNoLSE(t *testing.T) {
	d := newData(small)
	for _, f := range []func(o, lse []float64, in Inputs[float64], p attention.Problem) error{
		Forward[float64], Plain[float64],
	} {
		require.NoError(t, f(d.o, d.lse, d.in, d.p))
		o := make([]float64, len(d.o))
		require.NoError(t, f(o, nil, d.in, d.p))
		require.Equal(t, d.o, o)
	}
}

// TestFloat32Inputs: results do not depend on the type that carries the
// inputs.
func TestFloat32Inputs(t *testing.T) {
	d := newData(small).forward(t)
	o, lse := make([]float64, len(d.o)), make([]float64, len(d.lse))
	require.NoError(t, Forward(o, lse, inputs32(d.in), d.p))
	require.Equal(t, d.o, o)
	require.Equal(t, d.lse, lse)

	require.NoError(t, Plain(d.o, d.lse, d.in, d.p))
	require.NoError(t, Plain(o, lse, inputs32(d.in), d.p))
	require.Equal(t, d.o, o)
	require.Equal(t, d.lse, lse)
}

// TestRows: single rows, in any order and repeated, are the rows of the whole.
func TestRows(t *testing.T) {
	for _, align := range []attention.Align{attention.BottomRight, attention.TopLeft} {
		p := small
		p.Causal, p.CausalAlign = true, align
		d := newData(p).forward(t)
		plain := make([]float64, len(d.o))
		require.NoError(t, Plain(plain, nil, d.in, p))

		rows := []Row{{1, 5, 36}, {0, 0, 0}, {1, 2, 7}, {0, 3, 20}, {1, 2, 7}, {0, 2, 36}}
		rows = append(rows, SampleRows(d.in, p, 40)...)
		o, lse := make([]float64, len(rows)*p.HeadDim), make([]float64, len(rows))
		for _, c := range []struct {
			name string
			f    func(o, lse []float64, in Inputs[float64], p attention.Problem, rows []Row) error
			want []float64
		}{{"forward", ForwardRows[float64], d.o}, {"plain", PlainRows[float64], plain}} {
			require.NoError(t, c.f(o, lse, d.in, p, rows))
			for x, r := range rows {
				at := (r.Batch*p.NumHeads+r.Head)*p.SeqQ + r.Row
				// Sums of other heights round in another order.
				require.InDeltaSlice(t, c.want[at*p.HeadDim:(at+1)*p.HeadDim], o[x*p.HeadDim:(x+1)*p.HeadDim], 1e-14, "%s %v", c.name, r)
				require.InDelta(t, d.lse[at], lse[x], 1e-5, "%s %v", c.name, r)
			}
			require.NoError(t, c.f(nil, nil, d.in, p, nil))
		}
	}
}

// TestRowsTouchNothingElse: other heads may hold anything, as may the keys
// that no row sees.
func TestRowsTouchNothingElse(t *testing.T) {
	p := small
	p.Causal, p.CausalAlign = true, attention.TopLeft
	d := newData(p).forward(t)
	rows := []Row{{1, 4, 3}, {1, 3, 9}} // key head 1 of batch 1, keys 0..9
	first := 3 * p.SeqKV * p.HeadDim
	for i := range d.in.K {
		if i < first || i >= first+10*p.HeadDim {
			d.in.K[i], d.in.V[i] = math.NaN(), math.NaN()
		}
	}
	o, lse := make([]float64, 2*p.HeadDim), make([]float64, 2)
	for _, f := range []func(o, lse []float64, in Inputs[float64], p attention.Problem, rows []Row) error{ForwardRows[float64], PlainRows[float64]} {
		require.NoError(t, f(o, lse, d.in, p, rows))
		for x, r := range rows {
			at := ((r.Batch*p.NumHeads+r.Head)*p.SeqQ + r.Row) * p.HeadDim
			require.InDeltaSlice(t, d.o[at:at+p.HeadDim], o[x*p.HeadDim:(x+1)*p.HeadDim], 2e-3)
		}
	}
}

// TestSampleRows: as many as asked for, every head, both ends, no more than
// there are.
func TestSampleRows(t *testing.T) {
	p, in := small, Inputs[float64]{}
	rows := SampleRows(in, p, 24)
	require.Len(t, rows, 24)
	require.Equal(t, Row{0, 0, 0}, rows[0])
	require.Equal(t, Row{1, 5, 36}, rows[23])
	heads := map[[2]int]bool{}
	for _, r := range rows {
		heads[[2]int{r.Batch, r.Head}] = true
	}
	require.Len(t, heads, 12)
	require.Equal(t, rows, SampleRows(in, p, 24))
	require.Equal(t, AllRows(in, p), SampleRows(in, p, 1<<30))
	require.Len(t, SampleRows(in, p, 1), 1)
	require.Len(t, AllRows(in, p), 2*6*37)
}

// TestErrors: one line that names the argument and the rule.
func TestErrors(t *testing.T) {
	d := newData(small)
	p := d.p
	all := func(o, lse, q, k, v []float64, p attention.Problem) []error {
		in := Inputs[float64]{Q: q, K: k, V: v}
		return []error{
			Forward(o, lse, in, p),
			Plain(o, lse, in, p),
		}
	}
	bad := p
	bad.NumKVHeads = 4
	for _, c := range []struct {
		errs []error
		want string
	}{
		{all(d.o, d.lse, d.in.Q, d.in.K, d.in.V, bad), "attention: num_heads=6 is not a multiple of num_kv_heads=4"},
		{all(d.o, d.lse, d.in.Q[1:], d.in.K, d.in.V, p), "attention: q has 10655 elements, want 10656 of shape [2 6 37 24]"},
		{all(d.o, d.lse, d.in.Q, d.in.K[1:], d.in.V, p), "attention: k has 14399 elements, want 14400 of shape [2 2 150 24]"},
		{all(d.o, d.lse, d.in.Q, d.in.K, nil, p), "attention: v has 0 elements, want 14400 of shape [2 2 150 24]"},
		{all(d.o[1:], d.lse, d.in.Q, d.in.K, d.in.V, p), "attention: o has 10655 elements, want 444 rows of value_dim=24"},
		{all(d.o, d.lse[1:], d.in.Q, d.in.K, d.in.V, p), "attention: lse has 443 elements, want 444 rows"},
		{[]error{
			ForwardRows(d.o[:24], nil, d.in, p, []Row{{0, 6, 0}}),
			PlainRows(d.o[:24], nil, d.in, p, []Row{{0, 6, 0}}),
		}, "attention: row (0, 6, 0) is outside (batch, num_heads, seq_q) = (2, 6, 37)"},
	} {
		for _, err := range c.errs {
			require.EqualError(t, err, c.want)
		}
	}
}

// TestBigSingleRow: more keys than a worker's buffer of scores holds rows for.
func TestBigSingleRow(t *testing.T) {
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 3, SeqKV: scoresPerChunk + 1, HeadDim: 8}
	d := newData(p)
	clear(d.in.Q)
	d.forward(t)
	mean := 0.0
	for j := range p.SeqKV {
		mean += d.in.V[j*8] / float64(p.SeqKV)
	}
	require.InDelta(t, mean, d.o[0], 1e-12)
	require.InDelta(t, math.Log(scoresPerChunk+1), d.lse[2], 1e-12)
}
