package trial

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/gemmtest"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/vk"
)

// gemmGroupKernel draws groups of matrix products of different sizes.
func gemmGroupKernel() Kernel {
	return Kernel{Name: "gemm-group", Weight: 1, New: func() Problem { return &gemmGroupProblem{} }, Draw: drawGemmGroup}
}

// gemmGroupProblem is a call of engine.MultiplyGroup.
type gemmGroupProblem struct {
	engine.Group
	Impl   string
	Config string          // "": what the tuning table has
	Lie    gemmtest.Layout // of the tensors
	kernelData
}

// String implements Problem.
func (p *gemmGroupProblem) String() string {
	return fmt.Sprintf("%v %+v %s (%s)", p.Group, p.Lie, p.Impl, p.Config)
}

// options returns those of the call.
func (p *gemmGroupProblem) options() (opt engine.GroupOptions, err error) {
	if opt.Impl, err = engine.ParseImpl(p.Impl); err != nil {
		return opt, err
	}
	opt.Config, err = parseGemmConfig(p.Config)
	return opt, err
}

// Supports implements Problem.
func (p *gemmGroupProblem) Supports(caps *vk.Caps) error {
	opt, err := p.options()
	if err != nil {
		return err
	}
	_, err = engine.ChooseGroup(caps, p.Group, opt)
	return err
}

// inputs returns what product i reads.
func (p *gemmGroupProblem) inputs(x engine.Problem, i int) (in ref.Inputs) {
	size := call.OrOne(p.Magnitude) * call.OrOne(p.Second) * math.Abs(x.Scale()) // of results
	in.A = p.Numbers(10*i, p.DType, x.M*x.K, call.OrOne(p.Magnitude))
	in.B = p.Numbers(10*i+1, p.DType, x.K*x.N, call.OrOne(p.Second)/math.Sqrt(float64(max(x.K, 1))))
	if x.Beta != 0 {
		in.C = p.Normal(10*i+2, p.Out, x.M*x.N, size)
	}
	if p.Residual {
		in.R = p.Normal(10*i+3, p.Out, x.M*x.N, size)
	}
	if x.ReadsX() {
		in.X = p.Normal(10*i+4, p.Out, x.M*x.N, 3)
	}
	return in
}

// Check implements Problem.
func (p *gemmGroupProblem) Check(ctx context.Context, r *Runner) error {
	opt, err := p.options()
	if err != nil {
		return err
	}
	c := &gemmtest.GroupCase{Group: p.Group, Layout: p.Lie, Inputs: p.inputs}
	_, err = gemmtest.CheckGroup(ctx, r.Guard(), c, func(c *vk.Cmd, t []engine.Tensors, g engine.Group) error {
		return r.Record(c, func(c *vk.Cmd) error { return engine.MultiplyGroup(c, t, g, opt) })
	})
	return err
}

// Smaller implements Problem.
func (p *gemmGroupProblem) Smaller() (list []Problem) {
	add := func(change func(q *gemmGroupProblem)) {
		q := *p
		q.Products = slices.Clone(p.Products)
		change(&q)
		if !reflect.DeepEqual(&q, p) && len(q.Products) > 0 && q.Validate() == nil {
			list = append(list, &q)
		}
	}
	n := len(p.Products)
	add(func(q *gemmGroupProblem) { q.Config = "" })
	add(func(q *gemmGroupProblem) { q.Products = q.Products[:(n+1)/2] })
	add(func(q *gemmGroupProblem) { q.Products = q.Products[n/2:] })
	if n <= 8 {
		for i := range n {
			add(func(q *gemmGroupProblem) { q.Products = slices.Delete(q.Products, i, i+1) })
		}
		sizes := slices.Clone(p.Products)
		var each []*int
		for i := range sizes {
			each = append(each, &sizes[i].M, &sizes[i].N, &sizes[i].K)
		}
		halves(each, func() { add(func(q *gemmGroupProblem) { q.Products = slices.Clone(sizes) }) })
	}
	add(func(q *gemmGroupProblem) {
		for i := range q.Products {
			q.Products[i].Beta = 0
		}
	})
	add(func(q *gemmGroupProblem) {
		for i := range q.Products {
			q.Products[i].Alpha = 0
		}
	})
	add(func(q *gemmGroupProblem) { q.Residual = false })
	add(func(q *gemmGroupProblem) { q.Activation = engine.Identity })
	add(func(q *gemmGroupProblem) { q.TransA = false })
	add(func(q *gemmGroupProblem) { q.TransB = false })
	add(func(q *gemmGroupProblem) { q.Out = q.DType })
	add(func(q *gemmGroupProblem) { q.Lie = gemmtest.Layout{} })
	p.smaller(func(d kernelData) { add(func(q *gemmGroupProblem) { q.kernelData = d }) })
	return list
}

// drawGemmGroup draws a problem.
func drawGemmGroup(family, rng *rand.Rand, s call.Space) Problem {
	p := &gemmGroupProblem{}
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
	p.Out, p.TransA, p.TransB, p.Activation, p.Residual = common.Out, common.TransA, common.TransB, common.Activation, common.Residual
	p.Data = call.DrawData(family, rng)
	p.Workspace, p.Layout = false, "p" // Lie says how tensors lie
	p.Lie = []gemmtest.Layout{{}, {Pad: -1}, {Pad: -1, Offset: 8}, {Offset: rng.IntN(9), Pad: rng.IntN(9)}}[family.IntN(4)]
	if p.Impl != "auto" && family.IntN(3) > 0 {
		p.Config = drawGroupConfig(family, s, p)
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
		x := engine.Product{M: sizeOf(rng, s, most), N: sizeOf(rng, s, most), K: sizeOf(rng, s, most), Alpha: common.Alpha, Beta: common.Beta}
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
		call.Within(rng, limit/float64(n)+1000, func() float64 { return 6 * float64(x.M) * float64(x.N) * float64(x.K) }, &x.M, &x.N, &x.K)
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

// drawGroupConfig draws a configuration, or none.
func drawGroupConfig(family *rand.Rand, s call.Space, p *gemmGroupProblem) string {
	caps := call.TypicalCaps(s.Soft)
	for range 100 {
		c := engine.Config{Impl: engine.Scalar, GroupM: 1 + family.IntN(9)}
		if p.Impl == "coopmat" {
			drawMatrixTiles(family, s, &c)
		} else {
			drawScalarTiles(family, &c)
		}
		q := *p
		if q.Config = c.String(); q.DType == dtype.BFloat16 && s.Soft {
			q.DType, q.Out = dtype.Float16, dtype.Float16
		}
		if q.Supports(caps) == nil {
			return q.Config
		}
	}
	return ""
}
