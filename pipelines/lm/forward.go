package lm

import (
	"fmt"
	"math"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/glu"
	"github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/vk"
)

// A Forward is the forward pass of a model over new tokens of several sequences, which a Cache holds
// the keys and values of. Its Tape is a train.Func:
//
//	input   ids        (batch*seq)  int32
//	        positions  (batch*seq)  int32, of GPT-2
//	        last       (batch)      int32, with Last: the rows of ids that have logits
//	output  logits     (batch*seq, vocabulary) or with Last (batch, vocabulary), float32
//
// With Seq 1 the cache may hold keys, and has one more of each sequence afterwards. With more it must be
// empty, and its lengths stay 0: the caller uploads them.
type Forward struct {
	Config     *Config
	Batch, Seq int
	Last       bool
	Cache      *Cache
}

// Tape appends the forward pass.
func (f *Forward) Tape(t *train.Tape) {
	c, rows := f.Config, f.Batch*f.Seq
	if c.Bias {
		t.Fail(fmt.Errorf("lm: no kernel runs the biases of %s yet", c.Architecture))
		return
	}
	ids := t.Input("ids", dtype.Int32, rows)
	table := embedName
	if c.GPT2() {
		table = gpt2Embed
	}
	embedding := t.Weight(table, c.Vocabulary, c.Width)
	branch := t.Embed("embeddings", ids, embedding)
	var stream *train.Value
	if c.GPT2() {
		positions := t.Input("positions", dtype.Int32, rows)
		stream = t.Embed("positions", positions, t.Weight(gpt2Positions, c.Positions, c.Width))
	}
	for i := range c.Layers {
		t.Block(fmt.Sprintf("layers.%d.", i), func() { branch, stream = f.block(t, i, branch, stream) })
	}
	if f.Last {
		last := t.Input("last", dtype.Int32, f.Batch)
		branch, stream = t.Embed("last branch", last, branch), t.Embed("last stream", last, stream)
	}
	name := normName
	if c.GPT2() {
		name = gpt2Norm
	}
	y, _ := f.norm(t, "norm", name, branch, stream)
	head := embedding
	if !c.Tied {
		head = t.Weight(headName, c.Vocabulary, c.Width)
	}
	t.Output(t.Product("logits", train.Product{X: y, W: head, TransW: true, Out: dtype.Some(dtype.Float32)}))
	if f.Cache != nil && f.Seq == 1 {
		t.Op(train.Op{Name: "advance", In: []*train.Value{y}, Forward: func(c *vk.Cmd, _ train.Call) error { return f.Cache.Advance(c, 1) }})
	}
}

// norm normalizes branch + stream, and returns the sum as well.
func (f *Forward) norm(t *train.Tape, step, weight string, branch, stream *train.Value) (y, sum *train.Value) {
	return t.Norm(step, branch, t.Vector(weight, f.Config.Width), train.Norm{RMS: true, Eps: f.Config.Eps, Residual: stream})
}

// block appends a layer. The residual stream is branch + stream.
func (f *Forward) block(t *train.Tape, layer int, branch, stream *train.Value) (_, _ *train.Value) {
	c := f.Config
	weight := func(name string, shape ...int) *train.Value { return t.Weight(c.layer(layer, name), shape...) }
	x, stream := f.norm(t, "input norm", c.layer(layer, "input_layernorm.weight"), branch, stream)
	product := func(name string, x *train.Value, in, out int) train.Named {
		return train.Named{Step: name, Name: name, Product: train.Product{X: x, W: weight(name+".weight", out, in), TransW: true}}
	}
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	qkv := t.Products(product("self_attn.q_proj", x, c.Width, q), product("self_attn.k_proj", x, c.Width, kv), product("self_attn.v_proj", x, c.Width, kv))
	if c.QKNorm {
		qkv[0] = f.headNorm(t, layer, "q_norm", qkv[0])
		qkv[1] = f.headNorm(t, layer, "k_norm", qkv[1])
	}
	o := f.attend(t, layer, qkv)
	branch = t.Products(product("self_attn.o_proj", o, q, c.Width))[0]
	x, stream = f.norm(t, "second norm", c.layer(layer, "post_attention_layernorm.weight"), branch, stream)
	gu := t.Products(product("mlp.gate_proj", x, c.Width, c.Hidden), product("mlp.up_proj", x, c.Width, c.Hidden))
	h := t.GLU("mlp.glu", gu[0], gu[1], glu.SiLU)
	return t.Products(product("mlp.down_proj", h, c.Hidden, c.Width))[0], stream
}

