package tnp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/record"
	"github.com/flashvk/flashvk/vk"
)

// PlanOptions say how a plan is computed. The zero value is right.
type PlanOptions struct {
	Attention attention.Impl // forces a path of attention
	Products  gemm.Impl      // forces one of everything that multiplies matrices
}

// A Memory says what a model and a plan of it take.
type Memory struct {
	Model int64          // weights, gradients and moments
	Plan  *record.Memory // what lies between the kernels
}

// Bytes returns the sum.
func (m *Memory) Bytes() int64 { return m.Model + m.Plan.Bytes }

// String names both in a line.
func (m *Memory) String() string {
	return fmt.Sprintf("%s: model %s, activations %v", record.Size(m.Bytes()), record.Size(m.Model), m.Plan)
}

// Measure returns what a model and a plan of pass o.Pass would take on a device, without
// allocating anything.
func Measure(caps *vk.Caps, c Config, s Shape, o ModelOptions, p PlanOptions) (*Memory, error) {
	_, m, err := build(caps, c, s, o.Pass, o, p)
	return m, err
}

// build makes the program of a plan and plans its memory.
func build(caps *vk.Caps, c Config, s Shape, pass Pass, o ModelOptions, p PlanOptions) (*builder, *Memory, error) {
	for _, err := range []error{c.Validate(), s.Validate(), o.Validate()} {
		if err != nil {
			return nil, nil, err
		}
	}
	if pass > o.Pass {
		return nil, nil, fmt.Errorf("tnp: a plan of pass %v is beyond its model's, %v", pass, o.Pass)
	}
	b := &builder{c: c, s: s, pass: pass, dtype: o.DType, o: p, caps: caps, prog: record.New("tnp")}
	b.forward()
	if pass >= Gradients {
		b.backward()
	}
	if b.err != nil {
		return nil, nil, b.err
	}
	plan, err := b.prog.Plan(int64(min(caps.MaxAllocationBytes, caps.MaxBufferBytes)))
	if err != nil {
		return nil, nil, fmt.Errorf("tnp: %w", err)
	}
	m := &Memory{Plan: plan}
	_, n := c.slots()
	for _, x := range (&Model{c: c, o: o}).memory() {
		m.Model += int64(n) * int64(x.dtype.Size())
	}
	return b, m, nil
}

// A Plan is a pass of a model over batches of one shape: the memory between its kernels, and one
// recording of all of them, which Run submits. It is for one goroutine at a time.
type Plan struct {
	b      *builder
	m      *Model
	memory *Memory
	cmd    *vk.Cmd
}

// NewPlan allocates the memory of a pass over batches of a shape, and records it. Close it before
// the model.
//
// It returns an error that says how many bytes are missing if the device is known to have less
// memory than the plan takes, before it allocates any; and one that wraps vk.ErrUnsupported if
// no kernel handles the sizes on the device.
func (m *Model) NewPlan(ctx context.Context, s Shape, pass Pass, o PlanOptions) (_ *Plan, err error) {
	b, memory, err := build(m.d.Caps(), m.c, s, pass, m.o, o)
	if err != nil {
		return nil, err
	}
	if err := fits(m.d, memory.Plan.Bytes); err != nil {
		return nil, err
	}
	b.model = m
	p := &Plan{b: b, m: m, memory: memory}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if err := b.prog.Allocate(m.d); err != nil {
		return nil, fmt.Errorf("tnp: %w", err)
	}
	if b.scale != nil {
		if err := b.scale.View().Upload(ctx, []float32{float32(m.o.scale())}); err != nil {
			return nil, err
		}
	}
	if p.cmd, err = m.d.NewCmd("tnp " + pass.String()); err != nil {
		return nil, err
	}
	return p, p.record()
}

// fits returns an error if a device is known not to have so many bytes left.
func fits(d *vk.Device, bytes int64) error {
	heaps, err := d.Heaps()
	if err != nil {
		return err
	}
	var free uint64
	for _, h := range heaps {
		if h.DeviceLocal && h.BudgetBytes > h.UsageBytes {
			free = max(free, h.BudgetBytes-h.UsageBytes)
		}
	}
	if free > 0 && uint64(bytes) > free {
		return fmt.Errorf("tnp: activations take %d bytes, and the device has %d left: %d are missing", bytes, free, uint64(bytes)-free)
	}
	return nil
}

// record records all steps.
func (p *Plan) record() error {
	if err := p.b.prog.Record(p.cmd); err != nil {
		return fmt.Errorf("tnp: %w", err)
	}
	if p.b.pass == Train {
		p.cmd.Barrier()
		return p.m.adam.Step(p.cmd)
	}
	return nil
}

