package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/bench/train"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/files"
	"github.com/flashvk/flashvk/pipelines/lm"
	"github.com/flashvk/flashvk/pipelines/tnp"
	pipeline "github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func newRun(a *app) *cobra.Command {
	cmd := kernelCommands("run KERNEL", func(k kernels.Kernel) *cobra.Command { return newRunKernel(a, k) })
	cmd.AddCommand(newRunModel(a), newRunLM(a))
	return cmd
}

// runKernel holds the flags of run NAME.
type runKernel struct {
	kernelFlags
	in, out, impl string
	names         kernels.FileFlags
}

func newRunKernel(a *app, k kernels.Kernel) *cobra.Command {
	r := &runKernel{kernelFlags: newKernelFlags(k), impl: k.Impls[0]}
	return a.command(&cobra.Command{Use: k.Name + " --in FILE --out FILE"}, func(f *pflag.FlagSet) {
		r.set = f
		fileVar(f, &r.in, "in", "safetensors file to read")
		fileVar(f, &r.out, "out", "safetensors file to write; may be the one that is read")
		r.names.Add(f)
		r.flags.Add(f, false)
		implVar(f, &r.impl, k, "path to use")
		deviceVar(f, &r.device)
		r.addTuning(f)
		if r.kernel.Backward {
			f.BoolVar(&r.both, "backward", false, "also compute gradients, for the gradients of outputs in the input file")
		}
	}, func(ctx context.Context) error { return r.run(ctx, a) })
}

func (r *runKernel) run(ctx context.Context, a *app) error {
	if _, err := r.flags.Op(true); err != nil { // finds flags that are wrong with any file
		return usageError{err}
	}
	if err := exclusive(r.set, "tuning", "no-tuning"); err != nil {
		return err
	}
	in, err := safetensors.Open(r.in)
	if err != nil {
		return err
	}
	defer in.Close()
	if r.names.Given() {
		if err := checkReplaced(r.in, r.out); err != nil {
			return err
		}
	}
	source, op, err := r.names.Read(in, r.flags, r.both)
	if err != nil {
		return fmt.Errorf("%s: %w", r.in, err)
	}
	if err := safetensors.CanCreate(r.out); err != nil {
		return err // before the work, not after it
	}
	return a.onDevice(r.device, func(d *vk.Device, env bench.Environment) error {
		announce(a.stderr, env)
		fmt.Fprintf(a.stderr, "flashvk: %s %s\n", r.kernel.Name, op.Describe())
		for _, text := range r.flags.Doubts(op) {
			fmt.Fprintf(a.stderr, "flashvk: WARNING: %s\n", text)
		}
		ops := []bench.Op{op}
		if err := r.use(a.stderr, d.Caps(), ops); err != nil {
			return err
		}
		var plans []kit.Plan
		for _, p := range r.pass().Parts() {
			plan, err := ops[0].Choose(d.Caps(), r.impl, p)
			if err != nil {
				return err
			}
			fmt.Fprintf(a.stderr, "flashvk: %v %s\n", p, plan)
			plans = append(plans, plan)
		}
		defer ops[0].Close()
		return r.compute(ctx, a, d, source, ops[0], plans)
	})
}

// checkReplaced returns an error if the output would replace an input that has more than the
// outputs.
func checkReplaced(in, out string) error {
	if files.Same(in, out) {
		return usagef("--out %s is the input, whose other tensors would be lost", out)
	}
	return nil
}

// A warner is an Op that may have a warning of the result; "" is none.
type warner interface {
	Warning(ctx context.Context) (string, error)
}

