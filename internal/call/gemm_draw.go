package call

import (
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
)

// drawGemm draws a problem.
func drawGemm(family, rng *rand.Rand, s Space) Call {
	p := &Gemm{}
	var ok, oks bool
	p.Impl, ok = s.Impl(family, append(gemmImpls(), "gemv", "gemv")...)
	if p.DType, oks = s.DType(family, dtype.All()...); !ok || !oks {
		return nil
	}
	p.Impl = softImpl(family, s, p.Impl, p.DType)
	drawEpilogue(family, rng, &p.Problem)
	p.Bias32 = p.Bias && family.IntN(2) == 0
	if p.Impl == "gemv" {
		p.TransA, p.Ones = false, family.IntN(4) == 0
	}
	p.Data = DrawData(family, rng)
	batches := family.IntN(4) == 0
	if p.Impl != "auto" && family.IntN(4) > 0 {
		like := *p
		if like.M, like.N, like.K = 64, 64, 64; batches {
			like.Batch = 2
		}
		p.Config = drawConfig(family, s, p.Impl, true, &like, func(c *engine.Config) {
			if family.IntN(3) > 0 {
				return
			}
			c.Splits = 2 + family.IntN(6)
			if c.Rows = 8 * family.IntN(5); batches {
				c.Rows *= like.M / 8
			}
		})
	}
	if batches {
		p.Batch = 2 + rng.IntN(4)
		p.Broadcast = rng.IntN(3) == 0 && !p.Ones
	}
	p.drawSizes(rng, s)
	if opt, _ := p.options(); opt.Config != nil {
		c := opt.Config
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
	p.Bias = family.IntN(3) == 0 && !p.ReadsX()
	if family.IntN(3) == 0 {
		p.Beta = []float64{1, -0.75, 0.5, -1, 2}[rng.IntN(5)]
	}
	if family.IntN(3) == 0 {
		p.Alpha = []float64{1.5, -1, 0.125, -3, 0.3}[rng.IntN(5)]
	}
}

// limit makes scales so small that results are finite in float16.
func (d *Data) limit(out dtype.DType, p engine.Problem, k int) {
	d.Magnitude = min(d.Magnitude, Most(p.DType)/d.Largest())
	d.Second = min(d.Second, Most(p.DType)/d.Largest())
	if out != dtype.Float16 {
		return
	}
	// The second operand is divided by the root of k. C, the bias and R add to the sum.
	worst := math.Abs(p.Scale()) * OrOne(d.Magnitude) * OrOne(d.Second) * (d.SumLargest(k)/math.Sqrt(float64(k)) + 6*(math.Abs(p.Beta)+2))
	if limit := Most(out) / 2; worst > limit {
		d.Second = OrOne(d.Second) * limit / worst
	}
}

// block returns the rows and columns of a block, on a typical device.
func (p *Gemm) block(soft bool) (m, n int) {
	opt, _ := p.options()
	c := opt.Config
	switch {
	case c == nil && p.Impl == "scalar":
		return 64, 64
	case c == nil:
		return 128, 128
	case c.Impl != engine.CoopMat:
		return c.BlockM, c.BlockN
	}
	shape, _ := chips.MatrixShape(TypicalCaps(soft), p.DType)
	return c.SubgroupsM * c.TilesM * int(shape.M), c.SubgroupsN * c.TilesN * int(shape.N)
}

// wideTiles is the least number of workgroups of a wide problem: several for each of 132
// multiprocessors.
const wideTiles = 500

// drawSizes draws sizes of one of three kinds: near the sizes of tiles; few outputs with a long k,
// which is divided; many workgroups, with a reference of some rows.
func (p *Gemm) drawSizes(rng *rand.Rand, s Space) {
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
		p.M, p.N, p.K = max(1, down)*blockM+rng.IntN(9)-4, across*blockN+rng.IntN(9)-4, Size(rng, 600)
		p.M, p.N = max(1, p.M), max(1, p.N)
		Within(rng, mostElements, func() float64 { return float64(p.Batches()) * float64(p.M) * float64(p.N) }, &p.M, &p.N)
		p.Sample = min(p.M, 8)
		Within(rng, limit, cost, &p.K, &p.Sample)
		p.Sample = max(p.Sample, 2)
	case p.Impl == "gemv" && kind < 7:
		p.M, p.N, p.K = 1+rng.IntN(20), sizeOf(rng, s, 5000), Size(rng, 5000)
		Within(rng, limit, cost, &p.M, &p.N, &p.K)
	case kind <= 2:
		p.M, p.N, p.K = sizeOf(rng, s, 80), sizeOf(rng, s, 80), Size(rng, 20000)
		Within(rng, limit, cost, &p.M, &p.N, &p.K)
	default:
		p.M, p.N, p.K = sizeOf(rng, s, 800), sizeOf(rng, s, 800), sizeOf(rng, s, 1500)
		Within(rng, limit, cost, &p.M, &p.N, &p.K)
	}
}

