package train

import (
	"cmp"
	"fmt"

	"github.com/flashvk/flashvk/internal/bench/chart"
	"github.com/flashvk/flashvk/internal/files"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/pipelines/tnp/gp"
	"github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/safetensors"
)

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