// compute reads the inputs, runs the kernels of the plans of passes, and writes the outputs.
func (r *runKernel) compute(ctx context.Context, a *app, d *vk.Device, in *kernels.Source, op bench.Op, plans []kit.Plan) error {
	tensors := map[string]vk.Tensor{}
	defer func() {
		for _, t := range tensors {
			t.Close()
		}
	}()
	pass := r.pass()
	for _, t := range op.Tensors() {
		if !pass.Reads(t.Role) && !pass.Writes(t.Role) {
			continue
		}
		axes := r.flags.Axes(t.Name, len(t.Shape))
		x, err := d.NewTensor(t.Name, t.DType, kernels.Permuted(t.Shape, axes)...)
		if err != nil {
			return err
		}
		if axes != nil {
			x = x.Permute(axes...)
		}
		tensors[t.Name] = x
		if !pass.Reads(t.Role) {
			continue
		}
		if err := upload(ctx, x.Buffer, in, t.Name); err != nil {
			return err
		}
	}
	err := d.Run(ctx, "run "+op.Name(), func(c *vk.Cmd) error {
		for i, p := range pass.Parts() {
			end := c.Scope()
			var workspace *vk.Buffer
			if bytes := plans[i].Workspace(); bytes > 0 {
				workspace = c.Scratch(op.Name(), bytes)
			}
			record, err := op.Bind(d, tensors, workspace, r.impl, p)
			if err != nil {
				return err
			}
			if err := record(c); err != nil {
				return err
			}
			end()
		}
		return nil
	})
	if err != nil {
		return err
	}
	if n, ok := bench.As[warner](op); ok {
		text, err := n.Warning(ctx)
		if err != nil {
			return err
		}
		if text != "" {
			fmt.Fprintf(a.stderr, "flashvk: WARNING: %s\n", text)
		}
	}
	var outputs []bench.FileTensor
	for _, t := range op.Tensors() {
		if pass.Writes(t.Role) {
			x := tensors[t.Name]
			if err := a.warnOfOverflow(ctx, t, x); err != nil {
				return err
			}
			if axes := r.flags.Axes(t.Name, len(t.Shape)); axes != nil {
				x = x.Permute(axes...) // back to the file's order
			}
			outputs = append(outputs, bench.FileTensor{Name: t.Name, Tensor: x})
		}
	}
	return bench.WriteTensors(ctx, r.out, outputs)
}

// warnOfOverflow warns of a gradient in float16 that is not finite.
func (a *app) warnOfOverflow(ctx context.Context, t call.Tensor, x vk.Tensor) error {
	if t.DType != dtype.Float16 || bench.Forward.Writes(t.Role) {
		return nil
	}
	const infinite = 0x7c00 // the exponent of what is not finite
	found := false
	err := bench.InPieces(2*int64(x.NumElements()), func(at int64, piece []byte) error {
		err := x.Buffer.Download(ctx, at, piece)
		for i := 0; i < len(piece) && err == nil; i += 2 {
			found = found || binary.LittleEndian.Uint16(piece[i:])&infinite == infinite
		}
		return err
	})
	if found {
		fmt.Fprintf(a.stderr, "flashvk: WARNING: %s has elements that are not finite: they, or what they are computed from, are beyond float16's 65504; "+
			"multiply the incoming gradients by a loss scale, a power of two below 1, and the results by its inverse\n", t.Name)
	}
	return err
}

// upload copies a tensor of the file to the start of b.
func upload(ctx context.Context, b *vk.Buffer, in *kernels.Source, name string) error {
	t, _ := in.Tensor(name)
	return bench.InPieces(t.Bytes(), func(at int64, piece []byte) error {
		if err := in.ReadAt(t, piece, at); err != nil {
			return err
		}
		return b.Upload(ctx, at, piece)
	})
}

// runModel holds the flags of run model.
type runModel struct {
	set            *pflag.FlagSet
	in, weights    string
	out, device    string
	heads, context int
	dtype          dtype.DType
	lossScale      float64
	checkpoint     pipeline.Checkpoint
	backward       bool
}

func newRunModel(a *app) *cobra.Command {
	r := &runModel{checkpoint: pipeline.Auto}
	return a.command(&cobra.Command{Use: "model --in FILE --out FILE"}, func(f *pflag.FlagSet) {
		r.set = f
		fileVar(f, &r.in, "in", "safetensors file to read")
		f.StringVar(&r.weights, "weights", "", "safetensors file with the weights (default: the file of --in)")
		fileVar(f, &r.out, "out", "safetensors file to write, another one")
		kernels.IntVar(f, &r.heads, "heads", "heads of attention (default what flashvk train wrote of it)")
		kernels.IntVar(f, &r.context, "context", "tokens of a task that are context (default those without an element of y)")
		kernels.DTypeVar(f, &r.dtype, "dtype", "format of activations (default float32)")
		f.Float64Var(&r.lossScale, "loss-scale", 0, "power of two that gradients are multiplied by on their way (default for float16 the targets, up to a power of two, else 1)")
		f.Var(value[pipeline.Checkpoint]{Target: &r.checkpoint, Parse: parseCheckpoint, Kind: "WHAT"}, "checkpoint", "what is computed again in the backward pass: off, selective, blocks, auto (default auto)")
		f.BoolVar(&r.backward, "backward", false, "also compute the gradients")
		deviceVar(f, &r.device)
	}, func(ctx context.Context) error { return r.run(ctx, a) })
}

