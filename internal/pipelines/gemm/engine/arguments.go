package engine

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/internal/vk/steps"
	"github.com/flashvk/flashvk/vk"
)

// Args are the tensors of a call, each with a batch axis. R, x and s are zero if the problem
// lacks them. A bias is s, with a row stride of 0.
type Args struct {
	C, A, B, R, X, S vk.Tensor

	// panel is 0 but for A and B that are panels of f32x2 (f32x2.go). Axis 1 steps through the
	// lines of a panel then, with that stride, and panel is the number of elements of a line.
	panel int

	Deal Deal // of the columns of a packed B

	// For notes, where they differ from the problem's: N and K without padding and parts, and the
	// operations for each row of op(A) that the product does not count.
	n, K int
	More float64
}

// newArguments checks the tensors of a call. Outputs share memory with nothing, except that C or
// S may be R or X: a workgroup reads the elements that it is about to write. Where k is 0, as in
// a group, a and b are ignored. Errors begin with who. PadB is Options.PadB.
func newArguments(who string, t Tensors, p Problem, padB bool) (Args, error) {
	args := Args{C: t.C, A: t.A, B: t.B, R: t.Residual, X: t.X, S: t.S}
	for _, t := range []*vk.Tensor{&args.C, &args.A, &args.B, &args.R, &args.X, &args.S} {
		if p.Batches() == 1 && len(t.Shape) == 2 && len(t.Strides) == 2 {
			t.Shape, t.Strides = []int{1, t.Shape[0], t.Shape[1]}, []int{0, t.Strides[0], t.Strides[1]}
		}
	}
	if p.K == 0 {
		args.A, args.B = vk.Tensor{}, vk.Tensor{}
	}
	bShape := p.BShape()
	if padB && len(args.B.Shape) == len(bShape) {
		for i := 1; i < len(bShape); i++ {
			bShape[i] = max(min(bShape[i], args.B.Shape[i]), 1)
		}
		args.K, args.n = bShape[1], bShape[2]
		if p.TransB {
			args.K, args.n = args.n, args.K
		}
	}
	cShape := p.CShape()
	c := argument.New("c", args.C, true, p.Out, cShape)
	r := argument.New("residual", args.R, p.Residual, p.Out, cShape)
	x := argument.New("x", args.X, p.HasX(), p.Out, cShape)
	s := argument.New("s", args.S, p.HasS(), p.Out, cShape)
	bias := newBias(t.Bias, p)
	inputs := append(make([]argument.Argument, 0, 7), // with c and s
		argument.New("a", args.A, p.K > 0 && !p.Ones, p.DType, p.AShape()),
		argument.New("b", args.B, p.K > 0, p.DType, bShape),
		bias, r, x)
	if err := argument.Check(who, append(inputs, c, s), nil); err != nil {
		return args, err
	}
	inputs, outputs := inputs[:3], []argument.Argument{c, s}
	if p.Bias {
		args.S = bias.Tensor
		args.S.Shape, args.S.Strides = cShape, []int{bias.Strides[0], 0, 1}
	}
	if p.Residual && !sameElements(args.R, args.C) {
		inputs = append(inputs, r)
	}
	switch {
	case p.WritesX():
		outputs = append(outputs, x)
	case p.ReadsX() && !sameElements(args.X, args.C) && !sameElements(args.X, args.S):
		inputs = append(inputs, x)
	}
	return args, argument.Check(who, inputs, outputs)
}

// newBias returns the argument of a bias: float32 if that is its format, or else of p.Out.
func newBias(t vk.Tensor, p Problem) argument.Argument {
	if p.Batches() == 1 && len(t.Shape) == 1 && len(t.Strides) == 1 {
		t.Shape, t.Strides = []int{1, t.Shape[0]}, []int{0, t.Strides[0]}
	}
	format := p.Out
	if t.DType == dtype.Float32 {
		format = dtype.Float32
	}
	return argument.New("bias", t, p.Bias, format, p.BiasShape())
}

// Bound returns the tensors in the order of the bindings of lib/gemm_out.glsl. A binding must
// hold something: for a missing tensor it holds another one, which the kernel does not touch.
func (args *Args) Bound() [4]vk.Tensor {
	list := [4]vk.Tensor{args.C, args.R, args.X, args.S}
	for i := range list {
		if list[i].IsZero() {
			list[i] = args.C
		}
	}
	return list
}

// Note returns a trace's note on a kernel of config for n products.
func (args *Args) Note(p Problem, config *Config, n int) vk.Note {
	part := float64(n) / float64(p.Batches())
	if args.panel > 0 {
		p.DType = dtype.Float32
	}
	if args.K > 0 {
		p.K = args.K
	}
	if args.n > 0 {
		p.N = args.n
	}
	p.Batch = n
	x := vk.Note{
		Text: p.String(), FLOPs: p.FLOPs() + args.More*float64(n*p.M), Bytes: part * args.traffic(&p),
		Matrices: config.Impl == CoopMat, DType: p.DType,
	}
	if config.Splits > 1 {
		x.Text += fmt.Sprintf(", k in %d parts", config.Splits)
	}
	return x
}

// traffic returns the bytes of the tensors, twice the bytes of C if p reads C.
func (args *Args) traffic(p *Problem) float64 {
	bytes := vk.Traffic(args.A, args.B, args.C, args.R, args.X, args.S)
	if p.Beta != 0 {
		bytes += vk.Traffic(args.C)
	}
	return bytes
}

// Slice replaces the buffer of every tensor by a slice of it.
func (args *Args) Slice() {
	for _, t := range []*vk.Tensor{&args.C, &args.A, &args.B, &args.R, &args.X, &args.S} {
		*t = t.Narrow()
	}
}

