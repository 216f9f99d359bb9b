package kernels

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

const gemmFormulas = `
    v = alpha * op(a) * op(b) + beta * c
    x = v                      --activation silu-keep
    v = silu(v)                silu and silu-keep; silu(v) = v / (1 + exp(-v))
    v = v * silu'(x)           times-dsilu and times-dsilu-keep
    s = silu(x)                times-dsilu-keep
    c = v + r                  if there is r
`

// matrixMultiply is the row of gemm.
func matrixMultiply() Kernel {
	return Kernel{
		Name: "gemm", Title: "matrix products", Impls: implNames(),
		Bench: Help{
			Long: `Measures matrix products with an epilogue,
` + gemmFormulas + `
on random normal inputs, after checking all of the result, or sampled rows, against a
float64 reference. The inputs b are scaled so that products are about 1.

--group measures one launch of products of different sizes. Their tensors lie one after
the other in memory. Products of no rows do nothing.`,
			Example: `  flashvk bench gemm
  flashvk bench gemm --m 11000 --n 1365 --k 512 --trans nt --dtype bfloat16
  flashvk bench gemm --suite training --peer torch="python3 tools/peers/torch_train.py"
  flashvk bench gemm --group 1024x1365x512,0x1365x512,4096x1365x512 --trans nt
  flashvk bench gemm --m 4096 --n 4096 --k 4096 --config "coopmat s2x2 t4x4 k32 g8"`,
		},
		Run: Help{
			Long: `Computes matrix products with an epilogue,
` + gemmFormulas + `
The input file holds the tensors
    a  (batch, m, k), with --trans t. (batch, k, m): F16, BF16 or F32
    b  (batch, k, n), with --trans .t (batch, n, k), as a
    c  (batch, m, n), with --beta
    r  (batch, m, n); may be missing
    x  (batch, m, n), with --activation times-dsilu and times-dsilu-keep
all without the batch axis if there is one product. The output file gets
    c  (batch, m, n), in the format of --out-dtype, which c, r and x of the input also have
    x  likewise, with --activation silu-keep
    s  likewise, with --activation times-dsilu-keep

With --group, one launch has products of the given sizes. Each tensor then has one axis and
holds the tensors of all products, one after the other; --trans is nn by default.`,
			Example: `  flashvk run gemm --in ab.safetensors --out c.safetensors
  flashvk run gemm --in ab.safetensors --out c.safetensors --trans tn --alpha 0.5 --activation silu
  flashvk run gemm --in ab.safetensors --out c.safetensors --group 3x5x7,0x5x7,4x6x2`,
		},
		Sweep: "--m 512..8192x2 --n 1365 --k 512",
		Tune: &Tune{
			Help: Help{
				Long: `Tries configurations of gemm on this device. Tile sizes come first, in the order of an
estimate, for as long as the budget lasts, then the other choices around the best of them.

bench gemm --config takes the words of the column configuration. With --config, tune tries
the neighbours of that configuration instead of all tile sizes.

Problem, default sizes and suites are those of bench gemm. Each case of a suite has a
table.`,
				Example: `  flashvk tune gemm
  flashvk tune gemm --m 11000 --n 1365 --k 512 --trans nt --impl coopmat --budget 30s
  flashvk tune gemm --suite training --impl coopmat --format markdown
  flashvk tune gemm --dry-run`,
			},
			Table: productTable, Impls: implNames()[1:],
		},
		New: func() Flags { return &gemmFlags{alpha: 1} },
	}
}

func implNames() []string {
	names := []string{gemm.Auto.String()}
	for _, impl := range engine.Impls() {
		names = append(names, impl.String())
	}
	return names
}

// gemmFlags are the flags of both commands.
type gemmFlags struct {
	m, n, k, batch    int
	trans, activation string
	alpha, beta       float64
	residual          bool
	dtype, out        dtype.DType
	config, group     string
	set               *pflag.FlagSet
}

