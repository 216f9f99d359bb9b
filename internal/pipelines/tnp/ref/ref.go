// Package ref computes the loss of a transformer neural process and its gradients by all
// parameters: in float64, to compare a device with, and as a plain program in a narrower format,
// for the tolerance. It chains the references of the kernels.
//
// The program follows the formulas: the last block on all rows, all tensors kept. Tensors are slices
// in row-major order. Parameters have the names of tnp.Config.Params.
package ref

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	attentions "github.com/flashvk/flashvk/internal/attention/ref"
	gmms "github.com/flashvk/flashvk/internal/pipelines/gmm/ref"
	mixtures "github.com/flashvk/flashvk/internal/pipelines/mixture/ref"
	mlps "github.com/flashvk/flashvk/internal/pipelines/mlp/ref"
	norms "github.com/flashvk/flashvk/internal/pipelines/norm/ref"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/pipelines/tnp"
)

// Inputs are a batch of tasks: X (batch, context+targets, input_dim), Y (batch, targets).
type Inputs struct{ X, Y []float64 }

// Outputs are the results of a step.
type Outputs struct {
	Mixtures gmms.Inputs // of float64 alone; the components of the targets, in order
	LogP     []float64   // (batch, targets)
	Loss     float64     // -mean(LogP)
	Grads    map[string][]float64
}

// Compute computes in float64 throughout, the gradients too.
func Compute(w map[string][]float64, in Inputs, c tnp.Config, s tnp.Shape) Outputs {
	m := model{c: c, s: s, w: w}
	out, tape := m.forward(in)
	m.backward(tape, 1)
	out.Grads = m.grads
	return out
}

// Forward computes the loss alone.
func Forward(w map[string][]float64, in Inputs, c tnp.Config, s tnp.Shape) Outputs {
	m := model{c: c, s: s, w: w}
	out, _ := m.forward(in)
	return out
}

// Plain computes as Compute does, but rounds each tensor that a step writes to a format, and
// the weights that it reads; scale multiplies the gradient of the loss, and is taken out of the
// gradients again.
func Plain(w map[string][]float64, in Inputs, c tnp.Config, s tnp.Shape, t dtype.DType, scale float64) Outputs {
	m := model{c: c, s: s, w: map[string][]float64{}, plain: true, t: t}
	for _, p := range c.Params() {
		m.w[p.Name] = w[p.Name]
		if len(p.Shape) > 1 {
			m.w[p.Name] = m.store(matrix{1, len(w[p.Name]), w[p.Name]}).v
		}
	}
	out, tape := m.forward(in)
	m.backward(tape, scale)
	for _, g := range m.grads {
		for i := range g {
			g[i] /= scale
		}
	}
	out.Grads = m.grads
	return out
}

// A model has the weights, the rounding and the gradients of a computation.
type model struct {
	c     tnp.Config
	s     tnp.Shape
	w     map[string][]float64
	plain bool
	t     dtype.DType // of a plain program
	grads map[string][]float64
}

// store rounds what a plain program writes.
func (m *model) store(x matrix) matrix {
	if !m.plain {
		return x
	}
	c := newMatrix(x.rows, x.cols)
	for i, v := range x.v {
		c.v[i] = float64(m.t.Round(float32(v)))
	}
	return c
}

func (m *model) weight(name string, rows, cols int) matrix { return matrix{rows, cols, m.w[name]} }

// A block has the tensors of a block that the forward pass leaves.
type block struct{ x, y1, qkv, o, x1, y2 matrix }

// A tape has the tensors that the forward pass leaves to the backward pass.
type tape struct {
	in     matrix
	blocks []block
	xt     matrix // target rows before the last norm
	heads  mixtures.Inputs
}

