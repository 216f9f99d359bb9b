package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/enum"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/vk"
)

// A Pass says how far a Plan goes, and for which plans a Model has memory.
type Pass uint8

// The passes. Each does what those before it do.
const (
	Forward   Pass = iota // what the forward pass writes
	Gradients             // gradients by all parameters that are trained
	Train                 // a step of AdamW
)

var passNames = enum.Names[Pass]{"loss", "gradients", "train"}

// String returns loss, gradients or train.
func (p Pass) String() string { return passNames.Of(p) }

// A Param is a parameter of a model, as the forward pass names it (Tape.Weight, Tape.Vector).
type Param struct {
	Name    string
	Shape   []int       // in files, and in the maps of SetWeights and Weights
	DType   dtype.DType // that ops read
	NoDecay bool        // of AdamW
	Frozen  bool        // not trained: no gradient, no moments, no float32 copy
	// Joined says that it follows the parameter before it, without a gap (Tape.Join).
	Joined bool
	// Device is the shape on the device, where element i of a file has the place At(i). The others are 0
	// there. Nil is as in files.
	Device []int
	At     func(i int) int
}

// elements returns the product of a shape.
func elements(shape []int) int { return vk.View(nil, dtype.Float32, shape...).NumElements() }

// Size returns the number of elements in files.
func (p Param) Size() int { return elements(p.Shape) }

// device returns the shape on the device.
func (p Param) device() []int {
	if p.Device == nil {
		return p.Shape
	}
	return p.Device
}

// span returns the number of elements on the device.
func (p Param) span() int { return elements(p.device()) }

// Options are the formats, the passes and the training of a Model.
type Options struct {
	DType dtype.DType // of activations, and of the weights that products read
	Pass  Pass        // the last pass that its plans may have
	// Trained reports whether the parameter of a name is trained. Nil trains all. A frozen parameter is
	// kept in the format that ops read alone.
	Trained func(name string) bool
	// Optim has the constants of AdamW, for Train. Its Eps and MaxNorm are for gradients without
	// the loss scale.
	Optim optim.Problem
	// LossScale multiplies the gradients, so that small ones are not lost in float16. It is a
	// power of two; 0 is 1. It changes no result: AdamW's eps and the norm for clipping are
	// multiplied likewise, and Model.Gradients divides by it.
	LossScale float64
	// GoodSteps lets the loss scale follow the gradients, for float16: it begins with LossScale,
	// doubles after GoodSteps steps in a row, and halves after a step that was skipped since a
	// gradient was not finite. Then a step waits for the step before it. It needs an Optim.MaxNorm
	// that is not 0; +Inf clips nothing. 0 is a scale that stays.
	GoodSteps int
	// Accumulate is the number of batches of a step, one Run each. Their gradients are added up
	// in order, and the last Run makes the step with the mean. 0 is 1. More is for Train, and
	// takes the memory of gradients two more times.
	Accumulate int
	// Metadata is what a state says of the model beside the shapes of parameters: SaveState writes it, and
	// LoadState wants it.
	Metadata map[string]string
}

// Validate returns an error that names the first option that breaks a rule.
func (o Options) Validate() error {
	switch scale := o.LossScale; {
	case !o.DType.Float():
		return fmt.Errorf("train: dtype=%v is not one of float32, float16, bfloat16", o.DType)
	case o.Pass > Train:
		return fmt.Errorf("train: pass=%v is not one of loss, gradients, train", o.Pass)
	case o.Accumulate < 0 || o.Accumulate > 1<<16:
		return fmt.Errorf("train: accumulate=%d is not from 0 to %d", o.Accumulate, 1<<16)
	case o.Accumulate > 1 && o.Pass != Train:
		return fmt.Errorf("train: accumulate=%d is of pass train, not %v", o.Accumulate, o.Pass)
	case scale != 0 && !validScale(scale):
		return fmt.Errorf("train: loss_scale=%g is not a power of two from 2^-20 to 2^40", scale)
	case o.GoodSteps < 0:
		return fmt.Errorf("train: good_steps=%d is negative", o.GoodSteps)
	case o.GoodSteps > 0 && o.Pass == Train && o.Optim.MaxNorm == 0:
		return fmt.Errorf("train: good_steps=%d needs a max_norm, without which no step is skipped", o.GoodSteps)
	}
	if o.Pass == Train {
		return o.Optim.Validate()
	}
	return nil
}

