package trial

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/vk"
)

// gemmKernel draws matrix products with an epilogue.
func gemmKernel() Kernel {
	return Kernel{Name: "gemm", Weight: 4, New: func() Problem { return &gemmProblem{} }, Draw: drawGemm}
}

// gemmProblem is a call of gemm.Forward.
type gemmProblem struct {
	engine.Problem
	Impl   string
	Config string // "": what the tuning table has
	// Alias names a tensor that shares memory with another: "residual" and "x" with C, "s" with
	// X.
	Alias              string
	Broadcast          bool // all products share A
	AlignedA, AlignedB bool // Options of those names
	PadK, PadN         int  // rows and columns of op(B) that b lacks, as in Options.PadB
	kernelData
}

// String implements Problem.
func (p *gemmProblem) String() string {
	return fmt.Sprintf("%v %s (%s)", p.Problem, p.Impl, p.Config)
}

// options returns the options of the call, without the workspace.
func (p *gemmProblem) options() (opt engine.Options, err error) {
	if opt.Impl, err = engine.ParseImpl(p.Impl); err != nil {
		return opt, err
	}
	opt.Config, err = parseGemmConfig(p.Config)
	opt.AlignedA, opt.AlignedB, opt.PadB = p.AlignedA, p.AlignedB, p.PadK+p.PadN > 0
	return opt, err
}

// parseGemmConfig reads a configuration, nil for "".
func parseGemmConfig(text string) (*engine.Config, error) {
	if text == "" {
		return nil, nil
	}
	c, err := engine.ParseConfig(text)
	return &c, err
}

// Supports implements Problem.
func (p *gemmProblem) Supports(caps *vk.Caps) error {
	opt, err := p.options()
	if err != nil {
		return err
	}
	c, err := engine.Choose(caps, p.Problem, opt)
	if err == nil && opt.PadB && !c.PackB {
		return fmt.Errorf("trial: b is part of op(B), and there are no fragments: %w", vk.ErrUnsupported)
	}
	return err
}

// inputs returns what the problem reads.
func (p *gemmProblem) inputs() ref.Inputs {
	size := call.OrOne(p.Magnitude) * call.OrOne(p.Second) * math.Abs(p.Problem.Scale()) // of results
	a, b, c := p.M*p.K, p.K*p.N, p.Batches()*p.M*p.N
	var in ref.Inputs
	if p.Broadcast {
		for range p.Batches() {
			in.A = append(in.A, p.Numbers(0, p.DType, a, call.OrOne(p.Magnitude))...)
		}
	} else {
		in.A = p.Numbers(0, p.DType, p.Batches()*a, call.OrOne(p.Magnitude))
	}
	in.B = p.Numbers(1, p.DType, p.Batches()*b, call.OrOne(p.Second)/math.Sqrt(float64(p.K)))
	if p.PadK+p.PadN > 0 {
		for i := range in.B {
			if k, n := p.placeOfB(i); k >= p.K-p.PadK || n >= p.N-p.PadN {
				in.B[i] = 0
			}
		}
	}
	if p.Beta != 0 {
		in.C = p.Normal(2, p.Out, c, size)
	}
	if p.Residual {
		in.R = p.Normal(3, p.Out, c, size)
	}
	if p.ReadsX() {
		in.X = p.Normal(4, p.Out, c, 3)
	}
	return in
}

// placeOfB returns the row and column of op(B) of element i of B.
func (p *gemmProblem) placeOfB(i int) (k, n int) {
	cols := p.BShape()[2]
	k, n = i/cols%p.BShape()[1], i%cols
	if p.TransB {
		k, n = n, k
	}
	return k, n
}

