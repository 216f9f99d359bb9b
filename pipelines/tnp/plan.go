package tnp

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/enum"
	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/record"
	"github.com/flashvk/flashvk/vk"
)

// PlanOptions say how a plan is computed. The zero value is the default.
type PlanOptions struct {
	// Checkpoint says which tensors the forward pass keeps for the backward pass.
	Checkpoint Checkpoint
	Variant    Variant        // which kernels are fused; for comparisons
	Attention  attention.Impl // forces a path of attention
	Products   gemm.Impl      // forces a path of the other products
}

// A Checkpoint says which tensors the forward pass of a block keeps for the backward pass, which
// computes the rest again. The results are the same, bit for bit.
//
//	           kept of a token, in elements of 16 bits            computed again
//	Off        8*d_model + 3*heads*head_dim + 2*d_ff, about       nothing, but hidden units of more than 2 GiB
//	Selective  d_model + heads*head_dim + 2*heads                 norms, projections, hidden units
//	Blocks     d_model                                            these, and attention
//	Auto       the first of them that fits into the device's memory
type Checkpoint uint8

// The choices.
const (
	Off Checkpoint = iota
	Selective
	Blocks
	Auto
)

// String returns off, selective, blocks or auto.
func (c Checkpoint) String() string { return checkpointNames.Of(c) }

var checkpointNames = enum.Names[Checkpoint]{"off", "selective", "blocks", "auto"}

// ParseCheckpoint accepts the names that String returns.
func ParseCheckpoint(name string) (Checkpoint, error) {
	return checkpointNames.Parse("tnp: checkpoint", name)
}

// A Memory says how much memory a model and a plan of it take.
type Memory struct {
	Checkpoint Checkpoint // Auto's choice

	Model int64           // weights, gradients and moments
	Parts []record.Holder // of Model, by name
	Plan  *record.Memory  // what lies between the kernels
}

// Bytes returns the sum of both.
func (m *Memory) Bytes() int64 { return m.Model + m.Plan.Bytes }

// String names both in a line.
func (m *Memory) String() string {
	return fmt.Sprintf("%s: model %s, activations %v", text.Bytes(m.Bytes()), text.Bytes(m.Model), m.Plan)
}

// ByName returns who holds Bytes, the parts of the model first, then the tensors that are needed
// where a plan holds the most, the largest first: the tensors of all blocks as one, and all
// workspaces as one. The bytes that the plan's other tensors take are of the name "gaps".
func (m *Memory) ByName() []record.Holder {
	var list []record.Holder
	at, gaps := map[string]int{}, m.Plan.Bytes
	for _, h := range m.Plan.Holders {
		name := stageOf(h.Name)
		if strings.HasPrefix(name, workspaceOf) {
			name = "workspaces"
		}
		if _, ok := at[name]; !ok {
			at[name] = len(list)
			list = append(list, record.Holder{Name: name})
		}
		list[at[name]].Bytes += h.Bytes
		gaps -= h.Bytes
	}
	if gaps > 0 {
		list = append(list, record.Holder{Name: "gaps", Bytes: gaps})
	}
	slices.SortStableFunc(list, func(a, b record.Holder) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return append(slices.Clone(m.Parts), list...)
}

// Measure returns the memory of a model and of a plan of pass o.Pass, without allocating it. Auto
// compares with the memory that caps have; where nothing fits, it takes the checkpoint that needs
// least.
func Measure(caps *vk.Caps, c Config, s Shape, o ModelOptions, p PlanOptions) (*Memory, error) {
	_, m, err := choose(caps, c, s, o.Pass, o, p, func(m *Memory) bool { return missing(caps.Heaps, m.Bytes()) == 0 })
	return m, err
}

// choose makes the program of a plan. Auto is the first checkpoint that fits, or else the
// checkpoint that needs least.
func choose(caps *vk.Caps, c Config, s Shape, pass Pass, o ModelOptions, p PlanOptions, fits func(*Memory) bool) (b *builder, m *Memory, err error) {
	if p.Checkpoint > Auto {
		return nil, nil, fmt.Errorf("tnp: checkpoint=%v is not one of %v", p.Checkpoint, checkpointNames)
	}
	if p.Variant > Fused {
		return nil, nil, fmt.Errorf("tnp: variant=%v is not one of %v", p.Variant, variantNames)
	}
	if p.Checkpoint != Auto {
		return build(caps, c, s, pass, o, p)
	}
	for _, p.Checkpoint = range []Checkpoint{Off, Selective, Blocks} {
		b, m, err = build(caps, c, s, pass, o, p)
		if err != nil || fits(m) {
			return b, m, err
		}
	}
	return b, m, nil
}

// build makes the program of a plan, and plans its memory.
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
	m := &Memory{Plan: plan, Checkpoint: p.Checkpoint}
	_, n := c.slots()
	for _, x := range (&Model{c: c, o: o}).memory() {
		h := record.Holder{Name: x.name, Bytes: x.bytes(n)}
		m.Parts, m.Model = append(m.Parts, h), m.Model+h.Bytes
	}
	return b, m, nil
}