// headNorm normalizes each head of a matrix.
func (f *Forward) headNorm(t *train.Tape, layer int, name string, x *train.Value) *train.Value {
	c, shape := f.Config, x.Shape()
	w := t.Vector(c.layer(layer, "self_attn."+name+".weight"), c.HeadDim)
	y, _ := t.Norm(name, x.Reshape(shape[0]*shape[1]/c.HeadDim, c.HeadDim), w, train.Norm{RMS: true, Eps: c.Eps})
	return y.Reshape(shape...)
}

// attend appends attention with the cache: q and the new k are rotated by their positions.
func (f *Forward) attend(t *train.Tape, layer int, qkv []*train.Value) *train.Value {
	c := f.Config
	o := t.Tensor("attention", t.DType(), f.Batch*f.Seq, c.Heads*c.HeadDim)
	p := attention.AppendProblem{DecodeProblem: c.decodeProblem(f.Batch, f.Seq, f.Cache.context, t.DType()), RoPE: c.attentionRoPE()}
	in := []*train.Value{qkv[0].Heads(f.Batch, c.Heads), qkv[1].Heads(f.Batch, c.KVHeads), qkv[2].Heads(f.Batch, c.KVHeads)}
	t.Op(train.Op{Name: "attention", In: in, Out: []*train.Value{o.Heads(f.Batch, c.Heads)}, Forward: func(cmd *vk.Cmd, m train.Call) error {
		q, o, cache := m.In[0], m.Out[0], f.Cache
		if f.Seq == 1 {
			return cache.Step(cmd, layer, attention.StepTensors{DecodeTensors: attention.DecodeTensors{Q: q, O: o}, NewK: m.In[1], NewV: m.In[2], Cos: cache.cos, Sin: cache.sin}, p, attention.Options{})
		}
		append := attention.AppendTensors{NewK: m.In[1], NewV: m.In[2], Cos: cache.cos, Sin: cache.sin}
		if p.RoPE.Dims > 0 {
			append.Q = q
		}
		if err := cache.Append(cmd, layer, append, p); err != nil {
			return err
		}
		whole := p.Problem
		whole.SeqKV = f.Seq
		k, v := cache.K[layer].Slice(2, 0, f.Seq), cache.V[layer].Slice(2, 0, f.Seq)
		return attention.Forward(cmd, attention.Tensors{Q: q, K: k, V: v, O: o}, whole, attention.Options{})
	}})
	return o
}

// decodeProblem is attention of new tokens with a cache of so many.
func (c *Config) decodeProblem(batch, seq, context int, t dtype.DType) attention.DecodeProblem {
	p := attention.DecodeProblem{NewKeys: seq, CacheRows: batch, Problem: attention.Problem{
		Batch: batch, NumHeads: c.Heads, NumKVHeads: c.KVHeads, SeqQ: seq, SeqKV: context, HeadDim: c.HeadDim, DType: t, Causal: true,
	}}
	if c.Window > 0 {
		p.Window = attention.Window{On: true, Left: min(c.Window, math.MaxInt32) - 1, Right: attention.Unlimited}
	}
	return p
}

// attentionRoPE says which elements of a head are rotated.
func (c *Config) attentionRoPE() attention.RoPE {
	if c.GPT2() {
		return attention.RoPE{}
	}
	return attention.RoPE{Dims: c.HeadDim}
}
