package attntest

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/guard"
)

// TestCases says that the table is what its documentation claims.
func TestCases(t *testing.T) {
	for _, set := range []struct {
		set          Set
		total, worst float64
	}{{Short, 3e9, 0.3e9}, {Full, 2e11, 2e10}} {
		names := map[string]bool{}
		total := 0.0
		dims := map[string]bool{}
		for _, c := range Cases(set.set) {
			p := c.Problem
			require.NoError(t, p.Validate(), c.Name)
			require.False(t, names[c.Name], "%s twice", c.Name)
			names[c.Name] = true
			require.LessOrEqual(t, c.FLOPs(), set.worst, c.Name)
			total += c.FLOPs()
			dims[fmt.Sprint(p.HeadDim, p.DType)] = true
		}
		require.LessOrEqual(t, total, set.total)
		t.Logf("%d cases, %.3g operations", len(names), total)
		for _, d := range []int{8, 24, 40, 64, 72, 96, 128, 160, 192, 256} {
			for _, dt := range dtype.All() {
				require.True(t, dims[fmt.Sprint(d, dt)], "head_dim %d of %v", d, dt)
			}
		}
	}
}

// TestInputs says that each kind of input is what it claims to be.
func TestInputs(t *testing.T) {
	for _, c := range Cases(Short) {
		p := c.Problem
		if c.Input == Normal {
			continue
		}
		in := c.values()
		q, k, v := in.Q, in.K, in.V
		for _, x := range [][]float64{q, k, v} {
			for _, x := range x {
				if math.IsInf(x, 0) || x != float64(p.DType.Round(float32(x))) {
					t.Fatalf("%s: %g is not finite, or not a %v", c.Name, x, p.DType)
				}
			}
		}
		score := func(i, j int) float64 {
			s := 0.0
			for e := range p.HeadDim {
				s += q[i*p.HeadDim+e] * k[j*p.HeadDim+e]
			}
			return s * p.EffectiveScale()
		}
		switch c.Input {
		case BigLogits:
			for j := range 20 {
				require.InDelta(t, 1e4, math.Abs(score(0, j)), 100, c.Name)
			}
		case Huge:
			require.Greater(t, math.Abs(q[0]), hugeMagnitude(p.DType)/2.1, c.Name)
			require.Less(t, math.Abs(score(0, 0)), 20.0, c.Name)
		case EqualKeys:
			require.Equal(t, score(0, 0), score(0, p.SeqKV-1), c.Name)
		case OneHot:
			require.InDelta(t, 50, score(1, 7), 1, c.Name)
			require.Zero(t, score(1, 8), c.Name)
		case Rising, Falling:
			require.InDelta(t, 8.5*math.Ln2*4, math.Abs(score(0, 128)-score(0, 0)), 6, c.Name)
		case Creeping:
			require.InDelta(t, 4.5*math.Ln2*8, score(0, 512)-score(0, 0), 6, c.Name)
		}
	}
}

// TestLayouts says that no two elements share memory, that the last axis is
// contiguous, and that there is garbage where the layout promises it.
func TestLayouts(t *testing.T) {
	for l := range NumLayouts {
		shape := []int{2, 3, 5, 8}
		x := newTensor("q", l, dtype.Float16, shape...)
		lse := newTensor("LSE", l, dtype.Float32, shape[:3]...)
		for _, x := range []*guard.View{x, lse} {
			values := make([]float64, x.NumElements())
			for i := range values {
				values[i] = float64(i + 1)
			}
			x.Scatter(values)
			require.Equal(t, values, x.Gather(), "%v", l)
			x.Fill(func(int) float64 { return -1 })
			x.Scatter(values)
			require.Equal(t, values, x.Gather(), "%v", l)
			require.Equal(t, 1, x.Strides[len(x.Strides)-1])
			require.Equal(t, -1.0, x.Data[len(x.Data)-1], "%v: guard at the end", l)
			if l == Packed {
				require.Zero(t, x.Offset)
			} else {
				require.Equal(t, -1.0, x.Data[0], "%v: guard at the start", l)
			}
		}
		inside := x.Data[x.Offset : len(x.Data)-guardElements-guardRows*8]
		switch l {
		case Cache, Padded, Odd, FusedQKV:
			require.Contains(t, inside, -1.0, "%v: garbage between rows", l)
		}
	}
}

// TestMessages holds what a failure looks like.
func TestMessages(t *testing.T) {
	p := attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 1, SeqQ: 3, SeqKV: 4, HeadDim: 8, Causal: true}
	c := &Case{Name: "message", Problem: p, Q: Odd, K: BSHD, V: Cache, O: Padded}
	s := NewSuite(Short, Reference, func(*Case, []float64, []float64, ref.Inputs[float64]) (ref.Bound, error) {
		return ref.Bound{O: 1e-12, LSE: 1e-12}, nil
	})
	for _, m := range []struct {
		mutate func(o, lse, q, k, v *guard.View)
		want   string
	}{
		{func(o, _, _, _, _ *guard.View) { o.Data[at4(o, 0, 1, 2)+5] = 42 }, `^O\[45\] = 42, want -?[0-9.]+: off by [0-9.]+, tolerance 1e-12 at \(b=0, h=1, i=2, d=5\)$`},
		{func(_, lse, _, _, _ *guard.View) { lse.Data[lse.Offset+4] = math.Inf(-1) }, `^LSE\[4\] = -Inf, want -?[0-9.]+ at \(b=0, h=1, i=1\)$`},
		{func(o, _, _, _, _ *guard.View) { o.Data[o.Offset-1] = 7 }, `^O was written outside its elements: backing element 63, 1 before the first element, is 7, was NaN$`},
		{func(o, _, _, _, _ *guard.View) { o.Data[o.Offset+8] = 7 }, `^O was written outside its elements: backing element 72, between the rows, is 7, was NaN$`},
		{func(o, _, _, _, _ *guard.View) { o.Data[at4(o, 0, 1, 2)+9] = 7 }, `^O was written outside its elements: backing element \d+, 2 after the last element, is 7, was NaN$`},
		{func(_, _, _, k, _ *guard.View) { k.Data[k.Offset] = 3 }, `^input k was changed: backing element 64 is 3, was -?[0-9.]+$`},
		{func(o, _, _, _, _ *guard.View) { o.Data[o.Offset] = math.NaN() }, `^O\[0\] = NaN, want -?[0-9.]+ at \(b=0, h=0, i=0, d=0\): not written, or computed from NaN$`},
	} {
		_, err := s.Check(c, ForwardFunc(func(o, lse *guard.View, in Inputs, p attention.Problem) error {
			if err := Reference.Forward(o, lse, in, p); err != nil {
				return err
			}
			m.mutate(o, lse, in.Q, in.K, in.V)
			return nil
		}))
		require.Error(t, err, m.want)
		require.Regexp(t, m.want, err.Error())
	}
}

// at4 returns the position of row (b, h, i) in the data of a tensor that is not packed.
func at4(t *guard.View, b, h, i int) int {
	return t.Offset + b*t.Strides[0] + h*t.Strides[1] + i*t.Strides[2]
}
