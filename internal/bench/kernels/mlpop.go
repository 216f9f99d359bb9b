package kernels

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/pipelines/mlp/ref"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// An mlpOp is a problem of package mlp.
type mlpOp struct {
	p      mlp.Problem
	opt    mlp.Options // FusedConfig is that of path fused; "": the table's
	stride int         // elements from row to row of pre and hidden
}

// Name implements bench.Op.
func (o mlpOp) Name() string {
	if o.p.Heads > 0 {
		return "grouped"
	}
	return "mlp"
}

// Describe implements bench.Op.
func (o mlpOp) Describe() string {
	return describePerceptron(o.p) + map[mlp.Keep]string{mlp.KeepPre: ", pre kept", mlp.KeepHidden: ", pre and silu(pre) kept"}[o.p.Keep]
}

// describePerceptron returns sizes and formats.
func describePerceptron(p mlp.Problem) string {
	heads := ""
	if p.Heads > 0 {
		heads = fmt.Sprintf("heads %d, ", p.Heads)
	}
	s := fmt.Sprintf("%v: tokens %d, %sin %d, hidden %d, out %d", p.DType, p.Tokens, heads, p.In, p.Hidden, p.Out)
	if p.GradDType() != p.DType {
		s += fmt.Sprintf(", weight gradients %v", p.GradDType())
	}
	return s
}

// Keys implements bench.Op.
func (o mlpOp) Keys() []bench.Key {
	p := o.p
	list := []bench.Key{
		{Name: "dtype", Value: p.DType.String()}, {Name: "grad_dtype", Value: p.GradDType().String()},
		{Name: "tokens", Value: p.Tokens}, {Name: "in", Value: p.In}, {Name: "hidden", Value: p.Hidden}, {Name: "out", Value: p.Out},
		{Name: "keep", Value: p.Keep.String()},
	}
	if p.Heads > 0 {
		list = slices.Insert(list, 6, bench.Key{Name: "heads_at_a_time", Value: o.opt.HeadsAtATime}, bench.Key{Name: "products", Value: o.opt.Products})
		list = slices.Insert(list, 3, bench.Key{Name: "heads", Value: p.Heads})
	}
	return list
}

// Cost implements bench.Op.
func (o mlpOp) Cost(p bench.Pass) (flops, bytes float64) { return cost(o.p, p) }

// Tensors implements bench.Op.
func (o mlpOp) Tensors() []bench.OpTensor {
	p := o.p
	list := []bench.OpTensor{
		{Name: "x", DType: p.DType, Shape: p.XShape()},
		{Name: "w1", DType: p.DType, Shape: p.W1Shape(), Draw: perRoot(p.In)},
		{Name: "w2", DType: p.DType, Shape: p.W2Shape(), Draw: perRoot(p.Hidden)},
		{Name: "y", DType: p.DType, Shape: p.YShape(), Role: bench.Output},
		{Name: "dy", DType: p.DType, Shape: p.YShape(), Role: bench.Upstream},
		{Name: "dx", DType: p.DType, Shape: p.XShape(), Role: bench.Gradient},
		{Name: "dw1", DType: p.GradDType(), Shape: p.W1Shape(), Role: bench.Gradient},
		{Name: "dw2", DType: p.GradDType(), Shape: p.W2Shape(), Role: bench.Gradient},
	}
	for _, name := range o.kept() {
		list = append(list, bench.OpTensor{Name: name, DType: p.DType, Shape: o.rows(), Role: bench.Output})
	}
	return list
}

// rows returns the shape that hidden units have in memory.
func (o mlpOp) rows() []int {
	shape := o.p.PreShape()
	shape[len(shape)-1] = o.stride
	return shape
}

// kept names the tensors that the forward pass leaves to the backward pass.
func (o mlpOp) kept() []string { return []string{"pre", "hidden"}[:o.p.Keep] }

// options returns those of a pass on a path.
func (o mlpOp) options(impl string, p bench.Pass) (opt mlp.Options, err error) {
	opt = o.opt
	switch {
	case impl == fusedImpl && p == bench.Backward:
		return opt, fmt.Errorf("mlp: path fused: the backward pass has no such kernel: %w", vk.ErrUnsupported)
	case impl == fusedImpl:
		opt.Fused = mlp.FusedOn
		return opt, nil
	case opt.FusedConfig != "":
		return opt, fmt.Errorf("mlp: path %s: --config is of path %s: %w", impl, fusedImpl, vk.ErrUnsupported)
	case impl != gemm.Auto.String():
		opt.Fused = mlp.FusedOff
	}
	opt.Impl, err = gemm.ParseImpl(impl)
	return opt, err
}

// Use implements bench.Tuner.
func (o mlpOp) Use(tuning *kit.Tuning) bench.Op {
	o.opt.Tuning = tuning
	return o
}

// Tunables implements bench.Tuner: choices of the products of a pass, and with heads of a kernel of
// package skinny.
func (o mlpOp) Tunables(caps *vk.Caps, p bench.Pass) ([]bench.Tunable, error) {
	return partTunables(caps, o, p, o.p.Out)
}

