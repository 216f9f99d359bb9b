// Package train is what flashvk train does: it trains a model of package tnp on tasks of package
// gp, writes weights and state, and measures and draws the predictions.
package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/enum"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

// Options say what is trained, how, and what is written.
type Options struct {
	tnp.Config
	tnp.Shape
	Schedule
	tnp.PlanOptions
	DType     dtype.DType
	LossScale float64 // 0 is the default of the format and the shape

	Start      string // file of weights to start from; "" draws them
	Load, Save string // of states
	Weights    string // file of weights alone
	Best       string // file of the weights with the lowest loss of the evaluations
	Picture    string // beginning of the names of a drawing of a prediction
	Batches    int    // of an evaluation; 0: none
	HeldOut    int    // tasks of ReadTasks that are evaluated, and not trained on

	tasks, heldOut *tasks // of ReadTasks; nil: Data draws them
}

// ParseVariant reads NAME or NAME-QUANT, as VariantName writes it: fused, fused-int8.
func ParseVariant(text string) (o tnp.PlanOptions, err error) {
	name, quant, quantised := strings.Cut(text, "-")
	if o.Variant, err = tnp.ParseVariant(name); err == nil && quantised {
		o.Quant, err = ParseQuant(quant)
	}
	return o, err
}

// ParseQuant reads int8 or e4m3.
func ParseQuant(text string) (dtype.Quant, error) {
	for _, q := range []dtype.Quant{dtype.QuantInt8, dtype.QuantE4M3} {
		if q.String() == text {
			return q, nil
		}
	}
	return 0, enum.NotOneOf{"int8", "e4m3"}
}

// VariantName returns NAME or NAME-QUANT.
func VariantName(o tnp.PlanOptions) string {
	if o.Quant == dtype.NoQuant {
		return o.Variant.String()
	}
	return fmt.Sprintf("%v-%v", o.Variant, o.Quant)
}

// Validate returns an error that names the first option that breaks a rule.
func (o *Options) Validate() error {
	if err := cmp.Or(o.Config.Validate(), o.Shape.Validate(), o.Schedule.validate()); err != nil {
		return err
	}
	switch {
	case o.InputDim != 3 && o.tasks == nil:
		return fmt.Errorf("train: input_dim=%d is not 3: tasks are of one x", o.InputDim)
	case o.SaveEvery > 0 && o.Save == "":
		return errors.New("train: save_every is given, but no file to save to")
	case o.HeldOut%o.Batch != 0:
		return fmt.Errorf("train: held_out=%d is not a multiple of batch=%d", o.HeldOut, o.Batch)
	case o.Picture != "" && o.InputDim != 3:
		return fmt.Errorf("train: a picture is of tasks of one x, whose tokens have 3 elements, not %d", o.InputDim)
	case o.Start != "" && o.Load != "":
		return errors.New("train: load continues a training, start begins one: there may be one of them")
	}
	return cmp.Or(o.checkPaths(), o.model().Validate())
}

// model returns what the model is made with. Steps whose gradients overflow in float16 are
// skipped.
func (o *Options) model() train.Options {
	m := train.Options{DType: o.DType, Pass: train.Train, Optim: optim.Default(), LossScale: o.LossScale, Accumulate: o.Accumulate}
	if m.LossScale == 0 {
		m.LossScale = tnp.DefaultLossScale(o.DType, o.Shape)
	}
	m.Optim.WeightDecay, m.Optim.MaxNorm = o.WeightDecay, o.Clip
	if o.Clip == 0 && o.DType == dtype.Float16 {
		m.Optim.MaxNorm = math.Inf(1)
	}
	return m
}

// CheckFits returns what tnp.CheckFits does.
func (o *Options) CheckFits(d *vk.Device) (*train.Memory, error) {
	return tnp.CheckFits(d, o.Config, o.Shape, o.model(), o.PlanOptions)
}

// Run trains, and calls each after each step and its evaluation. If ctx ends, or anything fails, it
// writes what it would have after the last whole step, and returns the error.
func Run(ctx context.Context, d *vk.Device, o *Options, each func(Row)) (_ *Result, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if err := errors.Join(o.canWrite(o.Save, o.Weights, o.Best), canDraw(o.Picture)); err != nil {
		return nil, err
	}
	if _, err := o.CheckFits(d); err != nil {
		return nil, err
	}
	work := context.WithoutCancel(ctx)
	model, err := tnp.NewModel(work, d, o.Config, o.model())
	if err != nil {
		return nil, err
	}
	defer model.Close()
	t := &trainer{o: o, model: model, result: &Result{Best: math.Inf(1)}, evaluator: &evaluator{model: model, c: o.Config, o: o}}
	c := &course{Schedule: &o.Schedule, stepper: t, state: o.Save, result: t.result}
	var w tnp.Weights
	if o.Load != "" {
		err = c.resume(work, o.Load)
	} else if w, err = o.weights(); err == nil {
		err = model.SetWeights(work, w)
	}
	if err != nil {
		return nil, err
	}
	if t.plan, err = tnp.NewPlan(work, model, o.Config, o.Shape, train.Train, o.PlanOptions); err != nil {
		return nil, err
	}
	defer t.plan.Close()
	if o.Batches > 0 {
		// Without memory for both plans, there is an evaluation after the training alone.
		if err := t.evaluator.open(work); err != nil && o.Best != "" {
			return nil, err
		}
		defer func() { t.evaluator.plan.Close() }() // also of a plan that is made after the training
	}
	t.next = t.result.First * o.perStep()
	if err := t.upload(work); err != nil {
		return nil, err
	}
	end := func(int) (err error) {
		t.result.Skipped, err = model.Skipped(work)
		return errors.Join(t.writeWeights(work, o.Weights), err)
	}
	of := fmt.Sprintf("%v; %v; %v", o.Config, o.Shape, o.DType)
	if err := c.run(ctx, work, o.Tokens(), each, end, "Loss of a neural process on tasks of Gaussian processes", of); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return t.result, ctx.Err()
	}
	t.plan.Close() // its memory is free for what follows
	if o.Batches > 0 && t.evaluator.plan == nil {
		if err := t.evaluator.open(ctx); err != nil {
			return nil, err
		}
		if t.result.Evaluation, err = t.evaluator.evaluate(ctx); err != nil {
			return nil, err
		}
	}
	t.evaluator.plan.Close()
	return t.result, draw(ctx, model, o.Config, o)
}

