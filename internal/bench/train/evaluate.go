package train

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"path/filepath"

	"github.com/flashvk/flashvk/internal/bench/chart"
	"github.com/flashvk/flashvk/internal/files"
	"github.com/flashvk/flashvk/internal/guard"
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
	w, c, err := readWeights(file, heads)
	if err != nil {
		return nil, err
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
	if err := v.open(ctx); err != nil {
		return nil, err
	}
	defer v.plan.Close()
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

// open makes the plan.
func (v *evaluator) open(ctx context.Context) (err error) {
	v.plan, err = tnp.NewPlan(ctx, v.model, v.c, v.o.Shape, train.Forward, tnp.PlanOptions{})
	return err
}

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

// tasks holds the tasks of a file: x is (n, context+targets, input_dim), of tokens as package tnp
// has them, y (n, targets).
type tasks struct {
	path string
	n    int
	x, y []float32
}

// batch returns size tasks in the order of the file, where the first task follows the last; batch i
// begins where batch i-1 ends.
func (t *tasks) batch(i uint64, size int) batch {
	var b batch
	x, y := len(t.x)/t.n, len(t.y)/t.n // of a task
	for j := range uint64(size) {
		k := int((i*uint64(size) + j) % uint64(t.n))
		b.x, b.y = append(b.x, t.x[k*x:(k+1)*x]...), append(b.y, t.y[k*y:(k+1)*y]...)
	}
	return b
}

// curve returns the context of the first task, followed by a number of evenly spaced points of one
// x, and the targets of the file.
func (t *tasks) curve(points int) (c gp.Task, targets chart.Series) {
	tokens, y := t.x[:len(t.x)/t.n], t.y[:len(t.y)/t.n]
	targets.Name, targets.Dots = "targets", true
	c.Context = len(tokens)/3 - len(y)
	low, high := tokens[0], tokens[0]
	for i := 0; i < len(tokens); i += 3 {
		x := tokens[i]
		low, high = min(low, x), max(high, x)
		if i < 3*c.Context {
			c.X, c.Y = append(c.X, float64(x)), append(c.Y, float64(tokens[i+1]))
		} else {
			targets.X = append(targets.X, float64(x))
		}
	}
	for _, v := range y {
		targets.Y = append(targets.Y, float64(v))
	}
	for i := range points {
		x := float64(low) + float64(high-low)*float64(i)/float64(points-1)
		c.X, c.Y = append(c.X, x), append(c.Y, 0)
	}
	return c, targets
}

// ReadTasks reads a file of tasks instead of drawing them,
//
//	x  (tasks, context+targets, input_dim)  tokens, the context's tokens first
//	y  (tasks, targets)
//
// in F32, F16 or BF16, and takes from it the points of a task and the elements of a token. The last
// o.HeldOut tasks are for evaluations alone.
func (o *Options) ReadTasks(path string) error {
	f, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	t := &tasks{path: path}
	x, xs, err := ReadTensor(f, "x", 3)
	y, ys, errY := ReadTensor(f, "y", 2)
	if err = cmp.Or(err, errY); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for name, values := range map[string][]float32{"x": xs, "y": ys} {
		if j := train.NotFinite(values); j >= 0 { // before the first step, not after hours
			at := guard.View{Shape: map[string][]int{"x": x, "y": y}[name]}
			return fmt.Errorf("%s: %s%s is %g: data must be finite", path, name, at.Index(j), values[j])
		}
	}
	switch {
	case x[0] == 0:
		return fmt.Errorf("%s: there is no task", path)
	case x[0] <= o.HeldOut:
		return fmt.Errorf("%s: of %d tasks none is left where held_out=%d", path, x[0], o.HeldOut)
	case x[0] != y[0]:
		return fmt.Errorf("%s: x has %d tasks, y %d", path, x[0], y[0])
	case y[1] < 1 || x[1] <= y[1]:
		return fmt.Errorf("%s: tasks of %d tokens, %d of them targets: there must be context and targets", path, x[1], y[1])
	}
	t.x, t.y, t.n, o.Context, o.Targets = xs, ys, x[0], x[1]-y[1], y[1]
	o.tasks, o.heldOut, o.InputDim = t, t, x[2]
	if n := t.n - o.HeldOut; o.HeldOut > 0 {
		x, y := len(t.x)/t.n*n, len(t.y)/t.n*n
		o.heldOut = &tasks{path: path, n: o.HeldOut, x: t.x[x:], y: t.y[y:]}
		t.n, t.x, t.y = n, t.x[:x], t.y[:y]
	}
	return nil
}

// ReadTensor reads a tensor of a file of tasks.
func ReadTensor(f *safetensors.File, name string, rank int) (shape []int, values []float32, err error) {
	x, ok := f.Tensor(name)
	switch {
	case !ok:
		return nil, nil, fmt.Errorf("tensor %q is missing", name)
	case len(x.Shape) != rank:
		return nil, nil, fmt.Errorf("tensor %q has shape %v, want %d axes", name, x.Shape, rank)
	}
	values, err = f.Float32s(x)
	return x.Shape, values, err
}

// data returns batch i of a training.
func (o *Options) data(i uint64) batch {
	if o.tasks != nil {
		return o.tasks.batch(i, o.Batch)
	}
	x, y := gp.Tokens(gp.Batch(o.Shape, o.Seed, i))
	return batch{x, y}
}

// checkPaths returns an error if a file would be written over one that is read, or written too.
// What continues a training may replace the file that it began with.
func (o *Options) checkPaths() error {
	written := []file{{"save", o.Save}, {"weights", o.Weights}, {"best", o.Best}, {"csv", o.CSV}, {"curve", drawingFile(o.Curve)}, {"picture", drawingFile(o.Picture)}}
	read := append(o.besides(), file{"start", o.Start}, file{"load", o.Load})
	if o.tasks != nil {
		read = append(read, file{"data", o.tasks.path})
	}
	return distinct(written, read, func(a, b file) bool {
		return a.name == "save" && (b.name == "load" || b.name == "start") || a.name == "weights" && b.name == "start"
	})
}

// A file is what an option names.
type file struct{ name, path string }

// distinct returns an error if a file would be written over one that is read, unless it replaces that, or
// written too.
func distinct(written, read []file, replaces func(a, b file) bool) error {
	for i, a := range written {
		for _, b := range append(written[i+1:len(written):len(written)], read...) {
			if !replaces(a, b) && files.Same(a.path, b.path) {
				return fmt.Errorf("train: %s and %s are the same file, %s", a.name, b.name, a.path)
			}
		}
	}
	return nil
}