// Choose implements bench.Op.
func (o mlpOp) Choose(caps *vk.Caps, impl string, p bench.Pass) (kit.Plan, error) {
	opt, err := o.options(impl, p)
	if err != nil {
		return nil, err
	}
	return mlp.Choose(caps, o.p, p.Kit(), opt)
}

// Record implements bench.Op.
func (o mlpOp) Record(c *vk.Cmd, t map[string]vk.Tensor, workspace *vk.Buffer, impl string, p bench.Pass) error {
	opt, err := o.options(impl, p)
	if err != nil {
		return err
	}
	opt.Workspace = workspace
	x := mlp.Tensors{X: t["x"], W1: t["w1"], W2: t["w2"], Y: t["y"]}
	for i, to := range []*vk.Tensor{&x.Pre, &x.Hidden}[:o.p.Keep] {
		*to = t[o.kept()[i]]
		to.Shape = o.p.PreShape()
	}
	if p == bench.Backward {
		return mlp.Backward(c, x, mlp.Gradients{DY: t["dy"], DX: t["dx"], DW1: t["dw1"], DW2: t["dw2"]}, o.p, opt)
	}
	return mlp.Forward(c, x, o.p, opt)
}

// Reference implements bench.Op. For large problems it has some tokens of each tensor by token, and
// some hidden units of each head of the gradients of weights.
func (o mlpOp) Reference(t map[string][]float32, pass bench.Pass) (bench.Reference, error) {
	p, heads := o.p, max(o.p.Heads, 1)
	in := ref.Inputs{X: wide(t["x"]), W1: wide(t["w1"]), W2: wide(t["w2"])}
	if pass == bench.Backward {
		in.DY = wide(t["dy"])
	}
	const most = 1 << 28 // multiplications of a product
	tokens := sample(p.Tokens, most/(heads*p.Hidden*max(p.In, p.Out)))
	part, some := ref.Tokens(tokens, in, p)
	want, plain := ref.Compute(some, part), ref.Plain(some, part)
	bounds := ref.NewBounds(want, plain, part)
	if pass != bench.Backward {
		list := bench.Expectations{{Name: "y", At: rowsAt(tokens, p.Tokens, heads*p.Out), Want: want.Y, Limit: bounds.Y}}
		var rows []int // of hidden units
		for _, t := range tokens {
			for k := range heads {
				rows = append(rows, t*heads+k)
			}
		}
		at := rowsApart(rows, p.Tokens*heads, p.Hidden, o.stride)
		kept := bench.Expectations{
			{Name: "pre", At: at, Want: want.Pre, Limit: bounds.Pre, Columns: p.Hidden, Stride: o.stride},
			{Name: "hidden", At: at, Want: want.Hidden, Limit: bounds.Hidden, Columns: p.Hidden, Stride: o.stride},
		}
		return append(list, kept[:p.Keep]...), nil
	}
	list := bench.Expectations{{Name: "dx", At: rowsAt(tokens, p.Tokens, p.In), Want: want.DX, Limit: bounds.DX}}

	units := sample(p.Hidden, most/(heads*p.Tokens*max(p.In, p.Out)))
	part, some = ref.Units(units, in, p)
	want, plain = ref.Compute(some, part), ref.Plain(some, part)
	bounds = ref.NewBounds(want, plain, part)
	var columns, rows []int // of dw1 and dw2
	if len(units) < p.Hidden {
		for i := range heads * p.In {
			for _, u := range units {
				columns = append(columns, i*p.Hidden+u)
			}
		}
		for k := range heads {
			for _, u := range units {
				rows = append(rows, k*p.Hidden+u)
			}
		}
		rows = rowsAt(rows, p.Hidden*heads, p.Out)
	}
	return append(list,
		bench.Expected{Name: "dw1", At: columns, Want: want.DW1, Limit: bounds.DW1},
		bench.Expected{Name: "dw2", At: rows, Want: want.DW2, Limit: bounds.DW2}), nil
}

// rowsAt returns the elements of some rows of a matrix of n rows; nil if they are all.
func rowsAt(rows []int, n, cols int) []int { return rowsApart(rows, n, cols, cols) }

// rowsApart is rowsAt for the first columns of a matrix with longer rows.
func rowsApart(rows []int, n, cols, stride int) []int {
	if len(rows) == n && cols == stride {
		return nil
	}
	at := make([]int, 0, len(rows)*cols)
	for _, r := range rows {
		for c := range cols {
			at = append(at, r*stride+c)
		}
	}
	return at
}

// sample returns the wanted number of n indices, at least 4, the first and the last among them.
func sample(n, wanted int) []int {
	wanted = min(max(wanted, 4), n)
	list := make([]int, 0, wanted)
	for i := range wanted {
		list = append(list, i*(n-1)/max(wanted-1, 1))
	}
	return list
}
