package kernels

import (
	"math"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/bench"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/grouped"
	"github.com/flashvk/flashvk/pipelines/grouped/ref"
	"github.com/flashvk/flashvk/vk"
)

const groupedFormulas = `
    pre[k]  = x * w1[k]
    y[:,k]  = silu(pre[k]) * w2[k]             silu(v) = v / (1 + exp(-v))
    dpre[k] = (dy[:,k] * w2[k]ᵀ) ∘ silu'(pre[k])
    dx      = sum over k of dpre[k] * w1[k]ᵀ
    dw1[k]  = xᵀ * dpre[k],   dw2[k] = silu(pre[k])ᵀ * dy[:,k]
`

// perceptrons is the row of grouped.
func perceptrons() Kernel {
	return Kernel{
		Name: "grouped", Title: "heads: two-layer perceptrons with SiLU that share their input", Impls: implNames(),
		Bench: Help{
			Long: `Measures two-layer perceptrons that share their input,
` + groupedFormulas + `
on random normal inputs, after checking sampled tokens and hidden units against a
float64 reference. Rates count the products of the formulas, 2 forward and 4 backward
for each head, not what computes pre again, which the backward pass does unless --keep says
that the forward pass leaves it.`,
			Example: `  flashvk bench grouped
  flashvk bench grouped --tokens 16000 --heads 10 --in 512 --hidden 1365 --out 3 --dtype bfloat16 --backward
  flashvk bench grouped --suite training --backward --products
  flashvk bench grouped --suite training --backward --keep pre
  flashvk bench grouped --suite training --backward --peer torch="python3 tools/peers/torch_train.py"`,
		},
		Run: Help{
			Long: `Computes two-layer perceptrons that share their input,
` + groupedFormulas + `
The input file holds the tensors
    x   (tokens, in), F16, BF16 or F32
    w1  (heads, in, hidden), as x
    w2  (heads, hidden, out), as x
The output file gets
    y    (tokens, heads, out), as x
    pre  (tokens, heads, hidden), as x, with --keep pre
With --backward the input file also holds the gradient of a loss by y,
    dy   (tokens, heads, out), as x
and the output file also gets
    dx   (tokens, in), as x
    dw1  (heads, in, hidden), in the format of --grad-dtype
    dw2  (heads, hidden, out), likewise`,
			Example: `  flashvk run grouped --in x.safetensors --out y.safetensors
  flashvk run grouped --in x.safetensors --out y.safetensors --backward --grad-dtype float32`,
		},
		New: func() Flags { return &groupedFlags{} },
		How: []string{"products", "keep"},
	}
}

// groupedFlags are the flags of both commands.
type groupedFlags struct {
	tokens, heads, in, hidden, out int
	dtype, grad                    dtype.DType
	atATime                        int
	products                       bool
	keep                           grouped.Keep
	set                            *pflag.FlagSet
}

// Add implements Flags.
func (g *groupedFlags) Add(f *pflag.FlagSet, sizes bool) {
	g.set = f
	DTypeVar(f, &g.grad, "grad-dtype", "format of dw1 and dw2: float16, bfloat16 or float32 (default: that of x)")
	f.IntVar(&g.atATime, "heads-at-a-time", 0, "heads whose hidden units are in memory at a time, at most (default: 256 MiB of them, 512 MiB where a pass has one such tensor instead of two, 256 MiB of sums of outputs where it has none)")
	f.BoolVar(&g.products, "products", false, "hidden units are written to memory where a pass could do without")
	keepVar(f, &g.keep, grouped.Keeps(), "what the forward pass writes, and the backward pass reads: nothing (default) or pre")
	if !sizes {
		return
	}
	f.IntVar(&g.tokens, "tokens", 0, "rows of x (default 16000 on a GPU, 128 on a CPU device)")
	f.IntVar(&g.heads, "heads", 0, "heads (default 10, or 3)")
	f.IntVar(&g.in, "in", 0, "columns of x (default 512, or 32)")
	f.IntVar(&g.hidden, "hidden", 0, "hidden units of a head (default 1365, or 85)")
	f.IntVar(&g.out, "out", 0, "columns of y of a head (default 3)")
	DTypeVar(f, &g.dtype, "dtype", "format of all tensors: float16, bfloat16 (default on a GPU) or float32")
}