// tensors returns those of the call.
func (p *gemmProblem) tensors() []guard.Tensor {
	in := p.inputs()
	rows := call.SampleRows(p.Rand(10), p.M, p.Sample)
	part, some, sample := p.Problem, in, []int(nil)
	if rows != nil {
		part, some = ref.Rows(rows, in, p.Problem)
		var all []int
		for batch := range p.Batches() {
			for _, row := range rows {
				all = append(all, batch*p.M+row)
			}
		}
		sample = call.Elements(all, p.N)
	}
	want, plain := ref.Multiply(some, part), ref.Plain(some, part)
	bounds := ref.NewBounds(want, plain, some, part)
	a := guard.Tensor{Name: "a", DType: p.DType, Shape: p.AShape(), Values: in.A}
	if p.Broadcast {
		a.Shape[0], a.Values = 1, in.A[:p.M*p.K]
	}
	b := guard.Tensor{Name: "b", DType: p.DType, Shape: p.BShape(), Values: in.B}
	if p.PadK+p.PadN > 0 {
		corner := *p
		corner.K, corner.N = p.K-p.PadK, p.N-p.PadN
		b.Shape, b.Values = corner.BShape(), nil
		for i, v := range in.B {
			if k, n := p.placeOfB(i); k < corner.K && n < corner.N {
				b.Values = append(b.Values, v)
			}
		}
	}
	output := func(name string, values, want []float64, bound float64) guard.Tensor {
		return guard.Tensor{Name: name, DType: p.Out, Shape: p.CShape(), Values: values, Want: want, Bound: bound, Sample: sample}
	}
	before := in.C
	switch p.Alias {
	case "residual":
		before = in.R
	case "x":
		before = in.X
	}
	list := []guard.Tensor{a, b, output("c", before, want.C, bounds.C)}
	if p.Residual && p.Alias != "residual" {
		list = append(list, guard.Tensor{Name: "residual", DType: p.Out, Shape: p.CShape(), Values: in.R})
	}
	switch {
	case p.Activation == engine.SiLUKeep:
		list = append(list, output("x", nil, want.X, bounds.X))
	case p.ReadsX() && p.Alias == "s":
		list = append(list, output("x", in.X, want.S, bounds.S))
	case p.ReadsX() && p.Alias != "x":
		list = append(list, guard.Tensor{Name: "x", DType: p.Out, Shape: p.CShape(), Values: in.X})
	}
	if p.HasS() && p.Alias != "s" {
		list = append(list, output("s", nil, want.S, bounds.S))
	}
	return list
}

// workspaceOffset is the offset of a workspace in its buffer, in bytes.
const workspaceOffset = 16 * 5

// Check implements Problem.
func (p *gemmProblem) Check(ctx context.Context, r *Runner) error {
	opt, err := p.options()
	if err != nil {
		return err
	}
	bytes, err := engine.Workspace(r.Device().Caps(), p.Problem, opt)
	if err != nil {
		return err
	}
	tensors := append(p.tensors(), p.WorkspaceTensor(bytes, workspaceOffset)...)
	return p.check(ctx, r, "gemm", tensors, func(c *vk.Cmd, t map[string]vk.Tensor) error {
		opt := opt
		if p.Broadcast {
			a := t["a"]
			a.Shape, a.Strides = p.AShape(), []int{0, a.Strides[1], 1}
			t["a"] = a
		}
		x := engine.Tensors{A: t["a"], B: t["b"], C: t["c"], Residual: t["residual"], X: t["x"], S: t["s"]}
		switch p.Alias {
		case "residual":
			x.Residual = t["c"]
		case "x":
			x.X = t["c"]
		case "s":
			x.S = t["x"]
		}
		if w, ok := t[call.WorkspaceName]; ok {
			opt.Workspace, opt.WorkspaceOffset = w.Buffer, workspaceOffset
		}
		return engine.Multiply(c, x, p.Problem, opt)
	})
}

