package tnp

import (
	"context"
	"fmt"
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/enum"
	"github.com/flashvk/flashvk/internal/pipelines/sumrows"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/vk"
)

// A Pass says how far a Plan goes, and for which plans a Model has memory.
type Pass uint8

// The passes. Each does what those before it do.
const (
	Loss      Pass = iota // the loss, log p of each target, and the mixtures
	Gradients             // gradients by all parameters
	Train                 // a step of AdamW
)

// String returns the name.
func (p Pass) String() string { return passNames.Of(p) }

var passNames = enum.Names[Pass]{"loss", "gradients", "train"}

// ModelOptions are the formats, the passes and the training of a Model.
type ModelOptions struct {
	DType dtype.DType // of activations, and of the weights that products read
	Pass  Pass        // the last pass that its plans may have
	// Optim has the constants of AdamW, for Train. Its Eps and MaxNorm are for gradients without
	// the loss scale.
	Optim optim.Problem
	// LossScale multiplies the gradients, so that small ones are not lost in float16. It is a
	// power of two; 0 is 1. It changes no result: AdamW's eps and the norm for clipping are
	// multiplied likewise, and Model.Gradients divides by it.
	LossScale float64
	// Accumulate is the number of batches of a step, one Run each. Their gradients are added up
	// in order, and the last Run makes the step with the mean. 0 is 1. More is for Train, and
	// takes the memory of gradients two more times.
	Accumulate int
}

// DefaultLossScale returns a scale that suits a batch. For float16 it is the number of targets
// rounded to a power of two, since the loss is a mean over them. For formats with the exponents
// of float32 it is 1.
func DefaultLossScale(t dtype.DType, s Shape) float64 {
	if t != dtype.Float16 {
		return 1
	}
	return math.Exp2(math.Ceil(math.Log2(float64(s.Batch) * float64(s.Targets))))
}

// Validate returns an error that names the first option that breaks a rule.
func (o ModelOptions) Validate() error {
	switch scale := o.LossScale; {
	case !o.DType.Float():
		return fmt.Errorf("tnp: dtype=%v is not one of float32, float16, bfloat16", o.DType)
	case o.Pass > Train:
		return fmt.Errorf("tnp: pass=%v is not one of loss, gradients, train", o.Pass)
	case o.Accumulate < 0 || o.Accumulate > 1<<16:
		return fmt.Errorf("tnp: accumulate=%d is not from 0 to %d", o.Accumulate, 1<<16)
	case o.Accumulate > 1 && o.Pass != Train:
		return fmt.Errorf("tnp: accumulate=%d is of pass train, not %v", o.Accumulate, o.Pass)
	case scale != 0 && (scale < 0x1p-20 || scale > 0x1p40 || math.Exp2(math.Round(math.Log2(scale))) != scale):
		return fmt.Errorf("tnp: loss_scale=%g is not a power of two from 2^-20 to 2^40", scale)
	}
	if o.Pass == Train {
		return o.Optim.Validate()
	}
	return nil
}

// scale returns LossScale, or 1 for 0.
func (o ModelOptions) scale() float64 {
	if o.LossScale == 0 {
		return 1
	}
	return o.LossScale
}

// A Model has the weights on a device, their gradients and moments, each in a buffer. It is for
// one goroutine at a time.
type Model struct {
	d       *vk.Device
	c       Config
	o       ModelOptions
	slots   map[string]*slot
	params  vk.Tensor // float32, of all slots
	grads   vk.Tensor // of a batch
	total   vk.Tensor // of a step: grads, or one of sums
	sums    sums
	m, v    vk.Tensor
	rounded vk.Tensor // params in 16 bits
	adam    *optim.AdamW
}

// NewModel returns a model whose weights are 0. The caller sets them (SetWeights) before a plan
// is run. Close it after its plans. It returns an error with the number of missing bytes if the device is known
// to have less memory than the model takes, before it allocates any.
func NewModel(ctx context.Context, d *vk.Device, c Config, o ModelOptions) (_ *Model, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	m := &Model{d: d, c: c, o: o}
	defer func() {
		if err != nil {
			m.Close()
		}
	}()
	slots, n := c.slots()
	m.slots = slots
	heaps, err := d.Heaps()
	if err != nil {
		return nil, err
	}
	if err := checkModel(heaps, m.bytes(n)); err != nil {
		return nil, err
	}
	if err := checkRanges(d.Caps(), c, o); err != nil {
		return nil, err
	}
	for _, x := range m.memory() {
		if *x.tensor, err = d.NewTensor(x.name, x.dtype, x.times*n); err != nil {
			return nil, err
		}
		if err := x.tensor.Zero(ctx); err != nil {
			return nil, err
		}
	}
	m.divide(n)
	if o.Pass == Train {
		m.adam, err = optim.New(ctx, d, m.optimized(), m.problem())
	}
	return m, err
}

// A part is one of the buffers of a model.
type part struct {
	name   string
	dtype  dtype.DType
	times  int // how often it has all slots
	tensor *vk.Tensor
}

func (m *Model) memory() []part {
	list := []part{{"weights", dtype.Float32, 1, &m.params}}
	if m.o.DType != dtype.Float32 {
		list = append(list, part{"weights, rounded", m.o.DType, 1, &m.rounded})
	}
	if m.o.Pass >= Gradients {
		if m.o.Accumulate > 1 {
			list = append(list, part{"gradients", dtype.Float32, sumsRows, &m.sums.all})
		} else {
			list = append(list, part{"gradients", dtype.Float32, 1, &m.grads})
		}
	}
	if m.o.Pass >= Train {
		list = append(list, part{"first moments", dtype.Float32, 1, &m.m}, part{"second moments", dtype.Float32, 1, &m.v})
	}
	return list
}

