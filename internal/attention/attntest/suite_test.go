package attntest

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/philox"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/guard"
)

// quick returns the most operations of a case. They are fewer under the race detector, which takes
// ten times as long.
func quick(most float64) float64 {
	if raceDetector {
		return most / 10
	}
	return most
}

// sequential skips a test without goroutines under go test -short, which is how make test runs it
// with -race.
func sequential(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: nothing here is concurrent")
	}
}

// TestConcurrently uses suites from several goroutines, each with all cases.
func TestConcurrently(t *testing.T) {
	small := func(c *Case) bool { return c.FLOPs() < 1e4 && c.Problem.DType == dtype.Float16 }
	forward := NewSuite(Short, Reference, TwicePlain).Where(small)
	backward := NewBackwardSuite(Short, BackwardReference, PlainGradients).Where(small)
	require.NotEmpty(t, forward.Cases)
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			for _, c := range forward.Cases {
				_, err := forward.Check(c, Reference)
				require.NoError(t, err, c.Name)
			}
			for _, c := range backward.Cases {
				_, err := backward.Check(c, BackwardReference)
				require.NoError(t, err, c.Name)
			}
		})
	}
}

// TestReference compares the reference with loops over the formula, for cases that are small enough
// for loops.
func TestReference(t *testing.T) {
	sequential(t)
	s := NewSuite(Short, Contiguous(loops), Float64)
	TestForward(t, s.Where(func(c *Case) bool { return c.FLOPs() < quick(3e6) && c.Problem.DType != dtype.BFloat16 }), Reference)
}

// TestAlgorithm compares the tiled algorithm, without rounding, with the reference.
func TestAlgorithm(t *testing.T) {
	sequential(t)
	s := NewSuite(Short, Reference, Float64)
	TestForward(t, s.Where(func(c *Case) bool { return c.FLOPs() < quick(1e7) && c.Problem.DType == dtype.Float16 }), &kernel{})
}

// TestKernelPrecision says that the tolerance for kernels allows an implementation that rounds
// where kernels round, and the plain program itself.
func TestKernelPrecision(t *testing.T) {
	sequential(t)
	s := NewSuite(Short, Reference, TwicePlain)
	if raceDetector {
		s = s.Where(func(c *Case) bool { return c.FLOPs() < 3e5 })
	}
	small := s.Where(func(c *Case) bool { return c.FLOPs() < 1e7 })
	t.Run("tiles", func(t *testing.T) { TestForward(t, small, &kernel{rounds: true}) })
	t.Run("plain", func(t *testing.T) { TestForward(t, small, Contiguous(ref.Plain[float64])) })
	t.Run("reference", func(t *testing.T) { TestForward(t, small, Reference) })
}

// TestSupports says that refused cases are skipped, not run.
func TestSupports(t *testing.T) {
	s := NewSuite(Short, Reference, TwicePlain).Where(func(c *Case) bool { return c.FLOPs() < 1e3 })
	require.NotEmpty(t, s.Cases)
	refused, ran := 0, 0
	f := &supporter{t: t, refused: &refused, ran: &ran}
	t.Run("suite", func(t *testing.T) { TestForward(t, s, f) })
	require.Positive(t, refused)
	require.Positive(t, ran)
}

type supporter struct {
	t            *testing.T
	refused, ran *int
}

func (s *supporter) Supports(p attention.Problem) error {
	if p.DType == dtype.Float16 {
		return nil
	}
	*s.refused++
	return errRefused
}

func (s *supporter) Forward(o, lse *guard.View, in Inputs, p attention.Problem) error {
	require.Equal(s.t, dtype.Float16, p.DType)
	*s.ran++
	return Reference.Forward(o, lse, in, p)
}

type refused struct{}

func (refused) Error() string { return "only float16" }

var errRefused = refused{}