// Smaller implements Problem.
func (p *gemmProblem) Smaller() (list []Problem) {
	add := func(change func(q *gemmProblem)) {
		q := *p
		change(&q)
		if q != *p && q.Validate() == nil && q.PadK < q.K && q.PadN < q.N && (q.Alias == "" || q.Residual || q.ReadsX()) {
			list = append(list, &q)
		}
	}
	add(func(q *gemmProblem) { q.Config = "" })
	add(func(q *gemmProblem) { q.Batch, q.Broadcast = 0, false })
	sizes := *p
	halves([]*int{&sizes.M, &sizes.N, &sizes.K, &sizes.Batch}, func() {
		add(func(q *gemmProblem) { q.M, q.N, q.K, q.Batch = sizes.M, sizes.N, sizes.K, sizes.Batch })
	})
	add(func(q *gemmProblem) { q.Alias = "" })
	add(func(q *gemmProblem) { q.Residual, q.Alias = false, "" })
	add(func(q *gemmProblem) { q.Activation, q.Alias = engine.Identity, "" })
	add(func(q *gemmProblem) { q.Beta = 0 })
	add(func(q *gemmProblem) { q.Alpha = 0 })
	add(func(q *gemmProblem) { q.Broadcast = false })
	add(func(q *gemmProblem) { q.TransA = false })
	add(func(q *gemmProblem) { q.TransB = false })
	add(func(q *gemmProblem) { q.PadK, q.PadN = 0, 0 })
	add(func(q *gemmProblem) { q.AlignedA, q.AlignedB = false, false })
	add(func(q *gemmProblem) { q.Out = q.DType })
	p.smaller(func(d kernelData) { add(func(q *gemmProblem) { q.kernelData = d }) })
	return list
}

// gemmImpls are the paths of products; auto is drawn twice as often.
func gemmImpls() []string { return []string{"auto", "auto", "coopmat", "coopmat", "coopmat", "scalar"} }

// softImpl returns the path to take. Software drivers take ten seconds to compile float32 on
// matrices, so most of these products take another path there.
func softImpl(family *rand.Rand, s call.Space, impl string, t dtype.DType) string {
	if s.Soft && s.Impls == nil && impl == "coopmat" && t == dtype.Float32 && family.IntN(6) > 0 {
		return "scalar"
	}
	return impl
}

// drawGemm draws a problem.
func drawGemm(family, rng *rand.Rand, s call.Space) Problem {
	p := &gemmProblem{}
	var ok, oks bool
	p.Impl, ok = s.Impl(family, gemmImpls()...)
	if p.DType, oks = s.DType(family, dtype.All()...); !ok || !oks {
		return nil
	}
	p.Impl = softImpl(family, s, p.Impl, p.DType)
	drawEpilogue(family, rng, &p.Problem)
	p.Data = call.DrawData(family, rng)
	batches := family.IntN(4) == 0
	p.Config = drawGemmConfig(family, s, p.Impl, p.Problem, batches)
	if batches {
		p.Batch = 2 + rng.IntN(4)
		p.Broadcast = rng.IntN(3) == 0
	}
	p.drawSizes(rng, s)
	c, _ := parseGemmConfig(p.Config)
	if c != nil {
		p.fixRows(c)
		if c.PackB && rng.IntN(3) == 0 {
			p.PadK, p.PadN = rng.IntN(min(p.K, 40)), rng.IntN(min(p.N, 40))
		}
		if c.AlignRows && rng.IntN(4) == 0 {
			p.AlignedA, p.AlignedB = rng.IntN(2) == 0, rng.IntN(2) == 0
		}
	}
	if p.Beta == 0 && rng.IntN(3) == 0 {
		switch {
		case p.Residual && rng.IntN(2) == 0:
			p.Alias = "residual"
		case p.HasS() && rng.IntN(2) == 0:
			p.Alias = "s"
		case p.ReadsX():
			p.Alias = "x"
		}
	}
	p.limit(p.Out, p.Problem, p.K)
	return p
}

