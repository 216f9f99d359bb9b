package train

import (
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/pipelines/dropout"
	"github.com/flashvk/flashvk/pipelines/embed"
	"github.com/flashvk/flashvk/pipelines/glu"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/pipelines/xent"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A Norm is a normalization of rows, of package norm.
type Norm struct {
	RMS bool    // RMSNorm, not LayerNorm
	Eps float64 // added to the variance
	// Residual is added to the rows first, nil for nothing: the branch of a block is x, the stream
	// Residual.
	Residual *Value
	Bias     *Value // a Vector that is added to y, nil for none
}

// Norm appends y = norm(sum) * w + bias of the rows of a matrix, with sum = x + o.Residual, or x without
// it. W is a Vector. It returns y and sum; sum is the residual stream, and has a gradient of its own.
func (t *Tape) Norm(name string, x, w *Value, o Norm) (y, sum *Value) {
	if len(x.view.Shape) != 2 {
		t.failf("%s: x has shape %v, want a matrix", name, x.view.Shape)
		return x, x
	}
	rows, cols := x.view.Shape[0], x.view.Shape[1]
	n := &normed{t: t, name: name, x: x, w: w, o: o, sum: x}
	n.y = t.tensor(name+".y", rows, cols)
	n.rstd = t.Tensor(name+".rstd", dtype.Float32, rows)
	if !o.RMS {
		n.mean = t.Tensor(name+".mean", dtype.Float32, rows)
	}
	out := []*Value{n.y, n.rstd, n.mean}
	if o.Residual != nil {
		n.sum = t.tensor(name+".sum", rows, cols)
		out = append(out, n.sum)
	}
	t.append(&op{name: name, in: []*Value{x, w, o.Bias, o.Residual}, out: out, saved: []*Value{n.rstd, n.mean, w, n.sum},
		again: n.reads, forward: n.forward, backward: n.backward})
	return n.y, n.sum
}

// A normed is a call of Norm.
type normed struct {
	t                        *Tape
	name                     string
	x, w, y, sum, mean, rstd *Value
	o                        Norm
}

// summed reports whether the second forward pass finds the sum as it was.
func (n *normed) summed() bool { return !n.sum.node.lost(n.t.o.Checkpoint) }

// reads lists what the second forward pass reads.
func (n *normed) reads() []*Value {
	if n.o.Residual == nil || n.summed() {
		return []*Value{n.w, n.o.Bias, n.sum}
	}
	return []*Value{n.w, n.o.Bias, n.x, n.o.Residual}
}

func (n *normed) problem(residual bool) norm.Problem {
	shape := n.x.view.Shape
	return norm.Problem{Rows: shape[0], Cols: shape[1], RMS: n.o.RMS, Eps: n.o.Eps, DType: n.x.node.dtype,
		WeightDType: n.w.node.dtype, Residual: residual, Bias: n.o.Bias != nil}
}

func (n *normed) forward(again bool) {
	t, x, residual, sum, mean := n.t, n.x, n.o.Residual, n.sum, n.mean
	if residual == nil || again && n.summed() {
		x, residual, sum = n.sum, nil, nil
	}
	t.make(again, n.y, mean, n.rstd, sum)
	name, p := repeated(n.name, again), n.problem(residual != nil)
	bytes, err := norm.Workspace(t.caps, p, kit.Forward, norm.Options{})
	in, out := []*Value{x, residual, n.w, n.o.Bias}, []*Value{n.y, mean, n.rstd, sum}
	t.step(name, in, out, bytes, err, func(c *vk.Cmd, m Call) error {
		x := norm.Tensors{X: m.In[0], Residual: m.In[1], W: m.In[2], B: m.In[3], Y: m.Out[0], Mean: m.Out[1], RStd: m.Out[2], Sum: m.Out[3]}
		return norm.Forward(c, x, p, norm.Options{Workspace: m.Workspace})
	})
}

// backward appends the gradient through the norm, plus the gradient by the sum that is there: it
// is the gradient by x and by the residual.
func (n *normed) backward() {
	t, name := n.t, n.name+", backward"
	dy, dsum := grad(n.y), grad(n.sum)
	if dy == nil { // of the sum alone
		if n.o.Residual != nil {
			t.share(n.o.Residual, dsum)
			t.share(n.x, dsum)
		}
		return
	}
	whole := slices.Equal(n.x.view.Shape, n.x.node.shape)
	var to *Value
	done := func() {}
	switch stream := n.o.Residual; {
	case stream.wanted():
		var add func()
		to, add = t.fresh(t.into(stream)[0])
		done = func() { add(); t.share(n.x, to); shared(stream) }
	case stream == nil && dsum != nil && whole && n.x.node.wanted: // dsum is a part of the sum of gradients
		g := n.x.node.gradient
		t.begin(n.x.node)
		n.x.node.gradient.written, to = g.written, n.x.node.gradient.v
	default:
		if stream == nil {
			dsum = nil
		}
		to, done = t.fresh(t.into(n.x)[0])
	}
	dw, addW := t.fresh(t.into(n.w)[0])
	db, addB := t.fresh(t.into(n.o.Bias)[0])
	if to == nil { // a norm has no gradient by its weight alone
		to = t.unused(n.x)
	}
	p := n.problem(dsum != nil)
	bytes, err := norm.Workspace(t.caps, p, kit.Backward, norm.Options{})
	in, out := []*Value{n.sum, n.w, n.mean, n.rstd, dy, dsum}, []*Value{to, dw, db}
	t.step(name, in, out, bytes, err, func(c *vk.Cmd, m Call) error {
		x, g := norm.Tensors{W: m.In[1], Mean: m.In[2], RStd: m.In[3]}, norm.Gradients{DY: m.In[4], DX: m.Out[0], DW: m.Out[1], DB: m.Out[2]}
		if p.Residual {
			x.Sum, g.DSum = m.In[0], m.In[5]
		} else {
			x.X = m.In[0]
		}
		return norm.Backward(c, x, g, p, norm.Options{Workspace: m.Workspace})
	})
	addW()
	addB()
	done()
}

// GLU appends y = a(g) * u, of package glu. G and u are matrices, often the halves of one.
func (t *Tape) GLU(name string, g, u *Value, a glu.Activation) *Value {
	if len(g.view.Shape) != 2 {
		t.failf("%s: g has shape %v, want a matrix", name, g.view.Shape)
		return g
	}
	p := glu.Problem{Rows: g.view.Shape[0], Cols: g.view.Shape[1], Activation: a, DType: g.node.dtype}
	y := t.Tensor(name, p.DType, p.Rows, p.Cols)
	t.Op(Op{Name: name, In: []*Value{g, u}, Out: []*Value{y}, Reads: []*Value{g, u}, Together: []*Value{g, u},
		Forward: func(c *vk.Cmd, m Call) error {
			return glu.Forward(c, glu.Tensors{G: m.In[0], U: m.In[1], Y: m.Out[0]}, p, glu.Options{})
		},
		Backward: func(c *vk.Cmd, m Call) error {
			x, d := glu.Tensors{G: m.In[0], U: m.In[1]}, glu.Gradients{DY: m.DOut[0], DG: m.DIn[0], DU: m.DIn[1]}
			return glu.Backward(c, x, d, p, glu.Options{})
		}})
	return y
}

// Dropout appends dropout of a matrix, of package dropout, in a plan that has gradients; prediction drops nothing. State
// is an input with what dropout.States returns: other numbers, and other streams, drop others.
func (t *Tape) Dropout(name string, x, state *Value, p float64, stream int) *Value {
	if t.pass < Gradients || p == 0 {
		return x
	}
	d := dropout.Problem{Rows: x.view.Shape[0], Cols: x.view.NumElements() / x.view.Shape[0], P: p, Stream: stream, DType: x.node.dtype}
	y := t.Tensor(name, d.DType, d.Rows, d.Cols)
	run := func(c *vk.Cmd, x, state, y vk.Tensor) error {
		return dropout.Forward(c, dropout.Tensors{X: x, State: state, Y: y}, d, dropout.Options{})
	}
	t.Op(Op{Name: name, In: []*Value{x, state}, Out: []*Value{y}, Reads: []*Value{state},
		Forward:  func(c *vk.Cmd, m Call) error { return run(c, m.In[0], m.In[1], m.Out[0]) },
		Backward: func(c *vk.Cmd, m Call) error { return run(c, m.DOut[0], m.In[1], m.DIn[0]) }})
	return y
}

// Embed appends the rows of a table, (vocabulary, dim), with the numbers ids, int32: (len(ids), dim).
func (t *Tape) Embed(name string, ids, table *Value) *Value {
	if len(table.view.Shape) != 2 {
		t.failf("%s: table has shape %v, want a matrix", name, table.view.Shape)
		return table
	}
	p := embed.Problem{Tokens: ids.view.NumElements(), Vocabulary: table.view.Shape[0], Dim: table.view.Shape[1],
		DType: table.node.dtype, Out: dtype.Some(t.format), Grad: dtype.Some(dtype.Float32)}
	y := t.tensor(name, p.Tokens, p.Dim)
	t.append(&op{name: name, in: []*Value{ids, table}, out: []*Value{y}, saved: []*Value{ids},
		forward: func(again bool) {
			t.make(again, y)
			t.gather(repeated(name, again), y, ids, table, p)
		},
		backward: func() {
			p, to := p, t.into(table)[0]
			p.Accumulate = to.add
			bytes, err := embed.Workspace(t.caps, p, kit.Backward, embed.Options{})
			in := []*Value{ids, grad(y), onlyIf(to.add, to.v)}
			t.step(name+", backward", in, []*Value{to.v}, bytes, err, func(c *vk.Cmd, m Call) error {
				x, g := embed.Tensors{IDs: m.In[0]}, embed.Gradients{DOut: m.In[1], DTable: m.Out[0]}
				return embed.Backward(c, x, g, p, embed.Options{Workspace: m.Workspace})
			})
		}})
	return y
}

// gather appends y = the rows of a table, or, to accumulate, y += them.
func (t *Tape) gather(name string, y, ids, table *Value, p embed.Problem) {
	in := []*Value{ids, table, onlyIf(p.Accumulate, y)}
	t.step(name, in, []*Value{y}, 0, nil, func(c *vk.Cmd, m Call) error {
		return embed.Forward(c, embed.Tensors{IDs: m.In[0], Table: m.In[1], Out: m.Out[0]}, p, embed.Options{})
	})
}

// onlyIf returns v, or nil: no tensor of a step.
func onlyIf(ok bool, v *Value) *Value {
	if ok {
		return v
	}
	return nil
}

// Add appends x + y, of one shape. A residual stream is cheaper as Norm.Residual or Product.Plus.
func (t *Tape) Add(name string, x, y *Value) *Value {
	sum := t.Tensor(name, x.node.dtype, x.view.Shape...)
	t.append(&op{name: name, in: []*Value{x, y}, out: []*Value{sum},
		forward: func(again bool) {
			t.make(again, sum)
			t.rowsInto(repeated(name, again), sum, x, false)
			t.rowsInto(repeated(name, again), sum, y, true)
		},
		backward: func() {
			t.share(x, grad(sum))
			t.share(y, grad(sum))
			shared(sum)
		}})
	return sum
}

// Rows returns the rows from first to end-1 of each task. The rows of the matrix x belong to `tasks` tasks,
// one task after the other: a view where these rows follow one another, else a copy.
func (t *Tape) Rows(name string, x *Value, tasks, first, end int) *Value {
	part := x.Split(tasks).Slice(1, first, end)
	if v := part.flat(); v != nil {
		return v
	}
	y := t.Tensor(name, x.node.dtype, tasks*(end-first), x.view.Shape[1])
	y.node.rows = part
	t.append(&op{name: name, in: []*Value{x}, out: []*Value{y},
		forward: func(again bool) {
			t.make(again, y)
			t.copyRows(repeated(name, again), y.Split(tasks), part)
		},
		backward: func() { t.scatter(name, part, y.Split(tasks)) }})
	return y
}

// scatter appends the copy of the gradient by rows to the gradient by what they are copies of.
func (t *Tape) scatter(name string, part, rows *Value) {
	to, from := t.into(part)[0], grad(rows)
	if to.add {
		for i := range to.v.view.Shape[0] {
			t.rowsInto(name+", more", to.v.Slice(0, i, i+1).flat(), from.Slice(0, i, i+1).flat(), true)
		}
		return
	}
	t.copyRows(name+", backward", to.v, from)
}

// copyRows appends to = from, (tasks, rows, columns).
func (t *Tape) copyRows(name string, to, from *Value) {
	t.step(name, []*Value{from}, []*Value{to}, 0, nil, func(c *vk.Cmd, m Call) error {
		return engine.Pad(c, m.Out[0], m.In[0])
	})
}

// Attention appends attention over whole sequences, of package attention. Q, k and v are (batch,
// heads, rows, dim): Value.Heads makes such views of matrices. P has what is computed; sizes and
// format are taken from the operands. The result is a matrix (batch*rows, heads*dim), which
// checkpoint Selective keeps. P.Quant is of the forward pass: the gradients are those of attention without, from q and k as they
// are, with P = exp(S - LSE) of the forward pass's LSE. That of E4M3 is too far off: the backward pass computes O and LSE again
// without, in their place.
func (t *Tape) Attention(name string, q, k, v *Value, p attention.Problem) *Value {
	return t.attend(name, q, k, v, nil, p)
}

// Packed appends attention of sequences that lie one after the other in the rows of q, k and v, (1, heads,
// rows, dim). Sequence i has the rows cuSeqlens[i] to cuSeqlens[i+1]-1, int32, (sequences+1), which end with
// rows; sequences may be empty, and none is longer than longest. All else is as in Attention.
func (t *Tape) Packed(name string, q, k, v, cuSeqlens *Value, longest int, p attention.Problem) *Value {
	p.SeqQ, p.SeqKV = longest, longest
	return t.attend(name, q, k, v, cuSeqlens, p)
}

// attend is Attention or, with cuSeqlens, Packed.
func (t *Tape) attend(name string, q, k, v, cuSeqlens *Value, p attention.Problem) *Value {
	a, b, d := q.view.Shape, k.view.Shape, v.view.Shape
	if len(a) != 4 || len(b) != 4 || len(d) != 4 || cuSeqlens != nil && a[0] != 1 {
		t.failf("%s: q, k and v have shapes %v, %v, %v, want (batch, heads, rows, dim), of packed sequences batch 1", name, a, b, d)
		return q
	}
	p.NumHeads, p.HeadDim, p.NumKVHeads, p.ValueDim, p.DType = a[1], a[3], b[1], 0, q.node.dtype
	in, rows, lse := []*Value{q, k, v, cuSeqlens}, func(x vk.Tensor) vk.Tensor { return x }, []int{a[0], a[1], a[2]}
	if cuSeqlens == nil {
		p.Batch, p.SeqQ, p.SeqKV = a[0], a[2], b[2]
	} else {
		rows, lse = packedRows, lse[1:]
		p.Batch, p.Varlen = cuSeqlens.view.NumElements()-1, attention.Varlen{On: true, TotalQ: a[2], TotalKV: b[2]}
	}
	if d[3] != a[3] {
		p.ValueDim = d[3]
	}
	opt, forward := t.o.Attention, p
	p.Quant = dtype.NoQuant
	o := t.Keep(t.tensor(name+".o", a[0]*a[2], p.NumHeads*d[3]), Selective)
	out := []*Value{o.Heads(a[0], p.NumHeads), t.Keep(t.Tensor(name+".lse", dtype.Float32, lse...), Selective)}
	tensors := func(m Call) attention.Tensors {
		return attention.Tensors{Q: rows(m.In[0]), K: rows(m.In[1]), V: rows(m.In[2]), O: rows(m.Out[0]), LSE: m.Out[1], CuSeqlensQ: m.In[3], CuSeqlensKV: m.In[3]}
	}
	t.Op(Op{Name: name, In: in, Out: out, Together: in[:3],
		Workspace: func(pass kit.Pass) (int64, error) {
			if pass == kit.Forward {
				return 0, attention.Supports(t.caps, forward, pass, opt)
			}
			return attention.Workspace(t.caps, p, pass, opt)
		},
		Forward: func(c *vk.Cmd, m Call) error { return attention.Forward(c, tensors(m), forward, opt) },
		Backward: func(c *vk.Cmd, m Call) error {
			if forward.Quant == dtype.QuantE4M3 { // all that reads O in this pass has read it
				if err := attention.Forward(c, tensors(m), p, opt); err != nil {
					return err
				}
			}
			opt := opt
			opt.Workspace = m.Workspace
			g := attention.Gradients{DO: rows(m.DOut[0]), DQ: rows(m.DIn[0]), DK: rows(m.DIn[1]), DV: rows(m.DIn[2])}
			return attention.Backward(c, tensors(m), g, p, opt)
		}})
	return o
}

// packedRows returns (1, heads, rows, dim) as (rows, heads, dim).
func packedRows(x vk.Tensor) vk.Tensor {
	if x.IsZero() {
		return x
	}
	x = x.Permute(0, 2, 1, 3)
	x.Shape, x.Strides = x.Shape[1:], x.Strides[1:]
	return x
}

// CrossEntropy appends the last layer of a language model with its loss, of package xent: h is (tokens, dim),
// w a Weight (vocabulary, dim), labels (tokens), int32. P has what is computed; sizes and formats are taken
// from the operands. The result is one float32, which Tape.Loss takes. In a plan with gradients the
// backward pass computes it: no op reads it.
func (t *Tape) CrossEntropy(name string, h, w, labels *Value, p xent.Problem, o xent.Options) *Value {
	if len(h.view.Shape) != 2 || len(w.view.Shape) != 2 {
		t.failf("%s: h and w have shapes %v and %v, want matrices", name, h.view.Shape, w.view.Shape)
		return h
	}
	p.Tokens, p.Dim, p.Vocabulary, p.DType, p.Grad = h.view.Shape[0], h.view.Shape[1], w.view.Shape[0], h.node.dtype, dtype.Some(w.node.grad)
	loss, in := t.Tensor(name, dtype.Float32, 1), []*Value{h, w, labels}
	step := func(name string, p xent.Problem, pass kit.Pass, dloss, dh, dw *Value) {
		t.make(false, loss)
		bytes, err := xent.Workspace(t.caps, p, pass, o)
		in, out := []*Value{h, w, labels, dloss, onlyIf(p.Accumulate, dw)}, []*Value{loss, dh, dw}
		t.step(name, in, out, bytes, err, func(c *vk.Cmd, m Call) error {
			o := o
			o.Workspace = m.Workspace
			x := xent.Tensors{H: m.In[0], W: m.In[1], Labels: m.In[2], Loss: m.Out[0]}
			if pass == kit.Forward {
				return xent.Forward(c, x, p, o)
			}
			return xent.Backward(c, x, xent.Gradients{DLoss: m.In[3], DH: m.Out[1], DW: m.Out[2]}, p, o)
		})
	}
	t.append(&op{name: name, in: in, out: []*Value{loss}, saved: in,
		forward: func(bool) {
			if t.pass < Gradients {
				step(name, p, kit.Forward, nil, nil, nil)
			}
		},
		backward: func() {
			to, p := t.into(h, w), p
			dh, add := t.fresh(to[0])
			if dh == nil {
				dh = t.unused(h)
			}
			p.Frozen, p.Accumulate = to[1].v == nil, to[1].add
			step(name+", backward", p, kit.Backward, grad(loss), dh, to[1].v)
			add()
		}})
	return loss
}

// Mixture appends the loss of a model that predicts distributions, of package gmm: outputs are
// (tokens, components, 3), float32, of logit, mu and log sigma; y is (tokens), float32. The loss is
// minus the mean of log p, which Tape.Loss takes.
func (t *Tape) Mixture(name string, outputs, y *Value) (loss, logP *Value) {
	shape := outputs.view.Shape
	if len(shape) != 3 || shape[2] != 3 {
		t.failf("%s: outputs have shape %v, want (tokens, components, 3)", name, shape)
		return y, y
	}
	p := gmm.Problem{
		Tokens: shape[0], Components: shape[1], DType: outputs.node.dtype, Grad: dtype.Some(outputs.node.grad),
	}
	loss, logP = t.Tensor(name, dtype.Float32, 1), t.Tensor("log p", dtype.Float32, p.Tokens)
	tensors := func(m Call) gmm.Tensors {
		x := gmm.Tensors{Y: m.In[1]}
		x.Logit, x.Mu, x.LogSigma = gmm.Interleaved(m.In[0])
		return x
	}
	in := []*Value{outputs, y}
	t.Op(Op{Name: name, In: in, Out: []*Value{loss, logP}, Reads: in,
		Workspace: func(pass kit.Pass) (int64, error) { return gmm.Workspace(t.caps, p, pass, gmm.Options{}) },
		Forward: func(c *vk.Cmd, m Call) error {
			x := tensors(m)
			x.Loss, x.LogP = m.Out[0], m.Out[1]
			return gmm.Forward(c, x, p, gmm.Options{Workspace: m.Workspace})
		},
		Backward: func(c *vk.Cmd, m Call) error {
			g := gmm.Gradients{DLoss: m.DOut[0]}
			g.DLogit, g.DMu, g.DLogSigma = gmm.Interleaved(m.DIn[0])
			return gmm.Backward(c, tensors(m), g, p, gmm.Options{Saturate: true})
		}})
	return loss, logP
}
