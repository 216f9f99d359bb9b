package attntest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/guard"
)

// TestBackwardPrecision says that the tolerance for kernels allows an implementation that rounds
// where kernels round, and everything in package ref.
func TestBackwardPrecision(t *testing.T) {
	sequential(t)
	most := 1e7
	if raceDetector {
		most = 3e5
	}
	s := NewBackwardSuite(Short, BackwardReference, PlainGradients).Where(func(c *Case) bool { return c.FLOPs() < most })
	small := s.Where(func(c *Case) bool { return c.FLOPs() < most/10 })
	for _, x := range []struct {
		suite *BackwardSuite
		name  string
		got   Backwarder
	}{
		{s, "tiles", &bwdKernel{kernel: kernel{rounds: true}}},
		{small, "plain", ContiguousBackward(ref.PlainBackward[float64])},
		{small, "reference", BackwardReference},
	} {
		t.Run(x.name, func(t *testing.T) { TestBackward(t, x.suite, x.got) })
	}
}

// TestBackwardCases says that every case has an LSE, that names are unique, and that the table has
// all cases that its documentation claims.
func TestBackwardCases(t *testing.T) {
	sequential(t)
	names, kinds := map[string]bool{}, map[Gradient]int{}
	dlse := map[dtype.DType]int{}
	for _, c := range BackwardCases(Full) {
		require.False(t, names[c.Name], c.Name)
		require.False(t, c.NoLSE, c.Name)
		names[c.Name] = true
		kinds[c.DO]++
		if c.DLSE {
			dlse[c.Problem.DType]++
		}
		up := c.upstream()
		require.Len(t, up.DO, product(c.Problem.OShape()), c.Name)
		require.Equal(t, c.DLSE, up.DLSE != nil, c.Name)
		nonzero := 0
		for _, x := range up.DO {
			if x != 0 {
				nonzero++
			}
		}
		switch c.DO {
		case ZeroDO:
			require.Zero(t, nonzero, c.Name)
		case OneHotDO:
			require.Equal(t, 1, nonzero, c.Name)
		default:
			require.Greater(t, nonzero, len(up.DO)/2, c.Name)
		}
	}
	for _, dt := range dtype.All() {
		require.Greater(t, dlse[dt], 3, dt)
	}
	require.Equal(t, 6, kinds[OneHotDO])
	require.Equal(t, 7, kinds[ZeroDO])
	require.Greater(t, len(names), 400)
	require.Equal(t, "one-hot", OneHotDO.String())
	require.Equal(t, "Gradient(9)", Gradient(9).String())
}

// TestBackwardDifferentLayouts says that in the cases of mixed layouts no gradient has the strides
// of its tensor. Equal strides would hide a kernel that confuses the two.
func TestBackwardDifferentLayouts(t *testing.T) {
	found := 0
	for _, c := range BackwardCases(Short) {
		if c.Name != "layout/mixed/float16" && c.Name != "dlse/layouts/float16" {
			continue
		}
		found++
		in, up := c.values(), c.upstream()
		o, lse, err := ref.Saved(in, c.Problem)
		require.NoError(t, err)
		r := c.newBackwardRun(&bwdExpectation{in: in, up: up, o: o, lse: lse}, &guard.NotFinite)
		for _, pair := range [][2]*guard.View{{r.g.DQ, r.in.Q}, {r.g.DK, r.in.K}, {r.g.DV, r.in.V}, {r.in.DO, r.in.O}} {
			require.NotEqual(t, pair[0].Strides, pair[1].Strides, "%s %s", c.Name, pair[0].Name)
		}
	}
	require.Equal(t, 2, found)
}

// TestBackwardSupports says that refused cases are skipped, not run.
func TestBackwardSupports(t *testing.T) {
	s := NewBackwardSuite(Short, BackwardReference, PlainGradients).Where(func(c *Case) bool { return c.FLOPs() < 1e3 })
	f := &backwardSupporter{t: t}
	t.Run("suite", func(t *testing.T) { TestBackward(t, s, f) })
	require.Positive(t, f.refused)
	require.Positive(t, f.ran)
}

type backwardSupporter struct {
	t            *testing.T
	refused, ran int
}

func (s *backwardSupporter) Supports(p attention.Problem) error {
	if p.DType == dtype.Float16 {
		return nil
	}
	s.refused++
	return errRefused
}

func (s *backwardSupporter) Backward(g Gradients, in BackwardInputs, p attention.Problem) error {
	require.Equal(s.t, dtype.Float16, p.DType)
	s.ran++
	return BackwardReference.Backward(g, in, p)
}
