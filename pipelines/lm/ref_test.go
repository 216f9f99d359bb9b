package lm

import (
	"math"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/pipelines/dropout"
)

// A reference computes logits in float64 by the formulas of the papers, without any kernel's order.
type reference struct {
	c    *Config
	w    map[string][]float64
	lora *LoRA
	row  int // of the batch, where the sequence begins
}

// dropoutSeed is the seed of the dropout of references.
const dropoutSeed = 9

// dropped returns the input of the adapter of a product, after dropout in the first micro-batch.
func (r *reference) dropped(x [][]float64, product string) [][]float64 {
	if r.lora.Dropout == 0 {
		return x
	}
	is := func(p Param) bool { return p.Name == adapterName(product, "A") }
	p := dropout.Problem{P: r.lora.Dropout, Stream: slices.IndexFunc(r.lora.Params(r.c), is) / 2}
	y := make([][]float64, len(x))
	for t, row := range x {
		for i, v := range row {
			if !p.Kept(dropout.States(dropoutSeed, 0), r.row+t, i) {
				v = 0
			}
			y[t] = append(y[t], v/(1-p.P))
		}
	}
	return y
}

func newReference(c *Config, w Weights) (*reference, error) {
	r := &reference{c: c, w: map[string][]float64{}}
	return r, r.read(c.Params(), w)
}

// read reads weights.
func (r *reference) read(params []Param, w Weights) error {
	for _, p := range params {
		values, err := float32s(w, p, 0, p.elements())
		if err != nil {
			return err
		}
		for _, x := range values {
			r.w[p.Name] = append(r.w[p.Name], float64(x))
		}
	}
	return nil
}

// product returns rows * w + bias, w (out, in), or (in, out) of GPT-2's layers.
func (r *reference) product(x [][]float64, name string, out int) [][]float64 {
	w, bias := r.w[name+".weight"], r.w[name+".bias"]
	in := len(x[0])
	transposed := r.c.GPT2() && name != "transformer.wte" && name != "lm_head"
	y := make([][]float64, len(x))
	a, b := r.w[adapterName(name, "A")], r.w[adapterName(name, "B")]
	var dropped [][]float64
	if a != nil {
		dropped = r.dropped(x, name)
	}
	for t := range x {
		y[t] = make([]float64, out)
		for j := range len(a) / in { // of the adapter
			h := 0.0
			for i := range in {
				h += dropped[t][i] * a[j*in+i]
			}
			for o := range out {
				y[t][o] += r.lora.Alpha * h * b[o*r.lora.Rank+j] / float64(r.lora.Rank)
			}
		}
		for o := range out {
			if bias != nil {
				y[t][o] += bias[o]
			}
			for i := range in {
				if transposed {
					y[t][o] += x[t][i] * w[i*out+o]
				} else {
					y[t][o] += x[t][i] * w[o*in+i]
				}
			}
		}
	}
	return y
}

// norm is RMSNorm, or GPT-2's LayerNorm.
func (r *reference) norm(x [][]float64, name string) [][]float64 {
	y := make([][]float64, len(x))
	for t, row := range x {
		mean, square, n := 0.0, 0.0, float64(len(row))
		if r.c.GPT2() {
			for _, v := range row {
				mean += v / n
			}
		}
		for _, v := range row {
			square += (v - mean) * (v - mean) / n
		}
		for i, v := range row {
			v = (v - mean) / math.Sqrt(square+r.c.Eps) * r.w[name+".weight"][i]
			if bias := r.w[name+".bias"]; bias != nil {
				v += bias[i]
			}
			y[t] = append(y[t], v)
		}
	}
	return y
}

// heads divides rows into heads, (heads, rows, dim), normalized and rotated.
func (r *reference) heads(x [][]float64, heads int, normName string, rotate bool) [][][]float64 {
	d, freq := r.c.HeadDim, r.frequencies()
	list := make([][][]float64, heads)
	for h := range list {
		for _, row := range x {
			list[h] = append(list[h], append([]float64(nil), row[h*d:][:d]...))
		}
		if normName != "" {
			list[h] = r.norm(list[h], normName)
		}
		for t, row := range list[h] {
			for i := 0; rotate && i < d/2; i++ {
				s, c := math.Sincos(float64(t) * freq[i])
				row[i], row[i+d/2] = row[i]*c-row[i+d/2]*s, row[i+d/2]*c+row[i]*s
			}
		}
	}
	return list
}