// drawEpilogue draws the epilogue, which kernels are compiled for, and its factors.
func drawEpilogue(family, rng *rand.Rand, p *engine.Problem) {
	p.Out = p.DType
	if family.IntN(2) == 0 {
		p.Out = dtype.All()[family.IntN(3)]
	}
	p.TransA, p.TransB = family.IntN(2) == 0, family.IntN(2) == 0
	if family.IntN(2) == 0 {
		list := problem.Activations()
		p.Activation = list[family.IntN(len(list))]
	}
	p.Residual = family.IntN(3) == 0
	if family.IntN(3) == 0 {
		p.Beta = []float64{1, -0.75, 0.5, -1, 2}[rng.IntN(5)]
	}
	if family.IntN(3) == 0 {
		p.Alpha = []float64{1.5, -1, 0.125, -3, 0.3}[rng.IntN(5)]
	}
}

// limit makes scales so small that results are finite in float16.
func (d *kernelData) limit(out dtype.DType, p engine.Problem, k int) {
	d.Magnitude = min(d.Magnitude, call.Most(p.DType)/d.Largest())
	d.Second = min(d.Second, call.Most(p.DType)/d.Largest())
	if out != dtype.Float16 {
		return
	}
	// The second operand is divided by the root of k. C and R add to the sum.
	worst := math.Abs(p.Scale()) * call.OrOne(d.Magnitude) * call.OrOne(d.Second) * (d.SumLargest(k)/math.Sqrt(float64(k)) + 6*(math.Abs(p.Beta)+1))
	if limit := call.Most(out) / 2; worst > limit {
		d.Second = call.OrOne(d.Second) * limit / worst
	}
}

// block returns the rows and columns of a block, on a typical device.
func (p *gemmProblem) block(soft bool) (m, n int) {
	c, _ := parseGemmConfig(p.Config)
	switch {
	case c == nil && p.Impl == "scalar":
		return 64, 64
	case c == nil:
		return 128, 128
	case c.Impl == engine.Scalar:
		return c.BlockM, c.BlockN
	}
	shape, _ := chips.MatrixShape(call.TypicalCaps(soft), p.DType)
	return c.SubgroupsM * c.TilesM * int(shape.M), c.SubgroupsN * c.TilesN * int(shape.N)
}

// wideTiles is the least number of workgroups of a wide problem: several for each of 132
// multiprocessors. mostElements bounds its outputs.
const (
	wideTiles    = 500
	mostElements = 8 << 20
)

// drawSizes draws sizes of one of three kinds: near those of tiles; few outputs with a long k,
// which is divided; many workgroups, with a reference of some rows.
func (p *gemmProblem) drawSizes(rng *rand.Rand, s call.Space) {
	limit := s.Budget(rng)
	cost := func() float64 {
		rows := p.M
		if p.Sample > 0 {
			rows = p.Sample
		}
		return 4 * float64(p.Batches()) * float64(rows) * float64(p.N) * float64(p.K)
	}
	kind := rng.IntN(8)
	switch {
	case kind == 0 && !s.Soft:
		blockM, blockN := p.block(s.Soft)
		across := 1 + rng.IntN(30)
		down := (wideTiles + rng.IntN(500)) / (across * p.Batches())
		p.M, p.N, p.K = max(1, down)*blockM+rng.IntN(9)-4, across*blockN+rng.IntN(9)-4, call.Size(rng, 600)
		p.M, p.N = max(1, p.M), max(1, p.N)
		call.Within(rng, mostElements, func() float64 { return float64(p.Batches()) * float64(p.M) * float64(p.N) }, &p.M, &p.N)
		p.Sample = min(p.M, 8)
		call.Within(rng, limit, cost, &p.K, &p.Sample)
		p.Sample = max(p.Sample, 2)
	case kind <= 2:
		p.M, p.N, p.K = sizeOf(rng, s, 80), sizeOf(rng, s, 80), call.Size(rng, 20000)
		call.Within(rng, limit, cost, &p.M, &p.N, &p.K)
	default:
		p.M, p.N, p.K = sizeOf(rng, s, 800), sizeOf(rng, s, 800), sizeOf(rng, s, 1500)
		call.Within(rng, limit, cost, &p.M, &p.N, &p.K)
	}
}