func (m *model) forward(in Inputs) (out Outputs, t tape) {
	c, inner := m.c, m.c.Heads*m.c.HeadDim
	t.in = m.store(matrix{m.s.Tokens(), c.InputDim, in.X})
	x := m.store(nt(t.in, m.weight("embed.weight", c.DModel, c.InputDim)))
	for i := range c.Layers {
		name := func(s string) string { return tnp.BlockName(i, s) }
		b := block{x: x, y1: m.norm(x, name("norm1.weight"))}
		b.qkv = m.store(nt(b.y1, m.weight(name("qkv.weight"), 3*inner, c.DModel)))
		b.o = m.attend(b.qkv)
		b.x1 = m.store(plus(x, m.store(nt(b.o, m.weight(name("out.weight"), c.DModel, inner)))))
		b.y2 = m.norm(b.x1, name("norm2.weight"))
		x = m.store(plus(b.x1, matrix{x.rows, x.cols, m.perceptron(i, b.y2, nil).Y}))
		t.blocks = append(t.blocks, b)
	}
	t.xt = newMatrix(m.s.Batch*m.s.Targets, x.cols)
	m.targets(func(target, row int) { copy(t.xt.row(target), x.row(row)) })
	t.heads = mixtures.Inputs{X: m.norm(t.xt, "norm.weight").v, W1: m.w["heads.up"], W2: m.w["heads.down"], Y: in.Y}
	if m.plain {
		out.LogP, out.Loss = mixtures.PlainForward(t.heads, m.mixture())
		return out, t
	}
	out.Mixtures = mixtures.Outputs(t.heads, m.mixture())
	out.LogP, out.Loss = gmms.Forward(out.Mixtures, m.mixture().Mixtures())
	return out, t
}

// backward computes the gradients of scale times the loss by all parameters.
func (m *model) backward(t tape, scale float64) {
	c, inner := m.c, m.c.Heads*m.c.HeadDim
	heads := mixtures.Backward
	if m.plain {
		heads = mixtures.PlainBackward
	}
	g := heads(t.heads, scale, m.mixture())
	m.grads = map[string][]float64{"heads.up": g.DW1, "heads.down": g.DW2}
	dxt := m.store(m.normBackward(matrix{t.xt.rows, c.DModel, g.DX}, t.xt, "norm.weight"))
	dx := newMatrix(m.s.Tokens(), c.DModel)
	m.targets(func(target, row int) { copy(dx.row(row), dxt.row(target)) })
	for i := c.Layers - 1; i >= 0; i-- {
		b := &t.blocks[i]
		name := func(s string) string { return tnp.BlockName(i, s) }
		p := m.perceptron(i, b.y2, dx.v)
		m.grads[name("up.weight")] = matrix{c.DModel, c.DFF, p.DW1}.transposed().v
		m.grads[name("down.weight")] = matrix{c.DFF, c.DModel, p.DW2}.transposed().v
		dx1 := m.store(plus(dx, m.normBackward(matrix{dx.rows, dx.cols, p.DX}, b.x1, name("norm2.weight"))))
		m.grads[name("out.weight")] = tn(dx1, b.o).v
		dqkv := m.attendBackward(b.qkv, m.store(nn(dx1, m.weight(name("out.weight"), c.DModel, inner))))
		m.grads[name("qkv.weight")] = tn(dqkv, b.y1).v
		dy1 := m.store(nn(dqkv, m.weight(name("qkv.weight"), 3*inner, c.DModel)))
		dx = m.store(plus(dx1, m.normBackward(dy1, b.x, name("norm1.weight"))))
	}
	m.grads["embed.weight"] = tn(dx, t.in).v
}

// targets calls f with each target and its row among all.
func (m *model) targets(f func(target, row int)) {
	for i := range m.s.Batch * m.s.Targets {
		f(i, i/m.s.Targets*(m.s.Context+m.s.Targets)+m.s.Context+i%m.s.Targets)
	}
}

func (m *model) mixture() mixture.Problem {
	return mixture.Problem{Tokens: m.s.Batch * m.s.Targets, Heads: m.c.Components, In: m.c.DModel, Hidden: m.c.DFF, DType: m.t}
}

