package attntest

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention/problem"
	"github.com/flashvk/flashvk/attention/ref"
	"github.com/flashvk/flashvk/dtype"
)

// TestReference compares the reference with loops that mirror the formula,
// where those are quick enough.
func TestReference(t *testing.T) {
	s := NewSuite(Short, Contiguous(loops), Float64)
	s.Where(func(c *Case) bool { return c.Problem.FLOPs() < 3e6 && c.Problem.DType != dtype.BFloat16 }).TestForward(t, Reference)
}

// TestAlgorithm compares the tiled algorithm, without rounding, with the
// reference: tiles that are square, wide, tall, larger than the problem, and a
// lazy rescale.
func TestAlgorithm(t *testing.T) {
	s := NewSuite(Short, Reference, Float64)
	for _, m := range []ref.Model{
		{BlockM: 16, BlockN: 32, Float64: true},
		{BlockM: 128, BlockN: 64, RescaleAbove: 8, Float64: true},
		{BlockM: 2000, BlockN: 2000, Float64: true},
		{BlockM: 7, BlockN: 1, RescaleAbove: 8, Float64: true},
	} {
		t.Run(m.String(), func(t *testing.T) {
			// Tiny and giant tiles exercise nothing more on long problems.
			limit := 1e7
			if m.BlockM == 16 && !raceDetector {
				limit = math.Inf(1)
			}
			s.Where(func(c *Case) bool { return c.Problem.FLOPs() < limit && c.Problem.DType == dtype.Float16 }).TestForward(t, Contiguous(m.Forward))
		})
	}
}

// TestKernelPrecision says that the tolerance for kernels suits an
// implementation that rounds where kernels round, and the plain one itself.
func TestKernelPrecision(t *testing.T) {
	s := NewSuite(Short, Reference, TwicePlain)
	if raceDetector {
		s = s.Where(func(c *Case) bool { return c.Problem.FLOPs() < 1e6 })
	}
	t.Run("model", func(t *testing.T) {
		s.TestForward(t, Contiguous(ref.Model{BlockM: 64, BlockN: 64, RoundP: true, RescaleAbove: 8}.Forward))
	})
	small := s.Where(func(c *Case) bool { return c.Problem.FLOPs() < 1e7 })
	t.Run("model-small-tiles", func(t *testing.T) {
		small.TestForward(t, Contiguous(ref.Model{BlockM: 16, BlockN: 16, RoundP: true}.Forward))
	})
	t.Run("plain", func(t *testing.T) { small.TestForward(t, Contiguous(ref.Plain[float64])) })
	t.Run("reference", func(t *testing.T) { small.TestForward(t, Reference) })
}

// TestSupports says that refused cases are skipped, not run.
func TestSupports(t *testing.T) {
	s := NewSuite(Short, Reference, TwicePlain).Where(func(c *Case) bool { return c.Problem.FLOPs() < 1e3 })
	require.NotEmpty(t, s.Cases)
	refused, ran := 0, 0
	f := &supporter{t: t, refused: &refused, ran: &ran}
	t.Run("suite", func(t *testing.T) { s.TestForward(t, f) })
	require.Positive(t, refused)
	require.Positive(t, ran)
}

type supporter struct {
	t            *testing.T
	refused, ran *int
}

func (s *supporter) Supports(p problem.Problem) error {
	if p.DType == dtype.Float16 {
		return nil
	}
	*s.refused++
	return errRefused
}

func (s *supporter) Forward(o, lse, q, k, v *Tensor, p problem.Problem) error {
	require.Equal(s.t, dtype.Float16, p.DType)
	*s.ran++
	return Reference.Forward(o, lse, q, k, v, p)
}

type refused struct{}

func (refused) Error() string { return "only float16" }

var errRefused = refused{}

// loops is the formula, element by element.
func loops(o, lse, q, k, v []float64, p problem.Problem) error {
	d := p.HeadDim
	clear(o)
	for b := range p.Batch {
		for h := range p.NumHeads {
			kv := (b*p.NumKVHeads + h*p.NumKVHeads/p.NumHeads) * p.SeqKV
			for i := range p.SeqQ {
				row := (b*p.NumHeads+h)*p.SeqQ + i
				scores, most := map[int]float64{}, math.Inf(-1)
				for j := range p.SeqKV {
					if p.Causal && p.CausalAlign == problem.BottomRight && j > i+p.SeqKV-p.SeqQ ||
						p.Causal && p.CausalAlign == problem.TopLeft && j > i {
						continue
					}
					for e := range d {
						scores[j] += q[row*d+e] * k[(kv+j)*d+e]
					}
					scores[j] *= p.EffectiveScale()
					most = max(most, scores[j])
				}
				sum := 0.0
				for j := range p.SeqKV {
					if s, ok := scores[j]; ok {
						sum += math.Exp(s - most)
					}
				}
				for j := range p.SeqKV {
					if s, ok := scores[j]; ok {
						for e := range d {
							o[row*d+e] += math.Exp(s-most) / sum * v[(kv+j)*d+e]
						}
					}
				}
				if lse != nil {
					lse[row] = math.Log(sum) + most
				}
			}
		}
	}
	return nil
}
