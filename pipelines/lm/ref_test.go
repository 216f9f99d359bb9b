package lm

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"

	"github.com/flashvk/flashvk/attention"
	attentions "github.com/flashvk/flashvk/internal/attention/ref"
	norms "github.com/flashvk/flashvk/internal/pipelines/norm/ref"
	"github.com/flashvk/flashvk/pipelines/dropout"
	"github.com/flashvk/flashvk/pipelines/norm"
)

// A reference computes logits in float64 by the formulas of the papers. It chains the references of the kernels.
type reference struct {
	c    *Config
	w    map[string][]float64
	lora *LoRA
	row  int // of the batch, where the sequence begins
}

// dropoutSeed is the seed of the dropout of references.
const dropoutSeed = 9

// dropped returns the input of the adapter of a product, after dropout in the first micro-batch.
func (r *reference) dropped(x *mat.Dense, product string) *mat.Dense {
	if r.lora.Dropout == 0 {
		return x
	}
	is := func(p Param) bool { return p.Name == adapterName(product, "A") }
	p := dropout.Problem{P: r.lora.Dropout, Stream: slices.IndexFunc(r.lora.Params(r.c), is) / 2}
	var y mat.Dense
	y.Apply(func(t, i int, v float64) float64 {
		if !p.Kept(dropout.States(dropoutSeed, 0), r.row+t, i) {
			return 0
		}
		return v / (1 - p.P)
	}, x)
	return &y
}

func newReference(c *Config, w Weights) (*reference, error) {
	r := &reference{c: c, w: map[string][]float64{}}
	return r, r.read(c.Params(), w)
}

// read reads weights.
func (r *reference) read(params []Param, w Weights) error {
	for _, p := range params {
		values, err := read(w, p)
		if err != nil {
			return err
		}
		for _, x := range values {
			r.w[p.Name] = append(r.w[p.Name], float64(x))
		}
	}
	return nil
}

// times returns x * wᵀ of a weight (out, in).
func times(x *mat.Dense, w []float64) *mat.Dense {
	_, in := x.Dims()
	var y mat.Dense
	y.Mul(x, mat.NewDense(len(w)/in, in, w).T())
	return &y
}

// product returns rows * w + bias, w (out, in), or (in, out) of GPT-2's layers, and what an adapter adds.
func (r *reference) product(x *mat.Dense, name string) *mat.Dense {
	w, bias := r.w[name+".weight"], r.w[name+".bias"]
	if _, in := x.Dims(); r.c.GPT2() && name != "transformer.wte" && name != "lm_head" {
		w = mat.DenseCopyOf(mat.NewDense(in, len(w)/in, w).T()).RawMatrix().Data
	}
	y := times(x, w)
	if a := r.w[adapterName(name, "A")]; a != nil {
		h := times(times(r.dropped(x, name), a), r.w[adapterName(name, "B")])
		h.Scale(r.lora.Alpha/float64(r.lora.Rank), h)
		y.Add(y, h)
	}
	if bias != nil {
		y.Apply(func(_, i int, v float64) float64 { return v + bias[i] }, y)
	}
	return y
}

// norm is RMSNorm, or GPT-2's LayerNorm.
func (r *reference) norm(x *mat.Dense, name string) *mat.Dense {
	rows, cols := x.Dims()
	in := norms.Inputs{X: x.RawMatrix().Data, W: r.w[name+".weight"], B: r.w[name+".bias"]}
	p := norm.Problem{Rows: rows, Cols: cols, RMS: !r.c.GPT2(), Eps: r.c.Eps, Bias: in.B != nil}
	return mat.NewDense(rows, cols, norms.Forward(in, p).Y)
}

