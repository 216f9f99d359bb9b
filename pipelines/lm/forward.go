package lm

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/decoder"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/glu"
	"github.com/flashvk/flashvk/pipelines/normlinear"
	"github.com/flashvk/flashvk/pipelines/rope"
	"github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/pipelines/xent"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A Forward is the forward pass of a model. Its Tape is a train.Func:
//
//	input   ids         (batch*seq)    int32
//	        positions   (batch*seq)    int32; with a Cache of GPT-2 alone
//	        turns       (head_dim)     int32, what rope.Words returns; neither with a Cache nor of GPT-2
//	        cu_seqlens  (sequences+1)  int32, with Sequences
//	        last        (batch)        int32, with Last: the rows of ids that have logits
//	        labels      (batch*seq)    int32, with Loss
//	        dropout     (3)            int32, with LoRA.Dropout and gradients: dropout.States
//	output  logits      (batch*seq, vocabulary) or with Last (batch, vocabulary), float32; not with Loss
//	        loss        (1)            float32, with Loss: the sum over the labels that are not -100
//
// Without a Cache it is of whole sequences, and with Loss it has gradients.
//
// With a Cache it is of new tokens, whose keys and values the cache takes. With Seq 1 the cache may
// hold keys, and has one more of each sequence afterwards, as positions are then one more. With more it must be
// empty, and its lengths stay 0: the caller uploads them.
type Forward struct {
	Config *Config
	Sizes
	Last  bool
	Loss  bool
	Cache *Cache // nil: whole sequences
	// Choose, of a pass with a Cache, records what chooses the tokens behind logits. Seq 1 may write them to ids, of
	// which the next run then continues.
	Choose func(c *vk.Cmd, logits, ids vk.Tensor) error
	LoRA   *LoRA // nil: without an adapter
	// Decoder is how package decoder divides a layer of a step of one sequence. Nil leaves layers to the other kernels where
	// decoder.Plan.Fast is false. A model or a device that package decoder does not support has the other kernels anyway.
	Decoder *decoder.Config
}

// A pass is a Forward on a tape.
type pass struct {
	*Forward
	c                           *Config
	t                           *train.Tape
	positions, turns, cuSeqlens *train.Value
	dropout                     *train.Value // nil: none
	stream                      int          // of the next dropout: how many products are adapted so far
}

// Tape appends the forward pass.
func (f *Forward) Tape(t *train.Tape) {
	x := &pass{Forward: f, c: f.Config, t: t}
	c, rows := x.c, f.Batch*f.Seq
	ids := t.Input("ids", dtype.Int32, rows)
	if f.Cache == nil || c.GPT2() {
		x.positions = t.Input("positions", dtype.Int32, rows)
	}
	if f.Cache == nil && !c.GPT2() {
		x.turns = t.Input("turns", dtype.Int32, c.HeadDim)
	}
	if f.Sequences > 0 {
		x.cuSeqlens = t.Input("cu_seqlens", dtype.Int32, f.Sequences+1)
	}
	if f.LoRA != nil && f.LoRA.Dropout > 0 && t.Pass() >= train.Gradients {
		x.dropout = t.Input("dropout", dtype.Int32, 3)
	}
	names := c.names()
	embedding := t.Weight(names.embed, c.Vocabulary, c.Width)
	branch := t.Embed("embeddings", ids, embedding)
	var stream *train.Value
	if c.GPT2() {
		stream = t.Embed("embeddings of positions", x.positions, t.Weight(names.positions, c.Positions, c.Width))
	}
	if p, ok := x.oneKernel(); ok {
		branch = x.layers(branch, p)
	} else {
		for i := range c.Layers {
			t.Block(fmt.Sprintf("layers.%d.", i), func() { branch, stream = x.block(i, branch, stream) })
		}
	}
	if f.Last {
		last := t.Input("last", dtype.Int32, f.Batch)
		branch, stream = t.Embed("last branch", last, branch), t.Embed("last stream", last, stream)
	}
	head := embedding
	if !c.Tied {
		head = t.Weight(headName, c.Vocabulary, c.Width)
	}
	if f.Loss {
		y, _ := x.norm(names.norm, branch, stream)
		t.Loss(t.CrossEntropy("loss", y, head, t.Input("labels", dtype.Int32, rows), xent.Problem{Sum: true}, xent.Options{}))
		return
	}
	var logits *train.Value
	if x.fuses() {
		logits, _ = x.fused("logits", names.norm, branch, stream, head, nil, normlinear.Problem{Out: c.Vocabulary, OutDType: dtype.Some(dtype.Float32)})
	} else {
		y, _ := x.norm(names.norm, branch, stream)
		logits = t.Product("logits", train.Product{X: y, W: head, TransW: true, Out: dtype.Some(dtype.Float32)})
	}
	t.Output(logits)
	if f.Choose != nil {
		t.Op(train.Op{Name: "choose", In: []*train.Value{logits, ids}, Forward: func(c *vk.Cmd, m train.Call) error { return f.Choose(c, m.In[0], m.In[1]) }})
	}
	if f.Cache == nil || f.Seq > 1 {
		return
	}
	t.Op(train.Op{Name: "advance", In: []*train.Value{logits, x.positions}, Forward: func(c *vk.Cmd, m train.Call) error {
		if positions := m.In[1]; !positions.IsZero() {
			if err := attention.Advance(c, positions, 1); err != nil {
				return err
			}
		}
		return f.Cache.Advance(c, 1)
	}})
}

