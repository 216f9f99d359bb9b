package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/peer"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/pipelines/tnp/gp"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

// A Case is a training step to measure.
type Case struct {
	tnp.Preset
	DType      dtype.DType
	Checkpoint tnp.Checkpoint // as planned, once that is known
	Asked      tnp.Checkpoint `json:"-"` // what was asked for: it may be Auto
	Variant    tnp.Variant
	Fresh      bool // recorded anew for each step
	Samples    int
	Stages     bool
	Peers      []peer.Peer
	PeerLimit  time.Duration
}

// A Timing is what one implementation took for a case.
type Timing struct {
	Impl        string
	NS          []float64 // wall clock of a step
	HostNS      []float64 // of it, what the host took to submit it; ours alone
	Bytes       int64     // memory of all buffers at most; 0: not known
	First, Last float64   // losses of the first step, and of the last
	// Slope is how far the gradients are from the differences of the loss along them, or, of a
	// peer, from ours, in parts of their norm.
	Slope   float64
	LossOff float64 // of a peer: how far its first loss is from ours
	Failed  string  // why there are no times, or what is wrong with them
	Absent  bool    // Failed is what the device lacks
	Wrong   string  // of a peer: what it computes otherwise
	Note    string
}

// A BenchResult is what a case came to.
type BenchResult struct {
	Case    Case
	Memory  *tnp.Memory // nil if the device does not do it
	Timings []Timing    // ours, then the peers'
	Stages  []tnp.Stage
	About   []string // what peers say of themselves
}

// ourName is the name of what is measured here among its peers.
const ourName = "flashvk"

// finite returns x, or 0 if it is no number that a file has.
func finite(x float64) float64 {
	if x-x != 0 {
		return 0
	}
	return x
}

// benchLR is the learning rate of steps that are measured.
const benchLR = 1e-4

func (c *Case) options(pass tnp.Pass) tnp.ModelOptions {
	return tnp.ModelOptions{DType: c.DType, Pass: pass, Optim: optim.Default(), LossScale: tnp.DefaultLossScale(c.DType, c.Shape)}
}

// Bench measures a case: it plans its memory, checks the gradients, times steps, and asks peers for
// the same steps with the same weights and data. Planned is called with the memory before any is
// allocated, step before each part. What the device does not do, or has too little memory for, is a
// result, too, which is Absent.
func Bench(ctx context.Context, d *vk.Device, c Case, planned func(*tnp.Memory), step func(what string)) (*BenchResult, error) {
	c.Asked = c.Checkpoint
	failed := func(err error) (*BenchResult, error) {
		return &BenchResult{Case: c, Timings: []Timing{{Impl: ourName, Failed: err.Error(), Absent: true}}}, nil
	}
	o := tnp.PlanOptions{Checkpoint: c.Checkpoint, Variant: c.Variant}
	memory, err := tnp.Measure(d.Caps(), c.Config, c.Shape, c.options(tnp.Train), o)
	if errors.Is(err, vk.ErrUnsupported) {
		return failed(err)
	}
	if err != nil {
		return nil, err
	}
	err = tnp.CheckFits(d, c.Config, c.Shape, c.options(tnp.Train), o)
	if !errors.Is(err, vk.ErrUnsupported) {
		planned(memory)
	}
	if err != nil {
		return failed(err)
	}
	c.Checkpoint = memory.Checkpoint
	r := &BenchResult{Case: c, Memory: memory}
	w, err := tnp.Init(c.Config, 1)
	if err != nil {
		return nil, err
	}
	b := &benchmark{d: d, c: &r.Case, w: w}
	b.x, b.y = gp.Tokens(gp.Default().Batch(c.Shape, 1, 0))
	ours := Timing{Impl: ourName}
	switch r.Stages, err = b.measure(ctx, &ours, step); {
	case errors.Is(err, vk.ErrOutOfDeviceMemory): // others have taken some since
		ours.NS, ours.HostNS, ours.Failed = nil, nil, err.Error()
	case err != nil:
		return nil, err
	}
	r.Timings = append(r.Timings, ours)
	for _, p := range c.Peers {
		step("asking " + p.Name)
		timings, about := b.ask(ctx, p)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		r.Timings = append(r.Timings, timings...)
		if about != "" {
			r.About = append(r.About, p.Name+": "+about)
		}
	}
	return r, nil
}

// A benchmark is a case under way.
type benchmark struct {
	d     *vk.Device
	c     *Case
	w     tnp.Weights
	x, y  []float32
	loss  float64     // of the first step
	grads tnp.Weights // likewise; peers are compared with both
}

