package kernels

import (
	"fmt"
	"math"
	"slices"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/bench"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/pipelines/mlp/ref"
	"github.com/flashvk/flashvk/vk"
)

const mlpFormulas = `
    pre  = x * w1
    y    = silu(pre) * w2                      silu(v) = v / (1 + exp(-v))
    dpre = (dy * w2ᵀ) ∘ silu'(pre)
    dx   = dpre * w1ᵀ,   dw1 = xᵀ * dpre,   dw2 = silu(pre)ᵀ * dy
`

// fusedImpl is the path of mlp that is one kernel. The others are those of its products,
// and auto takes what is fastest.
const fusedImpl = "fused"

// perceptron is the row of mlp.
func perceptron() Kernel {
	return Kernel{
		Name: "mlp", Title: "a two-layer perceptron with SiLU", Impls: slices.Insert(implNames(), 1, fusedImpl),
		Bench: Help{
			Long: `Measures a two-layer perceptron,
` + mlpFormulas + `
on random normal inputs, after checking sampled tokens and hidden units against a
float64 reference. Rates count the products of the formulas, 2 forward and 4 backward,
not what computes pre again, which the backward pass does unless --keep says that the
forward pass leaves it, or as PyTorch does hidden, silu(pre), too. Path fused is the forward
pass as one kernel.`,
			Example: `  flashvk bench mlp
  flashvk bench mlp --tokens 11000 --in 512 --hidden 1365 --out 512 --dtype bfloat16 --backward
  flashvk bench mlp --suite training --impl auto,fused
  flashvk bench mlp --tokens 11000 --impl fused --config "pair s8 t4x4 h2x1 x16 ahead8 double"
  flashvk bench mlp --suite training --backward --keep hidden
  flashvk bench mlp --suite training --backward --peer torch="python3 tools/peers/torch_train.py"`,
		},
		Run: Help{
			Long: `Computes a two-layer perceptron,
` + mlpFormulas + `
The input file holds the tensors
    x   (tokens, in), F16, BF16 or F32
    w1  (in, hidden), as x
    w2  (hidden, out), as x
The output file gets
    y       (tokens, out), as x
    pre     (tokens, hidden), as x, with --keep pre or hidden
    hidden  the same of silu(pre), with --keep hidden
With --backward the input file also holds the gradient of a loss by y,
    dy   (tokens, out), as x
and the output file also gets
    dx   (tokens, in), as x
    dw1  (in, hidden), in the format of --grad-dtype
    dw2  (hidden, out), likewise`,
			Example: `  flashvk run mlp --in x.safetensors --out y.safetensors
  flashvk run mlp --in x.safetensors --out y.safetensors --backward --grad-dtype float32`,
		},
		New: func() Flags { return &mlpFlags{} },
		How: []string{"keep"},
	}
}

// mlpFlags are the flags of both commands.
type mlpFlags struct {
	tokens, in, hidden, out int
	dtype, grad             dtype.DType
	keep                    mlp.Keep
	config                  string
	set                     *pflag.FlagSet
}

// Add implements Flags.
func (m *mlpFlags) Add(f *pflag.FlagSet, sizes bool) {
	m.set = f
	DTypeVar(f, &m.grad, "grad-dtype", "format of dw1 and dw2: float16, bfloat16 or float32 (default: that of x)")
	keepVar(f, &m.keep, mlp.Keeps(), "what the forward pass writes, and the backward pass reads: nothing (default), pre, or hidden, which is pre and silu(pre)")
	if !sizes {
		return
	}
	f.IntVar(&m.tokens, "tokens", 0, "rows of x (default 18048 on a GPU, 128 on a CPU device)")
	f.IntVar(&m.in, "in", 0, "columns of x (default 512, or 32)")
	f.IntVar(&m.hidden, "hidden", 0, "hidden units (default 1365, or 85)")
	f.IntVar(&m.out, "out", 0, "columns of y (default 512, or 32)")
	DTypeVar(f, &m.dtype, "dtype", "format of all tensors: float16, bfloat16 (default on a GPU) or float32")
	f.StringVar(&m.config, "config", "", "tile sizes of path fused, in the words that the column runs has, instead of the table's")
}

// FromFlags implements Flags.
func (m *mlpFlags) FromFlags(cpu bool) (bench.Op, error) {
	p := mlp.Problem{Tokens: 18048, In: 512, Hidden: 1365, Out: 512, DType: dtype.BFloat16}
	if cpu {
		p = mlp.Problem{Tokens: 128, In: 32, Hidden: 85, Out: 32, DType: dtype.Float16}
	}
	setGiven(m.set, []sizeFlag{{"tokens", &p.Tokens, &m.tokens}, {"in", &p.In, &m.in}, {"hidden", &p.Hidden, &m.hidden}, {"out", &p.Out, &m.out}})
	if m.set.Changed("dtype") {
		p.DType = m.dtype
	}
	return m.op(p, gemm.RowStride(p.Hidden))
}