// norm normalizes branch + stream, and returns the sum as well.
func (x *pass) norm(name string, branch, stream *train.Value) (y, sum *train.Value) {
	o := train.Norm{RMS: !x.c.GPT2(), Eps: x.c.Eps, Residual: stream}
	if x.c.GPT2() {
		o.Bias = x.t.Vector(name+".bias", x.c.Width)
	}
	return x.t.Norm(name, branch, x.t.Vector(name+".weight", x.c.Width), o)
}

// A linear is a product of a layer with the parameters of a name: activation(v * w + bias).
type linear struct {
	name       string
	out        int
	bias       bool
	normed     bool // a norm of its heads follows
	activation gemm.Activation
}

// A layer has the names of the norms of a layer, and its products: of one list those of the same rows, whose weights are one.
type layer struct {
	attention, feedForward string // the norms before
	qkv, up                []linear
	out, down              linear
}

// layerOf returns layer i.
func (c *Config) layerOf(i int) layer {
	name := func(s string) string { return c.layer(i, s) }
	product := func(s string, out int, bias bool) linear { return linear{name: name(s), out: out, bias: bias} }
	if c.GPT2() {
		up := product("mlp.c_fc", c.Hidden, true)
		up.activation = gemm.GELUTanh
		return layer{
			attention: name("ln_1"), qkv: []linear{product("attn.c_attn", 3*c.Width, true)}, out: product("attn.c_proj", c.Width, true),
			feedForward: name("ln_2"), up: []linear{up}, down: product("mlp.c_proj", c.Width, true),
		}
	}
	q, k := product("self_attn.q_proj", c.Heads*c.HeadDim, c.Bias), product("self_attn.k_proj", c.KVHeads*c.HeadDim, c.Bias)
	q.normed, k.normed = c.QKNorm, c.QKNorm
	return layer{
		attention: name("input_layernorm"), qkv: []linear{q, k, product("self_attn.v_proj", k.out, c.Bias)}, out: product("self_attn.o_proj", c.Width, c.OutBias),
		feedForward: name("post_attention_layernorm"), up: []linear{product("mlp.gate_proj", c.Hidden, false), product("mlp.up_proj", c.Hidden, false)},
		down: product("mlp.down_proj", c.Width, false),
	}
}

