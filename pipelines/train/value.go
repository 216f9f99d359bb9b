package train

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/record"
	"github.com/flashvk/flashvk/vk"
)

// A Value is a tensor of a Tape, or a view of one: an input, a parameter, or what an op writes. Its
// shape and its format are known while the forward pass is written. Its memory is there once a Plan
// is (View).
type Value struct {
	node *node
	view vk.Tensor // shape, strides and offset in the node, which is contiguous; no buffer
}

// A node is a tensor of a tape.
type node struct {
	scope, name string
	dtype       dtype.DType
	grad        dtype.DType // of the gradient
	shape       []int
	weight      func() vk.Tensor // of a parameter; nil: of the program
	memory      *record.Tensor   // of the program; nil until a step writes it
	kept        Checkpoint       // the last checkpoint that keeps it
	block       *block
	wanted      bool            // a parameter that is trained has part in it
	consumed    bool            // another op has written over it
	read        bool            // an op reads it
	output      bool            // the caller downloads it
	params      []string        // the names of a parameter, several if they are joined
	blocks      []int           // the rows of blocks on the diagonal of a parameter, beside which it is 0
	gradientOf  []string        // the names of the parameter whose gradient it is
	before      *Value          // what an activation was applied to, for its gradient
	derivative  gemm.Activation // of the product that reads it first, whose gradient is that by before
	derived     bool            // that product's gradient is there
	rows        *Value          // a copy of these rows of another tensor, which has the gradient
	gradient    *gradient
}

// lost reports whether a checkpoint does not keep the node.
func (n *node) lost(c Checkpoint) bool { return n.consumed || n.kept < c && !n.output }

// newValue returns the whole of a node.
func newValue(n *node) *Value { return &Value{n, vk.View(nil, n.dtype, n.shape...)} }

// Name returns the name of the tensor.
func (v *Value) Name() string { return v.node.scope + v.node.name }

// Shape returns the shape.
func (v *Value) Shape() []int { return slices.Clone(v.view.Shape) }

// DType returns the format.
func (v *Value) DType() dtype.DType { return v.node.dtype }

// View returns the tensor in its memory, once a Plan is there: to upload an input, or to download an
// output (Tape.Output). It is zero before.
func (v *Value) View() vk.Tensor { return operand{v, v.node.memory}.tensor() }

// GradientIn says that the gradient by v, which an op writes, has another format than v. It returns v.
func (v *Value) GradientIn(d dtype.DType) *Value {
	v.node.grad = d
	return v
}

// as returns another view of the same tensor.
func (v *Value) as(view vk.Tensor) *Value { return &Value{v.node, view} }

// Slice returns the view of the indices from first to end-1 of an axis. It panics if those are not
// within the axis.
func (v *Value) Slice(axis, first, end int) *Value { return v.as(v.view.Slice(axis, first, end)) }

// Split returns the view of a matrix (n*rows, columns) as (n, rows, columns). It panics if n does
// not divide the rows, or v is no matrix.
func (v *Value) Split(n int) *Value {
	rows, t := v.matrix("Split", n), v.view
	t.Shape, t.Strides = []int{n, rows, t.Shape[1]}, []int{rows * t.Strides[0], t.Strides[0], t.Strides[1]}
	return v.as(t)
}

// Heads returns the view of a matrix (tasks*rows, heads*dim) in the shape that package attention
// has, (tasks, heads, rows, dim). It panics if tasks does not divide the rows, heads the columns,
// or v is no matrix.
func (v *Value) Heads(tasks, heads int) *Value {
	rows, t := v.matrix("Heads", tasks), v.view
	dim := t.Shape[1] / heads
	if dim*heads != t.Shape[1] {
		panic(fmt.Sprintf("train: %s has %d columns, which %d heads do not divide", v.Name(), t.Shape[1], heads))
	}
	t.Shape = []int{tasks, heads, rows, dim}
	t.Strides = []int{rows * t.Strides[0], dim * t.Strides[1], t.Strides[0], t.Strides[1]}
	return v.as(t)
}

// Reshape returns the view of a contiguous tensor with as many elements in another shape. It panics
// if v is not contiguous, or has another number of elements.
func (v *Value) Reshape(shape ...int) *Value {
	t := vk.View(nil, v.view.DType, shape...)
	if !v.view.Contiguous() || t.NumElements() != v.view.NumElements() {
		panic(fmt.Sprintf("train: %s of shape %v has no view of shape %v", v.Name(), v.view.Shape, shape))
	}
	t.Offset = v.view.Offset
	return v.as(t)
}

// matrix returns how many rows each of n parts of a matrix has.
func (v *Value) matrix(call string, n int) int {
	if len(v.view.Shape) != 2 || n < 1 || v.view.Shape[0]%n != 0 {
		panic(fmt.Sprintf("train: %s(%d) of %s, whose shape is %v", call, n, v.Name(), v.view.Shape))
	}
	return v.view.Shape[0] / n
}

// spaced returns n views as one, each some elements behind the view before: 0 repeats one.
func (v *Value) spaced(n, elements int) *Value {
	t := v.view
	t.Shape, t.Strides = append([]int{n}, t.Shape...), append([]int{elements}, t.Strides...)
	return v.as(t)
}

// flat returns tasks of rows, (tasks, rows, columns), as a matrix. It is nil where the rows of a task
// do not follow the rows of the task before.
func (v *Value) flat() *Value {
	t := v.view
	if len(t.Shape) == 2 {
		return v
	}
	if t.Shape[0] > 1 && t.Strides[0] != t.Shape[1]*t.Strides[1] {
		return nil
	}
	t.Shape, t.Strides = []int{t.Shape[0] * t.Shape[1], t.Shape[2]}, t.Strides[1:]
	return v.as(t)
}

// An operand is a tensor as a step finds it, or nil: a forward pass that is repeated gives a node other memory.
type operand struct {
	*Value
	memory *record.Tensor // nil: of a parameter
}

// operands returns the memory of values at this step, and their tensors, once a Plan is there.
func operands(list []*Value) (memory []*record.Tensor, tensors func() []vk.Tensor) {
	all := make([]operand, len(list))
	for i, v := range list {
		if v != nil {
			all[i] = operand{v, v.node.memory}
			memory = append(memory, v.node.memory)
		}
	}
	return memory, func() (tensors []vk.Tensor) {
		for _, o := range all {
			tensors = append(tensors, o.tensor())
		}
		return tensors
	}
}

// tensor returns the memory, once a Plan is there.
func (o operand) tensor() (x vk.Tensor) {
	switch {
	case o.Value == nil:
	case o.node.weight != nil:
		x = o.node.weight()
	default:
		x = o.memory.View()
	}
	if x.IsZero() {
		return x
	}
	x.Shape, x.Strides = slices.Clone(o.view.Shape), slices.Clone(o.view.Strides)
	x.Offset += o.view.Offset
	return x
}
