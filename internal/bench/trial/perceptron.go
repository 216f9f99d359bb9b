package trial

import (
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/guard"
	gemmref "github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/internal/pipelines/mlp/ref"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/pipelines/mlp"
)

// A perceptronCall is a pass of package mlp, or of the kernels of package skinny.
type perceptronCall struct {
	p        mlp.Problem
	data     *kernelData
	alpha    float64 // of pre, a power of two
	y        dtype.DType
	backward bool
}

// headsOf returns how many perceptrons there are.
func headsOf(p mlp.Problem) int { return max(p.Heads, 1) }

// roomy bounds the results of problems in float16.
const roomy = 30000

// inputs returns the tensors that the pass reads. Elements of pre are about Second, products of
// hidden units and W2 about 1. A pre that is an input is not that of x.
func (x *perceptronCall) inputs() ref.Inputs {
	p, d := x.p, x.data
	in := ref.Inputs{
		X:  d.Numbers(0, p.DType, p.Tokens*p.In, call.OrOne(d.Magnitude)),
		W1: d.Normal(1, p.DType, headsOf(p)*p.In*p.Hidden, call.OrOne(d.Second)/call.OrOne(d.Magnitude)/math.Sqrt(float64(p.In))),
		W2: d.Normal(2, p.DType, headsOf(p)*p.Hidden*p.Out, 1/math.Sqrt(float64(p.Hidden))),
	}
	if x.backward {
		in.DY = d.Normal(3, p.DType, p.Tokens*headsOf(p)*p.Out, 1)
		if p.Keep >= mlp.KeepPre {
			in.Pre = d.Normal(4, p.DType, p.Tokens*headsOf(p)*p.Hidden, min(call.OrOne(d.Second), 10))
		}
	}
	return in
}

// A perceptronSample is a part of a problem that has the same outputs as the whole.
type perceptronSample struct {
	p           mlp.Problem
	in          ref.Inputs
	rows, units []int // nil: all
}

// samples returns the part with some tokens, and for the gradients of weights the part with some
// units.
func (x *perceptronCall) samples(in ref.Inputs) []perceptronSample {
	if x.data.Sample == 0 {
		return []perceptronSample{{p: x.p, in: in}}
	}
	var list []perceptronSample
	if rows := sampleRows(x.data.Rand(30), x.p.Tokens, x.data.Sample); rows != nil {
		part, some := ref.Tokens(rows, in, x.p)
		list = append(list, perceptronSample{p: part, in: some, rows: rows})
	} else {
		list = append(list, perceptronSample{p: x.p, in: in})
	}
	if !x.backward {
		return list
	}
	if units := sampleRows(x.data.Rand(31), x.p.Hidden, 2); units != nil {
		part, some := ref.Units(units, in, x.p)
		return append(list, perceptronSample{p: part, in: some, units: units})
	}
	return append(list, perceptronSample{p: x.p, in: in})
}

// fit divides inputs by powers of two until float16 holds the results.
func (x *perceptronCall) fit(in ref.Inputs) {
	p := x.p
	if p.DType != dtype.Float16 && p.GradDType() != dtype.Float16 {
		return
	}
	lower := func(t []float64, most float64) bool {
		if !(most > roomy) {
			return false
		}
		factor := math.Ldexp(1, -int(math.Ceil(math.Log2(most/roomy))))
		for i, v := range t {
			t[i] = float64(p.DType.Round(float32(v * factor)))
		}
		return true
	}
	for again := true; again; {
		again = false
		for _, s := range x.samples(in) {
			out := ref.Compute(s.in, s.p)
			if p.DType == dtype.Float16 {
				again = again || lower(in.W1, tolerance.Largest(out.Pre)) || lower(in.W2, tolerance.Largest(out.Y))
			}
			if x.backward && !again {
				most := 0.0
				if p.DType == dtype.Float16 {
					most = max(tolerance.Largest(out.DPre), tolerance.Largest(out.DX))
				}
				if p.GradDType() == dtype.Float16 {
					most = max(most, tolerance.Largest(out.DW1), tolerance.Largest(out.DW2))
				}
				again = lower(in.DY, most)
			}
		}
	}
}