// products appends products of v, with what an adapter adds to each. They are columns of one matrix but where norms of
// heads read whole ones, not all have an adapter, or dropout gives each adapter rows of its own.
func (x *pass) products(v *train.Value, list ...linear) (y []*train.Value) {
	adapted := slices.DeleteFunc(slices.Clone(list), func(l linear) bool { return !x.LoRA.adapts(l.name) })
	var h *train.Value
	if len(adapted) > 0 && x.LoRA.Dropout == 0 {
		h = x.down(v, adapted)
	}
	if whole := len(adapted) == 0 || h != nil && len(adapted) == len(list); whole && !list[0].normed {
		return columns(x.product(v, h, list...), list)
	}
	for _, l := range list {
		one := h
		if i := slices.Index(adapted, l); h != nil && i >= 0 {
			one = h.Slice(1, i*x.LoRA.Rank, (i+1)*x.LoRA.Rank)
		}
		y = append(y, x.product(v, one, l))
	}
	return y
}

// product appends products of v as one, with what an adapter adds: h is what down returns, nil with dropout.
//
// The backward pass of the last op comes first. So A comes before W but with dropout: the gradient through A is added to that
// through W, which waits for less, and dropout cannot add.
func (x *pass) product(v, h *train.Value, list ...linear) *train.Value {
	t, l, in := x.t, list[0], v.Shape()[1]
	p := train.Product{X: v, TransW: !x.c.GPT2(), Activation: l.activation}
	p.W, p.Bias = x.weights(list, in)
	if !x.LoRA.adapts(l.name) {
		return t.Product(l.name, p)
	}
	p.Activation = gemm.Identity
	y := t.Product(l.name, p)
	if h == nil {
		if x.dropout != nil {
			v = t.Dropout(l.name+".lora_A, dropout", v, x.dropout, x.LoRA.Dropout, x.stream)
			x.stream++
		}
		h = x.down(v, list)
	}
	var b []train.Param
	for _, l := range list {
		b = append(b, train.Param{Name: adapterName(l.name, "B"), Shape: []int{l.out, x.LoRA.Rank}, DType: t.DType()})
	}
	return t.Product(l.name+".lora_B", train.Product{X: h, W: t.Diagonal(b...), TransW: true, Alpha: x.LoRA.scale(), Into: y, Activation: l.activation})
}

// down appends the products of v with A of adapters, as columns of one matrix.
func (x *pass) down(v *train.Value, list []linear) *train.Value {
	var a []train.Param
	for _, l := range list {
		a = append(a, train.Param{Name: adapterName(l.name, "A"), Shape: []int{x.LoRA.Rank, v.Shape()[1]}, DType: x.t.DType()})
	}
	return x.t.Product(list[0].name+".lora_A", train.Product{X: v, W: x.t.Join(a...), TransW: true})
}

// weights returns the weights of products of the same rows as one, and their biases, nil for none.
func (x *pass) weights(list []linear, in int) (w, bias *train.Value) {
	var weights, biases []train.Param
	for _, l := range list {
		shape := []int{l.out, in}
		if x.c.GPT2() {
			shape = []int{in, l.out}
		}
		weights = append(weights, train.Param{Name: l.name + ".weight", Shape: shape, DType: x.t.DType()})
		biases = append(biases, train.Param{Name: l.name + ".bias", Shape: []int{l.out}, NoDecay: true})
	}
	if list[0].bias {
		bias = x.t.Join(biases...)
	}
	return x.t.Join(weights...), bias
}

// columns returns the parts of a product with weights that are one.
func columns(all *train.Value, list []linear) (y []*train.Value) {
	first := 0
	for _, l := range list {
		y = append(y, all.Slice(1, first, first+l.out))
		first += l.out
	}
	return y
}

// fuses reports whether products of normalized rows run as one kernel with the norm: in a step of few tokens, which waits
// for kernels more than for bytes.
func (x *pass) fuses() bool {
	return x.Cache != nil && x.Seq == 1 && x.Batch <= normlinear.MaxRows && x.LoRA == nil && !x.c.GPT2()
}