// FromFlags implements Flags.
func (g *groupedFlags) FromFlags(cpu bool) (bench.Op, error) {
	p := grouped.Problem{Tokens: 16000, Heads: 10, In: 512, Hidden: 1365, Out: 3, DType: dtype.BFloat16}
	if cpu {
		p = grouped.Problem{Tokens: 128, Heads: 3, In: 32, Hidden: 85, Out: 3, DType: dtype.Float16}
	}
	setGiven(g.set, []sizeFlag{{"tokens", &p.Tokens, &g.tokens}, {"heads", &p.Heads, &g.heads}, {"in", &p.In, &g.in}, {"hidden", &p.Hidden, &g.hidden}, {"out", &p.Out, &g.out}})
	if g.set.Changed("dtype") {
		p.DType = g.dtype
	}
	return g.op(p, gemm.RowStride(p.Hidden))
}

// options returns what the flags say of a call.
func (g *groupedFlags) options() grouped.Options {
	return grouped.Options{Heads: g.atATime, Products: g.products}
}

// op returns the problem with what both commands' flags say, and rows of hidden units some
// elements apart.
func (g *groupedFlags) op(p grouped.Problem, stride int) (bench.Op, error) {
	p.Grad = p.DType
	if g.set.Changed("grad-dtype") {
		p.Grad = g.grad
	}
	opt := g.options()
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	return groupedOp{p, opt, g.keep, stride}, p.Validate()
}

// FromFile implements Flags.
func (g *groupedFlags) FromFile(h Header) (bench.Op, error) {
	x, format, err := h.Floats("x", "tokens", "in")
	if err != nil {
		return nil, err
	}
	w2, _, err := h.Floats("w2", "heads", "hidden", "out")
	if err != nil {
		return nil, err
	}
	return g.op(grouped.Problem{Tokens: x[0], Heads: w2[0], In: x[1], Hidden: w2[1], Out: w2[2], DType: format}, w2[1])
}

// Suite implements Flags: the heads of the training workload.
func (g *groupedFlags) Suite(small bool) []bench.Op {
	var list []bench.Op
	for _, tokens := range []int{16000, 5000} {
		p := grouped.Problem{Tokens: tokens, Heads: 10, In: 512, Hidden: 1365, Out: 3, DType: dtype.BFloat16, Grad: dtype.BFloat16}
		if small {
			p = grouped.Problem{Tokens: tokens / 200, Heads: 3, In: 32, Hidden: 85, Out: 3, DType: dtype.Float16, Grad: dtype.Float16}
		}
		list = append(list, groupedOp{p, g.options(), g.keep, gemm.RowStride(p.Hidden)})
	}
	return list
}

// A groupedOp is a problem of package grouped.
type groupedOp struct {
	p      grouped.Problem
	opt    grouped.Options
	keep   grouped.Keep
	stride int // elements from row to row of pre
}

// Name implements bench.Op.
func (o groupedOp) Name() string { return "grouped" }

// Describe implements bench.Op.
func (o groupedOp) Describe() string {
	if o.keep == grouped.KeepPre {
		return o.p.String() + ", pre kept"
	}
	return o.p.String()
}

// Keys implements bench.Op.
func (o groupedOp) Keys() []bench.Key {
	p := o.p
	return []bench.Key{
		{Name: "dtype", Value: p.DType.String()}, {Name: "grad_dtype", Value: p.Grad.String()},
		{Name: "tokens", Value: p.Tokens}, {Name: "heads", Value: p.Heads}, {Name: "in", Value: p.In}, {Name: "hidden", Value: p.Hidden}, {Name: "out", Value: p.Out},
		{Name: "heads_at_a_time", Value: o.opt.Heads}, {Name: "products", Value: o.opt.Products},
		{Name: "keep", Value: o.keep.String()},
	}
}

// Cost implements bench.Op.
func (o groupedOp) Cost(p bench.Pass) (flops, bytes float64) {
	if p == bench.Backward {
		return o.p.BackwardFLOPs(), o.p.BackwardBytes()
	}
	return o.p.FLOPs(), o.p.Bytes()
}

// Tensors implements bench.Op.
func (o groupedOp) Tensors() []bench.OpTensor {
	p := o.p
	root := func(n int) func(float32) float32 {
		scale := float32(1 / math.Sqrt(float64(n)))
		return func(x float32) float32 { return x * scale }
	}
	list := []bench.OpTensor{
		{Name: "x", DType: p.DType, Shape: p.XShape()},
		{Name: "w1", DType: p.DType, Shape: p.W1Shape(), Draw: root(p.In)},
		{Name: "w2", DType: p.DType, Shape: p.W2Shape(), Draw: root(p.Hidden)},
		{Name: "y", DType: p.DType, Shape: p.YShape(), Role: bench.Output},
		{Name: "dy", DType: p.DType, Shape: p.YShape(), Role: bench.Upstream},
		{Name: "dx", DType: p.DType, Shape: p.XShape(), Role: bench.Gradient},
		{Name: "dw1", DType: p.Grad, Shape: p.W1Shape(), Role: bench.Gradient},
		{Name: "dw2", DType: p.Grad, Shape: p.W2Shape(), Role: bench.Gradient},
	}
	if o.keep == grouped.KeepPre {
		list = append(list, bench.OpTensor{Name: "pre", DType: p.DType, Shape: []int{p.Tokens, p.Heads, o.stride}, Role: bench.Output})
	}
	return list
}

