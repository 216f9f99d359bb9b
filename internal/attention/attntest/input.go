package attntest

import (
	"hash/fnv"
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/enum"
)

// An Input says what values Q, K and V hold. All are rounded to the storage
// type, and random with a fixed seed per case.
type Input uint8

// The kinds of input.
const (
	// Normal is standard normal: the values training sees.
	Normal Input = iota

	// BigLogits has S = ±1e4 plus a standard normal: rows pick the keys of
	// their own sign, among which the normal part decides. Without the maximum
	// subtracted, exp overflows; with S in float16, the normal part is lost.
	BigLogits

	// Huge has Q, K and V near the top of float16's range (2^50 for the
	// others) with a Scale that makes S a few units: Q*Scale underflows in
	// float16, Q*Kᵀ before scaling overflows it.
	Huge

	// EqualKeys repeats one key: P is uniform, O the mean of V, LSE
	// S + log(keys).
	EqualKeys

	// OneHot gives row i weights, up to e^-50, only for keys j with j = 7*i mod head_dim. O is
	// a permutation of V, so that an exchange of rows, keys or heads shows.
	OneHot

	// Rising raises S with the key's number by more than 2^8 per 32 keys: the
	// running maximum grows in every tile.
	Rising

	// Creeping raises S by 4.5 log2 units per 64 keys. A lazy rescale waits for more than that in
	// one tile, but for less in two. P overflows if a maximum is compared with the last tile's
	// instead of the one in use.
	Creeping

	// Falling lowers S with the key's number: the first tile's maximum stays.
	Falling

	// Uneven multiplies each row of Q, K and V by a power of two of its own, down to 2^-12 in
	// float16 and 2^-30 in other formats. If float32 is split into float16, rows share a scale,
	// and small rows stand beside large ones.
	Uneven

	// Zero is all zeros: S = 0, LSE = log(keys), O = 0.
	Zero

	// NumInputs is how many there are.
	NumInputs
)

// String returns the name for messages.
func (in Input) String() string {
	return enum.Names[Input]{"normal", "big-logits", "huge", "equal-keys", "one-hot", "rising", "creeping", "falling", "uneven", "zero"}.Of(in)
}

// hugeMagnitude returns the size of Huge's values, such that V's convex
// combinations do not overflow even if P's weights are rounded up.
func hugeMagnitude(t dtype.DType) float64 {
	if t == dtype.Float16 {
		return 65504 * (1 - 0x1p-5)
	}
	return 0x1p50
}

// ScaleFor returns what the problem's Scale has to be for that input, 0 for the default.
func (in Input) ScaleFor(p attention.Problem) float64 {
	if in == Huge {
		m := hugeMagnitude(p.DType)
		return 4 / (m * m * math.Sqrt(float64(p.HeadDim)))
	}
	return p.Scale
}

// values returns Q, K and V of the case in logical order.
func (c *Case) values() ref.Inputs[float64] {
	g := c.generator(1)
	p := c.Problem
	var in ref.Inputs[float64]
	in.Q, in.K, in.V = g.qkv(c.Input)
	g.resize(in.Q, c.Sizes.Q, c.Outliers, p.DType)
	g.resize(in.K, c.Sizes.K, c.Outliers, p.DType)
	g.resize(in.V, c.Sizes.V, c.Outliers, p.DType)
	g.features(&in, c)
	return in
}