// loops is the formula, element by element, written from the documentation of attention.Problem. It
// shares no code with package ref but the random numbers.
func loops(o, lse []float64, in ref.Inputs[float64], p attention.Problem) error {
	dv := p.ValueHeadDim()
	for b := range p.Batch {
		for h := range p.NumHeads {
			g := h * p.NumKVHeads / p.NumHeads
			seqQ, seqKV := p.SeqQ, p.SeqKV
			query := func(i int) int { return (b*p.NumHeads+h)*seqQ + i }
			key := func(j int) int { return (b*p.NumKVHeads+g)*seqKV + j }
			sum := query
			if p.Varlen.On {
				q0, k0 := int(in.CuSeqlensQ[b]), int(in.CuSeqlensKV[b])
				seqQ, seqKV = int(in.CuSeqlensQ[b+1])-q0, int(in.CuSeqlensKV[b+1])-k0
				query = func(i int) int { return (q0+i)*p.NumHeads + h }
				key = func(j int) int { return (k0+j)*p.NumKVHeads + g }
				sum = func(i int) int { return h*p.Varlen.TotalQ + q0 + i }
			}
			for i := range seqQ {
				scores := map[int]float64{}
				for j := range seqKV {
					if s, ok := loopScore(in, p, b, h, i, j, seqQ, seqKV, query(i), key(j)); ok {
						scores[j] = s
					}
				}
				row := o[query(i)*dv:][:dv]
				l := loopRow(row, scores, in, p, b, h, i, func(j int) []float64 { return in.V[key(j)*dv:][:dv] })
				if lse != nil {
					lse[sum(i)] = l
				}
			}
		}
	}
	return nil
}

// loopScore returns the score of a row and a key, if it is seen.
func loopScore(in ref.Inputs[float64], p attention.Problem, b, h, i, j, seqQ, seqKV, query, key int) (float64, bool) {
	at := i
	if p.CausalAlign == attention.BottomRight {
		at = i + seqKV - seqQ
	}
	w := p.Window
	if p.Causal && j > at || w.On && (w.Left >= 0 && at-j > w.Left || w.Right >= 0 && j-at > w.Right) || p.KeyMask && !in.KeyMask[b*p.SeqKV+j] {
		return 0, false
	}
	x := 0.0
	for e := range p.HeadDim {
		x += in.Q[query*p.HeadDim+e] * in.K[key*p.HeadDim+e]
	}
	x *= p.EffectiveScale()
	if p.Softcap > 0 {
		x = p.Softcap * math.Tanh(x/p.Softcap)
	}
	if p.Bias.On {
		batches, heads, rows := 1, 1, 1
		if p.Bias.Batch {
			batches = p.Batch
		}
		if p.Bias.Heads {
			heads = p.NumHeads
		}
		if p.Bias.Rows {
			rows = p.SeqQ
		}
		bias := in.Bias[((b%batches*heads+h%heads)*rows+i%rows)*p.SeqKV+j]
		if math.IsInf(bias, -1) {
			return 0, false
		}
		x += bias
	}
	switch p.ALiBi {
	case attention.ALiBiPerHead:
		x -= in.ALiBiSlopes[h] * math.Abs(float64(at-j))
	case attention.ALiBiPerBatchHead:
		x -= in.ALiBiSlopes[b*p.NumHeads+h] * math.Abs(float64(at-j))
	}
	return x, true
}

// loopRow computes a row of O from the scores of the keys that it sees, and
// returns its LSE.
func loopRow(o []float64, scores map[int]float64, in ref.Inputs[float64], p attention.Problem, b, h, i int, value func(j int) []float64) float64 {
	clear(o)
	most := math.Inf(-1)
	if p.Sinks {
		most = in.Sinks[h]
	}
	for _, s := range scores {
		most = max(most, s)
	}
	if math.IsInf(most, -1) {
		return most
	}
	sum := 0.0
	if p.Sinks {
		sum = math.Exp(in.Sinks[h] - most)
	}
	for j := range p.SeqKV {
		if s, ok := scores[j]; ok {
			sum += math.Exp(s - most)
		}
	}
	for j := range p.SeqKV {
		s, ok := scores[j]
		if !ok {
			continue
		}
		weight := math.Exp(s-most) / sum
		if d := p.Dropout; d.P > 0 {
			n := d.Offset + uint64(b*p.NumHeads+h)
			words := philox.Words([4]uint32{uint32(j / 4), uint32(i), uint32(n), uint32(n >> 32)}, [2]uint32{uint32(d.Seed), uint32(d.Seed >> 32)})
			if float64(words[j%4]) < math.Round(d.P*(1<<32)) {
				continue
			}
			weight /= 1 - d.P
		}
		for e, x := range value(j) {
			o[e] += weight * x
		}
	}
	return most + math.Log(sum)
}
