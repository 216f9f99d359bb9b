package kernels

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/chain"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/skinny"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

var _ = row(Kernel{Impls: append(implNames(), engine.GEMV.String()), Tune: &Tune{}}, gemmCalls())

// configText is the text of a configuration that is valid.
func configText(text string) (string, error) {
	_, err := engine.ParseConfig(text)
	return text, err
}

func implNames() []string { return pathNames(gemm.Auto, engine.Impls()) }

// pathNames returns the names of paths, auto first.
func pathNames[T fmt.Stringer](auto T, others []T) []string {
	names := []string{auto.String()}
	for _, x := range others {
		names = append(names, x.String())
	}
	return names
}

// gemmCalls are the calls that commands make.
func gemmCalls() *calls[*call.Gemm] {
	return &calls[*call.Gemm]{
		name: "gemm",
		values: map[string]value{
			"activation": parsed(problem.ParseActivation, "NAME"), "config": parsed(configText, "CONFIG"),
		},
		file: gemmFile,
		shrink: func(g *call.Gemm, _ [3]int) {
			g.M, g.N, g.K, g.DType = (g.M+63)/64, (g.N+31)/32, (g.K+15)/16, dtype.Float16
		},
		derived: func(g *call.Gemm) map[string]any {
			return map[string]any{"trans": g.Transposes(), "batch": g.Batches(), "alpha": g.Scale()}
		},
		check:  checkGemm,
		op:     productOp,
		sample: func(g *call.Gemm) int { return max(4, mostChecked/(g.Batches()*g.N*g.K)) },
		tune: func(_ *vk.Caps, op calledOp[*call.Gemm], _ bench.Pass) ([]bench.Tunable, error) {
			return gemmChoices(op), nil
		},
	}
}

const mostChecked = 1 << 30 // multiplications of the reference

// checkGemm sets fields from flags of other types.
func checkGemm(g *call.Gemm, f *pflag.FlagSet) (err error) {
	for _, size := range []string{"m", "n", "k", "batch"} {
		if g.Group != "" && f.Changed(size) {
			return fmt.Errorf("--group and --%s contradict each other", size)
		}
	}
	if g.Alpha == 0 {
		return errors.New("gemm: alpha=0 leaves no product")
	}
	if g.Batch == 0 && !g.NoBatch {
		return errors.New("--batch 0 is less than 1")
	}
	if g.Trans != "" {
		if g.TransA, g.TransB, err = problem.ParseTransposes(g.Trans); err != nil {
			return err
		}
	}
	g.Out = g.OutDType.Or(g.DType)
	return nil
}

// gemmFile sets sizes and formats from the tensors of a file.
func gemmFile(s *Source, g *call.Gemm) (err error) {
	g.Bias, g.Residual = s.has("bias"), s.has("r")
	if g.Bias {
		format, err := s.float("bias")
		if err != nil {
			return err
		}
		g.Bias32 = format == dtype.Float32
	}
	if g.Group != "" {
		g.Batch, g.M, g.N, g.K = 1, 1, 1, 1
		g.DType, err = s.float("a")
		return err
	}
	axes := []string{"batch", "rows", "columns"}
	if a, ok := s.Tensor("a"); ok && len(a.Shape) == 2 {
		g.NoBatch, axes = true, axes[1:]
	}
	if err := cmp.Or(s.into(g, "a", "dtype", axes...), s.into(g, "b", "", axes...)); err != nil {
		return err
	}
	x, _ := s.Tensor("a")
	y, _ := s.Tensor("b")
	a, b := x.Shape[len(axes)-2:], y.Shape[len(axes)-2:]
	candidates := []string{"nn", "nt", "tn", "tt"}
	if g.Trans != "" {
		candidates = []string{g.Trans}
	}
	for _, g.Trans = range candidates {
		if g.TransA, g.TransB, err = problem.ParseTransposes(g.Trans); err != nil {
			return err
		}
		var k int
		g.M, g.K = ordered(a, g.TransA)
		if k, g.N = ordered(b, g.TransB); k == g.K {
			return nil
		}
	}
	return fmt.Errorf("tensors \"a\" and \"b\": the inner sizes of shapes %v and %v differ with --trans %s", a, b, strings.Join(candidates, ", "))
}

// ordered returns the rows and columns of op(A) or op(B).
func ordered(shape []int, transposed bool) (rows, cols int) {
	if transposed {
		return shape[1], shape[0]
	}
	return shape[0], shape[1]
}