// measure checks the gradients, and times steps if they are right.
func (b *benchmark) measure(ctx context.Context, t *Timing, step func(what string)) (stages []tnp.Stage, err error) {
	step("checking the gradients")
	if t.Slope, err = b.check(ctx); err != nil {
		return nil, err
	}
	if bound := slopeBound(b.c.DType); !(t.Slope <= bound) {
		t.Failed = fmt.Sprintf("gradients are off by %.2g of the slope of the loss, more than %g", t.Slope, bound)
		t.Slope = finite(t.Slope)
		return nil, nil
	}
	step("timing")
	return b.time(ctx, t)
}

// plan makes a model and a plan; close frees both.
func (b *benchmark) plan(ctx context.Context, pass tnp.Pass) (model *tnp.Model, plan *tnp.Plan, err error) {
	model, err = tnp.NewModel(ctx, b.d, b.c.Config, b.c.options(pass))
	if err != nil {
		return nil, nil, err
	}
	if err = model.SetWeights(ctx, b.w); err == nil {
		plan, err = model.NewPlan(ctx, b.c.Shape, pass, tnp.PlanOptions{Checkpoint: b.c.Checkpoint, Variant: b.c.Variant})
	}
	if err == nil {
		if err = plan.SetInputs(ctx, b.x, b.y); err == nil {
			return model, plan, nil
		}
	}
	plan.Close()
	model.Close()
	return nil, nil, err
}

// slopeBound is how far the slope of the loss may be from what the gradients say: 16-bit losses
// are off by some thousandths, and their difference is a twentieth.
func slopeBound(t dtype.DType) float64 {
	if t == dtype.Float32 {
		return 0.03
	}
	return 0.15
}

// check compares the norm of the gradients with the slope of the loss in their direction, between
// two points where it differs by about a tenth.
func (b *benchmark) check(ctx context.Context) (slope float64, err error) {
	model, plan, err := b.plan(ctx, tnp.Gradients)
	if err != nil {
		return 0, err
	}
	defer model.Close()
	defer plan.Close()
	loss := func() (float64, error) {
		if err := plan.Run(ctx); err != nil {
			return 0, err
		}
		return plan.Loss(ctx)
	}
	if b.loss, err = loss(); err != nil {
		return 0, err
	}
	if b.grads, err = model.Gradients(ctx); err != nil {
		return 0, err
	}
	square := 0.0
	for _, g := range b.grads {
		for _, v := range g {
			square += float64(v) * float64(v)
		}
	}
	var at [2]float64
	h := 0.05 / square
	for i, sign := range []float64{-1, 1} {
		moved := tnp.Weights{}
		for name, x := range b.w {
			to := make([]float32, len(x))
			for j, v := range x {
				to[j] = float32(float64(v) + sign*h*float64(b.grads[name][j]))
			}
			moved[name] = to
		}
		if err := model.SetWeights(ctx, moved); err != nil {
			return 0, err
		}
		if at[i], err = loss(); err != nil {
			return 0, err
		}
	}
	return math.Abs((at[1]-at[0])/(2*h*square) - 1), nil
}

// time times steps, and stages.
func (b *benchmark) time(ctx context.Context, t *Timing) ([]tnp.Stage, error) {
	b.d.ResetPeak()
	model, plan, err := b.plan(ctx, tnp.Train)
	if err != nil {
		return nil, err
	}
	defer model.Close()
	defer plan.Close()
	if err := model.SetLR(ctx, benchLR); err != nil {
		return nil, err
	}
	run := plan.Run
	if b.c.Fresh {
		run = plan.RunFresh
	}
	const warm = 300 * time.Millisecond // the clock rises
	begin := time.Now()
	for i := 0; i < 3 || time.Since(begin) < warm; i++ {
		if err := run(ctx); err != nil {
			return nil, err
		}
		if i == 0 {
			if t.First, err = plan.Loss(ctx); err != nil {
				return nil, err
			}
		}
	}
	for range b.c.Samples {
		start := time.Now()
		if err := run(ctx); err != nil {
			return nil, err
		}
		t.NS = append(t.NS, float64(time.Since(start).Nanoseconds()))
		t.HostNS = append(t.HostNS, float64(plan.HostTime().Nanoseconds()))
	}
	if t.Last, err = plan.Loss(ctx); err != nil {
		return nil, err
	}
	t.Bytes = b.d.Memory().Peak
	if t.Last-t.Last != 0 {
		t.NS, t.HostNS, t.Failed = nil, nil, fmt.Sprintf("the loss is %g", t.Last)
		t.First, t.Last = finite(t.First), 0
		return nil, nil
	}
	if !b.c.Stages {
		return nil, nil
	}
	return plan.Stages(ctx)
}

// Summary returns the median and its interval.
func (t *Timing) Summary() bench.Summary { return bench.Summarize(t.NS) }

