// Package ref computes layers of a decoder for one token in float64, and derives what a kernel may be off by, element by
// element, from the operations that the kernel makes. It uses no device.
package ref

import (
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/pipelines/decoder"
)

// Inputs are the tensors of a call, row-major, those of layers one after the other; Bias is nil if the problem has none.
type Inputs struct{ X, Cos, Sin, SeqLens, NormA, QKV, Bias, K, V, Out, NormB, GateUp, Down []float64 }

// Outputs are the results, and the largest error of each element.
type Outputs struct{ Y, K, V, YBounds, KBounds, VBounds []float64 }

// A vector has numbers, and the standard deviation of the kernel's from them, or a little more.
type vector struct{ x, off []float64 }

func zeros(n int) vector { return vector{make([]float64, n), make([]float64, n)} }

func (v vector) slice(from, n int) vector { return vector{v.x[from : from+n], v.off[from : from+n]} }

func (v vector) set(i int, x, off float64) { v.x[i], v.off[i] = x, off+few*math.Abs(x) }

// few is the relative error of the handful of operations in float32 that end each step, of which some are right to some units
// in the last place.
const few = 4 * tolerance.Roundoff32

// spread is how many standard deviations a number may be off by.
const spread = 8

// times returns m * v for a matrix of rows as long as v. Errors of v add up as if they were independent.
func (v vector) times(m []float64) vector {
	n := len(v.x)
	y := zeros(len(m) / n)
	for i := range y.x {
		var sum, size, squares float64
		for j, w := range m[i*n : i*n+n] {
			sum += w * v.x[j]
			size += math.Abs(w * v.x[j])
			squares += w * w * v.off[j] * v.off[j]
		}
		y.set(i, sum, math.Sqrt(squares)+few*size)
	}
	return y
}

// plus returns v + w.
func (v vector) plus(w vector) vector {
	y := zeros(len(v.x))
	for i := range y.x {
		y.set(i, v.x[i]+w.x[i], v.off[i]+w.off[i])
	}
	return y
}

// normalized returns v divided by the root of its mean square, times w.
func (v vector) normalized(w []float64, eps float64) vector {
	var sum, squares float64
	for i, x := range v.x {
		sum += x * x
		squares += x * x * v.off[i] * v.off[i]
	}
	n := float64(len(v.x))
	sum += eps * n
	y := zeros(len(v.x))
	if sum == 0 {
		return y // 0 * Inf is not drawn
	}
	relative := math.Sqrt(squares)/sum + few
	for i, x := range v.x {
		by := math.Abs(w[i]) / math.Sqrt(sum/n)
		y.set(i, x*w[i]/math.Sqrt(sum/n), by*(v.off[i]+relative*math.Abs(x)))
	}
	return y
}

// stored returns v rounded to a format, and how far each number may be off: by nothing, or by as much as its error may
// change how it is rounded. Few do, so the deviation is less.
func (v vector) stored(t dtype.DType) (y vector, bounds []float64) {
	round := func(x float64) float64 { return float64(t.Round(float32(x))) }
	y, bounds = zeros(len(v.x)), make([]float64, len(v.x))
	for i, x := range v.x {
		r, off := round(x), spread*v.off[i]
		bounds[i] = max(round(x+off)-r, r-round(x-off))
		y.x[i], y.off[i] = r, bounds[i]/4
	}
	return y, bounds
}

// rotated returns a head rotated by angles.
func (v vector) rotated(cos, sin []float64) vector {
	half := len(v.x) / 2
	y := zeros(2 * half)
	for i := range half {
		a, b, offA, offB := v.x[i], v.x[half+i], v.off[i], v.off[half+i]
		c, s := cos[i], sin[i]
		off := offA + offB + few*(math.Abs(a)+math.Abs(b))
		y.set(i, a*c-b*s, off)
		y.set(half+i, b*c+a*s, off)
	}
	return y
}