// productOp returns the product, or with --group a group of products that are otherwise like it.
func productOp(p *call.Gemm, lines bool) (bench.Op, error) {
	if p.Group == "" {
		return gemmCalls().newOp(p, lines), nil
	}
	g := &call.GemmGroup{
		TransA: p.TransA, TransB: p.TransB, Activation: p.Activation, Bias: p.Bias, Residual: p.Residual, DType: p.DType, Out: p.Out, Config: p.Config, Whole: true,
	}
	for word := range strings.SplitSeq(p.Group, ",") {
		x := call.GemmProduct{Alpha: p.Alpha, Beta: p.Beta}
		if n, err := fmt.Sscanf(word, "%dx%dx%d", &x.M, &x.N, &x.K); err != nil || n != 3 || sizes(x) != word {
			return nil, fmt.Errorf("gemm: product %q of a group is not MxNxK, as in 128x512x64", word)
		}
		g.Products = append(g.Products, x)
	}
	if err := g.Validate(); err != nil {
		return nil, err
	}
	for _, t := range g.Tensors() {
		if t.Shape[0] == 0 {
			return nil, fmt.Errorf("gemm: products %s have no elements of %s", p.Group, t.Name)
		}
	}
	return calledOp[*call.GemmGroup]{of: &groupCalls, c: g}, nil
}

// sizes returns sizes as the flag --group has them.
func sizes(products ...call.GemmProduct) string {
	words := make([]string, len(products))
	for i, x := range products {
		words[i] = fmt.Sprintf("%dx%dx%d", x.M, x.N, x.K)
	}
	return strings.Join(words, ",")
}

// groupCalls are the calls of groups.
var groupCalls = calls[*call.GemmGroup]{
	name: "gemm",
	describe: func(g *call.GemmGroup) string {
		return fmt.Sprintf("%v: group %s, %s, %v", g.DType, g.Few(), g.Problem(0).Transposes(), g.Activation)
	},
	keys: "dtype out trans group alpha beta activation bias residual",
	derived: func(g *call.GemmGroup) map[string]any {
		p := g.Problem(0)
		return map[string]any{"trans": p.Transposes(), "group": sizes(g.Products...), "alpha": p.Scale(), "beta": p.Beta}
	},
	sample: func(g *call.GemmGroup) int {
		most := 1
		for _, x := range g.Products {
			most = max(most, x.N*x.K)
		}
		return max(4, mostChecked/(len(g.Products)*most))
	},
}

// gemmChoices returns the choices of a product.
func gemmChoices(op calledOp[*call.Gemm]) []bench.Tunable {
	if c, err := engine.ParseConfig(op.c.Config); err == nil {
		c.Splits = max(c.Splits, 1)
		return op.choices(bench.Forward, op.c.Problem, c)
	}
	return op.choices(bench.Forward, op.c.Problem, nil)
}

// partTunables returns the choices of the parts of a pass, each once. Products are measured alone.
// Kernels of package skinny are measured as a part of op, where W2 has this number of columns for
// each head.
func partTunables(caps *vk.Caps, op bench.Op, pass bench.Pass, columns int) (list []bench.Tunable, err error) {
	if caps == nil {
		return nil, nil
	}
	plan, err := op.Choose(caps, engine.CoopMat.String(), pass)
	if errors.Is(err, vk.ErrUnsupported) {
		plan, err = op.Choose(caps, engine.Scalar.String(), pass)
	}
	if err != nil {
		return nil, err
	}
	parts := plan.(interface{ Parts() []chain.Part }).Parts()
	for i, part := range parts {
		if slices.Contains(parts[:i], part) {
			continue
		}
		if part.Kernel == "gemm" {
			list = append(list, gemmChoices(calledOp[*call.Gemm]{of: gemmCalls(), c: &call.Gemm{Problem: part.Problem}})...)
			continue
		}
		list = append(list, skinnyChoices(caps, op, pass, part, columns))
	}
	return list, nil
}