// validScale reports whether a loss scale is a power of two of the range that is allowed.
func validScale(scale float64) bool {
	return scale >= 0x1p-20 && scale <= 0x1p40 && math.Exp2(math.Round(math.Log2(scale))) == scale
}

// frozen reports whether a parameter is not trained.
func (o *Options) frozen(name string) bool { return o.Trained != nil && !o.Trained(name) }

// batches returns how many Runs make a step.
func (o *Options) batches() int { return max(o.Accumulate, 1) }

// A Model has the parameters on a device, their gradients and moments. It is for one goroutine at a
// time.
type Model struct {
	d      *vk.Device
	o      Options
	layout *layout
	adam   *optim.AdamW
	scale  float64 // of the loss

	// These are of a scale that follows the gradients: the steps there were when it changed, and those that were skipped.
	since, skipped int
}

// NewModel returns a model whose parameters are 0. The caller sets them (SetWeights, or Tensor) before
// a plan is run. Params lists the parameters of the forward pass. Close the model after its
// plans.
//
// It returns an error before it allocates anything if the device is known to have less memory than
// the model takes, with the number of missing bytes, or if a kernel would see less than a whole
// parameter.
func NewModel(ctx context.Context, d *vk.Device, params []Param, o Options) (_ *Model, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	l, err := newLayout(d.Caps(), params, &o)
	if err != nil {
		return nil, err
	}
	heaps, err := d.Heaps()
	if err != nil {
		return nil, err
	}
	if n := missing(heaps, l.bytes()); n > 0 {
		return nil, fmt.Errorf("train: weights, gradients and moments take %d bytes, %d more than the device has left",
			l.bytes(), n)
	}
	m := &Model{d: d, o: o, layout: l, scale: cmp.Or(o.LossScale, 1)}
	defer func() {
		if err != nil {
			m.Close()
		}
	}()
	for _, x := range l.parts() {
		if *x.tensor, err = d.NewTensor(x.name, x.dtype, x.size); err != nil {
			return nil, err
		}
		if err := x.tensor.Zero(ctx); err != nil {
			return nil, err
		}
	}
	l.divide()
	if optimized := l.optimized(); o.Pass == Train && len(optimized) > 0 {
		p := o.Optim // of gradients that are LossScale times as large: m and the root of v are so, too
		p.Eps *= m.scale
		p.MaxNorm *= m.scale
		m.adam, err = optim.New(ctx, d, optimized, p)
	}
	return m, err
}

// Close frees the memory once the submissions so far have finished. It is idempotent and may be
// called on nil.
func (m *Model) Close() {
	if m == nil {
		return
	}
	m.adam.Close()
	for _, x := range m.layout.parts() {
		x.tensor.Close()
	}
}

// Params lists the parameters.
func (m *Model) Params() []Param { return m.layout.params }

// Tensor returns the memory of a parameter: float32, or of a frozen one the format that ops read. It
// is for uploads by pieces of frozen parameters; SetWeights also rounds the copy that products read.
// It is zero for a name that is no parameter's.
func (m *Model) Tensor(name string) vk.Tensor {
	s := m.layout.slots[name]
	if s == nil {
		return vk.Tensor{}
	}
	return s.of(s.group.weights)
}

// weight returns a parameter, and those that are joined to it, as ops read them.
func (m *Model) weight(name string, shape []int) vk.Tensor {
	s := m.layout.slots[name]
	if s.group.rounded.IsZero() || s.DType == dtype.Float32 {
		return s.from(s.group.weights, shape).Narrow()
	}
	return s.from(s.group.rounded, shape).Narrow()
}

// gradient returns where the gradient by a parameter, and those that are joined to it, is written.
func (m *Model) gradient(name string, shape []int) vk.Tensor {
	s := m.layout.slots[name]
	return s.from(s.group.grads, shape).Narrow()
}

