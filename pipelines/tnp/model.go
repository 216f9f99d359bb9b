package tnp

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/vk"
)

// DefaultLossScale returns a scale that suits a batch. For float16 it is the number of targets
// rounded to a power of two, since the loss is a mean over them. For formats with the exponents
// of float32 it is 1.
func DefaultLossScale(t dtype.DType, s Shape) float64 {
	if t != dtype.Float16 {
		return 1
	}
	return math.Exp2(math.Ceil(math.Log2(float64(s.Batch) * float64(s.Targets))))
}

// PlanOptions say how a plan is computed. The zero value is the default. The checkpoints are
//
//	           kept of a token, in elements of 16 bits            computed again
//	Off        8*d_model + 3*heads*head_dim + 2*d_ff, about       nothing, but hidden units of more than 2 GiB
//	Selective  d_model + heads*head_dim + 2*heads                 norms, projections, hidden units
//	Blocks     d_model                                            these, and attention
//	Auto       the first of them that fits into the device's memory
type PlanOptions struct {
	// Checkpoint says which tensors the forward pass keeps for the backward pass.
	Checkpoint train.Checkpoint
	Variant    Variant     // which kernels are fused; for comparisons
	Quant      dtype.Quant // of Q and K in the forward pass of attention: int8 or e4m3, see train.Tape.Attention
}

func (o PlanOptions) validate() error {
	if o.Variant > Fused {
		return fmt.Errorf("tnp: variant=%v is not one of %v", o.Variant, variantNames)
	}
	return nil
}

// plan returns the options of package train.
func (o PlanOptions) plan() train.PlanOptions {
	p := train.PlanOptions{Checkpoint: o.Checkpoint}
	if o.Variant == Unfused {
		p.Attention.Impl = attention.Unfused
	}
	return p
}

// Measure is train.Measure for a model and batches of a shape.
func Measure(caps *vk.Caps, c Config, s Shape, o train.Options, p PlanOptions) (*train.Memory, error) {
	return train.Measure(caps, c.forward(s, p), o, p.plan())
}

// CheckFits is train.CheckFits for a model and batches of a shape. Where a kernel would see less than
// its whole tensors, the error says with which checkpoint or batch all kernels see whole tensors.
func CheckFits(d *vk.Device, c Config, s Shape, o train.Options, p PlanOptions) (*train.Memory, error) {
	var smaller []train.Smaller
	for half := s; half.Batch > 1; {
		half.Batch /= 2
		smaller = append(smaller, train.Smaller{Name: fmt.Sprintf("batch %d", half.Batch), Func: c.forward(half, p)})
	}
	return train.CheckFits(d, c.forward(s, p), o, p.plan(), smaller)
}

// NewModel returns a model whose weights are 0. The caller sets them (SetWeights) before a plan
// is run. Close it after its plans. Names and shapes of parameters are those of Config.Params. It returns an error with
// the number of missing bytes if the device is known to have less memory than the model takes, before it allocates any.
func NewModel(ctx context.Context, d *vk.Device, c Config, o train.Options) (*train.Model, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	o.Metadata = c.metadata()
	return train.NewModel(ctx, d, c.Params(o.DType), o)
}

// A Plan is a pass of a model over batches of one shape: a train.Plan.
type Plan struct {
	*train.Plan
	c    Config
	s    Shape
	pass train.Pass
}

// NewPlan is train.Model.NewPlan for batches of a shape.
func NewPlan(ctx context.Context, m *train.Model, c Config, s Shape, pass train.Pass, o PlanOptions) (*Plan, error) {
	p, err := m.NewPlan(ctx, c.forward(s, o), pass, o.plan())
	if err != nil {
		return nil, err
	}
	return &Plan{p, c, s, pass}, nil
}

// Close frees the memory of the plan once the submissions so far have finished. It is idempotent
// and may be called on nil.
func (p *Plan) Close() {
	if p != nil {
		p.Plan.Close()
	}
}

// SetInputs uploads a batch. X is (batch, context+targets, input_dim), the tokens of the package
// documentation. Y is (batch, targets). It does not wait for the device: the upload comes behind
// the batches that were started, so the caller may call SetInputs while a batch runs, and change x
// and y then. It returns an error that names the first element that is not finite, and uploads
// nothing.
func (p *Plan) SetInputs(ctx context.Context, x, y []float32) error {
	c, s := p.c, p.s
	for _, in := range []struct {
		name string
		v    []float32
		want int
	}{{"x", x, s.Tokens() * c.InputDim}, {"y", y, s.Batch * s.Targets}} {
		if len(in.v) != in.want {
			return fmt.Errorf("tnp: %s has %d elements, want %d for %v", in.name, len(in.v), in.want, s)
		}
		if i := train.NotFinite(in.v); i >= 0 {
			return fmt.Errorf("tnp: %s[%d] is %g: data must be finite", in.name, i, in.v[i])
		}
	}
	rows := make([]float32, s.Tokens()*c.input())
	for i := range s.Tokens() {
		copy(rows[i*c.input():], x[i*c.InputDim:(i+1)*c.InputDim])
	}
	if err := p.Upload(ctx, "x", rows); err != nil {
		return err
	}
	return p.Upload(ctx, "y", y)
}

// Loss returns the loss of the last Run or Start, for which it waits.
func (p *Plan) Loss(ctx context.Context) (float64, error) {
	x, err := p.Download(ctx, "loss")
	if err != nil {
		return 0, err
	}
	return float64(x[0]), nil
}

// LogP returns log p of each target of the last Run or Start, (batch, targets).
func (p *Plan) LogP(ctx context.Context) ([]float32, error) { return p.Download(ctx, "log p") }

// Predict returns mean and standard deviation of the prediction for each target of the last Run
// of a plan of pass train.Forward, (batch, targets).
func (p *Plan) Predict(ctx context.Context) (mean, deviation []float64, err error) {
	if p.pass != train.Forward {
		return nil, nil, errors.New("tnp: a plan that computes gradients keeps no predictions")
	}
	heads, err := p.Download(ctx, "heads")
	if err != nil {
		return nil, nil, err
	}
	for k := p.c.Components; len(heads) > 0; heads = heads[3*k:] {
		m, d := moments(heads[:3*k])
		mean, deviation = append(mean, m), append(deviation, d)
	}
	return mean, deviation, nil
}

// moments returns mean and standard deviation of a mixture of components (logit, mu, log sigma).
func moments(heads []float32) (mean, deviation float64) {
	top, sum, square := math.Inf(-1), 0.0, 0.0
	for i := 0; i < len(heads); i += 3 {
		top = max(top, float64(heads[i]))
	}
	for i := 0; i < len(heads); i += 3 {
		w, mu, sigma := math.Exp(float64(heads[i])-top), float64(heads[i+1]), math.Exp(float64(heads[i+2]))
		sum, mean, square = sum+w, mean+w*mu, square+w*(mu*mu+sigma*sigma)
	}
	mean /= sum
	return mean, math.Sqrt(max(square/sum-mean*mean, 0))
}