// perceptron computes the perceptron of a block, and its gradients if there is dy.
func (m *model) perceptron(i int, x matrix, dy []float64) mlps.Outputs {
	c, f := m.c, mlps.Compute
	if m.plain {
		f = mlps.Plain
	}
	return f(mlps.Inputs{
		X: x.v, W1: m.weight(tnp.BlockName(i, "up.weight"), c.DFF, c.DModel).transposed().v,
		W2: m.weight(tnp.BlockName(i, "down.weight"), c.DModel, c.DFF).transposed().v, DY: dy,
	}, mlp.Problem{Tokens: x.rows, In: c.DModel, Hidden: c.DFF, Out: c.DModel, DType: m.t})
}

func (m *model) attention() attention.Problem {
	c, s := m.c, m.s
	return attention.Problem{Batch: s.Batch, NumHeads: c.Heads, NumKVHeads: c.Heads, SeqQ: s.Context + s.Targets, SeqKV: s.Context, HeadDim: c.HeadDim, DType: m.t}
}

// heads calls f with the first n rows of each head of a task: the elements of a row that are its own,
// from column col on of a matrix, and of a tensor (batch, heads, n, head_dim).
func (m *model) heads(x matrix, col, n int, tensor []float64, f func(row, of []float64)) {
	d := m.c.HeadDim
	for i := range m.s.Batch * m.c.Heads * n {
		task, head, row := i/n/m.c.Heads, i/n%m.c.Heads, i%n
		at := col + head*d
		f(x.row(task*(m.s.Context+m.s.Targets) + row)[at:at+d], tensor[i*d:(i+1)*d])
	}
}

// tensors returns q, k and v of all heads.
func (m *model) tensors(qkv matrix) (in attentions.Inputs[float64]) {
	inner, p := m.c.Heads*m.c.HeadDim, m.attention()
	for i, x := range []*[]float64{&in.Q, &in.K, &in.V} {
		n := []int{p.SeqQ, p.SeqKV, p.SeqKV}[i]
		*x = make([]float64, m.s.Batch*n*inner)
		m.heads(qkv, i*inner, n, *x, func(row, of []float64) { copy(of, row) })
	}
	return in
}

// attend returns O of all heads side by side.
func (m *model) attend(qkv matrix) matrix {
	p, f := m.attention(), attentions.Forward[float64]
	if m.plain {
		f = attentions.Plain[float64]
	}
	o := newMatrix(qkv.rows, m.c.Heads*m.c.HeadDim)
	of := make([]float64, len(o.v))
	must(f(of, nil, m.tensors(qkv), p, nil))
	m.heads(o, 0, p.SeqQ, of, func(row, of []float64) { copy(row, of) })
	return o
}

// attendBackward returns the gradients by q, k and v side by side: 0 by k and v of target rows.
func (m *model) attendBackward(qkv, do matrix) matrix {
	p, in, up := m.attention(), m.tensors(qkv), attentions.Upstream[float64]{DO: make([]float64, len(do.v))}
	m.heads(do, 0, p.SeqQ, up.DO, func(row, of []float64) { copy(of, row) })
	var g attentions.Gradients
	var err error
	if m.plain {
		o, lse, saved := attentions.Saved(in, p)
		must(saved)
		g, err = attentions.PlainBackward(o, lse, up, in, p)
	} else {
		g, _, err = attentions.Backward(up, in, p)
	}
	must(err)
	dqkv := newMatrix(qkv.rows, qkv.cols)
	for i, x := range [][]float64{g.DQ, g.DK, g.DV} {
		m.heads(dqkv, i*do.cols, []int{p.SeqQ, p.SeqKV, p.SeqKV}[i], x, func(row, of []float64) { copy(row, of) })
	}
	return dqkv
}

func must(err error) {
	if err != nil {
		panic(err) // the sizes are those of a model
	}
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

func (m matrix) transposed() matrix {
	t := newMatrix(m.cols, m.rows)
	for i := range m.v {
		t.v[i%m.cols*m.rows+i/m.cols] = m.v[i]
	}
	return t
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
