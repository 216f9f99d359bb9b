package ref

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
)

// TestQuantError says how far Quant is from attention: a cosine of 0.9995 and a relative L1 norm of 0.02
// for int8, of normal numbers, with a channel of K that is 50 more, with channels 8 and 50 times as large, and
// with maxima that repeat. Gradients have P = exp(S - LSE) of this LSE and of Q and K as
// they are, as those of package train with int8.
func TestQuantError(t *testing.T) {
	times := func(x []float64, channel, d int, factor float64) {
		for i := channel; i < len(x); i += d {
			x[i] *= factor
		}
	}
	normal := func(q, k []float64, d int) {}
	wide := func(q, k []float64, d int) { times(k, 3, d, 50) }
	for _, x := range []struct {
		name   string
		quant  dtype.Quant
		l1, of float64 // of O, of gradients
		change func(q, k []float64, d int)
	}{
		{"normal", dtype.QuantInt8, 0.02, 0.0025, normal},
		{"50 more", dtype.QuantInt8, 0.02, 0.012, func(q, k []float64, d int) {
			for i := 3; i < len(k); i += d {
				k[i] += 50
			}
		}},
		{"8 times K", dtype.QuantInt8, 0.02, 0.006, func(q, k []float64, d int) { times(k, 3, d, 8) }},
		{"50 times K", dtype.QuantInt8, 0.02, 0.04, wide},
		{"50 times Q", dtype.QuantInt8, 0.02, 0.025, func(q, k []float64, d int) { times(q, 3, d, 50) }},
		{"50 times two channels", dtype.QuantInt8, 0.02, 0.045, func(q, k []float64, d int) { times(q, 3, d, 50); times(k, 40, d, 50) }},
		{"repeated maxima", dtype.QuantInt8, 0.02, 0.007, func(q, k []float64, d int) {
			for i := range k {
				k[i] = k[i%(8*d)]
			}
		}},
		{"normal", dtype.QuantE4M3, 0.06, 0.008, normal},
		{"50 times K", dtype.QuantE4M3, 0.08, 0.25, wide},
	} {
		for _, d := range []int{64, 96, 128, 256} {
			if testing.Short() && d > 64 {
				continue // goroutines have the same work
			}
			t.Run(fmt.Sprintf("%v/%s/%d", x.quant, x.name, d), func(t *testing.T) {
				p := attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 1, SeqQ: 64, SeqKV: 512, HeadDim: d, DType: dtype.BFloat16}
				want := newData(p)
				x.change(want.in.Q, want.in.K, d)
				for _, x := range [][]float64{want.in.Q, want.in.K} {
					for i := range x {
						x[i] = float64(p.DType.Round(float32(x[i])))
					}
				}
				want.forward(t)
				p.Quant = x.quant
				got := newData(p)
				got.in = want.in
				got.forward(t)
				cosine, l1 := likeness(got.o, want.o)
				_, lse := likeness(got.lse, want.lse)
				t.Logf("cosine %.6f, relative L1 %.4f, of LSE %.5f", cosine, l1, lse)
				require.Less(t, l1, x.l1)
				require.Greater(t, cosine, 1-1.25*x.l1*x.l1) // 0.9995 of 0.02
				require.Less(t, lse, x.l1/10)
				if d > 128 {
					return // it takes seconds
				}
				up := Upstream[float64]{DO: want.up.DO}
				quantised, _, err := Backward(up, got.in, got.p)
				require.NoError(t, err)
				exact, _, err := Backward(up, want.in, want.p)
				require.NoError(t, err)
				for _, g := range [][2][]float64{{quantised.DQ, exact.DQ}, {quantised.DK, exact.DK}, {quantised.DV, exact.DV}} {
					_, l1 = likeness(g[0], g[1])
					require.Less(t, l1, x.of)
				}
			})
		}
	}
}

// likeness returns the cosine of two tensors and the L1 norm of their difference divided by the norm of want.
func likeness(got, want []float64) (cosine, l1 float64) {
	var ab, aa, bb, off, size float64
	for i, x := range got {
		y := want[i]
		ab, aa, bb = ab+x*y, aa+x*x, bb+y*y
		off, size = off+math.Abs(x-y), size+math.Abs(y)
	}
	return ab / math.Sqrt(aa*bb), off / size
}

// TestOnlyRow has a bias of one row, which hides a key as a bias does that rows share.
func TestOnlyRow(t *testing.T) {
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 2, HeadDim: 8, Bias: attention.Bias{On: true, Rows: true}}
	var hidden []int
	Inputs[float64]{Bias: []float64{0, math.Inf(-1)}}.Hidden(p, func(row int, _ bool) { hidden = append(hidden, row) })
	require.Equal(t, []int{1}, hidden)
}