// frequencies returns the angle per position of each pair, as Transformers has them for rope_type
// default and llama3.
func (r *reference) frequencies() (list []float64) {
	f := r.c.RoPE
	for i := range r.c.HeadDim / 2 {
		angle := math.Pow(f.Base, -2*float64(i)/float64(r.c.HeadDim))
		if f.Scaling == attention.Llama3 {
			long := 2 * math.Pi / angle
			smooth := (float64(f.Original)/long - f.Low) / (f.High - f.Low)
			switch {
			case long > float64(f.Original)/f.Low:
				angle /= f.Factor
			case long >= float64(f.Original)/f.High:
				angle = (1-smooth)*angle/f.Factor + smooth*angle
			}
		}
		list = append(list, angle)
	}
	return list
}

// attention is of one sequence, causal, and within the window.
func (r *reference) attention(q, k, v [][][]float64) [][]float64 {
	rows, d := len(q[0]), r.c.HeadDim
	o := make([][]float64, rows)
	for t := range o {
		o[t] = make([]float64, len(q)*d)
		for h := range q {
			g := h * len(k) / len(q)
			sum := 0.0
			for s := range t + 1 {
				if r.c.Window > 0 && t-s >= r.c.Window {
					continue
				}
				score := 0.0
				for i := range d {
					score += q[h][t][i] * k[g][s][i] / math.Sqrt(float64(d))
				}
				e := math.Exp(score)
				sum += e
				for i := range d {
					o[t][h*d+i] += e * v[g][s][i]
				}
			}
			for i := range d {
				o[t][h*d+i] /= sum
			}
		}
	}
	return o
}

func add(x, y [][]float64) {
	for t := range x {
		for i := range x[t] {
			x[t][i] += y[t][i]
		}
	}
}

// logits returns the logits of each token of a sequence.
func (r *reference) logits(ids []int32) [][]float64 {
	c, w := r.c, r.c.Width
	table, norm, head := r.w["model.embed_tokens.weight"], "model.norm", "model.embed_tokens"
	if c.GPT2() {
		table, norm, head = r.w["transformer.wte.weight"], "transformer.ln_f", "transformer.wte"
	}
	if !c.Tied {
		head = "lm_head"
	}
	x := make([][]float64, len(ids))
	for t, id := range ids {
		x[t] = append(x[t], table[int(id)*w:][:w]...)
		for i := 0; c.GPT2() && i < w; i++ {
			x[t][i] += r.w["transformer.wpe.weight"][t*w+i]
		}
	}
	for l := range c.Layers {
		if c.GPT2() {
			r.gpt2Block(l, x)
		} else {
			r.llamaBlock(l, x)
		}
	}
	return r.product(r.norm(x, norm), head, c.Vocabulary)
}

func (r *reference) llamaBlock(l int, x [][]float64) {
	c := r.c
	name := func(s string) string { return c.layer(l, s) }
	y := r.norm(x, name("input_layernorm"))
	qNorm, kNorm := "", ""
	if c.QKNorm {
		qNorm, kNorm = name("self_attn.q_norm"), name("self_attn.k_norm")
	}
	q := r.heads(r.product(y, name("self_attn.q_proj"), c.Heads*c.HeadDim), c.Heads, qNorm, true)
	k := r.heads(r.product(y, name("self_attn.k_proj"), c.KVHeads*c.HeadDim), c.KVHeads, kNorm, true)
	v := r.heads(r.product(y, name("self_attn.v_proj"), c.KVHeads*c.HeadDim), c.KVHeads, "", false)
	add(x, r.product(r.attention(q, k, v), name("self_attn.o_proj"), c.Width))
	y = r.norm(x, name("post_attention_layernorm"))
	g, u := r.product(y, name("mlp.gate_proj"), c.Hidden), r.product(y, name("mlp.up_proj"), c.Hidden)
	for t := range g {
		for i, v := range g[t] {
			g[t][i] = v / (1 + math.Exp(-v)) * u[t][i]
		}
	}
	add(x, r.product(g, name("mlp.down_proj"), c.Width))
}

func (r *reference) gpt2Block(l int, x [][]float64) {
	c := r.c
	name := func(s string) string { return c.layer(l, s) }
	qkv := r.heads(r.product(r.norm(x, name("ln_1")), name("attn.c_attn"), 3*c.Width), 3*c.Heads, "", false)
	o := r.attention(qkv[:c.Heads], qkv[c.Heads:2*c.Heads], qkv[2*c.Heads:])
	add(x, r.product(o, name("attn.c_proj"), c.Width))
	h := r.product(r.norm(x, name("ln_2")), name("mlp.c_fc"), c.Hidden)
	for t := range h {
		for i, v := range h[t] {
			h[t][i] = v / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v)))
		}
	}
	add(x, r.product(h, name("mlp.c_proj"), c.Width))
}
