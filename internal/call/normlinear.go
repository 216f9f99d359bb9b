package call

import (
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/normlinear/ref"
	"github.com/flashvk/flashvk/pipelines/glu"
	"github.com/flashvk/flashvk/pipelines/normlinear"
	"github.com/flashvk/flashvk/vk/kit"
)

// NormLinear is a call of normlinear.Forward.
type NormLinear struct {
	normlinear.Problem
	Config *normlinear.Config
	onePass
	Data
}

// Tensors implements Call. Elements of y are about Second.
func (n *NormLinear) Tensors() []Tensor {
	t, rows := n.DType, []int{n.Rows, n.In}
	return []Tensor{
		{Name: "x", DType: t, Shape: rows, Scale: n.Magnitude, Main: true},
		{Name: "residual", DType: t, Shape: rows, Scale: n.Magnitude, Off: !n.Residual},
		{Name: "norm_w", Shape: []int{n.In}},
		{Name: "w", DType: t, Shape: []int{n.WRows(), n.In}, Scale: OrOne(n.Second) / math.Sqrt(float64(n.In))},
		{Name: "bias", Shape: []int{n.WRows()}, Scale: n.Second, Off: !n.Bias},
		{Name: "y", DType: n.YDType(), Shape: []int{n.Rows, n.Out}, Role: Output},
		{Name: "sum", DType: t, Shape: rows, Role: Output, Off: !n.Residual},
	}
}

func (n *NormLinear) Want(x Values, _ kit.Pass) Outputs {
	var in ref.Inputs
	Bind(x, &in)
	out := ref.Forward(in, n.Problem)
	return Outputs{"y": {Want: out.Y, Bounds: out.Bounds}, "sum": {Want: out.Sum}}
}

func (n *NormLinear) Host() Host {
	return hostedForward(n, n.Problem, normlinear.Choose, normlinear.Forward)
}

// drawNormLinear draws products of normalized rows whose results are within their format.
func drawNormLinear(p *NormLinear, family, rng *rand.Rand, s Space) {
	if family.IntN(2) == 0 {
		p.OutDType = dtype.Some(one(family, dtype.All()...))
	}
	p.Rows, p.GLU, p.Residual, p.Bias = 1+family.IntN(normlinear.MaxRows), chance(family, 2), chance(family, 2), chance(family, 3)
	if p.GLU {
		p.Activation = one(family, glu.SiLU, glu.GELU, glu.GELUTanh)
	}
	for family.IntN(2) == 0 && p.Config == nil {
		c := normlinear.Config{Threads: 64 << family.IntN(4), Team: 2 << family.IntN(9), Loads: 1 << family.IntN(4), Steps: 1 + family.IntN(8)}
		if c.Feasible(TypicalCaps(s.Soft), p.Problem) == nil && (!s.Soft || c.Steps*c.Loads*p.Rows <= 32) { // lavapipe's time to compile grows
			p.Config = &c
		}
	}
	p.Data = DrawData(family, rng)
	p.Magnitude, p.Second = min(p.Magnitude, Most(p.DType)/p.Largest()/8), min(p.Second, 20)
	p.In, p.Out = Size(rng, 3000), Size(rng, 3000)
	Within(rng, s.Budget(rng), func() float64 { return 10 * p.FLOPs() }, &p.In, &p.Out)
	size := OrOne(p.Magnitude)
	if p.Eps = one(rng, 1e-5, 1e-6, 1e-3, 0); p.Eps == 0 && (p.Kind == ZeroKind || p.DType == dtype.Float16) {
		p.Eps = 1e-5 * size * size
	}
}