// fixRows makes Config.Rows one product of a batch, or bounds it by the rows of C.
func (p *gemmProblem) fixRows(c *engine.Config) {
	if c.Rows == 0 {
		return
	}
	if p.Batches() > 1 {
		c.Rows = p.M
	} else {
		c.Rows = min(c.Rows, (p.M+7)/8*8)
	}
	p.Config = c.String()
}

// drawGemmConfig draws a configuration of a path, or none.
func drawGemmConfig(family *rand.Rand, s call.Space, impl string, p engine.Problem, batches bool) string {
	if impl == "auto" || family.IntN(4) == 0 {
		return ""
	}
	caps := call.TypicalCaps(s.Soft)
	p.M, p.N, p.K = 64, 64, 64
	if batches {
		p.Batch = 2
	}
	for range 100 {
		c := engine.Config{Impl: engine.Scalar, GroupM: 1 + family.IntN(22)}
		if impl == "coopmat" {
			drawMatrixTiles(family, s, &c)
			c.AlignRows = family.IntN(2) == 0
			c.PackB = family.IntN(3) == 0 && p.DType != dtype.Float32
			if c.PackB {
				c.BlockK = int(caps.CoopMatShapes[0].N) * 8 / (1 + family.IntN(2))
			}
		} else {
			drawScalarTiles(family, &c)
		}
		if family.IntN(3) == 0 {
			c.Splits = 2 + family.IntN(6)
			c.Rows = 8 * family.IntN(5)
			if batches {
				c.Rows = c.Rows / 8 * p.M
			}
		}
		fits := c
		fits.Rows = 0
		if fits.Feasible(caps, p) == nil {
			return c.String()
		}
	}
	return ""
}

// drawMatrixTiles draws tiles of path coopmat. They are small on software drivers, which take
// seconds to compile large ones.
func drawMatrixTiles(family *rand.Rand, s call.Space, c *engine.Config) {
	c.Impl = engine.CoopMat
	grids := [][2]int{{1, 1}, {1, 2}, {2, 1}, {1, 4}, {2, 2}, {4, 1}, {2, 4}, {4, 2}, {3, 1}, {2, 3}}
	const tiles, size = 4, 16
	if s.Soft { // few choices, so that families share pipelines
		grid := grids[1+family.IntN(3)]
		c.SubgroupsM, c.SubgroupsN, c.TilesM, c.TilesN, c.BlockK, c.GroupM = grid[0], grid[1], 1, 1+family.IntN(2), 8*(1+family.IntN(2)), 1+family.IntN(3)
		return
	}
	grid := grids[family.IntN(len(grids))]
	c.SubgroupsM, c.SubgroupsN = grid[0], grid[1]
	c.TilesM, c.TilesN = 1+family.IntN(tiles), 1+family.IntN(tiles)
	c.BlockK = size * []int{1, 2, 2, 3, 4, 6}[family.IntN(6)]
	c.LoadAhead = []int{0, 0, 1, 2}[family.IntN(4)]
	c.GroupM = 1 + family.IntN(22)
}

// drawScalarTiles draws those of path scalar.
func drawScalarTiles(family *rand.Rand, c *engine.Config) {
	c.Threads, c.ThreadsX = []int{32, 64, 128, 256}[family.IntN(4)], []int{8, 16}[family.IntN(2)]
	c.BlockM = c.Threads / c.ThreadsX * (1 + family.IntN(8))
	c.BlockN = c.ThreadsX * (1 + family.IntN(8))
	c.BlockK = []int{4, 8, 12, 16, 32}[family.IntN(5)]
}
