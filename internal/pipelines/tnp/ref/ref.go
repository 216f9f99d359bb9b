// Package ref computes the loss of a transformer neural process and its gradients by all
// parameters: in float64, to compare a device with, and as a plain program in a narrower format,
// for the tolerance. It chains the references of the kernels.
//
// The program follows the formulas: the last block on all rows, all tensors kept. Tensors are slices
// in row-major order. Parameters have the names of tnp.Config.Params.
package ref

import (
	"gonum.org/v1/gonum/mat"

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
	for _, p := range c.Params(dtype.Float32) {
		m.w[p.Name] = w[p.Name]
		if len(p.Shape) > 1 {
			m.w[p.Name] = values(m.store(mat.NewDense(1, len(w[p.Name]), w[p.Name])))
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
func (m *model) store(x *mat.Dense) *mat.Dense {
	if !m.plain {
		return x
	}
	var c mat.Dense
	c.Apply(func(_, _ int, v float64) float64 { return float64(m.t.Round(float32(v))) }, x)
	return &c
}

func (m *model) weight(name string, rows, cols int) *mat.Dense {
	return mat.NewDense(rows, cols, m.w[name])
}

// A block has the tensors of a block that the forward pass leaves.
type block struct{ x, y1, qkv, o, x1, y2 *mat.Dense }

// A tape has the tensors that the forward pass leaves to the backward pass.
type tape struct {
	in     *mat.Dense
	blocks []block
	xt     *mat.Dense // target rows before the last norm
	heads  mixtures.Inputs
}

func (m *model) forward(in Inputs) (out Outputs, t tape) {
	c, inner := m.c, m.c.Heads*m.c.HeadDim
	t.in = m.store(mat.NewDense(m.s.Tokens(), c.InputDim, in.X))
	x := m.store(nt(t.in, m.weight("embed.weight", c.DModel, c.InputDim)))
	for i := range c.Layers {
		name := func(s string) string { return tnp.BlockName(i, s) }
		b := block{x: x, y1: m.norm(x, name("norm1.weight"))}
		b.qkv = m.store(nt(b.y1, m.weight(name("qkv.weight"), 3*inner, c.DModel)))
		b.o = m.attend(b.qkv)
		b.x1 = m.store(plus(x, m.store(nt(b.o, m.weight(name("out.weight"), c.DModel, inner)))))
		b.y2 = m.norm(b.x1, name("norm2.weight"))
		x = m.store(plus(b.x1, like(x, m.perceptron(i, b.y2, nil).Y)))
		t.blocks = append(t.blocks, b)
	}
	t.xt = mat.NewDense(m.s.Batch*m.s.Targets, c.DModel, nil)
	m.targets(func(target, row int) { t.xt.SetRow(target, x.RawRowView(row)) })
	t.heads = mixtures.Inputs{X: values(m.norm(t.xt, "norm.weight")), W1: m.w["heads.up"], W2: m.w["heads.down"], Y: in.Y}
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
	dxt := m.store(m.normBackward(like(t.xt, g.DX), t.xt, "norm.weight"))
	dx := mat.NewDense(m.s.Tokens(), c.DModel, nil)
	m.targets(func(target, row int) { dx.SetRow(row, dxt.RawRowView(target)) })
	for i := c.Layers - 1; i >= 0; i-- {
		b := &t.blocks[i]
		name := func(s string) string { return tnp.BlockName(i, s) }
		p := m.perceptron(i, b.y2, values(dx))
		m.grads[name("up.weight")] = transposed(mat.NewDense(c.DModel, c.DFF, p.DW1))
		m.grads[name("down.weight")] = transposed(mat.NewDense(c.DFF, c.DModel, p.DW2))
		dx1 := m.store(plus(dx, m.normBackward(like(dx, p.DX), b.x1, name("norm2.weight"))))
		m.grads[name("out.weight")] = values(tn(dx1, b.o))
		dqkv := m.attendBackward(b.qkv, m.store(nn(dx1, m.weight(name("out.weight"), c.DModel, inner))))
		m.grads[name("qkv.weight")] = values(tn(dqkv, b.y1))
		dy1 := m.store(nn(dqkv, m.weight(name("qkv.weight"), 3*inner, c.DModel)))
		dx = m.store(plus(dx1, m.normBackward(dy1, b.x, name("norm1.weight"))))
	}
	m.grads["embed.weight"] = values(tn(dx, t.in))
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
func (m *model) perceptron(i int, x *mat.Dense, dy []float64) mlps.Outputs {
	c, f := m.c, mlps.Compute
	if m.plain {
		f = mlps.Plain
	}
	return f(mlps.Inputs{
		X: values(x), W1: transposed(m.weight(tnp.BlockName(i, "up.weight"), c.DFF, c.DModel)),
		W2: transposed(m.weight(tnp.BlockName(i, "down.weight"), c.DModel, c.DFF)), DY: dy,
	}, mlp.Problem{Tokens: len(values(x)) / c.DModel, In: c.DModel, Hidden: c.DFF, Out: c.DModel, DType: m.t})
}

func (m *model) attention() attention.Problem {
	c, s := m.c, m.s
	return attention.Problem{Batch: s.Batch, NumHeads: c.Heads, NumKVHeads: c.Heads, SeqQ: s.Context + s.Targets, SeqKV: s.Context, HeadDim: c.HeadDim, DType: m.t}
}

// heads calls f with the first n rows of each head of a task: the elements of a row that are its own,
// from column col on of a matrix, and of a tensor (batch, heads, n, head_dim).
func (m *model) heads(x *mat.Dense, col, n int, tensor []float64, f func(row, of []float64)) {
	d := m.c.HeadDim
	for i := range m.s.Batch * m.c.Heads * n {
		task, head, row := i/n/m.c.Heads, i/n%m.c.Heads, i%n
		at := col + head*d
		f(x.RawRowView(task*(m.s.Context+m.s.Targets) + row)[at:at+d], tensor[i*d:(i+1)*d])
	}
}

// tensors returns q, k and v of all heads.
func (m *model) tensors(qkv *mat.Dense) (in attentions.Inputs[float64]) {
	inner, p := m.c.Heads*m.c.HeadDim, m.attention()
	for i, x := range []*[]float64{&in.Q, &in.K, &in.V} {
		n := []int{p.SeqQ, p.SeqKV, p.SeqKV}[i]
		*x = make([]float64, m.s.Batch*n*inner)
		m.heads(qkv, i*inner, n, *x, func(row, of []float64) { copy(of, row) })
	}
	return in
}

// attend returns O of all heads side by side.
func (m *model) attend(qkv *mat.Dense) *mat.Dense {
	p, f := m.attention(), attentions.Forward[float64]
	if m.plain {
		f = attentions.Plain[float64]
	}
	o := mat.NewDense(m.s.Tokens(), m.c.Heads*m.c.HeadDim, nil)
	of := make([]float64, len(values(o)))
	must(f(of, nil, m.tensors(qkv), p, nil))
	m.heads(o, 0, p.SeqQ, of, func(row, of []float64) { copy(row, of) })
	return o
}

// attendBackward returns the gradients by q, k and v side by side: 0 by k and v of target rows.
func (m *model) attendBackward(qkv, do *mat.Dense) *mat.Dense {
	p, in, up := m.attention(), m.tensors(qkv), attentions.Upstream[float64]{DO: make([]float64, len(values(do)))}
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
	dqkv, inner := like(qkv, nil), m.c.Heads*m.c.HeadDim
	for i, x := range [][]float64{g.DQ, g.DK, g.DV} {
		m.heads(dqkv, i*inner, []int{p.SeqQ, p.SeqKV, p.SeqKV}[i], x, func(row, of []float64) { copy(row, of) })
	}
	return dqkv
}

func must(err error) {
	if err != nil {
		panic(err) // the sizes are those of a model
	}
}

// norm computes LayerNorm of rows by a parameter.
func (m *model) norm(x *mat.Dense, weight string) *mat.Dense {
	return m.store(like(x, norms.Forward(norms.Inputs{X: values(x), W: m.w[weight]}, normed(x)).Y))
}

// normBackward returns the gradient by x, and keeps that by the parameter.
func (m *model) normBackward(dy, x *mat.Dense, weight string) *mat.Dense {
	g := norms.Backward(values(x), m.w[weight], norms.Upstream{DY: values(dy)}, normed(x))
	m.grads[weight] = g.DW
	return like(x, g.DX)
}

func normed(x *mat.Dense) norm.Problem {
	rows, cols := x.Dims()
	return norm.Problem{Rows: rows, Cols: cols, Eps: tnp.NormEps}
}

// values returns the elements of a matrix, row-major.
func values(x *mat.Dense) []float64 { return x.RawMatrix().Data }

// like returns a matrix of the sizes of x, 0 without values.
func like(x *mat.Dense, values []float64) *mat.Dense {
	rows, cols := x.Dims()
	return mat.NewDense(rows, cols, values)
}

func transposed(x *mat.Dense) []float64 { return values(mat.DenseCopyOf(x.T())) }

// nn, nt and tn return a*b, a*bᵀ and aᵀ*b.
func nn(a, b *mat.Dense) *mat.Dense { return product(a, b) }
func nt(a, b *mat.Dense) *mat.Dense { return product(a, b.T()) }
func tn(a, b *mat.Dense) *mat.Dense { return product(a.T(), b) }

func product(a, b mat.Matrix) *mat.Dense {
	var c mat.Dense
	c.Mul(a, b)
	return &c
}

func plus(a, b *mat.Dense) *mat.Dense {
	var c mat.Dense
	c.Add(a, b)
	return &c
}
