package attntest

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/guard"
)

// backwardRun holds the tensors of one call.
type backwardRun struct {
	in BackwardInputs
	g  Gradients
}

// newBackwardRun lays the inputs out amid garbage, and the gradients amid poison. A gradient has
// the layout of another tensor than its own. So in cases whose tensors all have different layouts,
// the suite finds a kernel that confuses the strides of a tensor and its gradient.
func (c *Case) newBackwardRun(e *bwdExpectation, around *guard.Surroundings) *backwardRun {
	p := c.Problem
	r := &backwardRun{}
	r.in = BackwardInputs{
		Inputs: c.newInputs(e.in, around),
		DO:     input(around, "do", c.Q, p.DType, p.OShape(), e.up.DO),
		DLSE:   input(around, "dlse", c.O, dtype.Float32, p.LSEShape(), e.up.DLSE),
		O:      input(around, "o", c.O, p.DType, p.OShape(), e.o),
		LSE:    input(around, "lse", c.LSE, dtype.Float32, p.LSEShape(), e.lse),
	}
	for _, t := range []*guard.View{r.in.DO, r.in.DLSE, r.in.O, r.in.LSE} {
		if t != nil {
			c.fillSlack(t, around.Garbage(t.DType))
		}
	}
	output := func(name string, l Layout, format dtype.DType, shape []int) *guard.View {
		t := newTensor(name, l, format, shape...)
		t.Fill(around.Poison(format))
		return t
	}
	r.g = Gradients{
		DQ: output("dq", c.O, p.DType, p.QShape()),
		DK: output("dk", c.V, p.DType, p.KShape()),
		DV: output("dv", c.K, p.DType, p.VShape()),
	}
	if p.Bias.On {
		r.g.DBias = output("dbias", c.K, p.Bias.DType, p.BiasShape())
	}
	if p.Sinks {
		r.g.DSinks = output("dsinks", c.K, dtype.Float32, p.SinksShape())
	}
	return r
}

// fillSlack sets the rows of a packed tensor that are in no sequence.
func (c *Case) fillSlack(t *guard.View, garbage func(i int) float64) {
	used, values := c.results(t), []float64(nil)
	if used == t {
		return
	}
	values = used.Gather()
	all := make([]float64, t.NumElements())
	for i := range all {
		all[i] = garbage(i)
	}
	t.Scatter(all)
	used.Scatter(values)
}

// call runs got on r, watched.
func (r *backwardRun) call(c *Case, got Backwarder) error {
	var outputs []*guard.View
	for _, t := range r.g.List() {
		outputs = append(outputs, c.results(t))
	}
	return guard.Watch(r.in.List(), outputs, func() error { return got.Backward(r.g, r.in, c.Problem) })
}

// checkHidden wants the gradients of hidden elements to be exactly 0, whatever the tolerance.
func (c *Case) checkHidden(g Gradients, in ref.Inputs[float64]) error {
	p := c.Problem
	zero := func(t *guard.View, got []float64, row, d int, why string) error {
		for i := row * d; i < (row+1)*d; i++ {
			if got[i] != 0 {
				return fmt.Errorf("%s[%d] = %g, want 0 at %s: %s", t.Name, i, got[i], t.Index(i), why)
			}
		}
		return nil
	}
	dq := g.DQ.Gather()
	for n := range in.NumRows(p) {
		r := in.Row(p, n)
		if !in.SeesNothing(p, r) {
			continue
		}
		at, _ := in.At(p, r)
		if err := zero(g.DQ, dq, at, p.HeadDim, "the row sees no key"); err != nil {
			return err
		}
	}
	var err error
	dk, dv := g.DK.Gather(), g.DV.Gather()
	c.hidden(in, func(row int) {
		if err == nil && !c.isSlack(row) {
			err = zero(g.DK, dk, row, p.HeadDim, "no row sees the key")
		}
		if err == nil && !c.isSlack(row) {
			err = zero(g.DV, dv, row, p.ValueHeadDim(), "no row sees the key")
		}
	})
	return err
}

// isSlack reports whether a row of K, in logical order, is in no sequence.
func (c *Case) isSlack(row int) bool {
	return c.Problem.Varlen.On && row >= (c.Problem.Varlen.TotalKV-c.Slack)*c.Problem.NumKVHeads
}