// A trainer is a training of a neural process on its way.
type trainer struct {
	o         *Options
	model     *train.Model
	plan      *tnp.Plan
	result    *Result
	next      int        // batch to upload: the host makes it while the device works on the one before
	evaluator *evaluator // without a plan: none while training
}

// restore is of stepper.
func (t *trainer) restore(ctx context.Context, f *safetensors.File) (err error) {
	if best := f.Metadata["best"]; best != "" {
		if t.result.Best, err = strconv.ParseFloat(best, 64); err != nil {
			return fmt.Errorf("metadata best=%q is not a number", best)
		}
	}
	return t.model.LoadState(ctx, f)
}

// weights returns those that a training starts from.
func (o *Options) weights() (tnp.Weights, error) {
	if o.Start == "" {
		return tnp.Init(o.Config, o.Seed)
	}
	w, _, err := readWeights(o.Start, o.Heads)
	return w, err
}

// readWeights reads the weights of a file. Heads is as in tnp.Load.
func readWeights(path string, heads int) (w tnp.Weights, c tnp.Config, err error) {
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, c, err
	}
	defer f.Close()
	if w, c, err = tnp.Load(f, heads); err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return w, c, err
}

// A batch is the data of a Run.
type batch struct{ x, y []float32 }

// writeWeights writes a file of weights, if it has a name.
func (t *trainer) writeWeights(ctx context.Context, path string) error {
	if path == "" {
		return nil
	}
	w, err := t.model.Weights(ctx)
	if err != nil {
		return err
	}
	return tnp.Save(path, w, t.o.Config)
}

// step is of stepper. The loss is the mean of the losses of the batches.
func (t *trainer) step(ctx, work context.Context, lr float64) (mean float64, err error) {
	if err := t.model.SetLR(work, lr); err != nil {
		return 0, err
	}
	for range t.o.perStep() {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		loss, err := t.run(work)
		if err != nil {
			return 0, err
		}
		mean += loss / float64(t.o.perStep())
	}
	return mean, nil
}

// upload makes the next batch, if the training has one, and queues its upload behind the batch on its way.
func (t *trainer) upload(ctx context.Context) error {
	if t.next == t.o.Steps*t.o.perStep() {
		return nil
	}
	b := t.o.data(uint64(t.next))
	t.next++
	return t.plan.SetInputs(ctx, b.x, b.y)
}

// run runs the batch that was uploaded, uploads the next one beside it, and returns its loss.
func (t *trainer) run(ctx context.Context) (float64, error) {
	if err := t.plan.Start(ctx); err != nil {
		return 0, err
	}
	if err := t.upload(ctx); err != nil {
		return 0, err
	}
	loss, err := t.plan.Loss(ctx)
	if err != nil || loss-loss == 0 {
		return loss, err
	}
	name, err := t.model.NotFinite(ctx)
	if err != nil {
		return loss, err
	}
	if name == "" {
		name = "no gradient and no weight"
	}
	return loss, fmt.Errorf("the loss is %g; the first tensor that is not finite: %s", loss, name)
}

// save is of stepper.
func (t *trainer) save(ctx context.Context, path string, metadata map[string]string) error {
	metadata["seed"] = strconv.FormatUint(t.o.Seed, 10)
	if t.result.Best < math.Inf(1) {
		metadata["best"] = strconv.FormatFloat(t.result.Best, 'g', -1, 64)
	}
	return t.model.SaveState(ctx, path, metadata)
}

// ReadFile takes the sizes of the model from the file that is to be loaded, or started from, and
// the seed, if seed is set. Heads is the number of heads of attention if the file does not name
// one.
func (o *Options) ReadFile(seed bool, heads int) error {
	path, dim := cmp.Or(o.Load, o.Start), o.InputDim
	f, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if o.Load != "" && f.Metadata["batches"] == "" {
		return fmt.Errorf("%s has weights, but not the state of a training, which only a file of --save has; --start begins with weights", path)
	}
	if o.Config, err = tnp.ReadConfig(f, heads); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if o.tasks != nil && o.InputDim != dim {
		return fmt.Errorf("%s: tokens have %d elements, but the tokens of the tasks have %d", path, o.InputDim, dim)
	}
	if seed {
		if o.Seed, err = strconv.ParseUint(f.Metadata["seed"], 10, 64); err != nil {
			return fmt.Errorf("%s: metadata seed=%q is not a number", o.Load, f.Metadata["seed"])
		}
	}
	return nil
}