// times returns the numbers by a factor.
func times(x []float64, by float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = by * v
	}
	return y
}

// tensors returns the tensors of the pass.
func (x *perceptronCall) tensors() []guard.Tensor {
	p, in := x.p, x.inputs()
	first := in.X
	in.X = times(in.X, call.OrOne(x.alpha)) // alpha is a power of two: before and after the product are the same
	x.fit(in)
	list := []guard.Tensor{
		{Name: "x", DType: p.DType, Shape: p.XShape(), Values: first},
		{Name: "w1", DType: p.DType, Shape: p.W1Shape(), Values: in.W1},
		{Name: "w2", DType: p.DType, Shape: p.W2Shape(), Values: in.W2},
	}
	samples := x.samples(in)
	tokens := x.check(samples[0])
	if !x.backward {
		list = append(list, tokens.tensor("y", x.y, p.YShape(), tokens.want.Y, tokens.bounds.Y))
		if p.Keep >= mlp.KeepPre {
			list = append(list, tokens.tensor("pre", p.DType, p.PreShape(), tokens.want.Pre, tokens.bounds.Pre))
		}
		if p.Keep == mlp.KeepHidden {
			list = append(list, tokens.hidden(p))
		}
		return list
	}
	list = append(list, guard.Tensor{Name: "dy", DType: p.DType, Shape: p.YShape(), Values: in.DY})
	if p.Keep >= mlp.KeepPre {
		list = append(list, guard.Tensor{Name: "pre", DType: p.DType, Shape: p.PreShape(), Values: in.Pre})
	}
	if p.Keep == mlp.KeepHidden {
		silu := make([]float64, len(in.Pre))
		for i, v := range in.Pre {
			silu[i] = float64(p.DType.Round(float32(gemmref.SiLU(v))))
		}
		list = append(list, guard.Tensor{Name: "hidden", DType: p.DType, Shape: p.PreShape(), Values: silu})
	}
	list = append(list,
		tokens.tensor("dx", p.DType, p.XShape(), tokens.want.DX, tokens.bounds.DX),
		tokens.tensor("dpre", p.DType, p.PreShape(), tokens.want.DPre, tokens.bounds.DPre))
	weights := tokens
	if len(samples) > 1 {
		weights = x.check(samples[1])
	}
	return append(list,
		weights.weights("dw1", p, p.W1Shape(), weights.want.DW1, weights.bounds.DW1),
		weights.weights("dw2", p, p.W2Shape(), weights.want.DW2, weights.bounds.DW2))
}

// checked has the outputs that a part should have.
type checked struct {
	perceptronSample
	want, plain, spread ref.Outputs
	bounds              ref.Bounds
}

func (x *perceptronCall) check(s perceptronSample) *checked {
	c := &checked{perceptronSample: s, want: ref.Compute(s.in, s.p), plain: ref.Plain(s.in, s.p)}
	c.spread = ref.Spread(s.in, nil, s.p)
	c.bounds = ref.BoundsAtLeast(c.want, c.plain, c.spread, s.p)
	return c
}

// tensor returns an output whose first axis is that of tokens.
func (c *checked) tensor(name string, t dtype.DType, shape []int, want []float64, bound float64) guard.Tensor {
	x := guard.Tensor{Name: name, DType: t, Shape: shape, Want: want, Bound: bound}
	if c.rows != nil {
		cols := 1
		for _, n := range shape[1:] {
			cols *= n
		}
		x.Sample = elements(c.rows, cols)
	}
	return x
}

// hidden returns silu of pre.
func (c *checked) hidden(p mlp.Problem) guard.Tensor {
	want, plain := make([]float64, len(c.want.Pre)), make([]float64, len(c.want.Pre))
	least := 0.0
	for i, v := range c.want.Pre {
		want[i], plain[i] = gemmref.SiLU(v), float64(p.DType.Round(float32(gemmref.SiLU(c.plain.Pre[i]))))
		least = max(least, 1.1*c.spread.Pre[i]+tolerance.Stored(p.DType, want[i])) // the slope of silu is 1.1 at most
	}
	return c.tensor("hidden", p.DType, p.PreShape(), want, tolerance.Plain(p.DType, want, plain, least))
}