// Close frees the memory of the plan once the submissions so far have finished. It is idempotent
// and may be called on nil.
func (p *Plan) Close() {
	if p == nil {
		return
	}
	p.cmd.Close()
	p.b.prog.Close()
}

// Memory returns what model and plan take.
func (p *Plan) Memory() *Memory { return p.memory }

// Shape returns the sizes of the batches.
func (p *Plan) Shape() Shape { return p.b.s }

// SetInputs uploads a batch: x is (batch, context+targets, input_dim), of tokens as the package
// documentation has them, y (batch, targets). It returns an error that names the first element
// that is not finite.
func (p *Plan) SetInputs(ctx context.Context, x, y []float32) error {
	c, s := p.b.c, p.b.s
	for _, in := range []struct {
		name string
		v    []float32
		want int
	}{{"x", x, s.Tokens() * c.InputDim}, {"y", y, s.Batch * s.Targets}} {
		if len(in.v) != in.want {
			return fmt.Errorf("tnp: %s has %d elements, want %d for %v", in.name, len(in.v), in.want, s)
		}
		if i := notFinite(in.v); i >= 0 {
			return fmt.Errorf("tnp: %s[%d] is %g: data must be finite", in.name, i, in.v[i])
		}
	}
	rows := make([]float32, s.Tokens()*c.input())
	for i := range s.Tokens() {
		copy(rows[i*c.input():], x[i*c.InputDim:(i+1)*c.InputDim])
	}
	if err := p.b.x.View().Upload(ctx, rows); err != nil {
		return err
	}
	return p.b.y.View().Upload(ctx, y)
}

// notFinite returns the first element that is infinite or NaN, -1 if there is none.
func notFinite(x []float32) int {
	for i, v := range x {
		if v-v != 0 {
			return i
		}
	}
	return -1
}

// Run submits the recording and waits for it.
func (p *Plan) Run(ctx context.Context) error { return p.cmd.Submit(ctx) }

// Loss returns the loss of the last Run.
func (p *Plan) Loss(ctx context.Context) (float64, error) {
	x := make([]float32, 1)
	err := p.b.loss.View().Download(ctx, x)
	return float64(x[0]), err
}

// LogP returns log p of each target of the last Run, (batch, targets).
func (p *Plan) LogP(ctx context.Context) ([]float32, error) {
	x := make([]float32, p.b.s.Batch*p.b.s.Targets)
	return x, p.b.logP.View().Download(ctx, x)
}

// Predict returns mean and standard deviation of what the model predicts for each target of the
// last Run of a plan of pass Loss, (batch, targets).
func (p *Plan) Predict(ctx context.Context) (mean, deviation []float64, err error) {
	if p.b.heads == nil {
		return nil, nil, errors.New("tnp: a plan that computes gradients keeps no predictions")
	}
	k := p.b.c.Components
	heads := make([]float32, p.b.s.Batch*p.b.s.Targets*k*3)
	if err := p.b.heads.View().Download(ctx, heads); err != nil {
		return nil, nil, err
	}
	for ; len(heads) > 0; heads = heads[3*k:] {
		m, d := moments(heads[:3*k])
		mean, deviation = append(mean, m), append(deviation, d)
	}
	return mean, deviation, nil
}

// moments returns mean and standard deviation of a mixture of (logit, mu, log sigma).
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

// SetLR sets the learning rate of the steps that are run from now on.
func (m *Model) SetLR(ctx context.Context, lr float64) error {
	if m.adam == nil {
		return fmt.Errorf("tnp: a model of pass %v is not trained", m.o.Pass)
	}
	return m.adam.SetLR(ctx, lr)
}

// Skipped returns how many steps were skipped, since their gradients were not finite: with
// Optim.MaxNorm positive, see package optim.
func (m *Model) Skipped(ctx context.Context) (int, error) {
	if m.adam == nil {
		return 0, fmt.Errorf("tnp: a model of pass %v is not trained", m.o.Pass)
	}
	n, err := readInt(ctx, m.adam.Skipped())
	return n, err
}

// Steps returns how many steps have been made.
func (m *Model) Steps(ctx context.Context) (int, error) {
	if m.adam == nil {
		return 0, fmt.Errorf("tnp: a model of pass %v is not trained", m.o.Pass)
	}
	return readInt(ctx, m.adam.Count())
}

func readInt(ctx context.Context, t vk.Tensor) (int, error) {
	b := make([]byte, dtype.Int32.Size())
	err := t.DownloadRaw(ctx, b)
	return int(int32(binary.LittleEndian.Uint32(b))), err
}