// op returns the problem with what both commands' flags say, and rows of hidden units some
// elements apart.
func (m *mlpFlags) op(p mlp.Problem, stride int) (bench.Op, error) {
	p.Grad = p.DType
	if m.set.Changed("grad-dtype") {
		p.Grad = m.grad
	}
	op := mlpOp{p: p, keep: m.keep, stride: stride}
	if m.config != "" {
		config, err := gemm.ParsePairConfig(m.config)
		if err != nil {
			return nil, fmt.Errorf("--config: %w", err)
		}
		op.config = &config
	}
	return op, p.Validate()
}

// FromFile implements Flags.
func (m *mlpFlags) FromFile(h Header) (bench.Op, error) {
	x, format, err := h.Floats("x", "tokens", "in")
	if err != nil {
		return nil, err
	}
	w2, _, err := h.Floats("w2", "hidden", "out")
	if err != nil {
		return nil, err
	}
	return m.op(mlp.Problem{Tokens: x[0], In: x[1], Hidden: w2[0], Out: w2[1], DType: format}, w2[0])
}

// Suite implements Flags: the tokens of the training shapes.
func (m *mlpFlags) Suite(small bool) []bench.Op {
	var list []bench.Op
	for _, tokens := range []int{18048, 11000, 205000} {
		p := mlp.Problem{Tokens: tokens, In: 512, Hidden: 1365, Out: 512, DType: dtype.BFloat16, Grad: dtype.BFloat16}
		if small {
			p = mlp.Problem{Tokens: tokens / 200, In: 32, Hidden: 85, Out: 32, DType: dtype.Float16, Grad: dtype.Float16}
		}
		list = append(list, mlpOp{p: p, keep: m.keep, stride: gemm.RowStride(p.Hidden)})
	}
	return list
}

// An mlpOp is a problem of package mlp.
type mlpOp struct {
	p      mlp.Problem
	keep   mlp.Keep
	stride int              // elements from row to row of pre and hidden
	config *gemm.PairConfig // of path fused; nil: the table's
}

// Name implements bench.Op.
func (o mlpOp) Name() string { return "mlp" }

// Describe implements bench.Op.
func (o mlpOp) Describe() string {
	switch o.keep {
	case mlp.KeepPre:
		return o.p.String() + ", pre kept"
	case mlp.KeepHidden:
		return o.p.String() + ", pre and silu(pre) kept"
	}
	return o.p.String()
}

// Keys implements bench.Op.
func (o mlpOp) Keys() []bench.Key {
	p := o.p
	return []bench.Key{
		{Name: "dtype", Value: p.DType.String()}, {Name: "grad_dtype", Value: p.Grad.String()},
		{Name: "tokens", Value: p.Tokens}, {Name: "in", Value: p.In}, {Name: "hidden", Value: p.Hidden}, {Name: "out", Value: p.Out},
		{Name: "keep", Value: o.keep.String()},
	}
}

// Cost implements bench.Op.
func (o mlpOp) Cost(p bench.Pass) (flops, bytes float64) {
	if p == bench.Backward {
		return o.p.BackwardFLOPs(), o.p.BackwardBytes()
	}
	return o.p.FLOPs(), o.p.Bytes()
}

// Tensors implements bench.Op.
func (o mlpOp) Tensors() []bench.OpTensor {
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
	for _, name := range o.kept() {
		list = append(list, bench.OpTensor{Name: name, DType: p.DType, Shape: []int{p.Tokens, o.stride}, Role: bench.Output})
	}
	return list
}

// kept names the tensors that the forward pass leaves to the backward pass.
func (o mlpOp) kept() []string { return []string{"pre", "hidden"}[:o.keep] }

// options returns those of a pass on a path.
func (o mlpOp) options(impl string, p bench.Pass) (mlp.Options, error) {
	switch {
	case impl == fusedImpl && p == bench.Backward:
		return mlp.Options{}, fmt.Errorf("mlp: path fused: the backward pass has no such kernel: %w", gemm.ErrUnsupported)
	case impl == fusedImpl:
		return mlp.Options{Fused: mlp.FusedOn, FusedConfig: o.config}, nil
	case o.config != nil:
		return mlp.Options{}, fmt.Errorf("mlp: path %s: --config is of path %s: %w", impl, fusedImpl, gemm.ErrUnsupported)
	case impl == gemm.Auto.String():
		return mlp.Options{}, nil
	}
	i, err := gemm.ParseImpl(impl)
	return mlp.Options{Impl: i, Fused: mlp.FusedOff}, err
}