// weights returns a gradient of weights. Units are columns of dw1, and rows of dw2.
func (c *checked) weights(name string, p mlp.Problem, shape []int, want []float64, bound float64) guard.Tensor {
	x := guard.Tensor{Name: name, DType: p.GradDType(), Shape: shape, Want: want, Bound: bound}
	if c.units == nil {
		return x
	}
	x.Sample = []int{}
	for k := range headsOf(p) {
		if name == "dw2" {
			for _, u := range c.units {
				x.Sample = append(x.Sample, elements([]int{k*p.Hidden + u}, p.Out)...)
			}
			continue
		}
		for row := range p.In {
			for _, u := range c.units {
				x.Sample = append(x.Sample, (k*p.In+row)*p.Hidden+u)
			}
		}
	}
	return x
}

// only returns the tensors of some names.
func only(list []guard.Tensor, names ...string) (some []guard.Tensor) {
	for _, name := range names {
		for _, t := range list {
			if t.Name == name {
				some = append(some, t)
			}
		}
	}
	return some
}

// without returns the tensors but for some.
func without(list []guard.Tensor, name string) (rest []guard.Tensor) {
	for _, t := range list {
		if t.Name != name {
			rest = append(rest, t)
		}
	}
	return rest
}

// drawPerceptron draws sizes, formats and data of perceptrons. A kernel takes at most `most`
// outputs.
func drawPerceptron(family, rng *rand.Rand, s Space, heads, most int, backward bool, d *kernelData) (p mlp.Problem, ok bool) {
	if p.DType, ok = s.DType(family, dtype.All()...); !ok {
		return p, false
	}
	if family.IntN(2) == 0 {
		p.Grad = dtype.Some(dtype.All()[family.IntN(3)])
	}
	d.Data = drawData(family, rng)
	if d.Magnitude != 0 {
		d.Magnitude = min(d.Magnitude, roomy/d.Largest())
		d.Second = tenTo(rng, -2, 1.5) // of pre
		if p.DType == dtype.Float16 {
			d.Magnitude = max(d.Magnitude, 4*d.Second/roomy*8) // W1 is in the format
		}
	}
	p.Heads = heads
	p.Tokens, p.In, p.Hidden, p.Out = sizeOf(rng, s, 1500), sizeOf(rng, s, 300), sizeOf(rng, s, 400), min(most, sizeOf(rng, s, 300))
	passes := 8.0
	if backward {
		passes = 24
	}
	tokens := func() float64 {
		if d.Sample > 0 {
			return float64(d.Sample)
		}
		return float64(p.Tokens)
	}
	sizes := []*int{&p.Tokens, &p.In, &p.Hidden, &p.Out, &p.Heads}
	if rng.IntN(8) == 0 && !s.Soft { // many workgroups
		p.Tokens, p.In, p.Hidden, p.Out = 8000+rng.IntN(20000), 4+rng.IntN(40), 40+rng.IntN(120), min(most, 1+rng.IntN(40))
		d.Sample = 40
		within(rng, mostElements/2, func() float64 { return float64(p.Tokens) * float64(p.Heads) * float64(p.Hidden+p.Out) }, &p.Heads, &p.Hidden)
		sizes = append(sizes[1:], &d.Sample)
	}
	within(rng, budget(rng, s), func() float64 {
		cost := passes * tokens() * float64(p.Heads) * float64(p.Hidden) * float64(p.In+p.Out)
		if d.Sample > 0 && backward {
			cost += passes * float64(p.Tokens) * float64(p.Heads) * 2 * float64(p.In+p.Out) / 4
		}
		return cost
	}, sizes...)
	if d.Sample > 0 {
		d.Sample = max(d.Sample, 2)
	}
	return p, true
}
