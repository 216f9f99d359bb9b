package train

import (
	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Attention appends attention over whole sequences, of package attention. Q, k and v are (batch,
// heads, rows, dim): Value.Heads makes such views of matrices. P has what is computed; sizes and
// format are taken from the operands. The result is a matrix (batch*rows, heads*dim), which
// checkpoint Selective keeps.
func (t *Tape) Attention(name string, q, k, v *Value, p attention.Problem) *Value {
	a, b, d := q.view.Shape, k.view.Shape, v.view.Shape
	if len(a) != 4 || len(b) != 4 || len(d) != 4 {
		t.failf("%s: q, k and v have shapes %v, %v, %v, want (batch, heads, rows, dim)", name, a, b, d)
		return q
	}
	p.Batch, p.NumHeads, p.SeqQ, p.HeadDim = a[0], a[1], a[2], a[3]
	p.NumKVHeads, p.SeqKV, p.ValueDim, p.DType = b[1], b[2], 0, q.node.dtype
	if d[3] != a[3] {
		p.ValueDim = d[3]
	}
	opt := t.o.Attention
	t.Bytes(name, 0, attention.Supports(t.caps, p, kit.Forward, opt))
	var bytes int64
	if t.pass >= Gradients {
		n, err := attention.Workspace(t.caps, p, kit.Backward, opt)
		bytes = t.Bytes(name+", backward", n, err)
	}
	o := t.Keep(t.tensor(name+".o", p.Batch*p.SeqQ, p.NumHeads*d[3]), Selective)
	lse := t.Keep(t.Tensor(name+".lse", dtype.Float32, p.Batch, p.NumHeads, p.SeqQ), Selective)
	tensors := func(m Call) attention.Tensors {
		return attention.Tensors{Q: m.In[0], K: m.In[1], V: m.In[2], O: m.Out[0], LSE: m.Out[1]}
	}
	in, out := []*Value{q, k, v}, []*Value{o.Heads(p.Batch, p.NumHeads), lse}
	t.Op(Op{Name: name, In: in, Out: out, BackwardWorkspace: bytes,
		Forward: func(c *vk.Cmd, m Call) error { return attention.Forward(c, tensors(m), p, opt) },
		Backward: func(c *vk.Cmd, m Call) error {
			opt := opt
			opt.Workspace = m.Workspace
			g := attention.Gradients{DO: m.DOut[0], DQ: m.DIn[0], DK: m.DIn[1], DV: m.DIn[2]}
			return attention.Backward(c, tensors(m), g, p, opt)
		}})
	return o
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
	bytes, err := gmm.Workspace(t.caps, p, kit.Forward, gmm.Options{})
	t.Bytes(name, bytes, err)
	tensors := func(m Call) gmm.Tensors {
		x := gmm.Tensors{Y: m.In[1]}
		x.Logit, x.Mu, x.LogSigma = gmm.Interleaved(m.In[0])
		return x
	}
	in := []*Value{outputs, y}
	t.Op(Op{Name: name, In: in, Out: []*Value{loss, logP}, Reads: in, Workspace: bytes,
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
