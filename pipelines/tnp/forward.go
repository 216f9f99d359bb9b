package tnp

import (
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/pipelines/record"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A block has the tensors that the forward pass of a block leaves to its backward pass.
//
// The last block is computed for targets only: nothing reads its context rows but its own K and
// V. The queries and the perceptron of the last block have batch*targets rows, in other blocks a
// row for each token.
type block struct {
	i       int
	last    bool
	again   bool // it is appended for the second time
	queries int  // of a task: context and targets, or targets
	rows    int  // of all tasks

	x      operand // the residual stream before it, all tokens
	n1, n2 normed
	yq, yc operand // inputs of the projections: of queries, of keys and values
	q, kv  *record.Tensor
	o, lse *record.Tensor
	down   *record.Tensor // the output of the perceptron

	pre, hidden *record.Tensor // (rows, hiddenStride) of memory, or nil
}

// name returns the name of a step or tensor of the block, or of a parameter.
func (k *block) name(s string) string {
	if k.again && !strings.HasSuffix(s, ".weight") {
		s += ", again"
	}
	return BlockName(k.i, s)
}

func (b *builder) forward() {
	c, s := b.c, b.s
	b.x = b.prog.Input("x", b.dtype, s.Tokens(), c.input())
	b.y = b.prog.Input("y", dtype.Float32, s.Batch*s.Targets)
	x := b.tensor("embedding", s.Tokens(), c.DModel)
	b.product("embed", of(x), of(b.x), b.weight("embed.weight"), b.dtype, gemm.Problem{M: s.Tokens(), N: c.DModel, K: c.input()})
	stream, branch := of(x), operand{}
	for i := range c.Layers {
		k := &block{i: i, last: i == c.Layers-1, queries: s.Context + s.Targets}
		if k.last {
			k.queries = s.Targets
		}
		k.rows = s.Batch * k.queries
		b.blocks = append(b.blocks, k)
		stream, branch = b.blockForward(k, stream, branch)
	}
	b.last = &block{n1: b.normalize("norm", "norm.weight", stream, branch, s.Batch*s.Targets)}
	b.lossForward(of(b.last.n1.y))
}

// blockForward appends a block. Its input is the sum of stream and branch, which its first norm
// adds up; branch may be missing. The output of the block is the sum of the two results.
func (b *builder) blockForward(k *block, stream, branch operand) (operand, operand) {
	k.n1 = b.normalize(k.name("norm1"), k.name("norm1.weight"), stream, branch, b.s.Tokens())
	k.x = stream
	if k.n1.sum != nil {
		k.x = of(k.n1.sum)
	}
	b.attendForward(k, true)
	b.perceptron(k)
	return of(k.n2.sum), of(k.down)
}

// blockAgain appends the part of a block's forward pass that its backward pass needs and that was
// not kept. It returns the block with the tensors of that part.
func (b *builder) blockAgain(kept *block) *block {
	if b.o.Checkpoint == Off {
		return kept
	}
	again := *kept
	k := &again
	k.again = true
	k.n1 = b.normalize(k.name("norm1"), k.name("norm1.weight"), k.x, operand{}, b.s.Tokens())
	b.attendForward(k, b.o.Checkpoint == Blocks)
	k.again = false // what follows is for the first time
	return k
}

// attendForward appends a block from after its first norm to its second norm, with attention
// unless that is kept.
func (b *builder) attendForward(k *block, attention bool) {
	c, s, inner := b.c, b.s, b.c.inner()
	y, x := of(k.n1.y), k.x
	k.yq = y
	if k.last {
		k.yq = b.rows(k.name("targets"), y, s.Context, s.Context+s.Targets)
		x = b.rows(k.name("stream of targets"), x, s.Context, s.Context+s.Targets)
	}
	k.q = b.tensor(k.name("q"), k.rows, inner)
	qkv := b.weight(k.name("qkv.weight"))
	b.product(k.name("project q"), of(k.q), k.yq, qkv.slice(1, 0, inner), b.dtype, gemm.Problem{M: k.rows, N: inner, K: c.DModel})
	b.projectContext(k, y, qkv.slice(1, inner, 3*inner))
	if attention {
		b.attend(k)
	}
	out := b.tensor(k.name("out"), k.rows, c.DModel)
	b.product(k.name("project out"), of(out), of(k.o), b.weight(k.name("out.weight")), b.dtype, gemm.Problem{M: k.rows, N: c.DModel, K: inner})
	k.n2 = b.normalize(k.name("norm2"), k.name("norm2.weight"), x, of(out), k.rows)
}

// leastRows is the least number of context rows of a task for a product of each task, which reads
// them without a copy. Products of fewer rows leave workgroups too empty: one product reads a
// copy of all.
const leastRows = 32

// projectContext appends K and V. The backward pass needs all context rows in one tensor.
func (b *builder) projectContext(k *block, y, w operand) {
	c, s, inner := b.c, b.s, b.c.inner()
	k.kv = b.tensor(k.name("kv"), s.Batch*s.Context, 2*inner)
	apart := s.Batch > 1 && s.Context >= leastRows
	if !apart || k.again || b.pass != Loss && b.o.Checkpoint == Off {
		k.yc = b.rows(k.name("context"), y, 0, s.Context)
	}
	from, to, p := k.yc, of(k.kv), gemm.Problem{M: s.Batch * s.Context, N: 2 * inner, K: c.DModel}
	if apart { // beside the product of q, since there is no copy to wait for
		from, to, w = y.split(s.Batch).slice(1, 0, s.Context), to.split(s.Batch), w.repeated(s.Batch)
		p.Batch, p.M = s.Batch, s.Context
	}
	b.product(k.name("project kv"), to, from, w, b.dtype, p)
}

func (b *builder) attention(k *block) attention.Tensors {
	s, heads, inner := b.s, b.c.Heads, b.c.inner()
	return attention.Tensors{
		Q: of(k.q).heads(s.Batch, heads).view(),
		K: of(k.kv).slice(1, 0, inner).heads(s.Batch, heads).view(),
		V: of(k.kv).slice(1, inner, 2*inner).heads(s.Batch, heads).view(),
		O: of(k.o).heads(s.Batch, heads).view(), LSE: k.lse.View(),
	}
}

func (b *builder) attend(k *block) {
	k.o, k.lse = b.tensor(k.name("o"), k.rows, b.c.inner()), b.float(k.name("lse"), b.s.Batch, b.c.Heads, k.queries)
	p, opt := b.attended(k.queries), b.o.attention()
	b.fail(k.name("attention"), attention.Supports(b.caps, p, kit.Forward, opt))
	b.step(k.name("attention"), []operand{of(k.q), of(k.kv)}, []operand{of(k.o), of(k.lse)}, nil, func(c *vk.Cmd) error {
		return attention.Forward(c, b.attention(k), p, opt)
	})
}

func (b *builder) mlp(k *block) mlp.Problem {
	p := mlp.Problem{Tokens: k.rows, In: b.c.DModel, Hidden: b.c.ff(), Out: b.c.DModel, DType: b.dtype, Grad: dtype.Some(dtype.Float32), Keep: b.keep()}
	if p.Keep == mlp.KeepHidden {
		p.Units = mlp.KeptUnits(b.caps, p, b.o.mlp())
	}
	return p
}

// keep says which tensors of perceptrons the forward pass keeps. The backward pass of package mlp
// computes the rest again, to the same bits.
func (b *builder) keep() mlp.Keep {
	if b.pass == Loss || b.o.Checkpoint != Off || b.o.Variant == Fused || 2*b.hiddenBytes(b.c.Layers*b.s.Tokens()) > mostKept {
		return mlp.KeepNothing
	}
	return mlp.KeepHidden
}

// mostKept is how many bytes of hidden units are kept at most, of blocks and of heads each. A
// batch with more has so much attention that one more product does not count: with 200,000 points
// of context, a step has 12 s of attention and 0.06 s of perceptrons (H200).
const mostKept = 2 << 30

// hiddenBytes returns the bytes of that many rows of hidden units.
func (b *builder) hiddenBytes(rows int) int64 {
	return int64(rows) * int64(b.c.hiddenStride()) * int64(b.dtype.Size())
}

// mlpTensors returns the tensors that both passes read.
func (b *builder) mlpTensors(k *block) mlp.Tensors {
	t := mlp.Tensors{X: k.n2.y.View(), W1: b.model.weight(k.name("up.weight")), W2: b.model.weight(k.name("down.weight"))}
	if k.pre != nil {
		units := b.mlp(k).Units
		t.Pre, t.Hidden = k.pre.View().Slice(1, 0, units), k.hidden.View().Slice(1, 0, units)
	}
	return t
}

func (b *builder) perceptron(k *block) {
	p, opt, name := b.mlp(k), b.o.mlp(), k.name("perceptron")
	k.down = b.tensor(k.name("down"), k.rows, b.c.DModel)
	writes := []operand{of(k.down)}
	if p.Keep == mlp.KeepHidden {
		k.pre, k.hidden = b.tensor(k.name("pre"), k.rows, b.c.hiddenStride()), b.tensor(k.name("hidden"), k.rows, b.c.hiddenStride())
		writes = append(writes, of(k.pre), of(k.hidden))
	}
	bytes, err := mlp.Workspace(b.caps, p, kit.Forward, opt)
	scratch := b.scratch(name, bytes, err)
	b.step(name, []operand{of(k.n2.y)}, writes, scratch, func(c *vk.Cmd) error {
		t := b.mlpTensors(k)
		t.Y, opt.Workspace = k.down.View(), scratch.Buffer()
		return mlp.Forward(c, t, p, opt)
	})
}

// mixture returns the problem of heads and loss.
func (b *builder) mixture() mixture.Problem {
	return mixture.Problem{Tokens: b.s.Batch * b.s.Targets, Heads: b.c.Components, In: b.c.DModel, Hidden: b.c.ff(), DType: b.dtype, Grad: dtype.Some(dtype.Float32)}
}

func (b *builder) mixtureTensors() mixture.Tensors {
	return mixture.Tensors{X: b.last.n1.y.View(), W1: b.model.weight("heads.up"), W2: b.model.weight("heads.down"), Y: b.y.View()}
}

// lossForward appends heads and loss. Where there are no gradients, the outputs of heads are an
// output of the program, since predictions are made of them.
func (b *builder) lossForward(z operand) {
	b.loss, b.logP = b.prog.Output(b.float("loss", 1)), b.prog.Output(b.float("log p", b.s.Batch*b.s.Targets))
	p := b.mixture()
	if b.pass == Loss || b.keepsHeads() {
		b.predict(z, p)
		return
	}
	opt := b.o.mixture()
	bytes, err := mixture.Workspace(b.caps, p, kit.Forward, opt)
	scratch := b.scratch("loss", bytes, err)
	b.step("loss", []operand{z, of(b.y)}, []operand{of(b.loss), of(b.logP)}, scratch, func(c *vk.Cmd) error {
		t := b.mixtureTensors()
		t.Loss, t.LogP, opt.Workspace = b.loss.View(), b.logP.View(), scratch.Buffer()
		return mixture.Forward(c, t, p, opt)
	})
}

// keepsHeads says whether the forward pass keeps pre and the outputs of heads for the backward
// pass. If not, their first product is computed three times, once for the loss. It does not
// depend on checkpoints: a pre that is kept is rounded, and its gradients differ.
func (b *builder) keepsHeads() bool {
	return b.pass != Loss && b.o.Variant == Fastest && b.hiddenBytes(b.s.Batch*b.s.Targets*b.c.Components) <= mostKept
}

// perceptrons returns the problem of the heads.
func (b *builder) perceptrons(p mixture.Problem) mlp.Problem {
	heads := p.Perceptrons()
	if b.keepsHeads() {
		heads.Keep = mlp.KeepPre
	}
	return heads
}

// headsTensors returns the tensors of the heads that both passes read.
func (b *builder) headsTensors() mlp.Tensors {
	t := b.mixtureTensors()
	heads := mlp.Tensors{X: t.X, W1: t.W1, W2: t.W2}
	if b.headsPre != nil {
		heads.Pre = b.headsPre.View().Slice(2, 0, b.c.ff())
	}
	return heads
}

// mixtures returns the mixtures made by the heads.
func (b *builder) mixtures() gmm.Tensors {
	t := gmm.Tensors{Y: b.y.View()}
	t.Logit, t.Mu, t.LogSigma = gmm.Interleaved(b.outputs.View())
	return t
}

// predict appends the heads, whose outputs are the mixtures.
func (b *builder) predict(z operand, p mixture.Problem) {
	heads := b.perceptrons(p)
	heads.Float32 = true
	opt := mlp.Options{Impl: b.o.Products}
	bytes, err := mlp.Workspace(b.caps, heads, kit.Forward, opt)
	scratch := b.scratch("heads", bytes, err)
	b.outputs = b.float("heads", heads.YShape()...)
	if b.pass == Loss {
		b.heads = b.prog.Output(b.outputs)
	}
	writes := []operand{of(b.outputs)}
	if heads.Keep == mlp.KeepPre {
		b.headsPre = b.tensor("pre of heads", heads.Tokens, heads.Heads, b.c.hiddenStride())
		writes = append(writes, of(b.headsPre))
	}
	b.step("heads", []operand{z}, writes, scratch, func(c *vk.Cmd) error {
		t := b.headsTensors()
		t.Y, opt.Workspace = b.outputs.View(), scratch.Buffer()
		return mlp.Forward(c, t, heads, opt)
	})
	mixtures := p.Mixtures()
	sums, err := gmm.Workspace(b.caps, mixtures, kit.Forward, gmm.Options{})
	memory := b.scratch("loss", sums, err)
	b.step("loss", []operand{of(b.outputs), of(b.y)}, []operand{of(b.loss), of(b.logP)}, memory, func(c *vk.Cmd) error {
		t := b.mixtures()
		t.LogP, t.Loss = b.logP.View(), b.loss.View()
		return gmm.Forward(c, t, mixtures, gmm.Options{Workspace: memory.Buffer()})
	})
}