// rowsFrom returns the tensors and the problem of n rows of C from a row on. Rows of a batch are
// counted from product to product, and n is whole products.
func (args Args) rowsFrom(row, n int, p Problem) (Args, Problem) {
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
	line := args.A.Offset + row*args.panel
	part(&args.A, axisOfA)
	for _, t := range []*vk.Tensor{&args.C, &args.R, &args.X, &args.S} {
		part(t, axis)
	}
	if axis == 0 {
		part(&args.B, 0)
		p.Batch = n
		return args, p
	}
	if args.panel > 0 {
		args.A.Offset = line
	}
	p.M = n
	return args, p
}

// checkApart returns an error if the workspace shares memory with a tensor.
func (args *Args) checkApart(workspace vk.Tensor) error {
	var others []argument.Argument
	for _, t := range []struct {
		name string
		vk.Tensor
	}{{"c", args.C}, {"a", args.A}, {"b", args.B}, {"residual", args.R}, {"x", args.X}, {"s", args.S}} {
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

// A MemoryPlan has the offsets of partial sums and copies in the workspace of a call, in bytes.
type MemoryPlan struct {
	packA, packB   bool
	right          Layout // of a packed op(B), if any
	f32x2          bool   // A and B become f32x2, f32x2.go
	amaxA, amaxB   int64
	a, b, Partials int64
	Bytes          int64
}

// Memory lays out the workspace of a call.
func (c *Config) Memory(caps *vk.Caps, p *Problem, opt *Options) (m MemoryPlan) {
	take := func(n int64) int64 {
		at := m.Bytes
		m.Bytes += (n + 255) &^ 255
		return at
	}
	if m.f32x2 = c.isF32x2(p); m.f32x2 {
		l := c.f32x2Layout(p.K)
		m.amaxA, m.amaxB = take(l.amaxBytes(p.Batches(), p.M)), take(l.amaxBytes(p.Batches(), p.N))
		m.a, m.b = take(c.panelBytes(l, p.Batches(), p.M)), take(c.panelBytes(l, p.Batches(), p.N))
	}
	m.packA, m.packB = c.aligns(p, opt)
	if m.packA {
		m.a = take(alignedBytes(p.AShape()))
	}
	if m.packB {
		m.b = take(alignedBytes(p.BShape()))
	}
	if c.PackB {
		m.right = c.rightLayout(caps, p)
		m.b = take(c.rightBytes(caps, p))
	}
	m.Partials = take(c.PartialBytes(*p))
	return m
}

// Workspace returns the bytes of device memory that Multiply takes for partial sums, for copies
// of operands and for f32x2 operands, with the same options.
func Workspace(caps *vk.Caps, p Problem, opt Options) (int64, error) {
	config, err := Choose(caps, p, opt)
	if err != nil {
		return 0, err
	}
	config = config.Fit(&p)
	return config.Memory(caps, &p, &opt).Bytes, nil
}

// Workspace returns the memory of a call and the offset where it begins: the caller's, or the
// Cmd's. Kernels are bound to slices of it.
func (m *MemoryPlan) Workspace(c *vk.Cmd, opt *Options, args *Args) (*vk.Buffer, int64, error) {
	if m.Bytes == 0 {
		return nil, 0, nil
	}
	t, err := workspace(c, opt.Workspace, opt.WorkspaceOffset, m.Bytes)
	if err == nil && opt.Workspace != nil {
		err = args.checkApart(t)
	}
	return t.Buffer, 4 * int64(t.Offset), err
}

// workspace returns memory of that many bytes: the caller's from an offset on, or for nil the
// Cmd's.
func workspace(c *vk.Cmd, memory *vk.Buffer, offset, bytes int64) (vk.Tensor, error) {
	if memory == nil {
		memory, offset = c.Scratch("gemm", bytes), 0
	} else if offset < 0 || offset%16 != 0 {
		return vk.Tensor{}, fmt.Errorf("gemm: workspace_offset=%d is not a multiple of 16", offset)
	} else if memory.Bytes()-offset < bytes {
		return vk.Tensor{}, fmt.Errorf("gemm: workspace has %d bytes from %d on, want %d", memory.Bytes()-offset, offset, bytes)
	}
	n := int(bytes / 4)
	return vk.Tensor{Buffer: memory, DType: dtype.Float32, Shape: []int{1, 1, n}, Strides: []int{n, n, 1}, Offset: int(offset / 4)}, c.Err()
}

// Region returns a slice of memory that has the bytes from byte at on, and their offset in the
// slice.
func Region(memory *vk.Buffer, at, bytes int64) (*vk.Buffer, int64) {
	t := vk.View(memory, dtype.Float32, int(bytes/4))
	t.Offset = int(at / 4)
	t = t.Narrow()
	return t.Buffer, 4 * int64(t.Offset)
}

// Pack returns the copies of the plan as one step, or none, and makes them the operands. They lie
// in memory from byte at on.
func (m *MemoryPlan) Pack(args *Args, memory *vk.Buffer, at int64) (copies steps.List) {
	for _, x := range []struct {
		t  *vk.Tensor
		on bool
		at int64
	}{{&args.A, m.packA, m.a}, {&args.B, m.packB, m.b}} {
		if x.on && !argument.Aligned(8, *x.t) {
			to, from := alignedCopy(*x.t, memory, at+x.at)
			x.t.Buffer, x.t.Strides, x.t.Offset = to.Buffer, to.Strides, to.Offset
			copies = steps.Together(copies, steps.List{func(c *vk.Cmd) error { return Pad(c, to, from) }})
		}
	}
	return copies
}