// skinnyChoices returns the choices of a kernel of package skinny in a pass of op.
func skinnyChoices(caps *vk.Caps, op bench.Op, pass bench.Pass, part chain.Part, columns int) bench.Tunable {
	p := part.Problem
	choose := func(o engine.Options) (c engine.Config, err error) {
		var plan skinny.Plan
		switch {
		case part.Kernel == "mixture":
			plan, err := skinny.ChooseMixture(caps, p, o)
			return plan.Config, err
		case part.Pass == kit.Backward:
			o.AlignedB = true
			plan, err = skinny.ChooseBackward(caps, p, columns, o)
		default:
			plan, err = skinny.ChooseForward(caps, p, columns, o)
		}
		return plan.Config, err
	}
	if part.Kernel == "mixture" {
		part.Problem.N = 1 // a workgroup has all columns, and the table is asked about one
	}
	x := bench.Tunable{Op: op, Pass: pass, Space: *table.SpaceOf(part.Kernel, part.Pass, part.Problem), With: func(c bench.Candidate) bench.Op {
		one := kit.NewTuning(caps)
		if one.Add(part.Kernel, part.Pass, part.Problem, c, 1) != nil {
			panic("kernels: a candidate is no row")
		}
		return op.Use(one)
	}}
	x.Candidates = func(caps *vk.Caps, impl string) ([]bench.Candidate, error) {
		if impl != engine.CoopMat.String() {
			return nil, engine.Unsupported("%s: hidden units stay on the chip in kernels on matrices only", impl)
		}
		list, err := skinny.Candidates(caps, p, choose)
		return asCandidates(list), err
	}
	x.Variants = func(caps *vk.Caps, c bench.Candidate) []bench.Candidate {
		return asCandidates(skinny.Variants(caps, p, c.(engine.Config), choose))
	}
	return x
}

func asCandidates(list []engine.Config) (all []bench.Candidate) {
	for _, c := range list {
		all = append(all, c)
	}
	return all
}

// fusedImpl is the path of mlp that is one kernel. The other paths are paths of the matrix
// products; auto takes the fastest.
const fusedImpl = "fused"

var (
	_ = row(Kernel{
		Impls: slices.Insert(implNames(), 1, fusedImpl), Backward: true, How: []string{"keep"}, Tune: &Tune{Impls: implNames()[1:]},
	}, perceptronCalls(false))
	_ = row(Kernel{Impls: implNames(), Backward: true, How: []string{"products", "keep"}, Tune: &Tune{}}, perceptronCalls(true))
)

// perceptronCalls are the calls of commands mlp and grouped. The suites have the tokens of the
// training shapes, and the heads of that workload.
func perceptronCalls(grouped bool) *calls[*call.MLP] {
	k := &calls[*call.MLP]{
		name: "mlp", path: mlpPath, values: map[string]value{"keep": named("WHAT", mlp.Keeps()...)},
		derived: func(m *call.MLP) map[string]any { return map[string]any{"grad_dtype": m.GradDType()} },
		sample:  func(m *call.MLP) int { return sampleTokens(m.Problem) },
		file: func(s *Source, m *call.MLP) error {
			return cmp.Or(s.into(m, "x", "dtype", "tokens", "in"), s.into(m, "w2", "", "hidden", "out"))
		},
		tune: func(caps *vk.Caps, op calledOp[*call.MLP], p bench.Pass) ([]bench.Tunable, error) {
			return partTunables(caps, op, p, op.c.Out)
		},
	}
	k.shrink = func(m *call.MLP, _ [3]int) {
		tokens := m.Tokens
		m.Problem = k.base(true).Problem
		m.Tokens = tokens / 200
	}
	if grouped {
		k.name, k.values = "grouped", map[string]value{"keep": named("WHAT", mlp.Keeps()[:2]...)}
		k.check = func(m *call.MLP, _ *pflag.FlagSet) error {
			if m.Heads < 1 {
				return fmt.Errorf("grouped: heads=%d is not positive", m.Heads)
			}
			return nil
		}
		k.file = func(s *Source, m *call.MLP) error {
			return cmp.Or(s.into(m, "x", "dtype", "tokens", "in"), s.into(m, "w2", "", "heads", "hidden", "out"))
		}
	}
	return k
}

// sampleTokens returns the tokens whose products are some tenths of a second of float64.
func sampleTokens(p mlp.Problem) int {
	const most = 1 << 28 // multiplications of a product
	return max(4, most/(max(p.Heads, 1)*p.Hidden*max(p.In, p.Out)))
}

// mlpPath sets the fields of a path.
func mlpPath(m *call.MLP, impl string, p bench.Pass) error {
	switch {
	case impl == fusedImpl && p == bench.Backward:
		return fmt.Errorf("mlp: path fused: the backward pass has no such kernel: %w", vk.ErrUnsupported)
	case impl == fusedImpl:
		m.Fused = mlp.FusedOn
		return nil
	case m.FusedConfig != "":
		return fmt.Errorf("mlp: path %s: --config is of path %s: %w", impl, fusedImpl, vk.ErrUnsupported)
	case impl != gemm.Auto.String():
		m.Fused = mlp.FusedOff
	}
	m.Impl = impl
	return nil
}