// qkv returns Q, K and V in logical order.
func (g generator) qkv(in Input) (q, k, v []float64) {
	p := g.p
	d := p.HeadDim
	root := math.Sqrt(float64(d)) // S = scale*root for the default scale is 1

	q, k, v = g.normal(p.QShape()), g.normal(p.KShape()), g.normal(p.VShape())
	switch in {
	case BigLogits:
		// The first 4 elements make ±1e4: 4*x^2/root = 1e4.
		x := math.Sqrt(1e4 * root / 4)
		for _, t := range [][]float64{q, k} {
			g.rows(t, d, func(_ int, row []float64) {
				sign := math.Copysign(1, g.NormFloat64())
				for e := range 4 {
					row[e] = sign * x
				}
			})
		}
	case Huge:
		for _, t := range [][]float64{q, k, v} {
			for i := range t {
				t[i] = math.Copysign(hugeMagnitude(p.DType)*(1-g.Float64()/2), g.NormFloat64())
			}
		}
	case EqualKeys:
		g.rows(k, d, func(_ int, row []float64) { copy(row, k[:d]) })
	case OneHot:
		x := math.Sqrt(50 * root)
		g.rows(q, d, func(i int, row []float64) { clear(row); row[7*(i%p.SeqQ)%d] = x })
		g.rows(k, d, func(j int, row []float64) { clear(row); row[j%p.SeqKV%d] = x })
	case Rising:
		g.ramp(q, k, 8.5*math.Ln2/32)
	case Creeping:
		g.ramp(q, k, 4.5*math.Ln2/64)
	case Falling:
		g.ramp(q, k, -8.5*math.Ln2/32)
	case Uneven:
		step := 10
		if p.DType == dtype.Float16 {
			step = 4
		}
		for i, t := range [][]float64{q, k, v} {
			g.rows(t, []int{d, d, p.ValueHeadDim()}[i], func(_ int, row []float64) {
				scale := math.Ldexp(1, -step*g.IntN(4))
				for e := range row {
					row[e] *= scale
				}
			})
		}
	case Zero:
		clear(q)
		clear(k)
		clear(v)
	}
	for _, t := range [][]float64{q, k, v} {
		round(t, p.DType)
	}
	return q, k, v
}

// round makes t numbers that the format stores.
func round(t []float64, format dtype.DType) {
	for i := range t {
		t[i] = float64(format.Round(float32(t[i])))
	}
}

type generator struct {
	*rand.Rand
	p attention.Problem
}

// generator returns one of the streams of random numbers of the case.
func (c *Case) generator(stream uint64) generator {
	seed := c.Seed
	if seed == 0 {
		hash := fnv.New64a()
		hash.Write([]byte(c.Name))
		seed = hash.Sum64()
	}
	return generator{rand.New(rand.NewPCG(stream, seed)), c.Problem}
}

const (
	// outlier is the factor of outliers; one element in outlierEvery is one.
	outlier, outlierEvery = 100, 500
	// mostFloat16 is the largest value that is made: sums of two do not overflow.
	mostFloat16 = 30000
)

// resize multiplies t by a size, and some elements by outlier, within the format.
func (g generator) resize(t []float64, size float64, outliers bool, format dtype.DType) {
	if (size == 0 || size == 1) && !outliers {
		return
	}
	if size != 0 && size != 1 {
		for i := range t {
			t[i] *= size
		}
	}
	if outliers && len(t) > 0 {
		for range 1 + len(t)/outlierEvery {
			i := g.IntN(len(t))
			t[i] *= outlier
			if format == dtype.Float16 {
				t[i] = max(-mostFloat16, min(t[i], mostFloat16))
			}
		}
	}
	round(t, format)
}

func (g generator) normal(shape []int) []float64 {
	x := make([]float64, product(shape))
	for i := range x {
		x[i] = g.NormFloat64()
	}
	return x
}

func (g generator) rows(t []float64, d int, f func(i int, row []float64)) {
	for i := range len(t) / d {
		f(i, t[i*d:(i+1)*d])
	}
}

// ramp makes the first two elements of Q and K add step*j to S for key j: the
// first carries multiples of 16 keys, the second the rest, since bfloat16
// has no more than 8 bits for either.
func (g generator) ramp(q, k []float64, step float64) {
	d := g.p.HeadDim
	root := math.Sqrt(float64(d))
	x := float64(dtype.BFloat16.Round(float32(math.Sqrt(math.Abs(step) * root))))
	y := math.Copysign(x, step)
	g.rows(q, d, func(_ int, row []float64) { row[0], row[1] = 4*x, x })
	g.rows(k, d, func(j int, row []float64) {
		j %= g.p.SeqKV
		row[0], row[1] = float64(j/16*4)*y, float64(j%16)*y
	})
}