// attend returns softmax(q k) v for rows of keys and values.
func attend(q vector, k, v []vector) vector {
	d, n := len(q.x), len(k)
	scale, top := 1/math.Sqrt(float64(d)), math.Inf(-1)
	s := zeros(n)
	for j := range k {
		var sum, size, squares float64
		for i, x := range q.x {
			sum += x * k[j].x[i]
			size += math.Abs(x * k[j].x[i])
			squares += math.Pow(q.off[i]*k[j].x[i], 2) + math.Pow(x*k[j].off[i], 2)
		}
		s.set(j, sum*scale, scale*(math.Sqrt(squares)+few*size))
		top = max(top, s.x[j])
	}
	var sum float64
	for j, x := range s.x {
		s.x[j] = math.Exp(x - top)
		s.off[j] = math.Expm1(min(s.off[j]+few*(1+top-x), 1)) // relative
		sum += s.x[j]
	}
	y := zeros(d)
	for i := range y.x {
		var o, off float64
		for j := range v {
			o += s.x[j] / sum * v[j].x[i]
		}
		for j := range v {
			p := s.x[j] / sum
			off += p * (s.off[j]*math.Abs(v[j].x[i]-o) + v[j].off[i] + few*math.Abs(v[j].x[i]))
		}
		y.set(i, o, off)
	}
	return y
}

// gated returns silu(g) * u for the halves g and u of v.
func (v vector) gated() vector {
	n := len(v.x) / 2
	y := zeros(n)
	for i := range n {
		g, u := v.x[i], v.x[n+i]
		a := g / (1 + math.Exp(-g))
		const steepest = 1.1 // of silu
		offA := steepest*v.off[i] + few*(1+math.Abs(g))*math.Abs(a)
		y.set(i, a*u, offA*math.Abs(u)+math.Abs(a)*v.off[n+i]+offA*v.off[n+i])
	}
	return y
}

// Forward computes layers one behind the other; package decoder has the formulas.
func Forward(in Inputs, p decoder.Problem, layers int) Outputs {
	n, d := int(in.SeqLens[0]), p.HeadDim
	out := Outputs{K: append([]float64(nil), in.K...), V: append([]float64(nil), in.V...), KBounds: make([]float64, len(in.K)), VBounds: make([]float64, len(in.V))}
	x := vector{in.X, make([]float64, p.Width)}
	if n < 0 || n >= p.Keys { // there is no room
		out.Y, out.YBounds = make([]float64, p.Width), x.off
		for i := range out.Y {
			out.Y[i] = math.NaN()
		}
		return out
	}
	for l := range layers {
		part := func(all []float64) []float64 { return all[l*len(all)/layers : (l+1)*len(all)/layers] }
		qkv := x.normalized(part(in.NormA), p.Eps).times(part(in.QKV))
		for i, b := range part(in.Bias) {
			qkv.set(i, qkv.x[i]+b, qkv.off[i])
		}
		head := func(i int) vector { return qkv.slice(i*d, d) }
		cos, sin := in.Cos[n*d/2:(n+1)*d/2], in.Sin[n*d/2:(n+1)*d/2]
		o := zeros(p.Heads * d)
		for h := range p.Heads {
			kv := h / (p.Heads / p.KVHeads)
			rows := func(x, off []float64, new vector) (list []vector) {
				at := (kv*p.Keys + n) * d
				stored, bounds := new.stored(p.DType)
				copy(part(x)[at:], stored.x)
				copy(part(off)[at:], bounds)
				for j := range n {
					at := (kv*p.Keys + j) * d
					list = append(list, vector{part(x)[at : at+d], part(off)[at : at+d]})
				}
				return append(list, stored)
			}
			k := rows(out.K, out.KBounds, head(p.Heads+kv).rotated(cos, sin))
			v := rows(out.V, out.VBounds, head(p.Heads+p.KVHeads+kv))
			y := attend(head(h).rotated(cos, sin), k, v)
			copy(o.x[h*d:], y.x)
			copy(o.off[h*d:], y.off)
		}
		x = x.plus(o.times(part(in.Out)))
		h, _ := x.normalized(part(in.NormB), p.Eps).times(part(in.GateUp)).gated().stored(p.DType)
		x = x.plus(h.times(part(in.Down)))
	}
	out.Y = x.x
	for i, y := range x.x {
		out.YBounds = append(out.YBounds, spread*x.off[i]+tolerance.Stored(p.DType, math.Abs(y)+spread*x.off[i]))
	}
	return out
}