// fused appends a product of norm(branch + stream), of as many columns as p says, and returns the sum as well.
func (x *pass) fused(name, norm string, branch, stream, w, bias *train.Value, p normlinear.Problem) (y, sum *train.Value) {
	t, c := x.t, x.c
	p.Rows, p.In, p.Eps, p.DType, p.Residual, p.Bias = x.Batch, c.Width, c.Eps, t.DType(), stream != nil, bias != nil
	o := train.Op{Name: name, In: []*train.Value{branch, t.Vector(norm+".weight", c.Width), w, bias, stream}}
	y, sum = t.Tensor(name, p.YDType(), p.Rows, p.Out), branch
	o.Out = []*train.Value{y, nil}
	if p.Residual {
		sum = t.Tensor(norm+".sum", p.DType, p.Rows, p.In)
		o.Out[1] = sum
	}
	o.Forward = func(c *vk.Cmd, m train.Call) error {
		x := normlinear.Tensors{X: m.In[0], NormW: m.In[1], W: m.In[2], Bias: m.In[3], Residual: m.In[4], Y: m.Out[0], Sum: m.Out[1]}
		return normlinear.Forward(c, x, p, normlinear.Options{})
	}
	t.Op(o)
	return y, sum
}

// normed appends products of norm(branch + stream), and returns the sum as well.
func (x *pass) normed(norm string, branch, stream *train.Value, list ...linear) (y []*train.Value, sum *train.Value) {
	if !x.fuses() || list[0].normed {
		v, sum := x.norm(norm, branch, stream)
		return x.products(v, list...), sum
	}
	w, bias := x.weights(list, x.c.Width)
	all, sum := x.fused(list[0].name, norm, branch, stream, w, bias, normlinear.Problem{Out: w.Shape()[0]})
	return columns(all, list), sum
}

// hidden appends the hidden units of norm(branch + stream), and returns the sum as well.
func (x *pass) hidden(l layer, branch, stream *train.Value) (h, sum *train.Value) {
	name := strings.TrimSuffix(l.up[0].name, "gate_proj") + "glu"
	if x.fuses() {
		w, _ := x.weights(l.up, x.c.Width)
		return x.fused(name, l.feedForward, branch, stream, w, nil, normlinear.Problem{Out: x.c.Hidden, GLU: true})
	}
	y, sum := x.normed(l.feedForward, branch, stream, l.up...)
	if len(y) == 1 {
		return y[0], sum
	}
	return x.t.GLU(name, y[0], y[1], glu.SiLU), sum
}

// oneKernel reports whether a layer of a step is one kernel, as Forward.Decoder says, and returns the problem of each.
func (x *pass) oneKernel() (p decoder.Problem, ok bool) {
	c := x.c
	if !x.fuses() || x.Batch != 1 || c.QKNorm || c.OutBias || c.Window != 0 {
		return p, false
	}
	p = decoder.Problem{
		Width: c.Width, Hidden: c.Hidden, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, Keys: x.Cache.context,
		Bias: c.Bias, Eps: c.Eps, DType: x.t.DType(),
	}
	plan, err := decoder.Choose(x.t.Caps(), p, kit.Forward, decoder.Options{Config: x.Decoder})
	return p, err == nil && (plan.Fast || x.Decoder != nil)
}

