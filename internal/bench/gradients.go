package bench

import (
	"fmt"
	"math"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/attention/ref"
)

// A gradientOracle knows the right gradients of a problem of attention on some of its rows and
// keys.
type gradientOracle struct {
	p      attention.Problem
	in     ref.Inputs[float32]
	sample *ref.BackwardSample[float32]
}

// newGradientOracle computes them from O and LSE of a forward pass.
func newGradientOracle(in ref.Inputs[float32], up ref.Upstream[float32], o, lse []float32, p attention.Problem) (*gradientOracle, error) {
	rows, keys := sampleSizes(p)
	sample, err := ref.SampleBackward(o, lse, up, in, p, ref.SampleRows(in, p, rows), ref.SampleKeys(in, p, keys))
	return &gradientOracle{p, in, sample}, err
}

// sampleSizes returns how many rows and keys of a backward pass are compared: their references
// take as long as that of the rows of the forward pass, half the time for each. Loops in Go are
// some times slower than gonum's products.
func sampleSizes(p attention.Problem) (rows, keys int) {
	const operations = checkOperations / 4
	d, dv := float64(p.HeadDim), float64(p.ValueHeadDim())
	row := 2 * 2 * float64(p.SeqKV) * (2*d + dv)
	key := 2 * 4 * float64(p.SeqQ) * float64(p.NumHeads/p.NumKVHeads) * (d + dv)
	const least = minCheckRows / 2
	return max(int(operations/row), least), max(int(operations/key), least)
}

// Check implements Reference: it compares dQ, dK and dV with the sample, and wants the
// rest to be finite.
func (g *gradientOracle) Check(outputs map[string][]float32) (c Check, wrong error) {
	var got [3][]float32
	names := [3]string{"dq", "dk", "dv"}
	for i, name := range names {
		if got[i] = outputs[name]; got[i] == nil {
			return c, fmt.Errorf("its output has no tensor %q", name)
		}
	}
	c.Counted, c.OfRows = "rows", g.in.NumRows(g.p)
	c.Rows, _ = g.sample.Size()
	worst := -1.0
	for _, x := range g.sample.Check(got[0], got[1], got[2]) {
		if ratio := x.Diff.Off / x.Bound; x.Diff.Off > 0 && ratio > worst || worst < 0 {
			worst, c.MaxAbs, c.MeanAbs, c.Limit = max(ratio, 0), x.Diff.Off, x.Mean, x.Bound
		}
		if wrong == nil {
			wrong = x.Err()
		}
	}
	if wrong != nil {
		return c, wrong
	}
	// Of packed tensors all rows and keys are in a sequence.
	for i, name := range names {
		for at, x := range got[i] {
			if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
				return c, fmt.Errorf("element %d of %s was not written or is not finite", at, name)
			}
		}
	}
	return c, nil
}