// Add implements Flags.
func (g *gemmFlags) Add(f *pflag.FlagSet, sizes bool) {
	g.set = f
	f.StringVar(&g.trans, "trans", "", "which of a and b are transposed: nn, nt, tn or tt (default: the first that fits the tensors)")
	f.Float64Var(&g.alpha, "alpha", g.alpha, "factor of the product, not 0")
	f.Float64Var(&g.beta, "beta", 0, "factor of what c held before")
	f.StringVar(&g.activation, "activation", "identity", "identity, silu, silu-keep, times-dsilu or times-dsilu-keep")
	f.StringVar(&g.group, "group", "", "m, n and k of products of different sizes, in one launch: 128x512x64,7x512x64")
	DTypeVar(f, &g.out, "out-dtype", "format of c: float16, bfloat16 or float32 (default: that of a)")
	if !sizes {
		return
	}
	f.IntVar(&g.m, "m", 0, "rows of c (default 4096 on a GPU, 128 on a CPU device, like the next two)")
	f.IntVar(&g.n, "n", 0, "columns of c")
	f.IntVar(&g.k, "k", 0, "columns of op(a)")
	f.IntVar(&g.batch, "batch", 1, "products")
	f.BoolVar(&g.residual, "residual", false, "add r")
	DTypeVar(f, &g.dtype, "dtype", "format of a and b: float16, bfloat16 (default on a GPU) or float32")
	f.StringVar(&g.config, "config", "", "tile sizes, in the words of the column runs, instead of the table's")
}

// problem returns the problem of the flags that both commands have.
func (g *gemmFlags) problem() (p problem.Problem, err error) {
	if g.alpha == 0 {
		return p, fmt.Errorf("gemm: alpha=0 leaves no product")
	}
	p.Alpha, p.Beta = g.alpha, g.beta
	if p.Activation, err = problem.ParseActivation(g.activation); err != nil {
		return p, err
	}
	if g.trans != "" {
		p.TransA, p.TransB, err = problem.ParseTransposes(g.trans)
	}
	return p, err
}

// outOr returns the format of c: that of the flag, or else that of a.
func (g *gemmFlags) outOr(format dtype.DType) dtype.DType {
	if g.set.Changed("out-dtype") {
		return g.out
	}
	return format
}

// FromFlags implements Flags.
func (g *gemmFlags) FromFlags(cpu bool) (bench.Op, error) {
	p, err := g.problem()
	if err != nil {
		return nil, err
	}
	p.M, p.N, p.K, p.DType = 4096, 4096, 4096, dtype.BFloat16
	if cpu {
		p.M, p.N, p.K, p.DType = 128, 128, 128, dtype.Float16
	}
	setGiven(g.set, []sizeFlag{{"m", &p.M, &g.m}, {"n", &p.N, &g.n}, {"k", &p.K, &g.k}})
	if g.set.Changed("dtype") {
		p.DType = g.dtype
	}
	if g.set.Changed("batch") && g.batch < 1 {
		return nil, fmt.Errorf("--batch %d is less than 1", g.batch)
	}
	p.Batch, p.Residual, p.Out = g.batch, g.residual, g.outOr(p.DType)
	var config *engine.Config
	if g.config != "" {
		c, err := engine.ParseConfig(g.config)
		if err != nil {
			return nil, fmt.Errorf("--config: %w", err)
		}
		config = &c
	}
	if g.group == "" {
		return gemmOp{p: p, config: config}, p.Validate()
	}
	for _, size := range []string{"m", "n", "k", "batch"} {
		if g.set.Changed(size) {
			return nil, fmt.Errorf("--group and --%s contradict each other", size)
		}
	}
	return newGemmGroup(g.group, p, config)
}

