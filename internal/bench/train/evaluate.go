package train

import (
	"context"
	"fmt"
	"math"

	"github.com/flashvk/flashvk/internal/bench/chart"
	"github.com/flashvk/flashvk/internal/files"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/pipelines/tnp/gp"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

// unseen is the first step of the data of evaluations, beyond those of every training.
const unseen = 1 << 32

// ownContext is the largest context for which the process's own loss is computed, which takes its
// cube.
const ownContext = 2048

// An Evaluation is how well a model predicts.
type Evaluation struct {
	Targets int     // all of them
	Loss    float64 // mean of -log p
	Own     float64 // of one who knows the process; NaN if the context is too large
	Within1 float64 // the part of the targets within one deviation of the prediction
	Within2 float64
}

// Evaluate computes the losses of a file's weights on o.Batches batches that no training has seen,
// or on those of a file of tasks. Heads is as in tnp.Load.
// It draws one task if picture is not "".
func Evaluate(ctx context.Context, d *vk.Device, file string, heads int, o *Options, picture string) (*Evaluation, error) {
	f, err := safetensors.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	w, c, err := tnp.Load(f, heads)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	switch {
	case c.InputDim != 3 && o.tasks == nil:
		return nil, fmt.Errorf("%s: tokens have %d elements, want 3: tasks are of one x", file, c.InputDim)
	case o.tasks != nil && c.InputDim != o.InputDim:
		return nil, fmt.Errorf("%s: tokens have %d elements, those of the tasks %d", file, c.InputDim, o.InputDim)
	case o.tasks != nil && picture != "":
		return nil, errTasks
	}
	for _, ending := range endings {
		if picture != "" && files.Same(picture+ending, file) {
			return nil, fmt.Errorf("train: picture and evaluate are the same file, %s", file)
		}
	}
	if err := canDraw(picture); err != nil {
		return nil, err
	}
	model, err := tnp.NewModel(ctx, d, c, tnp.ModelOptions{DType: o.DType})
	if err != nil {
		return nil, err
	}
	defer model.Close()
	if err := model.SetWeights(ctx, w); err != nil {
		return nil, err
	}
	e, err := evaluate(ctx, model, o, o.Batches)
	if err != nil || picture == "" {
		return e, err
	}
	return e, draw(ctx, model, o, picture)
}

// evaluate computes the losses.
func evaluate(ctx context.Context, model *tnp.Model, o *Options, batches int) (*Evaluation, error) {
	plan, err := model.NewPlan(ctx, o.Shape, tnp.Loss, tnp.PlanOptions{})
	if err != nil {
		return nil, err
	}
	defer plan.Close()
	e := &Evaluation{}
	for i := range batches {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		b, own, err := o.unseen(i)
		if err != nil {
			return nil, err
		}
		y := b.y
		mean, deviation, loss, err := predict(ctx, plan, b)
		if err != nil {
			return nil, err
		}
		e.Loss, e.Own, e.Targets = e.Loss+loss/float64(batches), e.Own+own/float64(batches), e.Targets+len(y)
		for j, v := range y {
			off := math.Abs(float64(v)-mean[j]) / deviation[j]
			if off <= 1 {
				e.Within1 += 1 / float64(len(y)*batches)
			}
			if off <= 2 {
				e.Within2 += 1 / float64(len(y)*batches)
			}
		}
	}
	return e, nil
}

// unseen returns batch i of an evaluation, and the loss of one who knows the process, NaN if that
// is not known.
func (o *Options) unseen(i int) (b batch, own float64, err error) {
	if o.tasks != nil {
		return o.data(uint64(i)), math.NaN(), nil
	}
	tasks := o.Data.Batch(o.Shape, o.Seed, unseen+uint64(i))
	b.x, b.y = gp.Tokens(tasks)
	if o.Context > ownContext {
		return b, math.NaN(), nil
	}
	own, err = gp.NLL(tasks)
	return b, own, err
}

// predict runs a plan on tasks.
func predict(ctx context.Context, plan *tnp.Plan, b batch) (mean, deviation []float64, loss float64, err error) {
	if err := plan.SetInputs(ctx, b.x, b.y); err != nil {
		return nil, nil, 0, err
	}
	if err := plan.Run(ctx); err != nil {
		return nil, nil, 0, err
	}
	if loss, err = plan.Loss(ctx); err != nil {
		return nil, nil, 0, err
	}
	mean, deviation, err = plan.Predict(ctx)
	return mean, deviation, loss, err
}

// draw draws what the model makes of the context of a task, and the task.
func draw(ctx context.Context, model *tnp.Model, o *Options, name string) error {
	const points = 200
	s := tnp.Shape{Batch: 1, Context: min(o.Context, 500), Targets: points}
	task := o.Data.Curve(s.Context, s.Targets, o.Seed, unseen, 0)
	plan, err := model.NewPlan(ctx, s, tnp.Loss, tnp.PlanOptions{})
	if err != nil {
		return err
	}
	defer plan.Close()
	tokens, y := gp.Tokens([]gp.Task{task})
	mean, deviation, _, err := predict(ctx, plan, batch{tokens, y})
	if err != nil {
		return err
	}
	own, _, err := task.Predict(task.X[s.Context:])
	if err != nil {
		return err
	}
	x := task.X[s.Context:]
	low, high := make([]float64, points), make([]float64, points)
	for i := range x {
		low[i], high[i] = mean[i]-2*deviation[i], mean[i]+2*deviation[i]
	}
	c := chart.Chart{
		Title: "What a neural process makes of some points of a function",
		Subtitle: fmt.Sprintf("%v; a task of kernel %v, length scale %.2f, noise %.2f; the process's mean is that of one who knows these",
			model.Config(), task.Kernel, task.LengthScale, task.Noise),
		X: "x", Y: "y", Plain: true,
		Series: []chart.Series{
			{Name: "predicted", X: x, Y: mean},
			{Name: "function", X: x, Y: task.Y[s.Context:]},
			{Name: "process's mean", X: x, Y: own},
		},
		Bands: []chart.Band{{Name: "2 deviations", X: x, Low: low, High: high}},
		Dots:  []chart.Series{{Name: "context", X: task.X[:s.Context], Y: task.Y[:s.Context]}},
	}
	return write(&c, name)
}