// A modelBatch is the content of the input file.
type modelBatch struct {
	c    tnp.Config
	s    tnp.Shape
	w    tnp.Weights
	x, y []float32
	// known says whether the file has y; if not, it is zeros.
	known bool
}

// read reads and checks the input file.
func (r *runModel) read() (b modelBatch, err error) {
	in, err := safetensors.Open(r.in)
	if err != nil {
		return b, err
	}
	defer in.Close()
	weights, path := in, cmp.Or(r.weights, r.in)
	if r.weights != "" {
		if weights, err = safetensors.Open(path); err != nil {
			return b, err
		}
		defer weights.Close()
	}
	if b.w, b.c, err = tnp.Load(weights, r.heads); err != nil {
		return b, fmt.Errorf("%s: %w", path, err)
	}
	x, xs, err := train.ReadTensor(in, "x", 3)
	var y []int
	if _, b.known = in.Tensor("y"); err == nil && (b.known || r.backward) {
		y, b.y, err = train.ReadTensor(in, "y", 2)
	}
	if err != nil {
		return b, fmt.Errorf("%s: %w", r.in, err)
	}
	context := r.context
	switch {
	case context == 0 && b.known:
		context = x[1] - y[1]
	case context == 0:
		return b, usagef("run model needs --context N: %s has no y that tells the targets", r.in)
	}
	b.x, b.s = xs, tnp.Shape{Batch: x[0], Context: context, Targets: x[1] - context}
	want := []int{b.s.Batch, b.s.Targets}
	switch {
	case context < 1 || b.s.Targets < 1:
		return b, fmt.Errorf("%s: of %d tokens %d are context: there must be context and targets", r.in, x[1], context)
	case !b.known:
		b.y = make([]float32, b.s.Batch*b.s.Targets)
	case !slices.Equal(y, want):
		return b, fmt.Errorf("%s: tensor \"y\" has shape %v, want %v", r.in, y, want)
	}
	if x[2] != b.c.InputDim {
		return b, fmt.Errorf("%s: tensor \"x\" has shape %v, want %d in the last axis, as embed.weight has", r.in, x, b.c.InputDim)
	}
	return b, b.s.Validate()
}

func (r *runModel) run(ctx context.Context, a *app) error {
	o := pipeline.Options{DType: r.dtype, LossScale: r.lossScale}
	if r.backward {
		o.Pass = pipeline.Gradients
	}
	if err := o.Validate(); err != nil {
		return usageError{err}
	}
	if err := cmp.Or(checkRange(r.set, "context", r.context, 1, math.MaxInt32), checkRange(r.set, "heads", r.heads, 1, math.MaxInt32), checkReplaced(r.in, r.out), checkReplaced(r.weights, r.out)); err != nil {
		return err
	}
	b, err := r.read()
	if err != nil {
		return err
	}
	if o.LossScale == 0 {
		o.LossScale = tnp.DefaultLossScale(o.DType, b.s)
	}
	if err := safetensors.CanCreate(r.out); err != nil {
		return err // before the work, not after it
	}
	return a.onDevice(r.device, func(d *vk.Device, env bench.Environment) error {
		announce(a.stderr, env)
		memory, err := tnp.Measure(d.Caps(), b.c, b.s, o, tnp.PlanOptions{Checkpoint: r.checkpoint})
		if err != nil {
			return err
		}
		announceModel(a.stderr, b.c, b.s, o.DType, memory)
		return r.compute(ctx, d, &b, o, memory.Checkpoint)
	})
}