// A Plan is a pass of a model over batches of one shape. It has the memory between kernels and
// one recording of all of them, which Run submits. It is for one goroutine at a time.
//
// Start submits it and returns, so that the host can make and upload the next batch meanwhile:
//
//	SetInputs(batch 0)
//	for i := range steps {
//		SetLR(of step i)
//		Start                     the device works
//		SetInputs(batch i+1)      beside it; queued behind it
//		Loss                      waits for step i
//	}
type Plan struct {
	b       *builder
	m       *Model
	memory  *Memory
	cmds    map[turn]*vk.Cmd
	fresh   *vk.Cmd // of RunFresh
	running *vk.Cmd // of the last batch
	batch   int     // of the next step
	host    time.Duration
}

// A turn is the place of a batch in its step: batches of the same turn share a recording.
type turn struct {
	first, last bool
	row         int // of the sum of gradients that is written
}

func (p *Plan) turn(i int) turn {
	n := max(p.m.o.Accumulate, 1)
	if p.b.pass < Train || n == 1 {
		return turn{first: true, last: true}
	}
	return turn{i == 0, i == n-1, p.m.sums.into(i)}
}

// NewPlan allocates the memory of a pass over batches of a shape, and records it. Close it before
// the model.
//
// If the device is known to have less memory than the plan takes, it returns an error that says
// how many bytes are missing, and allocates nothing. It returns an error that wraps
// vk.ErrUnsupported if no kernel handles the sizes on the device.
func (m *Model) NewPlan(ctx context.Context, s Shape, pass Pass, o PlanOptions) (_ *Plan, err error) {
	heaps, err := m.d.Heaps()
	if err != nil {
		return nil, err
	}
	b, memory, err := fit{m.d.Caps(), heaps, m.c, s, pass, m.o, o}.choose("activations", func(m *Memory) int64 { return m.Plan.Bytes })
	if err != nil {
		return nil, err
	}
	b.model = m
	p := &Plan{b: b, m: m, memory: memory, cmds: map[turn]*vk.Cmd{}}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if err := b.prog.Allocate(m.d); err != nil {
		return nil, fmt.Errorf("tnp: %w", err)
	}
	if b.scale != nil {
		if err := b.scale.View().Upload(ctx, []float32{float32(m.o.scale() / float64(p.batches()))}); err != nil {
			return nil, err
		}
	}
	for i := range p.batches() {
		if _, ok := p.cmds[p.turn(i)]; ok {
			continue
		}
		c, err := m.d.NewCmd("tnp " + pass.String())
		if err != nil {
			return nil, err
		}
		p.cmds[p.turn(i)] = c
		if err := p.record(c, i, nil); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// batches returns how many Runs make a step.
func (p *Plan) batches() int {
	if p.b.pass < Train {
		return 1
	}
	return max(p.m.o.Accumulate, 1)
}

// record records all steps of a batch; before is called with the name of each.
func (p *Plan) record(c *vk.Cmd, batch int, before func(step string)) error {
	if err := p.b.prog.Record(c, before); err != nil {
		return fmt.Errorf("tnp: %w", err)
	}
	if before == nil {
		before = func(string) {}
	}
	if p.b.pass < Train {
		return nil
	}
	if p.batches() > 1 {
		before("sum of gradients")
		if batch == 0 {
			p.m.sums.clear(c)
		}
		if err := p.m.sums.add(c, batch); err != nil {
			return fmt.Errorf("tnp: %w", err)
		}
	}
	if !p.turn(batch).last {
		return nil
	}
	before("optimizer")
	return p.m.adam.Step(c)
}

// Close frees the memory of the plan once the submissions so far have finished. It is idempotent
// and may be called on nil.
func (p *Plan) Close() {
	if p == nil {
		return
	}
	for _, c := range p.cmds {
		c.Close()
	}
	p.fresh.Close()
	p.b.prog.Close()
}

// Memory returns how much memory model and plan take.
func (p *Plan) Memory() *Memory { return p.memory }

// Shape returns the sizes of the batches.
func (p *Plan) Shape() Shape { return p.b.s }

// SetInputs uploads a batch. X is (batch, context+targets, input_dim), the tokens of the package
// documentation. Y is (batch, targets). It does not wait for the device: the upload comes behind
// the batches that were started, so the caller may call SetInputs while a batch runs, and change x
// and y then. It returns an error that names the first element that is not finite, and uploads
// nothing.
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

// notFinite returns the index of the first element that is infinite or NaN, -1 if there is none.
func notFinite(x []float32) int {
	for i, v := range x {
		if v-v != 0 {
			return i
		}
	}
	return -1
}

// Run computes a batch, and waits for it. With ModelOptions.Accumulate, the last Run of that many
// makes the step. If ctx ends meanwhile, the batch runs on, and counts.
func (p *Plan) Run(ctx context.Context) error {
	if err := p.Start(ctx); err != nil {
		return err
	}
	return p.running.Wait(ctx)
}

// Start is Run without the wait. Calls that read results wait, and read the results of the batch:
// Loss, LogP, Model.SaveState. SetInputs, SetLR and the next Start are for the next batch. An error
// of the device may come from any later call.
//
// If ctx has ended, nothing is submitted, and the batch remains to be run.
func (p *Plan) Start(ctx context.Context) error {
	c := p.cmds[p.turn(p.batch)]
	if err := c.Wait(ctx); err != nil { // its runs do not overlap
		return err
	}
	return p.start(ctx, c, time.Now())
}

// start submits the recording of a batch, on which the host has worked since begin.
func (p *Plan) start(ctx context.Context, c *vk.Cmd, begin time.Time) error {
	if err := c.Start(ctx); err != nil {
		return err
	}
	p.host, p.running = time.Since(begin), c
	p.batch = (p.batch + 1) % p.batches()
	return nil
}

// RunFresh is Run with a recording of its own, made now: HostTime includes the time to record. The
// results are the results of Run, bit for bit.
func (p *Plan) RunFresh(ctx context.Context) error {
	begin := time.Now()
	if p.fresh == nil {
		c, err := p.m.d.NewCmd("tnp " + p.b.pass.String() + ", fresh")
		if err != nil {
			return err
		}
		p.fresh = c
	}
	p.fresh.Reset()
	if err := p.record(p.fresh, p.batch, nil); err != nil {
		return err
	}
	if err := p.start(ctx, p.fresh, begin); err != nil {
		return err
	}
	return p.fresh.Wait(ctx)
}

// HostTime returns how long the host worked on the last Run or Start, until it had submitted the
// recording. The device has the rest of a Run.
func (p *Plan) HostTime() time.Duration { return p.host }

// Loss returns the loss of the last Run or Start, for which it waits.
func (p *Plan) Loss(ctx context.Context) (float64, error) {
	x := make([]float32, 1)
	err := p.b.loss.View().Download(ctx, x)
	return float64(x[0]), err
}

// LogP returns log p of each target of the last Run or Start, (batch, targets).
func (p *Plan) LogP(ctx context.Context) ([]float32, error) {
	x := make([]float32, p.b.s.Batch*p.b.s.Targets)
	return x, p.b.logP.View().Download(ctx, x)
}

// Predict returns mean and standard deviation of the prediction for each target of the last Run
// of a plan of pass Loss, (batch, targets).
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

// SetLR sets the learning rate of the steps that are run or started from now on, Optim.LR until
// then. It does not wait.
func (m *Model) SetLR(ctx context.Context, lr float64) error {
	if m.adam == nil {
		return fmt.Errorf("tnp: a model of pass %v is not trained", m.o.Pass)
	}
	return m.adam.SetLR(ctx, lr)
}

// Skipped returns how many steps were skipped because their gradients were not finite. It is 0 if
// Optim.MaxNorm is, see package optim.
func (m *Model) Skipped(ctx context.Context) (int, error) {
	if m.adam == nil {
		return 0, fmt.Errorf("tnp: a model of pass %v is not trained", m.o.Pass)
	}
	n, err := readInt(ctx, m.adam.Skipped())
	return n, err
}

// Steps returns the number of steps so far.
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
