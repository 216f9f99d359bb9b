package engine

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// arguments are the tensors of a call, each with a batch axis; r, x and s are zero
// Tensors for problems without them.
type arguments struct {
	c, a, b, r, x, s vk.Tensor

	// Elements of a line of A and B if those are panels of parts, whose axis 1 steps through
	// the lines of a panel, and its stride is how many there are (parts.go); else 0.
	panel int

	// For notes, where they are not those of the problem: n and k without padding and parts,
	// and operations for each row of op(A) besides those of the product.
	n, k int
	more float64
}

// newArguments checks the tensors of a call. Outputs share memory with nothing, but that
// a workgroup may read the elements of R and X that it is about to write in C or S. Where k
// is 0, as in a group, a and b are not looked at.
// Who is what errors begin with; padB is Options.PadB.
func newArguments(who string, t Tensors, p Problem, padB bool) (arguments, error) {
	args := arguments{c: t.C, a: t.A, b: t.B, r: t.Residual, x: t.X, s: t.S}
	for _, t := range []*vk.Tensor{&args.c, &args.a, &args.b, &args.r, &args.x, &args.s} {
		if p.Batches() == 1 && len(t.Shape) == 2 && len(t.Strides) == 2 {
			t.Shape, t.Strides = []int{1, t.Shape[0], t.Shape[1]}, []int{0, t.Strides[0], t.Strides[1]}
		}
	}
	if p.K == 0 {
		args.a, args.b = vk.Tensor{}, vk.Tensor{}
	}
	bShape := p.BShape()
	if padB && len(args.b.Shape) == len(bShape) {
		for i := 1; i < len(bShape); i++ {
			bShape[i] = max(min(bShape[i], args.b.Shape[i]), 1)
		}
		args.k, args.n = bShape[1], bShape[2]
		if p.TransB {
			args.k, args.n = args.n, args.k
		}
	}
	c := argument.New("c", args.c, true, p.Out, p.CShape())
	r := argument.New("residual", args.r, p.Residual, p.Out, p.CShape())
	x := argument.New("x", args.x, p.HasX(), p.Out, p.CShape())
	s := argument.New("s", args.s, p.HasS(), p.Out, p.CShape())
	inputs := []argument.Argument{
		argument.New("a", args.a, p.K > 0, p.DType, p.AShape()),
		argument.New("b", args.b, p.K > 0, p.DType, bShape),
		r, x,
	}
	if err := argument.Check(who, append(inputs, c, s), nil); err != nil {
		return args, err
	}
	inputs, outputs := inputs[:2], []argument.Argument{c, s}
	if p.Residual && !sameElements(args.r, args.c) {
		inputs = append(inputs, r)
	}
	switch {
	case p.Activation == SiLUKeep:
		outputs = append(outputs, x)
	case p.ReadsX() && !sameElements(args.x, args.c) && !sameElements(args.x, args.s):
		inputs = append(inputs, x)
	}
	return args, argument.Check(who, inputs, outputs)
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

// note says for a trace what a kernel of config does for n products.
func (args *arguments) note(p Problem, config *Config, n int) vk.Note {
	part := float64(n) / float64(p.Batches())
	if args.panel > 0 {
		p.DType = dtype.Float32
	}
	if args.k > 0 {
		p.K = args.k
	}
	if args.n > 0 {
		p.N = args.n
	}
	p.Batch = n
	x := vk.Note{
		Text: p.String(), FLOPs: p.FLOPs() + args.more*float64(n*p.M), Bytes: part * args.traffic(&p),
		Matrices: config.Impl == CoopMat, DType: p.DType,
	}
	if config.Splits > 1 {
		x.Text += fmt.Sprintf(", k in %d parts", config.Splits)
	}
	return x
}

// traffic returns the bytes of the tensors, those of C twice if p reads it.
func (args *arguments) traffic(p *Problem) float64 {
	bytes := vk.Traffic(args.a, args.b, args.c, args.r, args.x, args.s)
	if p.Beta != 0 {
		bytes += vk.Traffic(args.c)
	}
	return bytes
}

// narrow makes every tensor one on a slice of its buffer.
func (args *arguments) narrow() {
	for _, t := range []*vk.Tensor{&args.c, &args.a, &args.b, &args.r, &args.x, &args.s} {
		*t = t.Narrow()
	}
}

// rowsFrom returns the tensors and the problem of n rows of C from a row on. Those of a
// batch count on from product to product, and are whole products.
func (args arguments) rowsFrom(row, n int, p Problem) (arguments, Problem) {
	axis, axisOfA := 1, 1
	switch {
	case p.Batches() > 1:
		axis, axisOfA, row, n = 0, 0, row/p.M, n/p.M
	case p.TransA:
		axisOfA = 2
	}
	part := func(t *vk.Tensor, axis int) {
		if !t.IsZero() {
			t.Shape = slices.Clone(t.Shape)
			t.Shape[axis] = n
			t.Offset += row * t.Strides[axis]
		}
	}
	line := args.a.Offset + row*args.panel
	part(&args.a, axisOfA)
	for _, t := range []*vk.Tensor{&args.c, &args.r, &args.x, &args.s} {
		part(t, axis)
	}
	if axis == 0 {
		part(&args.b, 0)
		p.Batch = n
		return args, p
	}
	if args.panel > 0 {
		args.a.Offset = line
	}
	p.M = n
	return args, p
}

// checkApart returns an error if the workspace shares memory with a tensor.
func (args *arguments) checkApart(workspace vk.Tensor) error {
	var others []argument.Argument
	for _, t := range []struct {
		name string
		vk.Tensor
	}{{"c", args.c}, {"a", args.a}, {"b", args.b}, {"residual", args.r}, {"x", args.x}, {"s", args.s}} {
		others = append(others, argument.New(t.name, t.Tensor, !t.IsZero(), t.DType, t.Shape))
	}
	return argument.Check("gemm", others, []argument.Argument{argument.New("workspace", workspace, true, workspace.DType, workspace.Shape)})
}

// sameElements reports whether two tensors of one shape are the same memory.
func sameElements(t, u vk.Tensor) bool {
	if u.IsZero() {
		return false
	}
	a, aStart, _ := t.Memory()
	b, bStart, _ := u.Memory()
	same := a == b && aStart == bStart
	for i, n := range t.Shape {
		same = same && (n == 1 || t.Strides[i] == u.Strides[i])
	}
	return same
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