// compute computes and writes the outputs.
func (r *runModel) compute(ctx context.Context, d *vk.Device, b *modelBatch, o pipeline.Options, checkpoint pipeline.Checkpoint) error {
	model, err := tnp.NewModel(ctx, d, b.c, o)
	if err != nil {
		return err
	}
	defer model.Close()
	if err := model.SetWeights(ctx, b.w); err != nil {
		return err
	}
	plan, err := tnp.NewPlan(ctx, model, b.c, b.s, o.Pass, tnp.PlanOptions{Checkpoint: checkpoint})
	if err != nil {
		return err
	}
	defer plan.Close()
	if err := plan.SetInputs(ctx, b.x, b.y); err != nil {
		return fmt.Errorf("%s: %w", r.in, err)
	}
	if err := plan.Run(ctx); err != nil {
		return err
	}
	var tensors []safetensors.Tensor
	values := map[string][]float32{}
	add := func(name string, x []float32, shape ...int) {
		tensors = append(tensors, safetensors.Tensor{Name: name, DType: safetensors.F32, Shape: shape})
		values[name] = x
	}
	if !r.backward {
		var means, deviations []float32
		mean, deviation, err := plan.Predict(ctx)
		if err != nil {
			return err
		}
		for i := range mean {
			means, deviations = append(means, float32(mean[i])), append(deviations, float32(deviation[i]))
		}
		add("mean", means, b.s.Batch, b.s.Targets)
		add("deviation", deviations, b.s.Batch, b.s.Targets)
	}
	if b.known {
		loss, err := plan.Loss(ctx)
		if err != nil {
			return err
		}
		logP, err := plan.LogP(ctx)
		if err != nil {
			return err
		}
		add("loss", []float32{float32(loss)}, 1)
		add("log_p", logP, b.s.Batch, b.s.Targets)
	}
	if r.backward {
		grads, err := model.Gradients(ctx)
		if err != nil {
			return err
		}
		for _, p := range b.c.Params(dtype.Float32) {
			add("grad."+p.Name, grads[p.Name], p.Shape...)
		}
	}
	return train.WriteTensors(r.out, tensors, values)
}

// runLM holds the flags of run lm.
type runLM struct {
	model, in, out, device string
	backward               bool
	checkpointFlags
}

func newRunLM(a *app) *cobra.Command {
	r := &runLM{}
	return a.command(&cobra.Command{Use: "lm --model DIR --in FILE --out FILE"}, func(f *pflag.FlagSet) {
		fileVar(f, &r.model, "model", "folder of the checkpoint")
		fileVar(f, &r.in, "in", "safetensors file to read")
		fileVar(f, &r.out, "out", "safetensors file to write, another one")
		f.BoolVar(&r.backward, "backward", false, "compute the gradients of the loss, for which the input has labels")
		r.checkpointFlags.add(f)
		deviceVar(f, &r.device)
	}, func(ctx context.Context) error { return r.run(ctx, a) })
}

func (r *runLM) run(ctx context.Context, a *app) error {
	if err := checkReplaced(r.in, r.out); err != nil {
		return err
	}
	flags := r.checkpointFlags
	if r.backward {
		flags.adapter = "" // has gradients of its own
	}
	checkpoint, w, err := flags.open(r.model)
	if err != nil {
		return err
	}
	defer checkpoint.Close()
	c := &checkpoint.Config
	whole, params, o := w, c.Params(), lm.TrainOptions{}
	if r.backward && r.adapter != "" {
		if o.LoRA, err = lm.ReadAdapter(r.adapter, c); err != nil {
			return err
		}
		if whole, err = o.LoRA.Merge(c, w); err != nil {
			return err
		}
		params = o.LoRA.Params(c)
	}
	var b lm.Batch
	if err := b.Read(r.in); err != nil {
		return err
	}
	if err := b.Check(c); err != nil {
		return fmt.Errorf("%s: %w", r.in, err)
	}
	if r.backward && b.Labels == nil {
		return usagef("--backward needs labels in %s", r.in)
	}
	if err := safetensors.CanCreate(r.out); err != nil {
		return err // before the work, not after it
	}
	return a.onDevice(r.device, func(d *vk.Device, env bench.Environment) error {
		announce(a.stderr, env)
		o.DType = r.format(d.Caps(), checkpoint.DType)
		model, err := lm.NewModel(ctx, d, c, whole, o.DType, nil)
		if err != nil {
			return err
		}
		logits, err := lm.Logits(ctx, c, model, b)
		model.Close()
		if err != nil {
			return err
		}
		list := []safetensors.Tensor{{Name: "logits", DType: safetensors.F32, Shape: []int{b.Shape[0], b.Shape[1], c.Vocabulary}}}
		values := map[string][]float32{"logits": logits}
		if b.Labels != nil {
			loss, gradients, err := lm.Gradients(ctx, d, c, w, b, r.backward, o)
			if err != nil {
				return err
			}
			list, values["loss"] = append(list, safetensors.Tensor{Name: "loss", DType: safetensors.F32, Shape: []int{1}}), []float32{float32(loss)}
			for _, p := range params {
				if g, ok := gradients[p.Name]; ok {
					list = append(list, safetensors.Tensor{Name: "grad." + p.Name, DType: safetensors.F32, Shape: p.Shape})
					values["grad."+p.Name] = g
				}
			}
		}
		return train.WriteTensors(r.out, list, values)
	})
}
