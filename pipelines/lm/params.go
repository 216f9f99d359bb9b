package lm

import "fmt"

// A Param is a tensor of a checkpoint. A matrix is (out, in), and of GPT-2 (in, out).
type Param struct {
	Name  string
	Shape []int
}

// headName is the head of a model that does not tie it to the embeddings.
const headName = "lm_head.weight"

// names are those of parameters that belong to no layer; norm is without the ending.
type names struct{ embed, positions, norm string }

func (c *Config) names() names {
	if c.GPT2() {
		return names{"transformer.wte.weight", "transformer.wpe.weight", "transformer.ln_f"}
	}
	return names{embed: "model.embed_tokens.weight", norm: "model.norm"}
}

// layer returns the name of a parameter of a layer.
func (c *Config) layer(i int, name string) string {
	if c.GPT2() {
		return fmt.Sprintf("transformer.h.%d.%s", i, name)
	}
	return fmt.Sprintf("model.layers.%d.%s", i, name)
}

// Params returns all parameters, in the order of the layers.
func (c *Config) Params() (list []Param) {
	add := func(name string, shape ...int) { list = append(list, Param{name, shape}) }
	names := c.names()
	add(names.embed, c.Vocabulary, c.Width)
	if c.GPT2() {
		add(names.positions, c.Positions, c.Width)
	}
	for i := range c.Layers {
		layer := func(name string, shape ...int) { add(c.layer(i, name), shape...) }
		if c.GPT2() {
			c.gpt2Layer(layer)
		} else {
			c.llamaLayer(layer)
		}
	}
	add(names.norm+".weight", c.Width)
	if c.GPT2() {
		add(names.norm+".bias", c.Width)
	}
	if !c.Tied {
		add(headName, c.Vocabulary, c.Width)
	}
	return list
}

func (c *Config) llamaLayer(add func(name string, shape ...int)) {
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	add("input_layernorm.weight", c.Width)
	for _, p := range []struct {
		name    string
		out, in int
		bias    bool
	}{{"q_proj", q, c.Width, c.Bias}, {"k_proj", kv, c.Width, c.Bias}, {"v_proj", kv, c.Width, c.Bias}, {"o_proj", c.Width, q, c.OutBias}} {
		add("self_attn."+p.name+".weight", p.out, p.in)
		if p.bias {
			add("self_attn."+p.name+".bias", p.out)
		}
	}
	if c.QKNorm {
		add("self_attn.q_norm.weight", c.HeadDim)
		add("self_attn.k_norm.weight", c.HeadDim)
	}
	add("post_attention_layernorm.weight", c.Width)
	add("mlp.gate_proj.weight", c.Hidden, c.Width)
	add("mlp.up_proj.weight", c.Hidden, c.Width)
	add("mlp.down_proj.weight", c.Width, c.Hidden)
}

func (c *Config) gpt2Layer(add func(name string, shape ...int)) {
	for _, p := range []struct {
		name    string
		in, out int // in is 0 for a norm
	}{
		{"ln_1", 0, c.Width}, {"attn.c_attn", c.Width, 3 * c.Width}, {"attn.c_proj", c.Width, c.Width},
		{"ln_2", 0, c.Width}, {"mlp.c_fc", c.Width, c.Hidden}, {"mlp.c_proj", c.Hidden, c.Width},
	} {
		shape := []int{p.in, p.out}
		if p.in == 0 {
			shape = shape[1:]
		}
		add(p.name+".weight", shape...)
		add(p.name+".bias", p.out)
	}
}

// NumParams returns the number of weights.
func (c *Config) NumParams() (n int64) {
	for _, p := range c.Params() {
		n += p.elements()
	}
	return n
}

func (p Param) elements() int64 {
	n := int64(1)
	for _, s := range p.Shape {
		n *= int64(s)
	}
	return n
}
