package gemm

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// arguments are the tensors of a call, each with a batch axis; r, x and s are zero
// Tensors for problems without them.
type arguments struct{ c, a, b, r, x, s vk.Tensor }

// newArguments checks the tensors of a call.
func newArguments(dst, a, b vk.Tensor, p Problem, opt *Options) (args arguments, err error) {
	for _, t := range []struct {
		to      *vk.Tensor
		name    string
		from    vk.Tensor
		present bool
		format  dtype.DType
		shape   []int
	}{
		{&args.c, "c", dst, true, p.Out, p.CShape()},
		{&args.a, "a", a, true, p.DType, p.AShape()},
		{&args.b, "b", b, true, p.DType, p.BShape()},
		{&args.r, "residual", opt.Residual, p.Residual, p.Out, p.CShape()},
		{&args.x, "x", opt.X, p.HasX(), p.Out, p.CShape()},
		{&args.s, "s", opt.S, p.HasS(), p.Out, p.CShape()},
	} {
		if *t.to, err = checkTensor(t.name, t.from, t.present, t.format, t.shape); err != nil {
			return args, err
		}
	}
	return args, args.checkOverlaps(p)
}

// checkTensor returns t with a batch axis, or an error that says why it is not the
// tensor that a problem has.
func checkTensor(name string, t vk.Tensor, present bool, format dtype.DType, shape []int) (vk.Tensor, error) {
	if !present {
		if !t.IsZero() {
			return t, fmt.Errorf("gemm: %s is given, but the problem has none", name)
		}
		return t, nil
	}
	if t.Buffer == nil {
		return t, fmt.Errorf("gemm: %s has no buffer", name)
	}
	if t.DType != format {
		return t, fmt.Errorf("gemm: %s is %v, want %v", name, t.DType, format)
	}
	if shape[0] == 1 && len(t.Shape) == 2 && len(t.Strides) == 2 {
		t.Shape, t.Strides = []int{1, t.Shape[0], t.Shape[1]}, []int{0, t.Strides[0], t.Strides[1]}
	}
	if !slices.Equal(t.Shape, shape) || len(t.Strides) != 3 {
		return t, fmt.Errorf("gemm: %s has shape %v and strides %v, want shape %v", name, t.Shape, t.Strides, shape)
	}
	if t.Strides[2] != 1 && t.Shape[2] != 1 {
		return t, fmt.Errorf("gemm: %s has strides %v: the last axis is not contiguous", name, t.Strides)
	}
	if err := t.Validate(); err != nil {
		return t, fmt.Errorf("gemm: %s: %w", name, err)
	}
	return t, nil
}

// checkOverlaps wants outputs to share memory with nothing, but that a workgroup reads
// the elements of R and X that it is about to write in C or S.
func (args *arguments) checkOverlaps(p Problem) error {
	type named struct {
		name string
		vk.Tensor
		inPlace bool // an output may be it
	}
	inputs := []named{{"a", args.a, false}, {"b", args.b, false}, {"residual", args.r, true}}
	outputs := []named{{"c", args.c, false}, {"s", args.s, false}}
	if x := (named{"x", args.x, true}); p.ReadsX() {
		inputs = append(inputs, x)
	} else {
		outputs = append(outputs, x)
	}
	for i, out := range outputs {
		if out.IsZero() {
			continue
		}
		if selfOverlaps(out.Tensor) {
			return fmt.Errorf("gemm: %s has strides %v for shape %v: elements of an output may not share memory", out.name, out.Strides, out.Shape)
		}
		for _, t := range append(inputs[:len(inputs):len(inputs)], outputs[:i]...) {
			if t.IsZero() || !overlap(out.Tensor, t.Tensor) || t.inPlace && out.name != "x" && sameElements(out.Tensor, t.Tensor) {
				continue
			}
			return fmt.Errorf("gemm: %s overlaps %s: outputs need memory of their own", out.name, t.name)
		}
	}
	return nil
}

// bound returns the tensors in the order of the bindings of lib/gemm_out.glsl. A binding
// must hold something: where there is no tensor, the kernel does not touch it.
func (args *arguments) bound() [4]vk.Tensor {
	list := [4]vk.Tensor{args.c, args.r, args.x, args.s}
	for i := range list {
		if list[i].IsZero() {
			list[i] = args.c
		}
	}
	return list
}

// sameElements reports whether two tensors of one shape are the same memory.
func sameElements(t, u vk.Tensor) bool {
	same := t.Buffer == u.Buffer && t.Offset == u.Offset
	for i, n := range t.Shape {
		same = same && (n == 1 || t.Strides[i] == u.Strides[i])
	}
	return same
}

// overlap reports whether the address ranges of two tensors meet.
func overlap(t, u vk.Tensor) bool {
	if t.Buffer != u.Buffer {
		return false
	}
	tSize, uSize := t.DType.Size(), u.DType.Size()
	return t.Offset*tSize < (u.Offset+u.Span())*uSize && u.Offset*uSize < (t.Offset+t.Span())*tSize
}

// selfOverlaps reports whether elements of a (batch, rows, columns) output may share
// memory: a batch must step over rows, or rows over the batch, and both over columns.
func selfOverlaps(t vk.Tensor) bool {
	inner, outer := 1, 0
	if t.Shape[0] > 1 && t.Shape[1] > 1 && t.Strides[0] < t.Strides[1] {
		inner, outer = 0, 1
	}
	span := t.Shape[2]
	for _, axis := range []int{inner, outer} {
		if t.Shape[axis] == 1 {
			continue
		}
		if t.Strides[axis] < span {
			return true
		}
		span += (t.Shape[axis] - 1) * t.Strides[axis]
	}
	return false
}

// aligned reports whether every row of the tensors starts at a multiple of n elements
// from the start of its buffer, so that kernels may load n at a time.
func aligned(n int, tensors ...vk.Tensor) bool {
	for _, t := range tensors {
		if t.IsZero() {
			continue
		}
		if t.Offset%n != 0 || t.Shape[0] > 1 && t.Strides[0]%n != 0 || t.Shape[1] > 1 && t.Strides[1]%n != 0 {
			return false
		}
	}
	return true
}