// FromFile implements Flags.
func (g *gemmFlags) FromFile(in File) (bench.Op, error) {
	h := Header(in.Tensors())
	p, err := g.problem()
	if err != nil {
		return nil, err
	}
	_, p.Residual = h.Tensor("r")
	if g.group != "" {
		if p.DType, err = h.Float("a"); err != nil {
			return nil, err
		}
		p.Out = g.outOr(p.DType)
		return newGemmGroup(g.group, p, nil)
	}
	axes := []string{"rows", "columns"}
	if a, ok := h.Tensor("a"); ok && len(a.Shape) == 3 {
		axes = []string{"batch", "rows", "columns"}
	}
	a, format, err := h.Floats("a", axes...)
	if err != nil {
		return nil, err
	}
	b, _, err := h.Floats("b", axes...)
	if err != nil {
		return nil, err
	}
	if len(axes) == 3 {
		p.Batch = a[0]
		a, b = a[1:], b[1:]
	}
	candidates := []string{"nn", "nt", "tn", "tt"}
	if g.trans != "" {
		candidates = []string{g.trans}
	}
	fits := false
	for _, t := range candidates {
		p.TransA, p.TransB = t[0] == 't', t[1] == 't'
		p.M, p.K = ordered(a, p.TransA)
		var k int
		if k, p.N = ordered(b, p.TransB); k == p.K {
			fits = true
			break
		}
	}
	if !fits {
		return nil, fmt.Errorf("tensors \"a\" and \"b\": the inner sizes of shapes %v and %v differ with --trans %s", a, b, strings.Join(candidates, ", "))
	}
	p.DType, p.Out = format, g.outOr(format)
	return gemmOp{p: p, flat: len(axes) == 2}, p.Validate()
}

// ordered returns the rows and columns of op(A) or op(B).
func ordered(shape []int, transposed bool) (rows, cols int) {
	if transposed {
		return shape[1], shape[0]
	}
	return shape[0], shape[1]
}

// Suite implements Flags.
func (g *gemmFlags) Suite(small bool) []bench.Op {
	var list []bench.Op
	for _, s := range [][3]int{
		{8192, 8192, 8192}, {4096, 4096, 4096}, {11000, 1365, 512}, {11000, 512, 1365}, {205000, 1365, 512}, {18048, 1536, 512},
	} {
		p := problem.Problem{M: s[0], N: s[1], K: s[2], TransB: true, DType: dtype.BFloat16, Out: dtype.BFloat16}
		if small {
			p.M, p.N, p.K = (p.M+63)/64, (p.N+31)/32, (p.K+15)/16
			p.DType, p.Out = dtype.Float16, dtype.Float16
		}
		list = append(list, gemmOp{p: p, flat: true})
	}
	return list
}

// A gemmOp is a problem of package gemm.
type gemmOp struct {
	p      problem.Problem
	flat   bool           // tensors have no batch axis
	config *engine.Config // nil: the table's
	tuning *kit.Tuning
}

// Name implements bench.Op.
func (o gemmOp) Name() string { return "gemm" }

// Describe implements bench.Op.
func (o gemmOp) Describe() string {
	p := o.p
	batch := ""
	if p.Batches() > 1 {
		batch = fmt.Sprintf("batch %d, ", p.Batches())
	}
	return fmt.Sprintf("%v: %sm %d, n %d, k %d%s", p.DType, batch, p.M, p.N, p.K, describeProduct(p))
}

// describeProduct returns what is not sizes.
func describeProduct(p problem.Problem) string {
	s := ", " + p.Transposes()
	if p.Out != p.DType {
		s += fmt.Sprintf(", out %v", p.Out)
	}
	if p.Scale() != 1 {
		s += fmt.Sprintf(", alpha %g", p.Scale())
	}
	if p.Beta != 0 {
		s += fmt.Sprintf(", beta %g", p.Beta)
	}
	if p.Activation != problem.Identity {
		s += ", " + p.Activation.String()
	}
	if p.Residual {
		s += ", residual"
	}
	return s
}

// Keys implements bench.Op.
func (o gemmOp) Keys() []bench.Key {
	p := o.p
	return []bench.Key{
		{Name: "dtype", Value: p.DType.String()}, {Name: "out", Value: p.Out.String()}, {Name: "trans", Value: p.Transposes()},
		{Name: "batch", Value: p.Batches()}, {Name: "m", Value: p.M}, {Name: "n", Value: p.N}, {Name: "k", Value: p.K},
		{Name: "alpha", Value: p.Scale()}, {Name: "beta", Value: p.Beta}, {Name: "activation", Value: p.Activation.String()}, {Name: "residual", Value: p.Residual},
	}
}

// Cost implements bench.Op.
func (o gemmOp) Cost(bench.Pass) (flops, bytes float64) { return o.p.FLOPs(), o.p.Bytes() }