// layers appends all layers of a step.
func (x *pass) layers(stream *train.Value, p decoder.Problem) *train.Value {
	c, t, o := x.c, x.t, decoder.Options{Config: x.Decoder}
	y := t.Tensor("layers", p.DType, 1, p.Width)
	op := train.Op{Name: "layers", In: []*train.Value{stream}, Out: []*train.Value{y}}
	for i := range c.Layers {
		l := c.layerOf(i)
		qkv, bias := x.weights(l.qkv, c.Width)
		up, _ := x.weights(l.up, c.Width)
		out, _ := x.weights([]linear{l.out}, c.Heads*c.HeadDim)
		down, _ := x.weights([]linear{l.down}, c.Hidden)
		op.In = append(op.In, t.Vector(l.attention+".weight", c.Width), qkv, out, t.Vector(l.feedForward+".weight", c.Width), up, down, bias)
	}
	op.Workspace = func(pass kit.Pass) (int64, error) {
		bytes, err := decoder.Workspace(t.Caps(), p, pass, o)
		return bytes * int64(c.Layers), err
	}
	op.Forward = func(cmd *vk.Cmd, m train.Call) error {
		cache, o := x.Cache, o
		o.Workspace = m.Workspace
		list := make([]decoder.Tensors, c.Layers)
		for i := range list {
			in := m.In[1+i*7:]
			list[i] = decoder.Tensors{
				Cos: cache.cos, Sin: cache.sin, SeqLens: cache.SeqLens, K: ofSequence(cache.K[i]), V: ofSequence(cache.V[i]),
				NormA: in[0], QKV: in[1], Out: in[2], NormB: in[3], GateUp: in[4], Down: in[5], Bias: in[6],
			}
		}
		list[0].X, list[c.Layers-1].Y = m.In[0], m.Out[0]
		return decoder.ForwardLayers(cmd, list, p, o)
	}
	t.Op(op)
	return y
}

// ofSequence is the one row of a cache.
func ofSequence(t vk.Tensor) vk.Tensor {
	t.Shape, t.Strides = t.Shape[1:], t.Strides[1:]
	return t
}

// block appends a layer. The residual stream is branch + stream.
func (x *pass) block(i int, branch, stream *train.Value) (_, _ *train.Value) {
	c, l := x.c, x.c.layerOf(i)
	qkv, stream := x.normed(l.attention, branch, stream, l.qkv...)
	x.t.Keep(stream, train.Blocks)
	if c.GPT2() {
		qkv = columns(qkv[0], []linear{{out: c.Width}, {out: c.Width}, {out: c.Width}})
	}
	for j, p := range l.qkv {
		if p.normed {
			qkv[j] = x.headNorm(strings.TrimSuffix(p.name, "_proj")+"_norm", qkv[j])
		}
	}
	branch = x.products(x.attend(i, qkv[0], qkv[1], qkv[2]), l.out)[0]
	h, stream := x.hidden(l, branch, stream)
	return x.products(h, l.down)[0], stream
}

// headNorm normalizes each head of a matrix.
func (x *pass) headNorm(name string, v *train.Value) *train.Value {
	shape, dim := v.Shape(), x.c.HeadDim
	rows := v.Reshape(shape[0]*shape[1]/dim, dim)
	y, _ := x.t.Norm(name, rows, x.t.Vector(name+".weight", dim), train.Norm{RMS: true, Eps: x.c.Eps})
	return y.Reshape(shape...)
}

// attend appends attention.
func (x *pass) attend(layer int, q, k, v *train.Value) *train.Value {
	c := x.c
	q, k, v = q.Heads(x.Batch, c.Heads), k.Heads(x.Batch, c.KVHeads), v.Heads(x.Batch, c.KVHeads)
	if x.Cache != nil {
		return x.cached(layer, q, k, v)
	}
	if !c.GPT2() {
		q, k = x.rotate(q, k)
	}
	p := attention.Problem{Causal: true, Window: c.window()}
	if x.Sequences == 0 {
		return x.t.Attention("attention", q, k, v, p)
	}
	return x.t.Packed("attention", q, k, v, x.cuSeqlens, x.Longest, p)
}

