// Package ref computes the loss of a transformer neural process and its gradients by all
// parameters: in float64, to compare a device with, and as a plain program in a narrower format,
// for the tolerance.
//
// It follows the formulas: K and V of all rows, the last block on all rows, all tensors kept.
// Tensors are slices in row-major order. Parameters are those of tnp.Config.Params.
package ref

import (
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/tnp"
)

// Inputs are a batch of tasks: X (batch, context+targets, input_dim), Y (batch, targets).
type Inputs struct{ X, Y []float64 }

// Outputs are what a step computes.
type Outputs struct {
	Heads []float64 // (batch*targets, components, 3)
	LogP  []float64 // (batch, targets)
	Loss  float64   // -mean(LogP)
	Grads map[string][]float64
}

// Compute computes in float64 throughout, the gradients too.
func Compute(w map[string][]float64, in Inputs, c tnp.Config, s tnp.Shape) Outputs {
	m := model{c: c, s: s, w: w, store: func(x matrix) matrix { return x }}
	return m.compute(in, 1)
}

// Forward computes the loss alone.
func Forward(w map[string][]float64, in Inputs, c tnp.Config, s tnp.Shape) Outputs {
	m := model{c: c, s: s, w: w, store: func(x matrix) matrix { return x }}
	out, _ := m.forward(in)
	return out
}

// Plain computes as Compute does, but rounds each tensor that a step writes to a format, and
// the weights that it reads; scale multiplies the gradient of the loss, and is taken out of the
// gradients again.
func Plain(w map[string][]float64, in Inputs, c tnp.Config, s tnp.Shape, t dtype.DType, scale float64) Outputs {
	round := func(x matrix) matrix {
		return x.apply(func(v float64) float64 { return float64(t.Round(float32(v))) })
	}
	rounded := map[string][]float64{}
	for _, p := range c.Params() {
		rounded[p.Name] = w[p.Name]
		if len(p.Shape) > 1 {
			rounded[p.Name] = round(matrix{1, len(w[p.Name]), w[p.Name]}).v
		}
	}
	m := model{c: c, s: s, w: rounded, store: round}
	return m.compute(in, scale)
}

// eps is that of LayerNorm.
const eps = tnp.NormEps

// A model is what a computation needs.
type model struct {
	c     tnp.Config
	s     tnp.Shape
	w     map[string][]float64
	store func(matrix) matrix
	grads map[string][]float64
}

// weight returns a parameter as a matrix.
func (m *model) weight(name string, rows, cols int) matrix { return matrix{rows, cols, m.w[name]} }

// head returns that of one head.
func (m *model) head(name string, k, rows, cols int) matrix {
	return matrix{rows, cols, m.w[name][k*rows*cols : (k+1)*rows*cols]}
}

// A block is what the forward pass leaves of a block.
type block struct {
	x, y1, qkv, o, x1, y2, pre, hidden matrix
	n1, n2                             stats
}

// A tape is what the forward pass leaves to the backward pass.
type tape struct {
	in     matrix
	blocks []block
	xt, z  matrix // target rows before and after the last norm
	n      stats
	pre    []matrix // of each head
	hidden []matrix
	heads  matrix // (rows, 3*components)
}

// compute runs both passes.
func (m *model) compute(in Inputs, scale float64) Outputs {
	out, t := m.forward(in)
	m.grads = map[string][]float64{}
	m.backward(in, t, scale)
	for _, g := range m.grads {
		for i := range g {
			g[i] /= scale
		}
	}
	out.Grads = m.grads
	return out
}

