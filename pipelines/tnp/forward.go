package tnp

import (
	"cmp"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A builder appends the forward pass of a model to a tape.
type builder struct {
	*train.Tape
	c      Config
	s      Shape
	o      PlanOptions
	params map[string]train.Param
}

// weight returns a parameter.
func (b *builder) weight(name string) *train.Value { return b.Join(b.params[name]) }

// forward returns the forward pass over batches of a shape.
func (c Config) forward(s Shape, o PlanOptions) train.Func {
	return func(t *train.Tape) {
		if err := cmp.Or(c.Validate(), s.Validate(), o.validate()); err != nil {
			t.Fail(err)
			return
		}
		b := &builder{t, c, s, o, map[string]train.Param{}}
		for _, p := range c.Params(t.DType()) {
			b.params[p.Name] = p
		}
		b.forward()
	}
}

func (b *builder) forward() {
	c, s := b.c, b.s
	x := b.Input("x", b.DType(), s.Tokens(), c.input())
	y := b.Input("y", dtype.Float32, s.Batch*s.Targets)
	stream := b.Product("embed", train.Product{X: x, W: b.weight("embed.weight")})
	var branch *train.Value
	for i := range c.Layers {
		b.Block(BlockName(i, ""), func() { stream, branch = b.block(i, stream, branch) })
	}
	z, _ := b.normalize("norm", "norm.weight", stream, branch)
	b.loss(z, y)
}

// normalize appends LayerNorm of the sum of stream and branch, which may be missing.
func (b *builder) normalize(name, weight string, stream, branch *train.Value) (y, sum *train.Value) {
	w := b.weight(weight)
	if branch == nil {
		return b.Norm(name, stream, w, train.Norm{Eps: NormEps})
	}
	return b.Norm(name, branch, w, train.Norm{Eps: NormEps, Residual: stream})
}

// block appends block i. Its input is the sum of stream and branch, its output the sum of the two
// results.
//
// The last block is computed for targets only: nothing reads its context rows but its own K and V. So
// its queries and its perceptron have batch*targets rows, in other blocks a row for each token.
func (b *builder) block(i int, stream, branch *train.Value) (*train.Value, *train.Value) {
	c, s, inner := b.c, b.s, b.c.inner()
	y, x := b.normalize("norm1", BlockName(i, "norm1.weight"), stream, branch)
	b.Keep(x, train.Blocks)
	yq := y
	if i == c.Layers-1 {
		yq = b.Rows("targets", y, s.Batch, s.Context, s.Context+s.Targets)
		x = b.Rows("stream of targets", x, s.Batch, s.Context, s.Context+s.Targets)
	}
	w := b.weight(BlockName(i, "qkv.weight"))
	context := y.Split(s.Batch).Slice(1, 0, s.Context)
	qkv := b.Products(
		train.Named{Step: "project q", Name: "q", Product: train.Product{X: yq, W: w.Slice(1, 0, inner)}},
		train.Named{Step: "project kv", Name: "kv", Product: train.Product{X: context, W: w.Slice(1, inner, 3*inner)}})
	heads := func(v *train.Value) *train.Value { return v.Heads(s.Batch, c.Heads) }
	k, v := qkv[1].Slice(1, 0, inner), qkv[1].Slice(1, inner, 2*inner)
	o := b.Attention("attention", heads(qkv[0]), heads(k), heads(v), attention.Problem{Quant: b.o.Quant})
	out := b.Product("project out", train.Product{X: o, W: b.weight(BlockName(i, "out.weight"))})
	y, x = b.normalize("norm2", BlockName(i, "norm2.weight"), x, out)
	return x, b.perceptron(i, y)
}

// hiddenStride returns the distance of rows of hidden units, in elements.
func (c Config) hiddenStride() int { return engine.RowStride(c.ff()) }

// mostKept is how many bytes of hidden units are kept at most, of blocks and of heads each. A
// batch with more has so much attention that one more product does not count: with 200,000 points
// of context, a step has 12 s of attention and 0.06 s of perceptrons (H200).
const mostKept = 2 << 30

// hiddenBytes returns the bytes of that many rows of hidden units.
func (b *builder) hiddenBytes(rows int) int64 {
	return int64(rows) * int64(b.c.hiddenStride()) * int64(b.DType().Size())
}

// keep says which tensors of perceptrons the forward pass keeps. The backward pass of package mlp
// computes the rest again, to the same bits.
func (b *builder) keep() mlp.Keep {
	kept := 2 * b.hiddenBytes(b.c.Layers*b.s.Tokens())
	if b.Pass() == train.Forward || b.Checkpoint() != train.Off || b.o.Variant == Fused || kept > mostKept {
		return mlp.KeepNothing
	}
	return mlp.KeepHidden
}

// perceptron appends the perceptron of block i.
func (b *builder) perceptron(i int, x *train.Value) *train.Value {
	rows, opt := x.Shape()[0], b.o.mlp()
	p := mlp.Problem{
		Tokens: rows, In: b.c.DModel, Hidden: b.c.ff(), Out: b.c.DModel,
		DType: b.DType(), Grad: dtype.Some(dtype.Float32), Keep: b.keep(),
	}
	down := b.Tensor("down", b.DType(), rows, b.c.DModel)
	var kept [2]*train.Value
	if p.Keep == mlp.KeepHidden {
		p.Units = mlp.KeptUnits(b.Caps(), p, opt)
		for i, name := range []string{"pre", "hidden"} {
			kept[i] = b.Tensor(name, b.DType(), rows, b.c.hiddenStride()).Slice(1, 0, p.Units)
		}
	}
	w := []*train.Value{x, b.weight(BlockName(i, "up.weight")), b.weight(BlockName(i, "down.weight"))}
	b.mlp("perceptron", p, opt, w, down, kept)
	return down
}

// mlp appends a call of package mlp. In are the rows and the weights, y is written, and so are kept:
// pre and hidden, as far as p keeps them, else nil.
func (b *builder) mlp(name string, p mlp.Problem, opt mlp.Options, in []*train.Value, y *train.Value, kept [2]*train.Value) {
	tensors := func(m train.Call) mlp.Tensors {
		return mlp.Tensors{X: m.In[0], W1: m.In[1], W2: m.In[2], Y: m.Out[0], Pre: m.Out[1], Hidden: m.Out[2]}
	}
	q := p
	q.Float32 = false // the gradient by y is not
	b.Op(train.Op{Name: name, In: in, Out: []*train.Value{y, kept[0], kept[1]}, Reads: slices.Concat(in, kept[:]),
		Workspace: func(pass kit.Pass) (int64, error) {
			return mlp.Workspace(b.Caps(), map[kit.Pass]mlp.Problem{kit.Forward: p, kit.Backward: q}[pass], pass, opt)
		},
		Forward: func(c *vk.Cmd, m train.Call) error {
			return mlp.Forward(c, tensors(m), p, mlp.Options{Fused: opt.Fused, Workspace: m.Workspace})
		},
		Backward: func(c *vk.Cmd, m train.Call) error {
			g := mlp.Gradients{DY: m.DOut[0], DX: m.DIn[0], DW1: m.DIn[1], DW2: m.DIn[2]}
			return mlp.Backward(c, tensors(m), g, q, mlp.Options{Fused: opt.Fused, Workspace: m.Workspace})
		}})
}

// loss appends heads and loss. Where there are no gradients, the outputs of heads are an output of
// the program, since predictions are made of them.
func (b *builder) loss(z, y *train.Value) {
	p := mixture.Problem{
		Tokens: b.s.Batch * b.s.Targets, Heads: b.c.Components, In: b.c.DModel, Hidden: b.c.ff(),
		DType: b.DType(), Grad: dtype.Some(dtype.Float32),
	}
	in := []*train.Value{z, b.weight("heads.up"), b.weight("heads.down"), y}
	if b.Pass() == train.Forward || b.keepsHeads() {
		b.predict(p, in)
		return
	}
	loss, logP := b.Tensor("loss", dtype.Float32, 1), b.Output(b.Tensor("log p", dtype.Float32, p.Tokens))
	opt := mixture.Options{Outputs: b.o.Variant == Unfused || b.o.Variant == Separate}
	tensors := func(m train.Call) mixture.Tensors {
		return mixture.Tensors{X: m.In[0], W1: m.In[1], W2: m.In[2], Y: m.In[3], Loss: m.Out[0], LogP: m.Out[1]}
	}
	b.Op(train.Op{Name: "loss", In: in, Out: []*train.Value{loss, logP}, Reads: in,
		Workspace: func(pass kit.Pass) (int64, error) { return mixture.Workspace(b.Caps(), p, pass, opt) },
		Forward: func(c *vk.Cmd, m train.Call) error {
			return mixture.Forward(c, tensors(m), p, mixture.Options{Outputs: opt.Outputs, Workspace: m.Workspace})
		},
		Backward: func(c *vk.Cmd, m train.Call) error {
			g := mixture.Gradients{DLoss: m.DOut[0], DX: m.DIn[0], DW1: m.DIn[1], DW2: m.DIn[2]}
			return mixture.Backward(c, tensors(m), g, p, mixture.Options{Outputs: opt.Outputs, Workspace: m.Workspace})
		}})
	b.Loss(loss)
}

// keepsHeads says whether the forward pass keeps pre and the outputs of heads for the backward
// pass. If not, their first product is computed three times, once for the loss. It does not
// depend on checkpoints: a pre that is kept is rounded, and its gradients differ.
func (b *builder) keepsHeads() bool {
	kept := b.hiddenBytes(b.s.Batch * b.s.Targets * b.c.Components)
	return b.Pass() != train.Forward && b.o.Variant == Fastest && kept <= mostKept
}

// predict appends the heads, whose outputs are the mixtures.
func (b *builder) predict(p mixture.Problem, in []*train.Value) {
	heads := p.Perceptrons()
	heads.Float32 = true
	var kept [2]*train.Value
	if b.keepsHeads() {
		heads.Keep = mlp.KeepPre
		pre := b.Tensor("pre of heads", b.DType(), heads.Tokens, heads.Heads, b.c.hiddenStride())
		kept[0] = pre.Slice(2, 0, b.c.ff())
	}
	outputs := b.Tensor("heads", dtype.Float32, heads.YShape()...).GradientIn(b.DType())
	b.mlp("heads", heads, mlp.Options{}, in[:3], outputs, kept)
	if b.Pass() == train.Forward {
		b.Output(outputs)
	}
	loss, logP := b.Mixture("loss", outputs, in[3])
	b.Output(logP)
	b.Loss(loss)
}