// bytes returns the bytes of all parts, of slots of n elements in all.
func (m *Model) bytes(n int) (bytes int64) {
	for _, x := range m.memory() {
		bytes += x.bytes(n)
	}
	return bytes
}

// bytes returns the bytes of a part, of slots of n elements in all.
func (p *part) bytes(n int) int64 { return int64(p.times) * int64(n) * int64(p.dtype.Size()) }

// optimized lists the parameters for AdamW.
func (m *Model) optimized() (list []optim.Param) {
	for _, p := range m.c.Params() {
		s := m.slots[p.Name]
		list = append(list, optim.Param{Name: p.Name, NoDecay: p.kind == normWeight, Tensors: optim.Tensors{
			Param: s.of(m.params), Grad: s.of(m.total), M: s.of(m.m), V: s.of(m.v), Copy: s.of(m.rounded),
		}})
	}
	return list
}

// problem returns the constants of AdamW for gradients that are LossScale times as large. M and the
// root of v are LossScale times as large, too.
func (m *Model) problem() optim.Problem {
	p := m.o.Optim
	p.Eps *= m.o.scale()
	p.MaxNorm *= m.o.scale()
	return p
}

// Close frees the memory once the submissions so far have finished. It is idempotent and may be
// called on nil.
func (m *Model) Close() {
	if m == nil {
		return
	}
	m.adam.Close()
	for _, t := range []vk.Tensor{m.params, m.grads, m.sums.all, m.m, m.v, m.rounded} {
		t.Close()
	}
}

// Config returns the sizes.
func (m *Model) Config() Config { return m.c }

// of returns the part of a buffer that the slot is. It is zero for a zero tensor.
func (s *slot) of(all vk.Tensor) vk.Tensor {
	if all.IsZero() {
		return vk.Tensor{}
	}
	t := vk.View(all.Buffer, all.DType, s.shape...)
	t.Offset = all.Offset + s.first
	return t
}

// weight returns a parameter as products read it.
func (m *Model) weight(name string) vk.Tensor {
	s := m.slots[name]
	if s.kind == normWeight || m.rounded.IsZero() {
		return s.of(m.params).Narrow()
	}
	return s.of(m.rounded).Narrow()
}

// gradient returns where the gradient by a parameter is written.
func (m *Model) gradient(name string) vk.Tensor { return m.slots[name].of(m.grads).Narrow() }

// SetWeights uploads weights.
func (m *Model) SetWeights(ctx context.Context, w Weights) error {
	if err := w.Validate(m.c); err != nil {
		return err
	}
	return m.setParams(ctx, m.c.pack(w))
}

// setParams uploads parameters in the layout of the device, and the rounded copy that products
// read.
func (m *Model) setParams(ctx context.Context, flat []float32) error {
	if err := m.params.Upload(ctx, flat); err != nil || m.rounded.IsZero() {
		return err
	}
	return m.rounded.Upload(ctx, flat)
}

// Weights downloads the weights.
func (m *Model) Weights(ctx context.Context) (Weights, error) { return m.download(ctx, m.params, 1) }

// Gradients downloads the gradients of the last Run of a plan of pass Gradients or Train. With
// ModelOptions.Accumulate they are the gradients of the last step.
func (m *Model) Gradients(ctx context.Context) (Weights, error) {
	if m.grads.IsZero() {
		return nil, fmt.Errorf("tnp: a model of pass %v has no gradients", m.o.Pass)
	}
	return m.download(ctx, m.total, float32(1/m.o.scale()))
}

func (m *Model) download(ctx context.Context, t vk.Tensor, scale float32) (Weights, error) {
	flat := make([]float32, t.NumElements())
	if err := t.Download(ctx, flat); err != nil {
		return nil, err
	}
	return m.c.unpack(flat, scale), nil
}

// sums is the memory of gradients that are added up over batches. It has three rows of all slots,
//
//	row 0  a sum          0        g0+g1
//	row 1  of a batch     g0       g1       g2
//	row 2  a sum          0+g0              g0+g1+g2
//
// Two neighbours are added up into the third: after the first batch rows 0 and 1 into row 2,
// after the second rows 1 and 2 into row 0, and so on. Row 0 is 0 at first.
type sums struct {
	all  vk.Tensor
	size int // of a row, elements
}

const sumsRows = 3

func (s *sums) row(i int) vk.Tensor { return s.rows(i, 1) }

func (s *sums) rows(first, n int) vk.Tensor {
	t := vk.View(s.all.Buffer, s.all.DType, n*s.size)
	t.Offset = first * s.size
	return t.Narrow()
}

// into returns the row of the sum after batch i.
func (s *sums) into(i int) int { return 2 * (1 - i%2) }

// divide places the gradients of a batch and of a step.
func (m *Model) divide(n int) {
	if m.o.Accumulate > 1 {
		m.sums.size = n
		// A view of the whole buffer: AdamW is one launch then.
		at := func(row int) vk.Tensor {
			t := vk.View(m.sums.all.Buffer, m.sums.all.DType, n)
			t.Offset = row * n
			return t
		}
		m.grads, m.total = at(1), at(m.sums.into(m.o.Accumulate-1))
		return
	}
	m.total = m.grads
}

// clear records that the sum is 0.
func (s *sums) clear(c *vk.Cmd) {
	b := s.row(0).Buffer
	c.Fill(b, 0, 4*int64(s.size), 0)
}

// add records the sum of the gradients up to batch i.
func (s *sums) add(c *vk.Cmd, i int) error {
	to := s.into(i)
	parts := s.rows(0, 2)
	if to == 0 {
		parts = s.rows(1, 2)
	}
	parts.Shape, parts.Strides = []int{2, s.size}, []int{s.size, 1}
	return sumrows.Record(c, s.row(to), parts)
}