// Choose implements bench.Op.
func (o mlpOp) Choose(caps *vk.Caps, impl string, p bench.Pass) (string, error) {
	opt, err := o.options(impl, p)
	if err != nil {
		return "", err
	}
	return mlp.Describe(caps, o.p, opt, p == bench.Backward, o.keep)
}

// Workspace implements bench.Op.
func (o mlpOp) Workspace(caps *vk.Caps, impl string, p bench.Pass) (int64, error) {
	opt, err := o.options(impl, p)
	if err != nil {
		return 0, err
	}
	if p == bench.Backward {
		return mlp.BackwardWorkspace(caps, o.p, opt, o.keep)
	}
	return mlp.ForwardWorkspace(caps, o.p, opt, o.keep)
}

// Record implements bench.Op.
func (o mlpOp) Record(c *vk.Cmd, t map[string]vk.Tensor, workspace *vk.Buffer, impl string, p bench.Pass) error {
	opt, err := o.options(impl, p)
	if err != nil {
		return err
	}
	opt.Workspace = workspace
	for i, to := range []*vk.Tensor{&opt.Pre, &opt.Hidden}[:o.keep] {
		*to = t[o.kept()[i]]
		to.Shape = o.p.PreShape()
	}
	if p == bench.Backward {
		return mlp.Backward(c, t["dx"], t["dw1"], t["dw2"], t["dy"], t["x"], t["w1"], t["w2"], o.p, opt)
	}
	return mlp.Forward(c, t["y"], t["x"], t["w1"], t["w2"], o.p, opt)
}

// Reference implements bench.Op: of large problems, some tokens of what has tokens, and
// some hidden units of the gradients of weights.
func (o mlpOp) Reference(t map[string][]float32, pass bench.Pass) ([]bench.Expected, error) {
	p := o.p
	in := ref.Inputs{X: wide(t["x"]), W1: wide(t["w1"]), W2: wide(t["w2"])}
	if pass == bench.Backward {
		in.DY = wide(t["dy"])
	}
	const most = 1 << 28 // multiplications of a product
	tokens := sample(p.Tokens, most/(p.Hidden*max(p.In, p.Out)))
	part, some := ref.Tokens(tokens, in, p)
	want, plain := ref.Compute(some, part), ref.Plain(some, part)
	bounds := ref.NewBounds(want, plain, part)
	if pass != bench.Backward {
		list := []bench.Expected{{Name: "y", At: rowsAt(tokens, p.Tokens, p.Out), Want: want.Y, Limit: bounds.Y}}
		at := rowsApart(tokens, p.Tokens, p.Hidden, o.stride)
		kept := []bench.Expected{
			{Name: "pre", At: at, Want: want.Pre, Limit: bounds.Pre, Columns: p.Hidden, Stride: o.stride},
			{Name: "hidden", At: at, Want: want.Hidden, Limit: bounds.Hidden, Columns: p.Hidden, Stride: o.stride},
		}
		return append(list, kept[:o.keep]...), nil
	}
	list := []bench.Expected{{Name: "dx", At: rowsAt(tokens, p.Tokens, p.In), Want: want.DX, Limit: bounds.DX}}

	units := sample(p.Hidden, most/(p.Tokens*max(p.In, p.Out)))
	part, some = ref.Units(units, in, p)
	want, plain = ref.Compute(some, part), ref.Plain(some, part)
	bounds = ref.NewBounds(want, plain, part)
	var columns []int // of dw1
	if len(units) < p.Hidden {
		for i := range p.In {
			for _, u := range units {
				columns = append(columns, i*p.Hidden+u)
			}
		}
	}
	return append(list,
		bench.Expected{Name: "dw1", At: columns, Want: want.DW1, Limit: bounds.DW1},
		bench.Expected{Name: "dw2", At: rowsAt(units, p.Hidden, p.Out), Want: want.DW2, Limit: bounds.DW2}), nil
}

// rowsAt returns the elements of some rows of a matrix of n rows; nil if they are all.
func rowsAt(rows []int, n, cols int) []int { return rowsApart(rows, n, cols, cols) }

// rowsApart is rowsAt of the first columns of a matrix with longer rows.
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

// sample returns some of n indices, the first and the last among them: as many as wanted,
// at least 4.
func sample(n, wanted int) []int {
	wanted = min(max(wanted, 4), n)
	list := make([]int, 0, wanted)
	for i := range wanted {
		list = append(list, i*(n-1)/max(wanted-1, 1))
	}
	return list
}
