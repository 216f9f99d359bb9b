package train

import (
	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/pipelines/xent"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Attention appends attention over whole sequences, of package attention. Q, k and v are (batch,
// heads, rows, dim): Value.Heads makes such views of matrices. P has what is computed; sizes and
// format are taken from the operands. The result is a matrix (batch*rows, heads*dim), which
// checkpoint Selective keeps. P.Quant is of the forward pass: the gradients are those of attention
// without, from q and k as they are, with P = exp(S - LSE) of the forward pass's LSE.
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
