package lm

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/mat"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	attentions "github.com/flashvk/flashvk/internal/attention/ref"
	norms "github.com/flashvk/flashvk/internal/pipelines/norm/ref"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/decoder"
	"github.com/flashvk/flashvk/pipelines/dropout"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/pipelines/normlinear"
	"github.com/flashvk/flashvk/pipelines/sample"
	"github.com/flashvk/flashvk/vk"
)

func newGenerator(t *testing.T, d *vk.Device, c *Config, batch int, f sample.Filters) *Generator {
	g := must(NewGenerator(context.Background(), d, c, Random{1}, Options{DType: dtype.Float32, Batch: batch, Context: 32, Filters: f, Seed: 5}))
	t.Cleanup(g.Close)
	return g
}

// follow compares the logits of prompts, and of n tokens behind them, with the reference.
func follow(t *testing.T, g *Generator, n int, texts ...[]int32) {
	ctx, c, seq := context.Background(), g.Config, 0
	for _, text := range texts {
		seq = max(seq, len(text))
	}
	ref := must(newReference(c, Random{1}))
	plan := must(g.plan(ctx, seq))
	defer plan.Close()
	require.NoError(t, g.fill(ctx, plan, seq, texts))
	logits, next := make([]float32, len(texts)*c.Vocabulary), make([]int32, len(texts))
	for i, of := 0, plan; i <= n; i, of = i+1, g.step {
		if i > 0 {
			require.NoError(t, of.Start(ctx))
		}
		require.NoError(t, of.Tensor("logits").Download(ctx, logits))
		require.NoError(t, g.step.Tensor("ids").DownloadInts(ctx, next))
		for b := range texts {
			want, got := ref.logits(texts[b]), logits[b*c.Vocabulary:][:c.Vocabulary]
			compare(t, want[len(want)-1], got)
			require.Equal(t, slices.Max(got), got[next[b]])
			texts[b] = append(texts[b], next[b])
		}
	}
}

// TestLogits has sequences of different lengths in one batch. Steps of up to the most rows of normlinear run a kernel for
// each norm with its product, but not those of GPT-2.
func TestLogits(t *testing.T) {
	d := vktest.Open(t)
	for _, name := range families {
		for _, batch := range []int{2, normlinear.MaxRows, normlinear.MaxRows + 1} {
			if batch > 2 && name != "llama-3.2-1b" && name != "qwen2.5-0.5b" {
				continue
			}
			g := newGenerator(t, d, smallConfig(name), batch, sample.Filters{})
			texts := make([][]int32, batch)
			for i := range texts {
				texts[i] = []int32{int32(i), 17, 299, 0, int32(3 * i), 9, 133}[:7-i%2*4]
			}
			follow(t, g, 3, texts...)
			kernels := map[string]int{}
			for _, m := range g.step.Modules() {
				kernels[strings.Split(m.Name, ".")[0]]++
			}
			fused := batch <= normlinear.MaxRows && name != "gpt2"
			require.Equal(t, fused, kernels["normlinear"] > 0, kernels)
			if fused && name != "qwen3-0.6b" { // which has norms of heads
				require.Zero(t, kernels["norm_fwd"]+kernels["glu_fwd"], kernels)
			}
		}
	}
}

// TestOneKernel has steps whose layers are one kernel each, and others. Both have the same logits, but for the rounding to
// 16 bits between kernels, at every length of the cache.
func TestOneKernel(t *testing.T) {
	d := vktest.Open(t)
	ctx := context.Background()
	for _, name := range []string{"llama-3.2-1b", "qwen2.5-0.5b"} {
		c := smallConfig(name)
		c.HeadDim, c.RoPE.Dims = 64, 64
		var logits [2][]float32
		for i := range logits {
			o := Options{DType: dtype.Float16, Batch: 1, Context: 20}
			if i == 1 {
				o.Decoder = &decoder.Config{Groups: 1, Threads: 64, Splits: 2, Team: 8, Loads: 2, Keys: 1, Ahead: 1, Copies: 1}
			}
			g := must(NewGenerator(ctx, d, c, Random{1}, o))
			t.Cleanup(g.Close)
			require.NoError(t, g.prefill(ctx, [][]int32{{5, 17, 299, 0}}))
			for token := range int32(16) {
				require.NoError(t, g.step.Tensor("ids").UploadInts(ctx, []int32{7 * token}))
				require.NoError(t, g.step.Start(ctx))
				step := make([]float32, c.Vocabulary)
				require.NoError(t, g.step.Tensor("logits").Download(ctx, step))
				logits[i] = append(logits[i], step...)
			}
			require.Equal(t, i == 1, (i == 1 || d.Caps().Type == vk.CPU) && slices.ContainsFunc(g.step.Modules(), func(m vk.ModuleInfo) bool { return m.Name == "decoder.f16" }))
		}
		largest := slices.Max(logits[0])
		for i, x := range logits[0] {
			require.InDelta(t, x, logits[1][i], float64(largest)/128, "logit %d of step %d", i%c.Vocabulary, i/c.Vocabulary)
		}
	}
}

// TestSeveral compares tokens of single steps with those of several steps in one submission.
func TestSeveral(t *testing.T) {
	d := open(t)
	for _, family := range []string{"llama-3.2-1b", "gpt2"} {
		var tokens [2][]int32
		for i := range tokens {
			g := newGenerator(t, d, smallConfig(family), 2, sample.Filters{Temperature: 1, TopK: 20, RepetitionPenalty: 1.1})
			g.quick = 0 // no time for several
			g.atOnce = 8 * i
			require.NoError(t, g.Generate(context.Background(), [][]int32{{5, 17}, {9}}, 21, func(_ int, id int32) bool {
				tokens[i] = append(tokens[i], id)
				return len(tokens[i]) == 39 // of the first sequence
			}))
			require.Equal(t, i == 1, g.several != nil)
		}
		require.Equal(t, tokens[0], tokens[1])
		require.Len(t, tokens[0], 41)
	}
}

// compare wants logits within 2^-18 of the largest, a bound for these sizes: sums of at most 96 products in
// float32, each off by 2^-24 of its terms, through eleven sums and norms one behind the other.
func compare(t *testing.T, want []float64, got []float32) {
	largest := 0.0
	for _, x := range want {
		largest = max(largest, math.Abs(x))
	}
	for i, x := range want {
		require.InDelta(t, x, got[i], largest*0x1p-18, "logit %d", i)
	}
}

func TestMain(m *testing.M) { vktest.Main(m) }

// must returns x, or panics with the error.
func must[T any](x T, err error) T {
	vktest.Must(err)
	return x
}

// open opens the device for a test without goroutines.
func open(t *testing.T) *vk.Device {
	vktest.Sequential(t)
	return vktest.Open(t)
}

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