// fixRows makes Config.Rows one product of a batch, or bounds it by the rows of C.
func (p *Gemm) fixRows(c *engine.Config) {
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

// drawGEMVTiles draws tiles of path gemv, which are not feasible for every problem.
func drawGEMVTiles(family *rand.Rand, c *engine.Config) {
	teams, team, columns := one(family, 1, 2, 3, 4, 8), 1<<family.IntN(8), one(family, 1, 2, 3, 4, 4, 8, 8)
	c.Impl, c.Threads, c.ThreadsX, c.BlockM, c.BlockN = engine.GEMV, teams*team, team, one(family, 1, 2, 5, 8, 16), teams*columns
	c.BlockK = team * one(family, 4, 8, 8, 16)
	if c.Matrix = family.IntN(2) == 0; c.Matrix {
		teams, team = one(family, 1, 2), 8<<family.IntN(5)
		c.Threads, c.ThreadsX, c.BlockM, c.BlockN = teams*team, team, one(family, 8, 16), teams*one(family, 8, 16, 32, 64)
		c.BlockK = team * one(family, 1, 2, 4, 4, 8)
	}
}

func drawScalarTiles(family *rand.Rand, c *engine.Config) {
	c.Threads, c.ThreadsX = []int{32, 64, 128, 256}[family.IntN(4)], []int{8, 16}[family.IntN(2)]
	c.BlockM = c.Threads / c.ThreadsX * (1 + family.IntN(8))
	c.BlockN = c.ThreadsX * (1 + family.IntN(8))
	c.BlockK = []int{4, 8, 12, 16, 32}[family.IntN(5)]
}

// drawGemmGroup draws a problem.
func drawGemmGroup(family, rng *rand.Rand, s Space) Call {
	p := &GemmGroup{}
	var ok bool
	if p.Impl, ok = s.Impl(family, gemmImpls()...); !ok {
		return nil
	}
	formats := s
	if p.Impl == "coopmat" { // the path has no float32 groups
		formats = s.Halves()
	}
	if p.DType, ok = formats.DType(family, dtype.All()...); !ok {
		return nil
	}
	var common engine.Problem
	common.DType = p.DType
	drawEpilogue(family, rng, &common)
	p.Out, p.TransA, p.TransB, p.Activation, p.Bias, p.Residual = common.Out, common.TransA, common.TransB, common.Activation, common.Bias, common.Residual
	p.Data = DrawData(family, rng)
	p.Workspace, p.Layout = false, "p" // Lie says how tensors lie
	p.Lie = []GemmLie{{}, {Pad: -1}, {Pad: -1, Offset: 8}, {Offset: rng.IntN(9), Pad: rng.IntN(9)}}[family.IntN(4)]
	if p.Impl != "auto" && family.IntN(3) > 0 {
		like := *p
		like.Products = []GemmProduct{{M: 1, N: 1, K: 1}}
		p.Config = drawConfig(family, s, p.Impl, false, &like, func(c *engine.Config) { c.AlignRows = false })
	}
	n, most := 1+rng.IntN(12), 250
	switch rng.IntN(8) {
	case 0:
		n, most = 1+rng.IntN(600), 12
	case 1:
		most = 700
	}
	limit := s.Budget(rng)
	for range n {
		x := GemmProduct{M: sizeOf(rng, s, most), N: sizeOf(rng, s, most), K: sizeOf(rng, s, most), Alpha: common.Alpha, Beta: common.Beta}
		switch rng.IntN(24) {
		case 0:
			x.M = 0
		case 1:
			x.N = 0
		case 2:
			x.K = 0
		}
		if rng.IntN(3) == 0 {
			x.Alpha, x.Beta = 0, 0
		}
		Within(rng, limit/float64(n)+1000, func() float64 { return 6 * float64(x.M) * float64(x.N) * float64(x.K) }, &x.M, &x.N, &x.K)
		p.Products = append(p.Products, x)
	}
	for i := range p.Products {
		x := p.Problem(i)
		if x.Beta == 0 {
			x.Beta = 1
		}
		p.limit(p.Out, x, max(x.K, 1))
	}
	return p
}
