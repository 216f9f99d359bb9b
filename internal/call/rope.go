package call

import (
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/pipelines/rope"
	"github.com/flashvk/flashvk/vk/kit"
)

// Rope is a call of rope.Forward or rope.Backward.
type Rope struct {
	rope.Problem
	Direction
	Tokens bool // the heads of a token lie together, as a product writes them
	Shared bool // the positions of all batches are the same
	Far    bool // positions are any int32 numbers, else those of packed rows
	Data
}

// Tensors implements Call. In place the backward pass begins with the upstream gradients in dq and dk.
func (r *Rope) Tensors() []Tensor {
	list := []Tensor{
		{Name: "positions", DType: dtype.Int32, Shape: []int{r.Batch, r.Seq}, Own: true, Ints: r.positions(), Free: true},
		{Name: "turns", DType: dtype.Int32, Shape: []int{r.Dims}, Own: true, Ints: rope.Words(r.Frequencies), State: true},
	}
	if r.Shared {
		list[0].Shape = list[0].Shape[1:]
	}
	for i, name := range []string{"q", "k"} {
		heads := []int{r.Heads, r.KVHeads}[i]
		x := Tensor{Name: name, DType: r.DType, Shape: []int{r.Batch, heads, r.Seq, r.HeadDim}, Off: heads == 0, Scale: r.Magnitude, Main: true, Once: true}
		if r.Tokens {
			token := heads * r.HeadDim
			x.Place = &guard.Place{Offset: int(r.Seed % 9), Strides: []int{r.Seq * token, r.HeadDim, token, 1}}
		}
		out, dout, dx := x, x, x
		out.Name, dout.Name, dx.Name = name+"_out", "d"+name+"_out", "d"+name
		out.Role, dout.Role, dx.Role, dout.Once, dx.Once = Output, Upstream, Gradient, false, false
		if r.InPlace {
			x.Role, out.Off, dout.Off, dout.Drawn = Update, true, true, heads > 0
		}
		list = append(list, x, out, dout, dx)
	}
	return list
}

// positions draws the position of each row.
func (r *Rope) positions() []int32 {
	n := r.Batch * r.Seq
	if r.Shared {
		n = r.Seq
	}
	rng, list := r.Rand(60), make([]int32, n)
	for i := range list {
		switch {
		case r.Far:
			list[i] = one(rng, int32(rng.Uint32()), int32(rng.IntN(1<<20)), math.MinInt32, math.MaxInt32)
		case i%r.Seq > 0 && rng.IntN(300) > 0: // else a sequence begins
			list[i] = list[i-1] + 1
		}
	}
	return list
}

func (r *Rope) Adjust(x Values) {
	for _, position := range r.positions() {
		x["positions"] = append(x["positions"], float64(position))
	}
	for _, word := range rope.Words(r.Frequencies) {
		x["turns"] = append(x["turns"], float64(word))
	}
	if r.InPlace && r.Backward {
		x["dq"], x["dk"] = x["dq_out"], x["dk_out"]
	}
}

func (r *Rope) Want(x Values, pass kit.Pass) Outputs {
	if x["positions"] == nil {
		r.Adjust(x)
	}
	to := []string{"q", "q_out", "k", "k_out"}
	if pass == kit.Backward {
		to = []string{"dq_out", "dq", "dk_out", "dk"}
	}
	out := Outputs{}
	for i, heads := range []int{r.Heads, r.KVHeads} {
		if heads > 0 {
			w := r.turned(x[to[2*i]], x["positions"], heads, pass)
			out[to[2*i+1]] = w
			if r.InPlace && pass == kit.Forward {
				out[to[2*i]] = w
			}
		}
	}
	return out
}

