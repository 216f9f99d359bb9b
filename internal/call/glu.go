package call

import (
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/glu/ref"
	"github.com/flashvk/flashvk/pipelines/glu"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// GLU is a call of glu.Forward or glu.Backward.
type GLU struct {
	glu.Problem
	Direction
	Beside bool // g and u are the halves of the columns of gu, and their gradients the halves of dgu
	Data
}

func (g *GLU) Tensors() []Tensor {
	t, half, whole, upstream := g.DType, []int{g.Rows, g.Cols}, []int{g.Rows, 2 * g.Cols}, 1.0
	if t == dtype.Float16 {
		upstream = min(1, 1/max(OrOne(g.Magnitude), OrOne(g.Second)))
	}
	return []Tensor{
		{Name: "g", DType: t, Shape: half, Scale: g.Magnitude, Main: true, Off: g.Beside, Drawn: true},
		{Name: "u", DType: t, Shape: half, Scale: g.Second, Off: g.Beside, Drawn: true},
		{Name: "gu", DType: t, Shape: whole, Off: !g.Beside, Own: true},
		{Name: "dy", DType: t, Shape: half, Scale: upstream, Role: Upstream},
		{Name: "y", DType: t, Shape: half, Role: Output, Once: true},
		{Name: "dg", DType: t, Shape: half, Role: Gradient, Off: g.Beside},
		{Name: "du", DType: t, Shape: half, Role: Gradient, Off: g.Beside},
		{Name: "dgu", DType: t, Shape: whole, Role: Gradient, Off: !g.Beside},
	}
}

// Adjust implements Call: gu follows from g and u.
func (g *GLU) Adjust(x Values) {
	if g.Beside {
		x["gu"] = g.beside(x["g"], x["u"])
	}
}

// beside returns rows of a and b as rows of one tensor.
func (g *GLU) beside(a, b []float64) (x []float64) {
	for at := 0; at < len(a); at += g.Cols {
		x = append(append(x, a[at:at+g.Cols]...), b[at:at+g.Cols]...)
	}
	return x
}

func (g *GLU) Want(x Values, pass kit.Pass) Outputs {
	gate, up := x["g"], x["u"]
	if g.Beside {
		gate, up = nil, nil
		for at := 0; at < len(x["gu"]); at += 2 * g.Cols {
			gate = append(gate, x["gu"][at:at+g.Cols]...)
			up = append(up, x["gu"][at+g.Cols:at+2*g.Cols]...)
		}
	}
	if pass == kit.Forward {
		y := ref.Forward(gate, up, g.Problem)
		return Outputs{"y": {Want: y.Want, Bounds: y.Bounds}}
	}
	dg, du := ref.Backward(gate, up, x["dy"], g.Problem)
	return Outputs{
		"dg": {Want: dg.Want, Bounds: dg.Bounds}, "du": {Want: du.Want, Bounds: du.Bounds},
		"dgu": {Want: g.beside(dg.Want, du.Want), Bounds: g.beside(dg.Bounds, du.Bounds)},
	}
}

// Host implements Call. In memory two tensors may be one.
func (g *GLU) Host() Host {
	return hosted(g, g.Problem, glu.Choose, glu.Forward, glu.Backward).With(func(t map[string]vk.Tensor) {
		for _, d := range []string{"", "d"} {
			if x := t[d+"gu"]; g.Beside && !x.IsZero() {
				t[d+"g"], t[d+"u"] = x.Slice(1, 0, g.Cols), x.Slice(1, g.Cols, 2*g.Cols)
			}
		}
	})
}

// drawGLU draws gated linear units whose results are within their format.
func drawGLU(p *GLU, family, rng *rand.Rand, s Space) {
	p.Activation, p.Backward = one(family, glu.SiLU, glu.GELU, glu.GELUTanh), family.IntN(2) == 0
	p.Data = DrawData(family, rng)
	p.Beside = rng.IntN(2) == 0
	p.Magnitude = min(p.Magnitude, Most(p.DType)/p.Largest())
	p.Second = min(p.Second, Most(p.DType)/p.Largest()/6/OrOne(p.Magnitude))
	p.Rows, p.Cols = Size(rng, 2000), Size(rng, 3000)
	if rng.IntN(4) == 0 {
		p.Cols = Size(rng, 20000)
	}
	Within(rng, s.Budget(rng), func() float64 { return 100 * float64(p.Rows) * float64(p.Cols) }, &p.Rows, &p.Cols)
}
