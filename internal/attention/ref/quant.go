package ref

import (
	"math"
	"slices"
	"sync"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/parallel"
)

// quantised has Q and K as attention.Problem.Quant has them.
type quantised[T Float] struct {
	p     attention.Problem
	in    Inputs[T] // Q and K are elements times their scales, K without its mean, both mixed
	shift []float64 // of each row of Q: dot(Q, mean)
	q, k  rounded

	mean, meanOff float64 // the largest length of a mean, and what its largest element may be off by
	scaleOff      float64 // what a scale may be off by, relatively
}

// rounded are rows of elements, each with its scale.
type rounded struct {
	elements []float64
	scales   []float64
	either   [][]choice // of each row: elements that a kernel may have rounded the other way
}

// Quantised returns the inputs of a problem with a Quant together with what its Quant makes of them, for
// several calls that take long to compute it each.
func (in Inputs[T]) Quantised(p attention.Problem) Inputs[T] {
	if in.quant == nil && p.Quant != dtype.NoQuant {
		in.quant = quantise(&in, p)
	}
	return in
}

// A choice is an element that may be off by a step.
type choice struct {
	col  int
	step float64
}

// quantise returns Q and K of a problem as its Quant has them. A kernel computes means, mixed columns and
// quotients in float32; powers of two are exact. So an element whose quotient is so near to the middle of two
// may be either:
//
//	2*sqrt(n) * u * mean|K|   the mean of n keys: n sums round, of random sign; 2 for the tail
//	2^-21 * |row of a mix|    6 sums with errors of u/sqrt(3), random and as large together; 6 for the tail
//	2^-20 of the quotient     the scale, its inverse and a product
//
// The first two count twice: they are in the scale, too. A mix adds errors of means as squares.
func quantise[T Float](in *Inputs[T], p attention.Problem) *quantised[T] {
	d := p.HeadDim
	z := &quantised[T]{p: p, in: *in, shift: make([]float64, len(in.Q)/d)}
	z.q, z.k = newRounded(len(in.Q), d), newRounded(len(in.K), d)
	z.in.Q, z.in.K = make([]T, len(in.Q)), make([]T, len(in.K))
	seen := make([]bool, len(in.K)/d)
	for i := range seen {
		seen[i] = true
	}
	in.Hidden(p, func(row int, _ bool) { seen[row] = false })
	l := in.places(p)
	var mu sync.Mutex
	parallel.For(p.Batch*p.NumKVHeads, func(n int) {
		b, kv := n/p.NumKVHeads, n%p.NumKVHeads
		m := l.mask(b)
		first, step := l.keys(b, kv)
		var rows []int // in K, that are seen
		for j := range m.SeqKV {
			if at := first + j*step; seen[at] {
				rows = append(rows, at)
			}
		}
		group := p.NumHeads / p.NumKVHeads
		var some []int // rows of Q
		for h := kv * group; h < (kv+1)*group; h++ {
			for i := 0; i < m.SeqQ; i += (m.SeqQ + 15) / 16 {
				some = append(some, l.query(Row{b, h, i}))
			}
		}
		mean, off := meanOf(in.K, rows, p)
		most, up, down, none := 0.0, upOf(in.K, in.Q, rows, some, p), make([]float64, d), make([]float64, d)
		for e, x := range up {
			down[e] = 1 / x
		}
		for j := 0; j < m.SeqKV; j += attention.QuantKeys {
			var block []int
			for i := j; i < min(j+attention.QuantKeys, m.SeqKV); i++ {
				if at := first + i*step; seen[at] {
					block = append(block, at)
				}
			}
			most = max(most, roundRows(&z.k, z.in.K, in.K, block, mean, off, up, 1, p))
		}
		for h := kv * group; h < (kv+1)*group; h++ {
			for i := range m.SeqQ {
				at := l.query(Row{b, h, i})
				roundRows(&z.q, z.in.Q, in.Q, []int{at}, none, none, down, 1/float64(mixed(d)), p)
				for e, x := range mean {
					z.shift[at] += float64(in.Q[at*d+e]) * x
				}
			}
		}
		mu.Lock()
		defer mu.Unlock()
		z.mean, z.meanOff, z.scaleOff = max(z.mean, longest(mean, d)), max(z.meanOff, slices.Max(off)), max(z.scaleOff, most)
	})
	return z
}

func newRounded(n, d int) rounded {
	return rounded{make([]float64, n), make([]float64, n/d), make([][]choice, n/d)}
}

// meanOf returns the mean of rows of K, zeros without Smooth, and what each element may be off by.
func meanOf[T Float](k []T, rows []int, p attention.Problem) (mean, off []float64) {
	d, n := p.HeadDim, float64(len(rows))
	mean, off = make([]float64, d), make([]float64, d)
	if !p.Smooth() || n == 0 {
		return mean, off
	}
	for e := range mean {
		size := 0.0
		for _, at := range rows {
			mean[e] += float64(k[at*d+e]) / n
			size += math.Abs(float64(k[at*d+e])) / n
		}
		off[e] = 2 * math.Sqrt(n) * roundoff32 * size
	}
	return mean, off
}