// heads divides rows into heads, (heads, rows, dim), normalized and rotated.
func (r *reference) heads(x *mat.Dense, normName string, rotate bool) (list []float64) {
	rows, cols := x.Dims()
	d := r.c.HeadDim
	of := mat.NewDense(rows*cols/d, d, x.RawMatrix().Data)
	if normName != "" {
		of = r.norm(of, normName)
	}
	for h := range cols / d {
		for t := range rows {
			row := of.RawRowView(t*cols/d + h)
			if rotate {
				cos, sin := r.c.RoPE.Table(rows)
				row = attentions.Rotate(attention.RoPE{Dims: d}, row, cos, sin, t)
			}
			list = append(list, row...)
		}
	}
	return list
}

// attention is of one sequence, causal, and within the window.
func (r *reference) attention(qkv [3][]float64) *mat.Dense {
	c, d := r.c, r.c.HeadDim
	rows := len(qkv[0]) / d / c.Heads
	p := attention.Problem{Batch: 1, NumHeads: c.Heads, NumKVHeads: c.KVHeads, SeqQ: rows, SeqKV: rows, HeadDim: d, Causal: true}
	if c.Window > 0 {
		p.Window = attention.Window{On: true, Left: c.Window - 1, Right: attention.Unlimited}
	}
	o, y := make([]float64, len(qkv[0])), mat.NewDense(rows, c.Heads*d, nil)
	if err := attentions.Forward(o, nil, attentions.Inputs[float64]{Q: qkv[0], K: qkv[1], V: qkv[2]}, p, nil); err != nil {
		panic(err) // the sizes are those of a model
	}
	for i := range c.Heads * rows {
		copy(y.RawRowView(i % rows)[i/rows*d:], o[i*d:][:d])
	}
	return y
}

// logits returns the logits of each token of a sequence.
func (r *reference) logits(ids []int32) (list [][]float64) {
	c, names := r.c, r.c.names()
	x := mat.NewDense(len(ids), c.Width, nil)
	x.Apply(func(t, i int, _ float64) float64 {
		v := r.w[names.embed][int(ids[t])*c.Width+i]
		if c.GPT2() {
			v += r.w[names.positions][t*c.Width+i]
		}
		return v
	}, x)
	for l := range c.Layers {
		r.block(l, x)
	}
	head := "lm_head"
	if c.Tied {
		head = names.embed[:len(names.embed)-len(".weight")]
	}
	y := r.product(r.norm(x, names.norm), head)
	for t := range ids {
		list = append(list, y.RawRowView(t))
	}
	return list
}

// block adds a layer's results to x.
func (r *reference) block(l int, x *mat.Dense) {
	c := r.c
	name := func(s string) string { return c.layer(l, s) }
	var qkv [3][]float64
	if c.GPT2() {
		all := r.product(r.norm(x, name("ln_1")), name("attn.c_attn"))
		for i := range qkv {
			qkv[i] = r.heads(mat.DenseCopyOf(all.Slice(0, all.RawMatrix().Rows, i*c.Width, (i+1)*c.Width)), "", false)
		}
		x.Add(x, r.product(r.attention(qkv), name("attn.c_proj")))
		h := r.product(r.norm(x, name("ln_2")), name("mlp.c_fc"))
		h.Apply(func(_, _ int, v float64) float64 {
			return v / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v)))
		}, h)
		x.Add(x, r.product(h, name("mlp.c_proj")))
		return
	}
	y := r.norm(x, name("input_layernorm"))
	for i, of := range []string{"q", "k", "v"} {
		normName := ""
		if c.QKNorm && i < 2 {
			normName = name("self_attn." + of + "_norm")
		}
		qkv[i] = r.heads(r.product(y, name("self_attn."+of+"_proj")), normName, i < 2)
	}
	x.Add(x, r.product(r.attention(qkv), name("self_attn.o_proj")))
	y = r.norm(x, name("post_attention_layernorm"))
	g, u := r.product(y, name("mlp.gate_proj")), r.product(y, name("mlp.up_proj"))
	g.Apply(func(t, i int, v float64) float64 { return v / (1 + math.Exp(-v)) * u.At(t, i) }, g)
	x.Add(x, r.product(g, name("mlp.down_proj")))
}