// turned returns heads that are turned by their positions, or back.
func (r *Rope) turned(x, positions []float64, heads int, pass kit.Pass) (w Wanted) {
	some, elements := r.compared(61, len(x)/r.HeadDim, r.HeadDim)
	w.Sample = elements
	turns, sign := r.Turns(), 1.0
	if pass == kit.Backward {
		sign = -1
	}
	for _, i := range some {
		at := i/r.Seq/heads*r.Seq + i%r.Seq
		var cos, sin []float64
		for _, t := range turns {
			s, c := math.Sincos(attention.Angle(t, int(positions[at%len(positions)])))
			cos, sin = append(cos, r.AttentionFactor()*c), append(sin, sign*r.AttentionFactor()*s)
		}
		r.row(&w, x[i*r.HeadDim:][:r.HeadDim], cos, sin)
	}
	return w
}

// row appends a row that is turned, with what the kernel may be off by. Its cosines and sines are right
// to 2^-22 before they have their factor: the angle, up to pi/4, is rounded three times, polynomials
// are off by 2^-24, and their last operations round.
func (r *Rope) row(w *Wanted, row, cos, sin []float64) {
	by := attention.RoPE{Dims: r.Dims, Interleaved: r.Interleaved}
	bounds, factor := make([]float64, r.HeadDim), tolerance.Constant(r.AttentionFactor())
	for i := range cos {
		at, beside := ref.RotaryPair(by, i)
		c := tolerance.Float{X: cos[i] / factor.X, Off: 0x1p-22}.Times(factor)
		s := tolerance.Float{X: sin[i] / factor.X, Off: 0x1p-22}.Times(factor)
		x, y := tolerance.Exact(row[at]), tolerance.Exact(row[beside])
		for j, to := range map[int]tolerance.Float{at: x.Times(c).Minus(y.Times(s)), beside: y.Times(c).Plus(x.Times(s))} {
			bounds[j] = to.Off + tolerance.Stored(r.DType, math.Abs(to.X)+to.Off)
		}
	}
	w.Want = append(w.Want, ref.Rotate(by, row, cos, sin, 0)...)
	w.Bounds = append(w.Bounds, bounds...)
}

func (r *Rope) Host() Host {
	return hosted(r, r.Problem, rope.Choose, rope.Forward, rope.Backward)
}

// drawRope draws rotations whose results are within their format.
func drawRope(r *Rope, family, rng *rand.Rand, s Space) {
	r.Interleaved, r.Backward = chance(family, 2), chance(family, 2)
	r.Dims = 2 * one(family, 1, 2, 3, 4, 8, 10, 12, 16, 32, 48, 64, 128)
	r.Data = DrawData(family, rng)
	r.InPlace, r.Tokens, r.Shared, r.Far = chance(rng, 3), chance(rng, 3), chance(rng, 3), chance(rng, 3)
	if r.Base = TenTo(rng, 0.3, 7); chance(rng, 3) {
		r.Base = 0
	}
	if r.Scaling = one(rng, attention.Unscaled, attention.Linear, attention.Llama3, attention.YaRN); r.Scaling != attention.Unscaled {
		r.Factor, r.Original = TenTo(rng, 0, 2), 1<<rng.IntN(18)
	}
	if r.Scaling >= attention.Llama3 && chance(rng, 2) {
		r.Low, r.High = TenTo(rng, -1, 0.5), TenTo(rng, 0.6, 2)
	}
	if chance(rng, 4) {
		r.Attention = TenTo(rng, -1, 1)
	}
	r.HeadDim = r.Dims
	if chance(rng, 2) {
		r.HeadDim += Size(rng, 100)
	}
	r.Batch, r.Seq, r.Heads, r.KVHeads = Size(rng, 6), Size(rng, 600), Size(rng, 20), rng.IntN(9)
	Within(rng, s.Budget(rng), func() float64 { return 40 * float64(r.Batch*r.Seq*(r.Heads+r.KVHeads)*r.HeadDim) }, &r.Batch, &r.Seq, &r.Heads)
	r.Magnitude = min(r.Magnitude, Most(r.DType)/r.Largest()/2/max(r.AttentionFactor(), 1))
}