// upOf returns `up` of attention.Problem.Quant for rows of K and of Q. Kernels take the same numbers: sizes
// are exact float32, logarithms their bits.
func upOf[T Float](k, q []T, rows, some []int, p attention.Problem) []float64 {
	d := p.HeadDim
	width, size, up := make([]float32, d), make([]float32, d), make([]float64, d)
	for e := range up {
		least, largest := float32(math.MaxFloat32), float32(-math.MaxFloat32)
		for _, at := range rows {
			x := float32(k[at*d+e])
			least, largest = min(least, x), max(largest, x)
		}
		switch {
		case len(rows) == 0:
		case p.Smooth():
			width[e] = largest - least
		default:
			width[e] = max(largest, -least, -largest, least)
		}
		for _, at := range some {
			size[e] = max(size[e], float32(math.Abs(float64(q[at*d+e]))))
		}
	}
	octaves := func(x []float32, e int) int {
		return max(int(math.Float32bits(x[e]))-int(math.Float32bits(slices.Max(x))), -8<<23)
	}
	for e := range up {
		up[e] = math.Ldexp(1, 5*(octaves(size, e)-octaves(width, e))/(8<<23))
	}
	return up
}

// mixed returns how many columns a Hadamard matrix mixes.
func mixed(headDim int) int { return min(32, headDim&-headDim) }

// mix multiplies a row with a Hadamard matrix of each team of columns. It returns the largest length of a
// team before.
func mix(row []float64) float64 {
	n := mixed(len(row))
	runs, most := len(row)/n, 0.0 // runs of 8 columns between those of a team
	team := make([]float64, n)
	for first := range runs {
		at := func(i int) *float64 { return &row[(i/8*runs+first)*8+i%8] }
		for i := range team {
			team[i] = *at(i)
		}
		most = max(most, longest(team, n))
		for apart := 1; apart < n; apart *= 2 {
			for i, x := range team {
				if i&apart == 0 {
					team[i], team[i+apart] = x+team[i+apart], x-team[i+apart]
				}
			}
		}
		for i, x := range team {
			*at(i) = x
		}
	}
	return most
}

// roundRows rounds rows that share a scale, less a mean that may be off, times a power of two of each
// channel, and mixed. Scales are multiplied by unit. It returns what the scale may be off by, relatively.
func roundRows[T Float](to *rounded, values, x []T, rows []int, mean, off, times []float64, unit float64, p attention.Problem) float64 {
	d, amax, most, y := len(mean), 0.0, 0.0, make([]float64, len(rows)*len(mean))
	for i, at := range rows {
		row := y[i*d : (i+1)*d]
		for e, m := range mean {
			row[e] = (float64(x[at*d+e]) - m) * times[e]
		}
		most = max(most, mix(row)*0x1p-21)
		amax = max(amax, largest(row))
	}
	moved := make([]float64, d)
	for e, x := range off {
		moved[e] = x * times[e]
	}
	most += mix(moved)
	scale := p.Quant.Scale(amax)
	if scale == 0 {
		return 0
	}
	for i, at := range rows {
		to.scales[at] = scale * unit
		for e, y := range y[i*d : (i+1)*d] {
			near := 2*most + math.Abs(y)*0x1p-20
			i := at*d + e
			to.elements[i] = p.Quant.Round(y, scale)
			values[i] = T(to.elements[i] * to.scales[at])
			if lo, hi := p.Quant.Round(y-near, scale), p.Quant.Round(y+near, scale); lo != hi {
				to.either[at] = append(to.either[at], choice{e, hi - lo})
			}
		}
	}
	return most/amax + 0x1p-22
}

// doubts returns by how much the scores of a row and n keys from the first on may be off, as a mean by
// the weights of the keys.
func (z *quantised[T]) doubts(r Row, first int, weight func(j int) float64, n int) float64 {
	l, d, sum := z.in.places(z.p), z.p.HeadDim, 0.0
	row := l.query(r)
	from, step := l.keys(r.Batch, r.Head/(z.p.NumHeads/z.p.NumKVHeads))
	for j := range n {
		w, key, off := weight(j), from+(first+j)*step, 0.0
		if w == 0 {
			continue
		}
		for _, c := range z.q.either[row] {
			off += c.step * (math.Abs(z.k.elements[key*d+c.col]) + 1)
		}
		for _, c := range z.k.either[key] {
			off += c.step * math.Abs(z.q.elements[row*d+c.col])
		}
		sum += w * off * z.q.scales[row] * z.k.scales[key]
	}
	return sum * math.Abs(z.p.EffectiveScale())
}

// QuantBound returns what Quant adds to PlainBound: of S, the mean by weights of what elements that may
// be either of two make (quantise), and what the scales may be off by; of LSE also the product of a row of
// Q and the mean,
//
//	2*sqrt(head_dim) * u * |q|*|mean|   float32 sums
//	sqrt(head_dim) * |q| * off          the mean is off
//
// An error of S is a relative error of weights, which O has twice, as in ceiling. With Sinks an error of
// LSE is one of weights, too.
func QuantBound[T Float](in Inputs[T], p attention.Problem, rows []Row) Bound {
	in = in.Quantised(p)
	n := len(rows)
	if rows == nil {
		n = product(p.LSEShape())
	}
	var mu sync.Mutex
	most := 0.0
	doubt := func(x float64) {
		mu.Lock()
		most = max(most, x)
		mu.Unlock()
	}
	if err := forward(make([]float64, n*p.ValueHeadDim()), nil, &in, p, rows, exact, doubt); err != nil {
		return Bound{}
	}
	z, s := in.quant, Measure(in, p)
	scores := most + z.scaleOff*s.Product
	q, dim := math.Abs(p.EffectiveScale())*longest(in.Q, p.HeadDim), math.Sqrt(float64(p.HeadDim))
	lse := scores + q*dim*(2*roundoff32*z.mean+z.meanOff)
	if p.Sinks {
		scores = lse
	}
	return Bound{O: min(2*scores*s.V, 2*s.V), LSE: lse + 4*roundoff32*q*z.mean}
}