// Tensors implements bench.Op.
func (o gemmOp) Tensors() []bench.OpTensor {
	p := o.p
	shape := func(s []int) []int {
		if o.flat {
			return s[1:]
		}
		return s
	}
	list := []bench.OpTensor{
		{Name: "a", DType: p.DType, Shape: shape(p.AShape())},
		{Name: "b", DType: p.DType, Shape: shape(p.BShape()), Draw: perRoot(p.K)},
	}
	add := func(present bool, name string, role call.Role) {
		if present {
			list = append(list, bench.OpTensor{Name: name, DType: p.Out, Shape: shape(p.CShape()), Role: role})
		}
	}
	add(p.Beta == 0, "c", call.Output)
	add(p.Beta != 0, "c", call.Update)
	add(p.Residual, "r", call.Input)
	add(p.ReadsX(), "x", call.Input)
	add(p.HasX() && !p.ReadsX(), "x", call.Output)
	add(p.HasS(), "s", call.Output)
	return list
}

// options returns those of a call.
func (o gemmOp) options(impl string) (gemm.Options, error) {
	i, err := gemm.ParseImpl(impl)
	if err != nil || o.config == nil {
		return gemm.Options{Impl: i, Tuning: o.tuning}, err
	}
	if i != gemm.Auto && i != o.config.Impl {
		return gemm.Options{}, fmt.Errorf("gemm: path %v: --config is of path %v: %w", i, o.config.Impl, vk.ErrUnsupported)
	}
	return gemm.Options{Config: (*gemm.Config)(o.config)}, nil
}

// gemmProblem returns the problem as users of the package state it.
func gemmProblem(p problem.Problem) gemm.Problem {
	return gemm.Problem{
		Batch: p.Batch, M: p.M, N: p.N, K: p.K, TransA: p.TransA, TransB: p.TransB, Alpha: p.Alpha, Beta: p.Beta,
		Activation: gemm.Activation(p.Activation), Residual: p.Residual, DType: p.DType, Out: dtype.Some(p.Out),
	}
}

// Choose implements bench.Op.
func (o gemmOp) Choose(caps *vk.Caps, impl string, p bench.Pass) (kit.Plan, error) {
	opt, err := o.options(impl)
	if err != nil {
		return nil, err
	}
	return gemm.Choose(caps, gemmProblem(o.p), p.Kit(), opt)
}

// Record implements bench.Op.
func (o gemmOp) Record(c *vk.Cmd, t map[string]vk.Tensor, workspace *vk.Buffer, impl string, _ bench.Pass) error {
	opt, err := o.options(impl)
	if err != nil {
		return err
	}
	opt.Workspace = workspace
	return gemm.Forward(c, gemm.Tensors{A: t["a"], B: t["b"], C: t["c"], Residual: t["r"], X: t["x"], S: t["s"]}, gemmProblem(o.p), opt)
}

// Reference implements bench.Op. For large products it has sampled rows.
func (o gemmOp) Reference(t map[string][]float32, _ bench.Pass) (bench.Reference, error) {
	rows := sampleRows(o.p)
	p, in := ref.Rows(rows, ref.Inputs{A: wide(t["a"]), B: wide(t["b"]), C: wide(t["c"]), R: wide(t["r"]), X: wide(t["x"])}, o.p)
	want, plain := ref.Multiply(in, p), ref.Plain(in, p)
	bounds := ref.NewBounds(want, plain, in, p)
	var at []int
	if len(rows) < o.p.M {
		for batch := range p.Batches() {
			for _, row := range rows {
				at = append(at, rowsAt([]int{batch*o.p.M + row}, p.Batches()*o.p.M, p.N)...)
			}
		}
	}
	var list bench.Expectations
	for _, x := range []struct {
		name  string
		want  []float64
		limit float64
	}{{"c", want.C, bounds.C}, {"x", want.X, bounds.X}, {"s", want.S, bounds.S}} {
		if x.want != nil {
			list = append(list, bench.Expected{Name: x.name, At: at, Want: x.want, Limit: x.limit})
		}
	}
	return list, nil
}

// sampleRows returns the rows of C to check: all rows of a small problem, else as many as the
// reference computes in about a second.
func sampleRows(p problem.Problem) []int { return sample(p.M, mostChecked/(p.Batches()*p.N*p.K)) }

const mostChecked = 1 << 30 // multiplications of the reference
