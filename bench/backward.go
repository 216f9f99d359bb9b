package bench

import (
	"context"
	"fmt"
	"math"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/attention/ref"
	"github.com/flashvk/flashvk/vk"
)

// prepareBackward makes dO, lets the path that Auto takes compute O and LSE in
// the first set, and computes what the gradients should be, on some rows and keys.
func (r *attentionRun) prepareBackward(ctx context.Context, in ref.Inputs[float32]) error {
	p, s := r.p, r.sets[0]
	up := ref.Upstream[float32]{DO: Normal(p.DType, elements(p.OShape()), seedDO)}
	if err := s.do.Upload(ctx, up.DO); err != nil {
		return err
	}
	pass := r.pass
	defer func() { r.pass = pass }()
	r.pass = Forward
	if err := r.clear(ctx, 0); err != nil {
		return err
	}
	if err := r.once(ctx, r.record(attention.Options{Tuning: r.tuning})); err != nil {
		return err
	}
	_, wrong, err := r.compare(ctx)
	if err != nil {
		return err
	}
	if wrong != nil {
		return fmt.Errorf("the forward pass is wrong: %w", wrong)
	}
	rows, keys := sampleSizes(p)
	r.sample, err = ref.SampleBackward(r.o, r.lse, up, in, p, ref.SampleRows(in, p, rows), ref.SampleKeys(in, p, keys))
	return err
}

// workspace returns memory for a backward pass with these options. It grows while
// paths are checked, before commands are recorded that are kept.
func (r *attentionRun) workspace(opt attention.Options) (*vk.Buffer, error) {
	bytes, err := attention.BackwardWorkspace(r.d.Caps(), r.p, opt)
	if err != nil || r.shared != nil && r.shared.Bytes() >= bytes {
		return r.shared, err
	}
	r.shared.Close()
	r.shared, err = r.d.NewBuffer("workspace", bytes)
	return r.shared, err
}

// sampleSizes returns how many rows and keys of a backward pass are compared: as
// many as take about as long as the rows of the forward pass do, half the time for
// each kind. Loops in Go are some times slower than gonum's products.
func sampleSizes(p attention.Problem) (rows, keys int) {
	const operations = checkOperations / 4
	d, dv := float64(p.HeadDim), float64(p.ValueHeadDim())
	row := 2 * 2 * float64(p.SeqKV) * (2*d + dv)
	key := 2 * 4 * float64(p.SeqQ) * float64(p.NumHeads/p.NumKVHeads) * (d + dv)
	const least = minCheckRows / 2
	return max(int(operations/row), least), max(int(operations/key), least)
}

// compareGradients adds to c how far the gradients in the first set are from the
// sample. Wrong and err are those of compare.
func (r *attentionRun) compareGradients(ctx context.Context, c Check) (_ Check, wrong, err error) {
	s := r.sets[0]
	var got [3][]float32
	for i, t := range []vk.Tensor{s.dq, s.dk, s.dv} {
		got[i] = make([]float32, t.NumElements())
		if err := t.Download(ctx, got[i]); err != nil {
			return c, nil, err
		}
	}
	c, wrong = r.checkGradients(c, got)
	return c, wrong, nil
}

// checkGradients compares dQ, dK and dV with the sample, and wants the rest to be
// finite.
func (r *attentionRun) checkGradients(c Check, got [3][]float32) (_ Check, wrong error) {
	c.OfRows = r.oracle.in.NumRows(r.p)
	c.Rows, _ = r.sample.Size()
	c.MaxAbs, c.MeanAbs, c.Limit = 0, 0, 0
	worst := -1.0
	for _, x := range r.sample.Check(got[0], got[1], got[2]) {
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
	for i, name := range []string{"dq", "dk", "dv"} {
		for at, x := range got[i] {
			if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
				return c, fmt.Errorf("element %d of %s was not written or is not finite", at, name)
			}
		}
	}
	return c, nil
}
