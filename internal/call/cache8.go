package call

import (
	"math"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/guard"
)

// CacheScales says which scales the key heads of a cache of e4m3 have.
type CacheScales string

// The scales of key heads.
const (
	NoScales  CacheScales = ""
	OneScale  CacheScales = "one" // for all heads
	AllScales CacheScales = "heads"
)

// headScales returns the scales of heads in a cache of e4m3, for K (stream 0) or V. The largest
// numbers, divided by them, are a few times 448, or less.
func (d *Data) headScales(p *attention.DecodeProblem, kind CacheScales, stream int, magnitude float64) []float64 {
	if p.Cache != attention.CacheE4M3 || kind == NoScales {
		return nil
	}
	rng := d.Rand(30 + stream)
	scales := make([]float64, p.NumKVHeads)
	for h := range scales {
		scales[h] = float64(float32(magnitude * d.Largest() / 448 * math.Exp2(4*rng.Float64()-2)))
	}
	if kind == OneScale {
		return scales[:1]
	}
	return scales
}

// cachePlaces returns the layouts of tensor i of a cache of 8 bits, and of its scales. Rows begin
// at multiples of 8 bytes. Scales of blocks have gaps where their blocks have.
func (d *Data) cachePlaces(p *attention.DecodeProblem, i int) (elements, scales *guard.Place) {
	if d.Layout == "" || d.Layout == "p" {
		return &guard.Place{}, &guard.Place{}
	}
	rng := d.Rand(1000 + i)
	rows, matrices, offset := rng.IntN(3), rng.IntN(4), 8*rng.IntN(9)
	scales = &guard.Place{Offset: rng.IntN(9), RowGap: rows, MatrixGap: matrices}
	unit := attention.QuantBlock
	if p.Cache == attention.CacheE4M3 {
		unit, scales = 8, &guard.Place{Offset: rng.IntN(9)}
	}
	return &guard.Place{Offset: offset, RowGap: unit * rows, MatrixGap: unit * matrices}, scales
}

// before returns the elements of a tensor before the call that updates it.
func (d *Data) before(stream int, format dtype.DType, n int) []float64 {
	switch format {
	case dtype.E4M3:
		x := d.Normal(stream, dtype.Float32, n, 10)
		return ref.Quantise(attention.CacheE4M3, x, n, nil).Stored
	case dtype.Int8:
		x := make([]float64, n)
		rng := d.Rand(stream)
		for i := range x {
			x[i] = float64(rng.IntN(255) - 127)
		}
		return x
	}
	return d.Normal(stream, format, n, 1)
}

// A stored8 is a row as Append stores it. If roundoff decides between two neighbours, an element is
// the middle of them, and its bound the distance to them.
type stored8 struct{ elements, bounds, scales, scaleBounds []float64 }

func (s *stored8) add(low, high float64) {
	s.elements, s.bounds = append(s.elements, (low+high)/2), append(s.bounds, (high-low)/2)
}

// store8 returns a row as Append stores it in a cache of 8 bits; e4m3 has a scale. Elements of the
// row may be off by bounds.
func store8(format attention.CacheFormat, row, bounds []float64, scale float64) (s stored8) {
	eps := 0x1p-21 // of a division in float32
	nearest := func(x float64) float64 { return float64(dtype.FromE4M3(dtype.ToE4M3(float32(x)))) }
	if format == attention.CacheE4M3 {
		if part, _ := math.Frexp(scale); part == 0.5 { // a power of two divides exactly
			eps = 0
		}
		for i, x := range row {
			off := bounds[i] + eps*math.Abs(x)
			s.add(nearest((x-off)/scale), nearest((x+off)/scale))
		}
		return s
	}
	half := func(x float64) float64 { return float64(dtype.Float16.Round(float32(min(x, ref.MaxQ8Scale)))) }
	for at := 0; at < len(row); at += attention.QuantBlock {
		low, high := 0.0, 0.0 // the largest magnitude
		for i := at; i < at+attention.QuantBlock; i++ {
			x := math.Abs(row[i])
			low, high = max(low, x-bounds[i]), max(high, x+bounds[i])
		}
		dLow, dHigh := half(low/127*(1-eps)), half(high/127*(1+eps))
		s.scales, s.scaleBounds = append(s.scales, (dLow+dHigh)/2), append(s.scaleBounds, (dHigh-dLow)/2)
		for i := at; i < at+attention.QuantBlock; i++ {
			off := bounds[i] + eps*math.Abs(row[i])
			qLow, qHigh := 127.0, -127.0
			for _, d := range []float64{dLow, dHigh} {
				for _, x := range []float64{row[i] - off, row[i] + off} {
					q := 0.0
					if d > 0 {
						q = max(-127, min(math.RoundToEven(x/d), 127))
					}
					qLow, qHigh = min(qLow, q), max(qHigh, q)
				}
			}
			s.add(qLow, qHigh)
		}
	}
	return s
}
