package train

import (
	"errors"
	"fmt"

	"github.com/flashvk/flashvk/pipelines/tnp/gp"
	"github.com/flashvk/flashvk/safetensors"
)

// tasks are those of a file: x is (n, context+targets, input_dim), of tokens as package tnp has
// them, y (n, targets).
type tasks struct {
	path string
	n    int
	x, y []float32
}

// batch returns so many tasks of the file, in its order, the first after the last; batch i begins
// where the one before ends.
func (t *tasks) batch(i uint64, size int) batch {
	var b batch
	x, y := len(t.x)/t.n, len(t.y)/t.n // of a task
	for j := range uint64(size) {
		k := int((i*uint64(size) + j) % uint64(t.n))
		b.x, b.y = append(b.x, t.x[k*x:(k+1)*x]...), append(b.y, t.y[k*y:(k+1)*y]...)
	}
	return b
}

// ReadTasks reads a file of tasks instead of drawing them,
//
//	x  (tasks, context+targets, input_dim)  tokens, those of the context first
//	y  (tasks, targets)
//
// in F32, F16 or BF16, and takes from it the points of a task and the elements of a token.
func (o *Options) ReadTasks(path string) error {
	f, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	t := &tasks{path: path}
	var shapes [2][]int
	for i, want := range []struct {
		name   string
		rank   int
		values *[]float32
	}{{"x", 3, &t.x}, {"y", 2, &t.y}} {
		x, ok := f.Tensor(want.name)
		switch {
		case !ok:
			return fmt.Errorf("%s: tensor %q is missing", path, want.name)
		case len(x.Shape) != want.rank:
			return fmt.Errorf("%s: tensor %q has shape %v, want %d axes", path, want.name, x.Shape, want.rank)
		}
		if *want.values, err = f.Float32s(x); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for j, v := range *want.values {
			if v-v != 0 { // before the first step, not after hours
				return fmt.Errorf("%s: %s%v is %g: data must be finite", path, want.name, at(j, x.Shape), v)
			}
		}
		shapes[i] = x.Shape
	}
	x, y := shapes[0], shapes[1]
	switch {
	case x[0] == 0:
		return fmt.Errorf("%s: there is no task", path)
	case x[0] != y[0]:
		return fmt.Errorf("%s: x has %d tasks, y %d", path, x[0], y[0])
	case y[1] < 1 || x[1] <= y[1]:
		return fmt.Errorf("%s: tasks of %d tokens, %d of them targets: there must be context and targets", path, x[1], y[1])
	}
	t.n, o.Context, o.Targets = x[0], x[1]-y[1], y[1]
	o.tasks, o.InputDim = t, x[2]
	return nil
}

// at returns the indices of element i of a tensor.
func at(i int, shape []int) []int {
	index := make([]int, len(shape))
	for axis := len(shape) - 1; axis >= 0; axis-- {
		index[axis], i = i%shape[axis], i/shape[axis]
	}
	return index
}

// data returns batch i of a training.
func (o *Options) data(i uint64) batch {
	if o.tasks != nil {
		return o.tasks.batch(i, o.Batch)
	}
	x, y := gp.Tokens(o.Data.Batch(o.Shape, o.Seed, i))
	return batch{x, y}
}

// errTasks is of what a file of tasks does not say.
var errTasks = errors.New("train: a drawing shows a task whose process is known, not one of a file")