// SetWeights uploads parameters by name, and the rounded copies that products read. It returns an
// error that names the first parameter that is missing or has another number of elements, or a name
// that is no parameter's, before it changes any.
func (m *Model) SetWeights(ctx context.Context, w map[string][]float32) error {
	for _, p := range m.layout.params {
		if x, ok := w[p.Name]; !ok {
			return fmt.Errorf("train: parameter %s is missing", p.Name)
		} else if len(x) != p.Size() {
			return fmt.Errorf("train: parameter %s has %d elements, want %v", p.Name, len(x), p.Shape)
		}
	}
	for name := range w {
		if m.layout.slots[name] == nil {
			return fmt.Errorf("train: %q is no parameter", name)
		}
	}
	for name, x := range w {
		if err := m.Set(ctx, name, 0, x); err != nil {
			return err
		}
	}
	return nil
}

// Set uploads elements of a parameter from first on, and the rounded copies that products read, so that
// a large model comes by pieces. Elements are counted as files have them. It returns an error for a name that
// is no parameter's, and for elements beyond it.
func (m *Model) Set(ctx context.Context, name string, first int, x []float32) error {
	s, err := m.slot(name, first, len(x))
	if err != nil {
		return err
	}
	return cmp.Or(s.write(ctx, weightsOf, first, x), s.write(ctx, roundedOf, first, x))
}

// Get downloads elements of a parameter from first on. They are counted, and errors are, as in Set.
func (m *Model) Get(ctx context.Context, name string, first int, x []float32) error {
	s, err := m.slot(name, first, len(x))
	if err != nil {
		return err
	}
	return s.read(ctx, weightsOf, first, x)
}

// slot returns the slot of a parameter that has n elements from first on.
func (m *Model) slot(name string, first, n int) (*slot, error) {
	s := m.layout.slots[name]
	if s == nil || first < 0 || first+n > s.Size() {
		return nil, fmt.Errorf("train: the model has no elements %d to %d of a parameter %q", first, first+n-1, name)
	}
	return s, nil
}

// read downloads a parameter's part of a buffer; nil if there is no such buffer.
func (m *Model) read(ctx context.Context, name string, of bufferOf) ([]float32, error) {
	s := m.layout.slots[name]
	if of(s.group).IsZero() {
		return nil, nil
	}
	x := make([]float32, s.Size())
	return x, s.read(ctx, of, 0, x)
}

// Weights downloads the parameters.
func (m *Model) Weights(ctx context.Context) (map[string][]float32, error) {
	return m.download(ctx, weightsOf, 1)
}

// Norm returns the norm of the gradients of the last step, before clipping. It is not finite for a step
// that was skipped. Options.Optim needs a MaxNorm that is not 0.
func (m *Model) Norm(ctx context.Context) (float64, error) {
	if err := m.untrained(); err != nil {
		return 0, err
	}
	if m.o.Optim.MaxNorm == 0 {
		return 0, errors.New("train: max_norm=0, for which no norm is computed")
	}
	x := make([]float32, 1)
	err := m.adam.Norm().Download(ctx, x)
	return float64(x[0]) / m.scale, err
}

// Gradients downloads the gradients of the last Run of a plan of pass Gradients or Train. With
// Options.Accumulate they are the gradients of the last step. Frozen parameters have none.
func (m *Model) Gradients(ctx context.Context) (map[string][]float32, error) {
	if m.o.Pass < Gradients {
		return nil, fmt.Errorf("train: a model of pass %v has no gradients", m.o.Pass)
	}
	return m.download(ctx, func(g *group) vk.Tensor { return g.total }, float32(1/m.scale))
}

// download returns the parameters' parts of buffers, multiplied by scale.
func (m *Model) download(ctx context.Context, of bufferOf, scale float32) (all map[string][]float32, err error) {
	all = map[string][]float32{}
	for _, p := range m.layout.params {
		x, err := m.read(ctx, p.Name, of)
		if err != nil {
			return nil, err
		}
		for i := range x {
			x[i] *= scale
		}
		if x != nil {
			all[p.Name] = x
		}
	}
	return all, nil
}