func (m *model) forward(in Inputs) (Outputs, *tape) {
	c, inner := m.c, m.c.Heads*m.c.HeadDim
	t := &tape{in: m.store(matrix{m.s.Tokens(), c.InputDim, in.X})}
	x := m.store(nt(t.in, m.weight("embed.weight", c.DModel, c.InputDim)))
	for i := range c.Layers {
		name := func(s string) string { return tnp.BlockName(i, s) }
		b := block{x: x}
		b.y1, b.n1 = norm(x, m.w[name("norm1.weight")])
		b.y1 = m.store(b.y1)
		b.qkv = m.store(nt(b.y1, m.weight(name("qkv.weight"), 3*inner, c.DModel)))
		b.o = m.store(m.attend(b.qkv))
		a := m.store(nt(b.o, m.weight(name("out.weight"), c.DModel, inner)))
		b.x1 = m.store(plus(x, a))
		b.y2, b.n2 = norm(b.x1, m.w[name("norm2.weight")])
		b.y2 = m.store(b.y2)
		b.pre = m.store(nt(b.y2, m.weight(name("up.weight"), c.DFF, c.DModel)))
		b.hidden = m.store(b.pre.apply(silu))
		down := m.store(nt(b.hidden, m.weight(name("down.weight"), c.DModel, c.DFF)))
		x = m.store(plus(b.x1, down))
		t.blocks = append(t.blocks, b)
	}
	t.xt = m.targets(x)
	t.z, t.n = norm(t.xt, m.w["norm.weight"])
	t.z = m.store(t.z)
	t.heads = newMatrix(t.z.rows, 3*c.Components)
	for k := range c.Components {
		pre := m.store(nn(t.z, m.head("heads.up", k, c.DModel, c.DFF)))
		hidden := m.store(pre.apply(silu))
		y := nn(hidden, m.head("heads.down", k, c.DFF, 3))
		for r := range y.rows {
			copy(t.heads.row(r)[3*k:], y.row(r))
		}
		t.pre, t.hidden = append(t.pre, pre), append(t.hidden, hidden)
	}
	out := Outputs{Heads: t.heads.v, LogP: make([]float64, t.z.rows)}
	for r := range out.LogP {
		out.LogP[r] = logP(t.heads.row(r), in.Y[r], nil, nil)
		out.Loss -= out.LogP[r] / float64(t.z.rows)
	}
	return out, t
}

// targets returns the target rows of all tasks.
func (m *model) targets(x matrix) matrix {
	s := m.s
	t := newMatrix(s.Batch*s.Targets, x.cols)
	for b := range s.Batch {
		first := b*(s.Context+s.Targets) + s.Context
		copy(t.v[b*s.Targets*x.cols:], x.v[first*x.cols:(first+s.Targets)*x.cols])
	}
	return t
}

// stats are mean and 1/deviation of each row.
type stats struct{ mean, rstd []float64 }

// norm computes LayerNorm of rows.
func norm(x matrix, w []float64) (matrix, stats) {
	y, s := newMatrix(x.rows, x.cols), stats{make([]float64, x.rows), make([]float64, x.rows)}
	for r := range x.rows {
		mean, variance := 0.0, 0.0
		for _, v := range x.row(r) {
			mean += v / float64(x.cols)
		}
		for _, v := range x.row(r) {
			variance += (v - mean) * (v - mean) / float64(x.cols)
		}
		s.mean[r], s.rstd[r] = mean, 1/math.Sqrt(variance+eps)
		for i, v := range x.row(r) {
			y.row(r)[i] = (v - mean) * s.rstd[r] * w[i]
		}
	}
	return y, s
}

// normBackward returns the gradient by x, and adds that by w.
func normBackward(dy, x matrix, s stats, w, dw []float64) matrix {
	dx, n := newMatrix(x.rows, x.cols), float64(x.cols)
	for r := range x.rows {
		meanG, meanGZ := 0.0, 0.0
		for i, v := range x.row(r) {
			z, g := (v-s.mean[r])*s.rstd[r], dy.row(r)[i]*w[i]
			meanG += g / n
			meanGZ += g * z / n
			dw[i] += dy.row(r)[i] * z
		}
		for i, v := range x.row(r) {
			z, g := (v-s.mean[r])*s.rstd[r], dy.row(r)[i]*w[i]
			dx.row(r)[i] = s.rstd[r] * (g - meanG - z*meanGZ)
		}
	}
	return dx
}

// logP returns the log-probability of y under a mixture of (logit, mu, log sigma), and, where
// they are wanted, r, the part of each component in it, and w, its weight.
func logP(heads []float64, y float64, r, w []float64) float64 {
	n := len(heads) / 3
	logW, logN := make([]float64, n), make([]float64, n)
	for k := range n {
		z := (y - heads[3*k+1]) / math.Exp(heads[3*k+2])
		logW[k], logN[k] = heads[3*k], -z*z/2-heads[3*k+2]-math.Log(2*math.Pi)/2
	}
	sum := logSumExp(logW)
	for k := range n {
		logW[k] -= sum
		logN[k] += logW[k]
	}
	p := logSumExp(logN)
	for k := range r {
		r[k], w[k] = math.Exp(logN[k]-p), math.Exp(logW[k])
	}
	return p
}

func logSumExp(x []float64) float64 {
	top, sum := math.Inf(-1), 0.0
	for _, v := range x {
		top = max(top, v)
	}
	for _, v := range x {
		sum += math.Exp(v - top)
	}
	return top + math.Log(sum)
}
