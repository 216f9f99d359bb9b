// Package ref computes the loss of a transformer neural process and its gradients by all
// parameters: in float64, to compare a device with, and as a plain program in a narrower format,
// for the tolerance.
//
// The program follows the formulas: K and V of all rows, the last block on all rows, all tensors
// kept. Tensors are slices in row-major order. Parameters have the names of tnp.Config.Params.
package ref

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"

	"github.com/flashvk/flashvk/dtype"
	gemmref "github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	gmmref "github.com/flashvk/flashvk/internal/pipelines/gmm/ref"
	norms "github.com/flashvk/flashvk/internal/pipelines/norm/ref"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/pipelines/tnp"
)

// Inputs are a batch of tasks: X (batch, context+targets, input_dim), Y (batch, targets).
type Inputs struct{ X, Y []float64 }

// Outputs are the results of a step.
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

// A model has the weights, the rounding and the gradients of a computation.
type model struct {
	c     tnp.Config
	s     tnp.Shape
	w     map[string][]float64
	store func(matrix) matrix
	grads map[string][]float64
}

func (m *model) weight(name string, rows, cols int) matrix { return matrix{rows, cols, m.w[name]} }

func (m *model) head(name string, k, rows, cols int) matrix {
	return matrix{rows, cols, m.w[name][k*rows*cols : (k+1)*rows*cols]}
}

// A block has the tensors of a block that the forward pass leaves.
type block struct {
	x, y1, qkv, o, x1, y2, pre, hidden matrix
}

// A tape has the tensors that the forward pass leaves to the backward pass.
type tape struct {
	in     matrix
	blocks []block
	xt, z  matrix   // target rows before and after the last norm
	pre    []matrix // of each head
	hidden []matrix
	heads  matrix // (rows, 3*components)
}

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
		b.y1 = m.norm(x, name("norm1.weight"))
		b.qkv = m.store(nt(b.y1, m.weight(name("qkv.weight"), 3*inner, c.DModel)))
		b.o = m.store(m.attend(b.qkv))
		a := m.store(nt(b.o, m.weight(name("out.weight"), c.DModel, inner)))
		b.x1 = m.store(plus(x, a))
		b.y2 = m.norm(b.x1, name("norm2.weight"))
		b.pre = m.store(nt(b.y2, m.weight(name("up.weight"), c.DFF, c.DModel)))
		b.hidden = m.store(b.pre.apply(gemmref.SiLU))
		down := m.store(nt(b.hidden, m.weight(name("down.weight"), c.DModel, c.DFF)))
		x = m.store(plus(b.x1, down))
		t.blocks = append(t.blocks, b)
	}
	t.xt = m.targets(x)
	t.z = m.norm(t.xt, "norm.weight")
	t.heads = newMatrix(t.z.rows, 3*c.Components)
	for k := range c.Components {
		pre := m.store(nn(t.z, m.head("heads.up", k, c.DModel, c.DFF)))
		hidden := m.store(pre.apply(gemmref.SiLU))
		y := nn(hidden, m.head("heads.down", k, c.DFF, 3))
		for r := range y.rows {
			copy(t.heads.row(r)[3*k:], y.row(r))
		}
		t.pre, t.hidden = append(t.pre, pre), append(t.hidden, hidden)
	}
	logP, loss := gmmref.Forward(t.mixtures(in))
	return Outputs{Heads: t.heads.v, LogP: logP, Loss: loss}, t
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

// norm computes LayerNorm of rows by a parameter.
func (m *model) norm(x matrix, weight string) matrix {
	return m.store(matrix{x.rows, x.cols, norms.Forward(norms.Inputs{X: x.v, W: m.w[weight]}, normed(x)).Y})
}

// normBackward returns the gradient by x, and keeps that by the parameter.
func (m *model) normBackward(dy, x matrix, weight string) matrix {
	g := norms.Backward(x.v, m.w[weight], norms.Upstream{DY: dy.v}, normed(x))
	m.grads[weight] = g.DW
	return matrix{x.rows, x.cols, g.DX}
}

func normed(x matrix) norm.Problem { return norm.Problem{Rows: x.rows, Cols: x.cols, Eps: tnp.NormEps} }

// mixtures returns the outputs of the heads as mixtures.
func (t *tape) mixtures(in Inputs) (gmmref.Inputs, gmm.Problem) {
	mix := gmmref.Inputs{Y: in.Y}
	for i := 0; i < len(t.heads.v); i += 3 {
		mix.Logit, mix.Mu, mix.LogSigma = append(mix.Logit, t.heads.v[i]), append(mix.Mu, t.heads.v[i+1]), append(mix.LogSigma, t.heads.v[i+2])
	}
	return mix, gmm.Problem{Tokens: t.heads.rows, Components: t.heads.cols / 3}
}

// A matrix is row-major.
type matrix struct {
	rows, cols int
	v          []float64
}

func newMatrix(rows, cols int) matrix { return matrix{rows, cols, make([]float64, rows*cols)} }

func (m matrix) general() blas64.General {
	return blas64.General{Rows: m.rows, Cols: m.cols, Stride: m.cols, Data: m.v}
}

func (m matrix) row(i int) []float64 { return m.v[i*m.cols : (i+1)*m.cols] }

// slice returns the rows from first to end-1, which it shares.
func (m matrix) slice(first, end int) matrix {
	return matrix{end - first, m.cols, m.v[first*m.cols : end*m.cols]}
}

// nn, nt and tn return a*b, a*bᵀ and aᵀ*b.
func nn(a, b matrix) matrix { return product(blas.NoTrans, blas.NoTrans, a, b, a.rows, b.cols) }
func nt(a, b matrix) matrix { return product(blas.NoTrans, blas.Trans, a, b, a.rows, b.rows) }
func tn(a, b matrix) matrix { return product(blas.Trans, blas.NoTrans, a, b, a.cols, b.cols) }

func product(ta, tb blas.Transpose, a, b matrix, rows, cols int) matrix {
	c := newMatrix(rows, cols)
	blas64.Gemm(ta, tb, 1, a.general(), b.general(), 0, c.general())
	return c
}

func plus(a, b matrix) matrix {
	c := newMatrix(a.rows, a.cols)
	for i := range c.v {
		c.v[i] = a.v[i] + b.v[i]
	}
	return c
}

// columns returns the columns from first to end-1, a copy.
func (m matrix) columns(first, end int) matrix {
	c := newMatrix(m.rows, end-first)
	for i := range m.rows {
		copy(c.row(i), m.row(i)[first:end])
	}
	return c
}

func (m matrix) apply(f func(float64) float64) matrix {
	c := newMatrix(m.rows, m.cols)
	for i, v := range m.v {
		c.v[i] = f(v)
	}
	return c
}

// times multiplies m by f of x, element by element.
func (m matrix) times(x matrix, f func(float64) float64) matrix {
	c := newMatrix(m.rows, m.cols)
	for i, v := range m.v {
		c.v[i] = v * f(x.v[i])
	}
	return c
}