// rotate appends the rotation of q and k by the positions.
func (x *pass) rotate(q, k *train.Value) (_, _ *train.Value) {
	c, t := x.c, x.t
	p := rope.Problem{Batch: x.Batch, Seq: x.Seq, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, Frequencies: c.RoPE, DType: t.DType()}
	out := []*train.Value{
		t.Tensor("rotated q", t.DType(), x.Batch*x.Seq, c.Heads*c.HeadDim).Heads(x.Batch, c.Heads),
		t.Tensor("rotated k", t.DType(), x.Batch*x.Seq, c.KVHeads*c.HeadDim).Heads(x.Batch, c.KVHeads),
	}
	in := []*train.Value{q, k, x.positions.Reshape(x.Batch, x.Seq), x.turns}
	t.Op(train.Op{Name: "rope", In: in, Out: out, Reads: in[2:], Together: in[:2],
		Forward: func(c *vk.Cmd, m train.Call) error {
			return rope.Forward(c, rope.Tensors{Q: m.In[0], K: m.In[1], Positions: m.In[2], Turns: m.In[3], QOut: m.Out[0], KOut: m.Out[1]}, p, rope.Options{})
		},
		Backward: func(c *vk.Cmd, m train.Call) error {
			g := rope.Gradients{DQOut: m.DOut[0], DKOut: m.DOut[1], DQ: m.DIn[0], DK: m.DIn[1]}
			return rope.Backward(c, rope.Tensors{Positions: m.In[2], Turns: m.In[3]}, g, p, rope.Options{})
		}})
	return out[0], out[1]
}

// cached appends attention with the cache: q and the new k are rotated by their places.
func (x *pass) cached(layer int, q, k, v *train.Value) *train.Value {
	c, t, cache := x.c, x.t, x.Cache
	o := t.Tensor("attention", t.DType(), x.Batch*x.Seq, c.Heads*c.HeadDim)
	p := attention.AppendProblem{DecodeProblem: c.decodeProblem(x.Batch, x.Seq, cache.context, t.DType())}
	if !c.GPT2() {
		p.RoPE.Dims = c.HeadDim
	}
	t.Op(train.Op{Name: "attention", In: []*train.Value{q, k, v}, Out: []*train.Value{o.Heads(x.Batch, c.Heads)}, Forward: func(cmd *vk.Cmd, m train.Call) error {
		decode := attention.DecodeTensors{Q: m.In[0], O: m.Out[0]}
		if x.Seq == 1 {
			step := attention.StepTensors{DecodeTensors: decode, NewK: m.In[1], NewV: m.In[2], Cos: cache.cos, Sin: cache.sin}
			return cache.Step(cmd, layer, step, p, attention.Options{})
		}
		new := attention.AppendTensors{NewK: m.In[1], NewV: m.In[2], Cos: cache.cos, Sin: cache.sin}
		if p.RoPE.Dims > 0 {
			new.Q = decode.Q
		}
		if err := cache.Append(cmd, layer, new, p); err != nil {
			return err
		}
		whole := p.Problem
		whole.SeqKV = x.Seq
		keys, values := cache.K[layer].Slice(2, 0, x.Seq), cache.V[layer].Slice(2, 0, x.Seq)
		return attention.Forward(cmd, attention.Tensors{Q: decode.Q, K: keys, V: values, O: decode.O}, whole, attention.Options{})
	}})
	return o
}

// decodeProblem is attention of seq new tokens with a cache of `context` tokens.
func (c *Config) decodeProblem(batch, seq, context int, t dtype.DType) attention.DecodeProblem {
	return attention.DecodeProblem{NewKeys: seq, CacheRows: batch, Problem: attention.Problem{
		Batch: batch, NumHeads: c.Heads, NumKVHeads: c.KVHeads, SeqQ: seq, SeqKV: context, HeadDim: c.HeadDim, DType: t,
		Causal: true, Window: c.window(),
	}}
}

// window returns the keys that a query sees.
func (c *Config) window() attention.Window {
	if c.Window == 0 {
		return attention.Window{}
	}
	return attention.Window{On: true, Left: min(c.Window, math.MaxInt32) - 1, Right: attention.Unlimited}
}
