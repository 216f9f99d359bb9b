package call

import (
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/pipelines/quantize"
	"github.com/flashvk/flashvk/vk/kit"
)

// Quantize is a call of quantize.Forward.
type Quantize struct {
	quantize.Problem
	Special bool // some numbers are NaN or infinite
	onePass
	Data
}

// Tidy makes what shares a scale fit the format.
func (q *Quantize) Tidy() {
	switch n := q.Quant.Block(); {
	case n > 0:
		q.Block, q.Whole, q.Cols = 0, false, (q.Cols+n-1)/n*n
	case q.Whole:
		q.Block = 0
	default:
		q.Block = max(q.Block, 1)
	}
}

func (q *Quantize) Tensors() []Tensor {
	shape := []int{q.Batch, q.Heads, q.Rows, q.Cols}
	return []Tensor{
		{Name: "x", DType: q.DType, Shape: shape, Scale: q.Magnitude, Main: true},
		{Name: "y", DType: q.Quant.Element(), Shape: shape, Role: Output},
		{Name: "scale", DType: q.Quant.ScaleDType(), Shape: q.ScaleShape(), Role: Output, Place: &guard.Place{Offset: q.Rand(20).IntN(9)}},
	}
}

func (q *Quantize) Adjust(x Values) {
	if !q.Special {
		return
	}
	rng := q.Rand(9)
	for range 1 + len(x["x"])/100 {
		x["x"][rng.IntN(len(x["x"]))] = one(rng, math.NaN(), math.NaN(), math.Inf(1), math.Inf(-1))
	}
}

// scaleOf returns the number of the scale of an element.
func (q *Quantize) scaleOf(i int) int {
	row := i / q.Cols
	switch n := q.Quant.Block(); {
	case n > 0:
		return i / n
	case q.Whole:
		return 0
	}
	return row/q.Rows*((q.Rows+q.Block-1)/q.Block) + row%q.Rows/q.Block
}

// Want implements Call. Scales are exact. The inverse of one is not, unless it is a power of two:
// where that decides between two elements, either is right. With Sample it has the elements of some
// rows.
func (q *Quantize) Want(x Values, _ kit.Pass) Outputs {
	scales, s := make([]float64, Product(q.ScaleShape())), stored8{}
	for i, v := range x["x"] {
		if of := q.scaleOf(i); math.Abs(v) > scales[of] {
			scales[of] = math.Abs(v)
		}
	}
	for i, amax := range scales {
		scales[i] = q.Quant.Scale(amax)
	}
	rows, sample := q.compared(10, q.Batch*q.Heads*q.Rows, q.Cols)
	for _, row := range rows {
		for i := row * q.Cols; i < (row+1)*q.Cols; i++ {
			s.add(q.Quant, x["x"][i], 0, scales[q.scaleOf(i)])
		}
	}
	return Outputs{"y": {Want: s.elements, Bounds: s.bounds, Sample: sample}, "scale": {Want: scales}}
}

func (q *Quantize) Host() Host {
	return hostedForward(q, q.Problem, quantize.Choose, quantize.Forward)
}

// drawQuantize draws a tensor and what shares a scale.
func drawQuantize(p *Quantize, family, rng *rand.Rand, s Space) {
	p.Quant, p.Whole = one(family, dtype.Quants()...), chance(family, 4)
	p.Data = DrawData(family, rng)
	if p.Magnitude != 0 && p.DType != dtype.Float16 && chance(rng, 2) { // also scales that are 0, or near the largest
		p.Magnitude = TenTo(rng, -36, 35)
	}
	p.Magnitude, p.Special = min(p.Magnitude, Most(p.DType)/p.Largest()), chance(rng, 6)
	p.Batch, p.Heads, p.Rows, p.Cols = 1+rng.IntN(3), 1+rng.IntN(4), Size(rng, 700), Size(rng, 1500)
	if chance(rng, 4) { // one that workgroups share
		p.Batch, p.Heads, p.Rows, p.Cols = 1, 1+rng.IntN(2), Size(rng, 300)+200, Size(rng, 700)+100
	}
	Within(rng, s.Budget(rng), func() float64 { return 30 * float64(p.Batch*p.Heads*p.Rows) * float64(p.Cols) }, &p.Rows, &p.Cols)
	p.Block = one(rng, 1, 1, 64, p.Rows, 2*p.Rows, 1+rng.IntN(p.Rows))
	p.Tidy()
}