// ask asks a peer for the same steps, with the same weights and data.
func (b *benchmark) ask(ctx context.Context, p peer.Peer) (timings []Timing, about string) {
	failed := func(err error) []Timing {
		return append(timings, Timing{Impl: p.Name, Failed: err.Error()})
	}
	dir, err := os.MkdirTemp("", "flashvk-train-")
	if err != nil {
		return failed(err), ""
	}
	defer os.RemoveAll(dir)
	input := filepath.Join(dir, "input.safetensors")
	if err := b.write(input); err != nil {
		return failed(err), ""
	}
	c, s := b.c.Config, b.c.Shape
	reply, err := p.Run(ctx, peer.Request{
		Op: "train", Pass: "step", DType: b.c.DType.String(), Samples: b.c.Samples, WarmupNS: 3e8, Warmup: 3, SampleNS: 1, MaxIters: 1, Sets: 1,
		Params: map[string]any{
			"layers": c.Layers, "heads": c.Heads, "context": s.Context, "lr": benchLR, "weight_decay": optim.Default().WeightDecay, "eps": tnp.NormEps,
		},
		Input: input, OutputDir: dir,
	}, b.c.PeerLimit)
	for _, a := range reply.Answers {
		t := Timing{Impl: p.Name + ":" + a.Name, NS: a.SamplesNS, Failed: a.Error, Note: a.Note}
		if a.Error == "" {
			if err := b.compare(a.Output, &t); err != nil {
				t.NS, t.Failed = nil, err.Error()
			}
		}
		timings = append(timings, t)
	}
	if err != nil {
		return failed(err), reply.About
	}
	return timings, reply.About
}

// write writes weights and data as flashvk run model reads them.
func (b *benchmark) write(path string) error {
	s := b.c.Shape
	tensors := []safetensors.Tensor{
		{Name: "x", DType: safetensors.F32, Shape: []int{s.Batch, s.Context + s.Targets, b.c.InputDim}},
		{Name: "y", DType: safetensors.F32, Shape: []int{s.Batch, s.Targets}},
	}
	values := map[string][]float32{"x": b.x, "y": b.y}
	for _, p := range b.c.Params() {
		tensors = append(tensors, safetensors.Tensor{Name: p.Name, DType: safetensors.F32, Shape: p.Shape})
		values[p.Name] = b.w[p.Name]
	}
	return WriteTensors(path, tensors, values)
}

// WriteTensors writes a file of float32 tensors with values by name.
func WriteTensors(path string, tensors []safetensors.Tensor, values map[string][]float32) error {
	out, err := safetensors.Create(path, tensors, nil)
	if err != nil {
		return err
	}
	defer out.Close()
	for _, t := range tensors {
		if err := out.WriteFloat32s(t.Name, values[t.Name]); err != nil {
			return err
		}
	}
	return out.Commit()
}

// compare reads a peer's losses, memory and gradients, as flashvk run model writes them:
//
//	loss    (1)   of the first step
//	last    (1)   of the last step
//	memory  (1)   MB of device memory at most
//	grad.NAME     of the first step
func (b *benchmark) compare(path string, t *Timing) error {
	f, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	read := func(name string, n int) ([]float32, error) {
		x, ok := f.Tensor(name)
		if !ok {
			return nil, fmt.Errorf("tensor %q is missing in its output", name)
		}
		v, err := f.Float32s(x)
		if err == nil && len(v) != n {
			err = fmt.Errorf("tensor %q of its output has %d elements, want %d", name, len(v), n)
		}
		return v, err
	}
	for name, to := range map[string]func(float64){
		"loss": func(v float64) { t.First = v }, "last": func(v float64) { t.Last = v }, "memory": func(v float64) { t.Bytes = int64(1e6 * v) },
	} {
		v, err := read(name, 1)
		if err != nil {
			return err
		}
		to(float64(v[0]))
	}
	off, square := 0.0, 0.0
	for _, p := range b.c.Params() {
		g, err := read("grad."+p.Name, p.Size())
		if err != nil {
			return err
		}
		for i, v := range b.grads[p.Name] {
			off += (float64(v) - float64(g[i])) * (float64(v) - float64(g[i]))
			square += float64(v) * float64(v)
		}
	}
	t.judge(b.c.DType, b.loss, math.Sqrt(off/square))
	return nil
}

// judge compares a peer's first loss with ours; slope is how far its gradients are. On an H200 PyTorch's are
// off by 1e-4 and 3e-3 in bfloat16, whose roundings differ; both multiply float32 as such.
func (t *Timing) judge(format dtype.DType, loss, slope float64) {
	off, most, steepest := math.Abs(t.First-loss), 0.02, 0.05
	if format == dtype.Float32 {
		most, steepest = 1e-4, 1e-3
	}
	switch {
	case !(off <= most*max(1, math.Abs(loss))):
		t.Wrong = fmt.Sprintf("its first loss is %g, ours %g", t.First, loss)
	case !(slope <= steepest):
		t.Wrong = fmt.Sprintf("its gradients are %.2g of their norm from ours, more than %g", slope, steepest)
	}
	t.LossOff, t.Slope, t.First, t.Last = finite(off), finite(slope), finite(t.First), finite(t.Last)
}
