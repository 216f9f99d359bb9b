package ref

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
)

// data is one problem with inputs for all features that it has, upstream gradients, and room for
// results.
type data struct {
	p      attention.Problem
	in     Inputs[float64]
	o, lse []float64
	up     Upstream[float64]
}

func newData(p attention.Problem) *data {
	rng := rand.New(rand.NewPCG(1, 1))
	normal := func(shape []int) []float64 {
		x := make([]float64, product(shape))
		for i := range x {
			x[i] = float64(p.DType.Round(float32(rng.NormFloat64())))
		}
		return x
	}
	d := &data{
		p: p, o: make([]float64, product(p.OShape())), lse: make([]float64, product(p.LSEShape())),
		in: Inputs[float64]{Q: normal(p.QShape()), K: normal(p.KShape()), V: normal(p.VShape())},
	}
	rng = rand.New(rand.NewPCG(2, 2))
	d.up = Upstream[float64]{DO: normal(p.OShape()), DLSE: normal(p.LSEShape())}
	if p.Bias.On {
		d.in.Bias = normal(p.BiasShape())
		for i := 3; i < len(d.in.Bias); i += 7 {
			d.in.Bias[i] = math.Inf(-1)
		}
	}
	if p.ALiBi != attention.ALiBiOff {
		d.in.ALiBiSlopes = normal(p.SlopesShape())
	}
	if p.Sinks {
		d.in.Sinks = normal(p.SinksShape())
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

func (d *data) forward(t *testing.T) *data {
	require.NoError(t, Forward(d.o, d.lse, d.in, d.p, nil))
	return d
}

// naive returns O and LSE of a row by the formulas at attention.Problem, one term after the other.
func (d *data) naive(r Row) (o []float64, lse float64) {
	p, in, seqQ, seqKV := d.p, d.in, d.p.SeqQ, d.p.SeqKV
	kv := r.Head / (p.NumHeads / p.NumKVHeads)
	query := func(i int) int { return (r.Batch*p.NumHeads+r.Head)*p.SeqQ + i }
	key := func(j int) int { return (r.Batch*p.NumKVHeads+kv)*p.SeqKV + j }
	if p.Varlen.On {
		q, k := int(in.CuSeqlensQ[r.Batch]), int(in.CuSeqlensKV[r.Batch])
		seqQ, seqKV = int(in.CuSeqlensQ[r.Batch+1])-q, int(in.CuSeqlensKV[r.Batch+1])-k
		query = func(i int) int { return (q+i)*p.NumHeads + r.Head }
		key = func(j int) int { return (k+j)*p.NumKVHeads + kv }
	}
	mask := p.MaskOf(seqQ, seqKV)
	lo, hi := mask.Keys(r.Row)
	o, sum, kept := make([]float64, p.ValueHeadDim()), 0.0, p.DropoutRow(r.Batch, r.Head, r.Row)
	for j := lo; j < hi; j++ {
		if p.KeyMask && !in.KeyMask[r.Batch*p.SeqKV+j] {
			continue
		}
		x := 0.0
		for e, y := range in.Q[query(r.Row)*p.HeadDim:][:p.HeadDim] {
			x += p.EffectiveScale() * y * in.K[key(j)*p.HeadDim+e]
		}
		if p.Softcap != 0 {
			x = p.Softcap * math.Tanh(x/p.Softcap)
		}
		if p.Bias.On {
			at, shape := 0, p.BiasShape()
			for axis, i := range []int{r.Batch, r.Head, r.Row, j} {
				at = at*shape[axis] + i%shape[axis]
			}
			x += in.Bias[at]
		}
		switch distance := math.Abs(float64(r.Row + mask.Shift - j)); p.ALiBi {
		case attention.ALiBiPerHead:
			x -= in.ALiBiSlopes[r.Head] * distance
		case attention.ALiBiPerBatchHead:
			x -= in.ALiBiSlopes[r.Batch*p.NumHeads+r.Head] * distance
		}
		sum += math.Exp(x)
		if !p.Dropout.On() || kept.Kept(j) {
			for e := range o {
				o[e] += math.Exp(x) / (1 - p.Dropout.P) * in.V[key(j)*p.ValueHeadDim()+e]
			}
		}
	}
	if p.Sinks {
		sum += math.Exp(in.Sinks[r.Head])
	}
	for e := range o {
		o[e] /= max(sum, math.SmallestNonzeroFloat64)
	}
	return o, math.Log(sum)
}

// implementations are all that this package has.
var implementations = map[string]func(o, lse []float64, in Inputs[float64], p attention.Problem, rows []Row) error{
	"forward": Forward[float64],
	"plain":   Plain[float64],
}

// TestForward: every implementation computes the formulas, of packed sequences, too; rows of no
// sequence keep what the outputs hold, and O is the same without LSE.
func TestForward(t *testing.T) {
	check := func(name string, d *data) {
		for kind, forward := range implementations {
			for _, x := range [][]float64{d.o, d.lse} {
				for i := range x {
					x[i] = 77
				}
			}
			require.NoError(t, forward(d.o, d.lse, d.in, d.p, nil), name)
			without := slices.Repeat([]float64{77}, len(d.o))
			require.NoError(t, forward(without, nil, d.in, d.p, nil), name)
			require.Equal(t, d.o, without, name)
			off, dv := map[string]float64{"forward": 1e-12, "plain": 2e-4}[kind], d.p.ValueHeadDim()
			rest, restLSE := slices.Repeat([]float64{77}, len(d.o)), slices.Repeat([]float64{77}, len(d.lse))
			for _, r := range AllRows(d.in, d.p) {
				at, atLSE := d.in.At(d.p, r)
				o, lse := d.naive(r)
				require.InDeltaSlice(t, o, d.o[at*dv:][:dv], off, "%s %s %v", name, kind, r)
				if math.IsInf(lse, -1) {
					require.Equal(t, lse, d.lse[atLSE], "%s %s %v", name, kind, r)
				} else {
					require.InDelta(t, lse, d.lse[atLSE], off, "%s %s %v", name, kind, r)
				}
				copy(rest[at*dv:], d.o[at*dv:][:dv])
				restLSE[atLSE] = d.lse[atLSE]
			}
			require.Equal(t, rest, d.o, name)
			require.Equal(t, restLSE, d.lse, name)
		}
	}
	p := attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 7, SeqKV: 12, HeadDim: 16, DType: dtype.Float32}
	for name, change := range bwdProblems {
		p := p
		change(&p)
		check(name, newData(p))
	}
	for axes := range 8 {
		p := p
		p.Bias = attention.Bias{On: true, Batch: axes&1 != 0, Heads: axes&2 != 0, Rows: axes&4 != 0}
		check(p.Bias.String(), newData(p))
	}
	p.CausalAlign, p.ALiBi, p.SeqQ, p.Dropout = attention.TopLeft, attention.ALiBiPerHead, 3, attention.Dropout{P: 0.3, Seeded: true}
	check("top-left", newData(p))
	p.CausalAlign, p.Window = attention.BottomRight, attention.Window{On: true, Left: 2}
	check("window", newData(p))
	check("packed", packed())
}

// packed returns four packed sequences, one of them without rows, with room after them.
func packed() *data {
	p := attention.Problem{Batch: 4, NumHeads: 4, NumKVHeads: 2, SeqQ: 9, SeqKV: 12, HeadDim: 24, ValueDim: 16, DType: dtype.Float32, Causal: true}
	p.Varlen, p.KeyMask, p.ALiBi = attention.Varlen{On: true, TotalQ: 20, TotalKV: 25}, true, attention.ALiBiPerBatchHead
	p.Dropout = attention.Dropout{P: 0.3, Seeded: true, Seed: 5}
	d := newData(p)
	d.in.CuSeqlensQ, d.in.CuSeqlensKV = []int32{0, 9, 9, 10, 18}, []int32{0, 5, 8, 9, 21}
	return d
}

var small = attention.Problem{Batch: 2, NumHeads: 6, NumKVHeads: 2, SeqQ: 37, SeqKV: 150, HeadDim: 24, DType: dtype.Float16}

// TestFloat32Inputs: results do not depend on the type that carries the inputs.
func TestFloat32Inputs(t *testing.T) {
	d := newData(small).forward(t)
	narrow := Inputs[float32]{Q: convert[float32](d.in.Q), K: convert[float32](d.in.K), V: convert[float32](d.in.V)}
	o, lse := make([]float64, len(d.o)), make([]float64, len(d.lse))
	require.NoError(t, Forward(o, lse, narrow, d.p, nil))
	require.Equal(t, d.o, o)
	require.Equal(t, d.lse, lse)
}

// TestRows: single rows, in any order and repeated, are the rows of the whole. Other heads may hold
// anything, as may the keys that no row sees.
func TestRows(t *testing.T) {
	p := small
	p.Causal, p.CausalAlign = true, attention.TopLeft
	for _, whole := range []*data{newData(p), packed()} {
		for name, forward := range implementations {
			d, dv := *whole, whole.p.ValueHeadDim()
			require.NoError(t, forward(d.o, d.lse, d.in, d.p, nil))
			rows := SampleRows(d.in, d.p, 40)
			rows = append(rows, rows[7], rows[3])
			if !d.p.Varlen.On {
				rows = []Row{{1, 4, 3}, {1, 3, 9}, {1, 4, 3}} // key head 1 of batch 1, keys 0..9
				first := 3 * d.p.SeqKV * d.p.HeadDim
				d.in.K, d.in.V = slices.Clone(d.in.K), slices.Clone(d.in.V)
				for i := range d.in.K {
					if i < first || i >= first+10*d.p.HeadDim {
						d.in.K[i], d.in.V[i] = math.NaN(), math.NaN()
					}
				}
			}
			o, lse := make([]float64, len(rows)*dv), make([]float64, len(rows))
			require.NoError(t, forward(o, lse, d.in, d.p, rows))
			for x, r := range rows {
				at, atLSE := d.in.At(d.p, r)
				require.Equal(t, d.o[at*dv:][:dv], o[x*dv:][:dv], "%s %v", name, r)
				require.Equal(t, d.lse[atLSE], lse[x], "%s %v", name, r)
			}
		}
	}
}

// TestSamples: as many as asked for, every head, both ends, in order, no more than there are.
func TestSamples(t *testing.T) {
	p, in := small, Inputs[float64]{}
	rows, keys := SampleRows(in, p, 24), SampleKeys(in, p, 40)
	require.Len(t, rows, 24)
	require.Len(t, keys, 40)
	require.Equal(t, []Row{{0, 0, 0}, {1, 5, 36}}, []Row{rows[0], rows[23]})
	require.Equal(t, []Key{{0, 0, 0}, {1, 1, 149}}, []Key{keys[0], keys[39]})
	heads := map[any]bool{}
	for _, r := range rows {
		heads[[2]int{r.Batch, r.Head}] = true
	}
	for _, k := range keys {
		heads[Key{k.Batch, k.Head, -1}] = true
	}
	require.Len(t, heads, 2*6+2*2)
	require.Equal(t, rows, SampleRows(in, p, 24))
	require.Equal(t, AllRows(in, p), SampleRows(in, p, 1<<30))
	require.Len(t, AllRows(in, p), 2*6*37)
	all := SampleKeys(in, p, 1<<30)
	require.Len(t, all, 2*2*150)
	require.Equal(t, Key{1, 0, 149}, all[2*150+149])
	some := packed()
	require.Len(t, AllRows(some.in, some.p), 18*4)
	require.Len(t, SampleKeys(some.in, some.p, 1<<30), 21*2)
}

// TestErrors: one line that names the argument and the rule.
func TestErrors(t *testing.T) {
	for want, change := range map[string]func(d *data){
		"num_heads=4 is not a multiple of num_kv_heads=3":    func(d *data) { d.p.NumKVHeads = 3 },
		"q has 0 elements, want 192 of shape [2 4 3 8]":      func(d *data) { d.in.Q = nil },
		"v has 160 elements, want 320 of shape [2 2 5 16]":   func(d *data) { d.p.ValueDim = 16 },
		"sinks is given, but the problem has none":           func(d *data) { d.in.Sinks = make([]float64, 4) },
		"sinks has 0 elements, want 4 of shape [4]":          func(d *data) { d.p.Sinks = true },
		"alibi_slopes has 4 elements, want 8 of shape [2 4]": func(d *data) { d.p.ALiBi, d.in.ALiBiSlopes = attention.ALiBiPerBatchHead, make([]float64, 4) },
		"key_mask has 3 elements, want 10 of shape [2 5]":    func(d *data) { d.p.KeyMask, d.in.KeyMask = true, make([]bool, 3) },
		"cu_seqlens_q has 0 elements, want 3 of shape [3]": func(d *data) {
			d.p.Varlen = attention.Varlen{On: true, TotalQ: 6, TotalKV: 10}
		},
	} {
		d := newData(tiny)
		change(d)
		for name, forward := range implementations {
			require.EqualError(t, forward(d.o, d.lse, d.in, d.p, nil), "attention: "+want, name)
		}
		for name, backward := range backwards {
			_, err := backward(d.up, d.in, d.p)
			require.EqualError(t, err, "attention: "+want, name)
		}
	}
	d := newData(tiny)
	require.EqualError(t, Forward(d.o[1:], d.lse, d.in, d.p, nil), "attention: o has 191 elements, want 192 of shape [24 8]")
	require.EqualError(t, Plain(d.o, d.lse[1:], d.in, d.p, nil), "attention: lse has 23 elements, want 24 of shape [24]")
	require.EqualError(t, Forward(d.o[:8], nil, d.in, d.p, []Row{{0, 6, 0}}), "attention: row (0, 6, 0) is outside (batch, num_heads, seq_q) = (2, 4, 3)")
	some := packed()
	require.EqualError(t, Forward(some.o[:16], nil, some.in, some.p, []Row{{2, 0, 1}}), "attention: row (2, 0, 1) is outside (batch, num_heads, seq_q) = (4, 4, 9)")
	some.in.CuSeqlensKV[2] = 99
	require.EqualError(t, Forward(some.o, nil, some.in, some.p, nil), "attention: cu_seqlens_kv[2]=99 is beyond the tensor, total_kv=25")
	rows, keys := AllRows(d.in, d.p), SampleKeys(d.in, d.p, 9)
	for _, x := range []struct {
		o, lse []float64
		up     Upstream[float64]
		rows   []Row
		want   string
	}{
		{d.o[1:], d.lse, d.up, rows, "o has 191 elements, want 192 of shape [2 4 3 8]"},
		{d.o, nil, d.up, rows, "lse has 0 elements, want 24 of shape [2 4 3]"},
		{d.o, d.lse, Upstream[float64]{}, rows, "do has 0 elements, want 192 of shape [2 4 3 8]"},
		{d.o, d.lse, Upstream[float64]{d.up.DO, d.lse[:3]}, rows, "dlse has 3 elements, want 24 of shape [2 4 3]"},
		{d.o, d.lse, d.up, nil, "a sample of 0 rows and 9 keys: it needs one of each"},
	} {
		_, _, err := SampleBackward(x.o, x.lse, x.up, d.in, d.p, x.rows, keys)
		require.EqualError(t, err, "attention: "+x.want)
		if x.rows != nil {
			_, err = PlainBackward(x.o, x.lse, x.up, d.in, d.p)
			require.EqualError(t, err, "attention: "+x.want)
		}
	}
}

// TestHidden: NaN and Inf in keys that masks hide reach no row that does not see them, and no
// gradient.
func TestHidden(t *testing.T) {
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 6, SeqKV: 12, HeadDim: 8, DType: dtype.Float32, Softcap: 3}
	p.Window, p.KeyMask, p.Bias = attention.Window{On: true, Left: 2, Right: 1}, true, attention.Bias{On: true}
	d := newData(p)
	d.in.KeyMask = []bool{true, true, true, true, true, true, false, true, true, true, true, true}
	d.in.Bias = append(make([]float64, 10), math.Inf(-1), 0)
	poisoned := d.in
	poisoned.K, poisoned.V = slices.Clone(d.in.K), slices.Clone(d.in.V)
	hidden := []int{0, 1, 2, 3, 6, 10}
	for _, j := range hidden {
		for e := range 8 {
			poisoned.K[j*8+e], poisoned.V[j*8+e] = math.NaN(), []float64{math.NaN(), math.Inf(1)}[e%2]
		}
	}
	for name, forward := range implementations {
		require.NoError(t, forward(d.o, d.lse, d.in, p, nil))
		o, lse := make([]float64, len(d.o)), make([]float64, len(d.lse))
		require.NoError(t, forward(o, lse, poisoned, p, nil))
		require.InDeltaSlice(t, d.o, o, 1e-6, name)
		require.InDeltaSlice(t, d.lse, lse, 1e-6, name)
	}
	for name, backward := range backwards {
		want, err := backward(d.up, d.in, p)
		require.NoError(t, err, name)
		g, err := backward(d.up, poisoned, p)
		require.NoError(t, err, name)
		require.Equal(t, want, g, name)
		for _, j := range hidden {
			require.Equal(t, make([]float64, 8), g.DK[j*8:][:8], "%s key %d", name, j)
			require.Equal(t, make([]float64, 8), g.DV[j*8:][:8], "%s key %d", name, j)
		}
	}
	rows, keys := AllRows(d.in, p), SampleKeys(d.in, p, p.SeqKV)
	want, _, err := SampleBackward(d.o, d.lse, d.up, d.in, p, rows, keys)
	require.NoError(t, err)
	got, _, err := SampleBackward(d.o, d.lse, d.up, poisoned, p, rows, keys)
	require.NoError(t, err)
	require.Equal(t, want, got)
}
