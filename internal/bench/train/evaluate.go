package train

import (
	"context"
	"fmt"
	"math"
	"path/filepath"

	"github.com/flashvk/flashvk/internal/bench/chart"
	"github.com/flashvk/flashvk/internal/files"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/pipelines/tnp/gp"
	"github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

// unseen is the first step of the data of evaluations, beyond the steps of every training.
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
// or on the batches of a file of tasks, and draws o.Picture. Heads is as in tnp.Load.
func Evaluate(ctx context.Context, d *vk.Device, file string, heads int, o *Options) (*Evaluation, error) {
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
		return nil, fmt.Errorf("%s: tokens have %d elements, but the tokens of the tasks have %d", file, c.InputDim, o.InputDim)
	}
	if o.Picture != "" && files.Same(drawingFile(o.Picture), file) {
		return nil, fmt.Errorf("train: picture and evaluate are the same file, %s", file)
	}
	if err := canDraw(o.Picture); err != nil {
		return nil, err
	}
	model, err := tnp.NewModel(ctx, d, c, train.Options{DType: o.DType})
	if err != nil {
		return nil, err
	}
	defer model.Close()
	if err := model.SetWeights(ctx, w); err != nil {
		return nil, err
	}
	v := &evaluator{model: model, c: c, o: o}
	defer v.close()
	if err := v.open(ctx); err != nil {
		return nil, err
	}
	e, err := v.evaluate(ctx)
	if err != nil {
		return nil, err
	}
	return e, draw(ctx, model, c, o)
}

// An evaluator computes the losses of a model on batches that it is not trained on.
type evaluator struct {
	model *train.Model
	c     tnp.Config
	o     *Options
	plan  *tnp.Plan
	made  []batch // by the first evaluation
	own   float64 // loss of one who knows the process, of those
}

// open makes the plan; close frees it.
func (v *evaluator) open(ctx context.Context) (err error) {
	v.plan, err = tnp.NewPlan(ctx, v.model, v.c, v.o.Shape, train.Forward, tnp.PlanOptions{})
	return err
}

func (v *evaluator) close() { v.plan.Close() }

// evaluate computes the losses.
func (v *evaluator) evaluate(ctx context.Context) (*Evaluation, error) {
	batches := v.o.Batches
	e := &Evaluation{}
	for i := range batches {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if i == len(v.made) {
			b, own := v.o.unseen(i)
			v.made, v.own = append(v.made, b), v.own+own/float64(batches)
		}
		y := v.made[i].y
		mean, deviation, loss, err := predict(ctx, v.plan, v.made[i])
		if err != nil {
			return nil, err
		}
		e.Loss, e.Targets = e.Loss+loss/float64(batches), e.Targets+len(y)
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
	e.Own = v.own
	return e, nil
}

// heldOut returns the loss of the evaluation after done steps, and keeps the weights if that loss
// is the lowest so far. The loss is NaN if no evaluation comes there.
func (t *trainer) heldOut(ctx context.Context, done int) (loss float64, err error) {
	if t.evaluator.plan == nil || done%t.o.evaluationSteps(t.o.Batches) != 0 && done < t.o.Steps {
		return math.NaN(), nil
	}
	e, err := t.evaluator.evaluate(ctx)
	if err != nil {
		return math.NaN(), err
	}
	t.result.Evaluation = e
	if t.o.Best == "" || !(e.Loss < t.result.Best) {
		return e.Loss, nil
	}
	t.result.Best = e.Loss
	return e.Loss, t.writeWeights(ctx, t.o.Best)
}

// unseen returns batch i of an evaluation, and the loss of one who knows the process, NaN if that
// is not known.
func (o *Options) unseen(i int) (b batch, own float64) {
	if o.heldOut != nil {
		return o.heldOut.batch(uint64(i), o.Batch), math.NaN()
	}
	tasks := gp.Batch(o.Shape, o.Seed, unseen+uint64(i))
	b.x, b.y = gp.Tokens(tasks)
	if o.Context > ownContext {
		return b, math.NaN()
	}
	return b, gp.NLL(tasks)
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

// draw draws what the model makes of the context of a task, and the task, as o.Picture.
func draw(ctx context.Context, model *train.Model, config tnp.Config, o *Options) error {
	if o.Picture == "" {
		return nil
	}
	const points = 200
	c := chart.Chart{Title: "What a neural process makes of some points of a function", X: "x", Y: "y", Plain: true}
	var task gp.Task
	if o.heldOut == nil {
		task = gp.Curve(min(o.Context, 500), points, o.Seed, unseen, 0)
	} else {
		var targets chart.Series
		task, targets = o.heldOut.curve(points)
		c.Series = append(c.Series, targets)
		c.Subtitle = fmt.Sprintf("%v; a task of %s", config, filepath.Base(o.heldOut.path))
	}
	plan, err := tnp.NewPlan(ctx, model, config, tnp.Shape{Batch: 1, Context: task.Context, Targets: points}, train.Forward, tnp.PlanOptions{})
	if err != nil {
		return err
	}
	defer plan.Close()
	tokens, y := gp.Tokens([]gp.Task{task})
	mean, deviation, _, err := predict(ctx, plan, batch{tokens, y})
	if err != nil {
		return err
	}
	x := task.X[task.Context:]
	low, high := make([]float64, points), make([]float64, points)
	for i := range x {
		low[i], high[i] = mean[i]-2*deviation[i], mean[i]+2*deviation[i]
	}
	c.Series = append(c.Series, chart.Series{Name: "context", Dots: true, X: task.X[:task.Context], Y: task.Y[:task.Context]},
		chart.Series{Name: "predicted ± 2 deviations", X: x, Y: mean, Low: low, High: high})
	if o.heldOut == nil {
		own, _ := task.Predict(x)
		c.Series = append(c.Series,
			chart.Series{Name: "function", Peer: true, X: x, Y: task.Y[task.Context:]},
			chart.Series{Name: "process's mean", Peer: true, X: x, Y: own})
		c.Subtitle = fmt.Sprintf("%v; a task of kernel %v, length scale %.2f, noise %.2f; the process's mean is the prediction of one who knows these",
			config, task.Kernel, task.LengthScale, task.Noise)
	}
	return write(&c, o.Picture)
}
