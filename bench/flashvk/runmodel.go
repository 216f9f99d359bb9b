package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/bench/train"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

// runModel holds the flags of run model.
type runModel struct {
	in, weights    string
	out, device    string
	heads, context int
	dtype          dtype.DType
	lossScale      float64
	checkpoint     tnp.Checkpoint
	backward       bool
}

func newRunModel(a *app) *cobra.Command {
	r := &runModel{checkpoint: tnp.Auto}
	return a.command(&cobra.Command{
		Use:   "model --in FILE --out FILE",
		Short: "Compute a transformer neural process: its predictions, its loss and all gradients",
		Long: `Computes what a transformer neural process predicts on one batch, its loss, and with
--backward the gradients by all parameters, as flashvk train does in a step.

The file of --weights, which is one of flashvk train --save, --best or --weights, or else
the input file holds the tensors of a PyTorch state dict, in F32, F16 or BF16,
    embed.weight                               (d_model, input_dim)
    blocks.N.norm1.weight, blocks.N.norm2.weight, norm.weight  (d_model)
    blocks.N.qkv.weight                        (3*heads*headdim, d_model): q, k, v
    blocks.N.out.weight                        (d_model, heads*headdim)
    blocks.N.up.weight, blocks.N.down.weight   (d_ff, d_model), (d_model, d_ff)
    heads.up, heads.down                       (components, d_model, d_ff), (components, d_ff, 3)
from which sizes follow. The input file holds the batch, as that of flashvk train --data,
    x  (batch, context+targets, input_dim): tokens, (x, y, 1) of each point of the
       context, then (x, 0, -1) of each target; x may have several elements
    y  (batch, targets): without it there are predictions alone
The output file gets, in F32,
    mean, deviation  (batch, targets): of what is predicted, without --backward
    loss             (1)
    log_p            (batch, targets)
and with --backward, for each parameter,
    grad.NAME, of its shape`,
		Example: `  flashvk run model --weights model.safetensors --in mine.safetensors --out predicted.safetensors
  flashvk run model --in in.safetensors --out loss.safetensors --heads 8 --context 64 --dtype float32 --backward`,
	}, func(f *pflag.FlagSet) {
		fileVar(f, &r.in, "in", "safetensors file to read")
		f.StringVar(&r.weights, "weights", "", "safetensors file with the weights (default that of --in)")
		fileVar(f, &r.out, "out", "safetensors file to write, another one")
		kernels.IntVar(f, &r.heads, "heads", "heads of attention (default what flashvk train wrote of it)")
		kernels.IntVar(f, &r.context, "context", "tokens of a task that are context (default those without an element of y)")
		kernels.DTypeVar(f, &r.dtype, "dtype", "format of activations (default float32)")
		f.Float64Var(&r.lossScale, "loss-scale", 0, "power of two that gradients are multiplied by on their way (default for float16 the targets, up to a power of two, else 1)")
		f.Var(value[tnp.Checkpoint]{Target: &r.checkpoint, Parse: parseCheckpoint, Kind: "WHAT"}, "checkpoint", "what is computed again in the backward pass: off, selective, blocks, auto (default auto)")
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
	tensor := func(name string, rank int) (shape []int, values []float32) {
		t, ok := in.Tensor(name)
		switch {
		case err != nil:
		case !ok:
			err = fmt.Errorf("%s: tensor %q, of the batch, is missing", r.in, name)
		case len(t.Shape) != rank:
			err = fmt.Errorf("%s: tensor %q has shape %v, want %d axes", r.in, name, t.Shape, rank)
		default:
			if values, err = in.Float32s(t); err != nil {
				err = fmt.Errorf("%s: %w", r.in, err)
			}
			return t.Shape, values
		}
		return make([]int, rank), nil
	}
	xShape, x := tensor("x", 3)
	var yShape []int
	if _, b.known = in.Tensor("y"); b.known || r.backward {
		yShape, b.y = tensor("y", 2)
	}
	b.x = x
	if err != nil {
		return b, err
	}
	context := r.context
	if context == 0 && b.known {
		context = xShape[1] - yShape[1]
	}
	b.s = tnp.Shape{Batch: xShape[0], Context: context, Targets: xShape[1] - context}
	switch {
	case context == 0 && !b.known:
		return b, usagef("run model needs --context N: %s has no y that tells the targets", r.in)
	case context < 1:
		return b, fmt.Errorf("%s: tensor \"x\" has shape %v, \"y\" %v: there is no context", r.in, xShape, yShape)
	case b.s.Targets < 1:
		return b, fmt.Errorf("%s: tensor \"x\" has shape %v: with --context %d there are no targets", r.in, xShape, context)
	}
	if !b.known {
		b.y, yShape = make([]float32, b.s.Batch*b.s.Targets), []int{b.s.Batch, b.s.Targets}
	}
	if want := []int{b.s.Batch, b.s.Targets}; !slices.Equal(yShape, want) {
		return b, fmt.Errorf("%s: tensor \"y\" has shape %v, want %v", r.in, yShape, want)
	}
	if xShape[2] != b.c.InputDim {
		return b, fmt.Errorf("%s: tensor \"x\" has shape %v, want %d in the last axis, as embed.weight has", r.in, xShape, b.c.InputDim)
	}
	return b, b.s.Validate()
}

func (r *runModel) run(ctx context.Context, a *app) error {
	switch {
	case r.context < 0:
		return usagef("run model: --context %d is negative", r.context)
	case r.heads < 0:
		return usagef("run model: --heads %d is negative", r.heads)
	}
	o := tnp.ModelOptions{DType: r.dtype, LossScale: r.lossScale}
	if r.backward {
		o.Pass = tnp.Gradients
	}
	if err := o.Validate(); err != nil {
		return usageError{err}
	}
	if err := cmp.Or(checkReplaced(r.in, r.out), checkReplaced(r.weights, r.out)); err != nil {
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
func (r *runModel) compute(ctx context.Context, d *vk.Device, b *modelBatch, o tnp.ModelOptions, checkpoint tnp.Checkpoint) error {
	model, err := tnp.NewModel(ctx, d, b.c, o)
	if err != nil {
		return err
	}
	defer model.Close()
	if err := model.SetWeights(ctx, b.w); err != nil {
		return err
	}
	plan, err := model.NewPlan(ctx, b.s, o.Pass, tnp.PlanOptions{Checkpoint: checkpoint})
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
		mean, deviation, err := plan.Predict(ctx)
		if err != nil {
			return err
		}
		add("mean", narrow(mean), b.s.Batch, b.s.Targets)
		add("deviation", narrow(deviation), b.s.Batch, b.s.Targets)
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
		for _, p := range b.c.Params() {
			add("grad."+p.Name, grads[p.Name], p.Shape...)
		}
	}
	return train.WriteTensors(r.out, tensors, values)
}

// narrow rounds to float32.
func narrow(x []float64) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = float32(v)
	}
	return y
}