// options returns those of a call on a path.
func (o groupedOp) options(impl string) (opt grouped.Options, err error) {
	opt = o.opt
	opt.Impl, err = gemm.ParseImpl(impl)
	return opt, err
}

// Choose implements bench.Op.
func (o groupedOp) Choose(caps *vk.Caps, impl string, p bench.Pass) (string, error) {
	opt, err := o.options(impl)
	if err != nil {
		return "", err
	}
	return grouped.Describe(caps, o.p, opt, p == bench.Backward, o.keep)
}

// Workspace implements bench.Op.
func (o groupedOp) Workspace(caps *vk.Caps, impl string, p bench.Pass) (int64, error) {
	opt, err := o.options(impl)
	if err != nil {
		return 0, err
	}
	if p == bench.Backward {
		return grouped.BackwardWorkspace(caps, o.p, opt, o.keep)
	}
	return grouped.ForwardWorkspace(caps, o.p, opt, o.keep)
}

// Record implements bench.Op.
func (o groupedOp) Record(c *vk.Cmd, t map[string]vk.Tensor, workspace *vk.Buffer, impl string, p bench.Pass) error {
	opt, err := o.options(impl)
	if err != nil {
		return err
	}
	opt.Workspace = workspace
	if o.keep == grouped.KeepPre {
		opt.Pre = t["pre"]
		opt.Pre.Shape = o.p.PreShape()
	}
	if p == bench.Backward {
		return grouped.Backward(c, t["dx"], t["dw1"], t["dw2"], t["dy"], t["x"], t["w1"], t["w2"], o.p, opt)
	}
	return grouped.Forward(c, t["y"], t["x"], t["w1"], t["w2"], o.p, opt)
}

// Reference implements bench.Op: of large problems, some tokens of what has tokens, and
// some hidden units of each head of the gradients of weights.
func (o groupedOp) Reference(t map[string][]float32, pass bench.Pass) ([]bench.Expected, error) {
	p := o.p
	in := ref.Inputs{X: wide(t["x"]), W1: wide(t["w1"]), W2: wide(t["w2"])}
	if pass == bench.Backward {
		in.DY = wide(t["dy"])
	}
	const most = 1 << 28 // multiplications of a product
	tokens := sample(p.Tokens, most/(p.Heads*p.Hidden*max(p.In, p.Out)))
	part, some := ref.Tokens(tokens, in, p)
	want, plain := ref.Compute(some, part), ref.Plain(some, part)
	bounds := ref.NewBounds(want, plain, part)
	if pass != bench.Backward {
		list := []bench.Expected{{Name: "y", At: rowsAt(tokens, p.Tokens, p.Heads*p.Out), Want: want.Y, Limit: bounds.Y}}
		if o.keep == grouped.KeepPre {
			var rows []int
			for _, t := range tokens {
				for k := range p.Heads {
					rows = append(rows, t*p.Heads+k)
				}
			}
			at := rowsApart(rows, p.Tokens*p.Heads, p.Hidden, o.stride)
			list = append(list, bench.Expected{Name: "pre", At: at, Want: want.Pre, Limit: bounds.Pre, Columns: p.Hidden, Stride: o.stride})
		}
		return list, nil
	}
	list := []bench.Expected{{Name: "dx", At: rowsAt(tokens, p.Tokens, p.In), Want: want.DX, Limit: bounds.DX}}

	units := sample(p.Hidden, most/(p.Heads*p.Tokens*max(p.In, p.Out)))
	part, some = ref.Units(units, in, p)
	want, plain = ref.Compute(some, part), ref.Plain(some, part)
	bounds = ref.NewBounds(want, plain, part)
	var columns, rows []int // of dw1 and dw2
	if len(units) < p.Hidden {
		for i := range p.Heads * p.In {
			for _, u := range units {
				columns = append(columns, i*p.Hidden+u)
			}
		}
		for k := range p.Heads {
			for _, u := range units {
				rows = append(rows, k*p.Hidden+u)
			}
		}
		rows = rowsAt(rows, p.Heads*p.Hidden, p.Out)
	}
	return append(list,
		bench.Expected{Name: "dw1", At: columns, Want: want.DW1, Limit: bounds.DW1},
		bench.Expected{Name: "dw2", At: rows, Want: want.DW2, Limit: bounds.DW2}), nil
}
