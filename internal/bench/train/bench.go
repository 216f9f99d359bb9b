package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/peer"
	"github.com/flashvk/flashvk/internal/bench/sheet"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/pipelines/tnp/gp"
	"github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

// A Case is a training step to measure.
type Case struct {
	tnp.Preset
	tnp.PlanOptions // Checkpoint may be Auto
	DType           dtype.DType
	Fresh           bool // recorded anew for each step
	Samples         int
	Stages          bool
	Peers           []peer.Peer
	PeerLimit       time.Duration
}

// benchLR is the learning rate of steps that are measured.
const benchLR = 1e-4

func (c *Case) options(pass train.Pass) train.Options {
	return train.Options{DType: c.DType, Pass: pass, Optim: optim.Default(), LossScale: tnp.DefaultLossScale(c.DType, c.Shape)}
}

// Bench measures a case: it plans its memory, checks the gradients, times steps, and asks peers for
// the same steps with the same weights and data. Planned is called with the memory before any is
// allocated, step before each part. The first result is ours; its Check has how far the slope of the
// loss is from what the gradients say, a peer's how far its gradients are from ours. What the device
// does not do, or has too little memory for, is a result, too, which is unsupported. Stages is the
// table of what a step consists of, nil if c does not ask for it.
func Bench(ctx context.Context, d *vk.Device, c Case, planned func(*train.Memory), step func(what string)) (list []bench.Result, stages *sheet.Section, err error) {
	of := c.subject()
	ours := of.Result(c.way(), bench.Timing{})
	memory, err := tnp.CheckFits(d, c.Config, c.Shape, c.options(train.Train), c.PlanOptions)
	unsupported := errors.Is(err, vk.ErrUnsupported)
	switch {
	case memory == nil && !unsupported:
		return nil, nil, err
	case !unsupported:
		planned(memory)
	}
	if err != nil {
		ours.Status, ours.Reason = bench.StatusUnsupported, err.Error()
		return []bench.Result{ours}, nil, nil
	}
	c.Checkpoint = memory.Checkpoint
	ours.Choice = fmt.Sprintf("checkpoint %v", c.Checkpoint)
	w, err := tnp.Init(c.Config, 1)
	if err != nil {
		return nil, nil, err
	}
	b := &benchmark{d: d, c: &c, w: w}
	b.x, b.y = gp.Tokens(gp.Batch(c.Shape, 1, 0))
	parts, err := b.measure(ctx, &ours, step)
	switch {
	case errors.Is(err, vk.ErrOutOfDeviceMemory): // others have taken some since
		ours.Status, ours.Reason = bench.StatusFailed, err.Error()
	case err != nil:
		return nil, nil, err
	}
	if len(parts) > 0 {
		stages = c.stages(parts, ours.NS())
	}
	step("asking peers")
	peers, err := b.ask(ctx, of)
	return append([]bench.Result{ours}, peers...), stages, err
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
func (b *benchmark) measure(ctx context.Context, x *bench.Result, step func(what string)) (stages []train.Stage, err error) {
	step("checking the gradients")
	slope, err := b.check(ctx)
	if err != nil {
		return nil, err
	}
	bound := slopeBound(b.c.DType)
	if x.Check = checked(slope, bound); !(slope <= bound) {
		x.Status, x.Reason = bench.StatusFailed, fmt.Sprintf("gradients are off by %.2g of the slope of the loss, more than %g", slope, bound)
		return nil, nil
	}
	step("timing")
	return b.time(ctx, x)
}

// checked returns the Check of a gradient that is off by a part of its norm.
func checked(off, limit float64) bench.Check {
	return bench.Check{Rows: 1, OfRows: 1, Counted: "gradients", MaxAbs: off, MeanAbs: off, Limit: limit}
}

// facts are what a result has beside its times: memory of all buffers at most, and the losses of the first step, and of
// the last.
func facts(bytes, first, last float64) []bench.Fact {
	return []bench.Fact{
		{Name: "memory", Key: "memory_bytes", N: bytes, Text: bench.FormatSI(bytes, "B")},
		{Name: "loss", Key: "loss", N: first, Text: fmt.Sprintf("%.4f", first)},
		{Name: "last", Key: "last", N: last, Text: fmt.Sprintf("%.4f", last)},
	}
}

// plan makes a model and a plan; close frees both.
func (b *benchmark) plan(ctx context.Context, pass train.Pass) (model *train.Model, plan *tnp.Plan, err error) {
	model, err = tnp.NewModel(ctx, b.d, b.c.Config, b.c.options(pass))
	if err != nil {
		return nil, nil, err
	}
	if err = model.SetWeights(ctx, b.w); err == nil {
		plan, err = tnp.NewPlan(ctx, model, b.c.Config, b.c.Shape, pass, b.c.PlanOptions)
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
	model, plan, err := b.plan(ctx, train.Gradients)
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
func (b *benchmark) time(ctx context.Context, x *bench.Result) ([]train.Stage, error) {
	b.d.ResetPeak()
	model, plan, err := b.plan(ctx, train.Train)
	if err != nil {
		return nil, err
	}
	defer model.Close()
	defer plan.Close()
	if err := model.SetLR(ctx, benchLR); err != nil {
		return nil, err
	}
	for _, m := range plan.Modules() {
		if strings.HasPrefix(m.Name, "attention_fwd_quant") && !strings.Contains(x.Choice, m.Name) {
			x.Choice += ", " + m.Name // its path: not every format has one on matrices
		}
	}
	run := plan.Run
	if b.c.Fresh {
		run = plan.RunFresh
	}
	const warm = 300 * time.Millisecond // the clock rises
	begin, first := time.Now(), 0.0
	for i := 0; i < 1 || time.Since(begin) < warm; i++ {
		if err := run(ctx); err != nil {
			return nil, err
		}
		if i == 0 {
			if first, err = plan.Loss(ctx); err != nil {
				return nil, err
			}
		}
	}
	x.Timing = bench.Timing{Iters: 1, Sets: 1}
	var host []float64 // what the host took to submit a step
	for range b.c.Samples {
		start := time.Now()
		if err := run(ctx); err != nil {
			return nil, err
		}
		x.Timing.DeviceNS = append(x.Timing.DeviceNS, float64(time.Since(start).Nanoseconds()))
		host = append(host, float64(plan.HostTime().Nanoseconds()))
	}
	last, err := plan.Loss(ctx)
	if err != nil {
		return nil, err
	}
	if last-last != 0 {
		x.Timing, x.Status, x.Reason = bench.Timing{}, bench.StatusFailed, fmt.Sprintf("the loss is %g", last)
		return nil, nil
	}
	median := bench.Summarize(host).Median
	x.Facts = append(facts(float64(b.d.Memory().Peak), first, last), bench.Fact{Name: "host", Key: "host_ns", N: median, Text: bench.FormatTime(median)})
	if !b.c.Stages {
		return nil, nil
	}
	return plan.Stages(ctx)
}

// ask asks the peers for the same steps, with the same weights and data.
func (b *benchmark) ask(ctx context.Context, of *bench.Subject) ([]bench.Result, error) {
	c, s := b.c.Config, b.c.Shape
	ask := bench.PeerCall{Peers: b.c.Peers, Limit: b.c.PeerLimit, Of: of, Write: b.write, Check: b.compare, Request: peer.Request{
		Op: "train", Pass: "step", DType: b.c.DType.String(), Samples: b.c.Samples, WarmupNS: 3e8, Warmup: 1, SampleNS: 1, MaxIters: 1, Sets: 1,
		Params: map[string]any{
			"layers": c.Layers, "heads": c.Heads, "context": s.Context, "lr": benchLR, "weight_decay": optim.Default().WeightDecay, "eps": tnp.NormEps,
		},
	}}
	return ask.Run(ctx)
}

// write writes weights and data as flashvk run model reads them.
func (b *benchmark) write(path string) error {
	s := b.c.Shape
	tensors := []safetensors.Tensor{
		{Name: "x", DType: safetensors.F32, Shape: []int{s.Batch, s.Context + s.Targets, b.c.InputDim}},
		{Name: "y", DType: safetensors.F32, Shape: []int{s.Batch, s.Targets}},
	}
	values := map[string][]float32{"x": b.x, "y": b.y}
	for _, p := range b.c.Params(dtype.Float32) {
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
func (b *benchmark) compare(path string, x *bench.Result) error {
	f, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	read := func(name string, shape ...int) ([]float32, error) {
		t, err := train.Param{Name: name, Shape: shape}.Find(f)
		if err != nil {
			return nil, fmt.Errorf("its output: %w", err)
		}
		return f.Float32s(t)
	}
	var of [3]float64
	for i, name := range []string{"memory", "loss", "last"} {
		v, err := read(name, 1)
		if err != nil {
			return err
		}
		of[i] = float64(v[0])
	}
	x.Facts = facts(1e6*of[0], of[1], of[2])
	off, square := 0.0, 0.0
	for _, p := range b.c.Params(dtype.Float32) {
		g, err := read("grad."+p.Name, p.Shape...)
		if err != nil {
			return err
		}
		for i, v := range b.grads[p.Name] {
			off += (float64(v) - float64(g[i])) * (float64(v) - float64(g[i]))
			square += float64(v) * float64(v)
		}
	}
	return judge(x, b.c.DType, of[1], b.loss, math.Sqrt(off/square))
}

// judge compares a peer's first loss with ours; slope is how far its gradients are. On an H200 PyTorch's are
// off by 1e-4 and 3e-3 in bfloat16, whose roundings differ; both multiply float32 as such.
func judge(x *bench.Result, format dtype.DType, loss, ours, slope float64) error {
	most, steepest := 0.02, 0.05
	if format == dtype.Float32 {
		most, steepest = 1e-4, 1e-3
	}
	x.Check = checked(slope, steepest)
	switch {
	case !(math.Abs(loss-ours) <= most*max(1, math.Abs(ours))):
		return fmt.Errorf("its first loss is %g, ours %g", loss, ours)
	case !(slope <= steepest):
		return fmt.Errorf("its gradients are %.2g of their norm from ours, more than %g", slope, steepest)
	}
	return nil
}

// subject returns the step of a case.
func (c *Case) subject() *bench.Subject {
	const traffic = 24 // of AdamW: a weight and its two moments in float32, read and written
	return bench.NewTimed("train_step", []bench.Key{
		{Name: "shape", Value: c.Name}, {Name: "dtype", Value: c.DType.String()}, {Name: "batch", Value: c.Batch}, {Name: "context", Value: c.Context},
		{Name: "targets", Value: c.Targets}, {Name: "layers", Value: c.Layers}, {Name: "d_model", Value: c.DModel}, {Name: "d_ff", Value: c.DFF},
		{Name: "heads", Value: c.Heads}, {Name: "head_dim", Value: c.HeadDim}, {Name: "components", Value: c.Components},
	}, c.StepFLOPs(c.Shape), traffic*float64(c.NumParams()), bench.Amount{Name: "tokens", Key: "token", Unit: "token", N: float64(c.Tokens())})
}

// way returns what cases of one shape may differ in: variant, checkpoint and recording.
func (c *Case) way() string {
	recording := "once"
	if c.Fresh {
		recording = "fresh"
	}
	return fmt.Sprintf("%s,%v,%s", VariantName(c.PlanOptions), c.Checkpoint, recording)
}

// MemoryWords says what the model of a case and its activations take.
func (c *Case) MemoryWords(m *train.Memory) string {
	return fmt.Sprintf("%s, variant %s, checkpoint %v: %v", c.Name, VariantName(c.PlanOptions), m.Checkpoint, m)
}

// stages returns the table of what a step consists of.
func (c *Case) stages(list []train.Stage, step float64) *sheet.Section {
	s, sum := &sheet.Section{}, 0.0
	for _, g := range list {
		sum += g.NS
	}
	s.Add("stages", "%s, variant %v, checkpoint %v: device time of all blocks, each dispatch by itself; %s in all, a step takes %s: %+.1f %% beside kernels, less than nothing where they overlap",
		c.Name, VariantName(c.PlanOptions), c.Checkpoint, bench.FormatTime(sum), bench.FormatTime(step), 100*(1-sum/step))
	sheet.Fill(s, list,
		sheet.Cell[train.Stage]{Name: "stage", Text: true, Of: func(g train.Stage) string { return g.Name }},
		sheet.Cell[train.Stage]{Name: "dispatches", Of: func(g train.Stage) string { return strconv.Itoa(g.Dispatches) }},
		sheet.Cell[train.Stage]{Name: "time", Of: func(g train.Stage) string { return bench.FormatTime(g.NS) }},
		sheet.Cell[train.Stage]{Name: "share", Of: func(g train.Stage) string { return fmt.Sprintf("%.1f%%", 100*g.NS/sum) }})
	return s
}
