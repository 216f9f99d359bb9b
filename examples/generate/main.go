// Generate is a loop that generates tokens with a layer of a transformer: projections by gemm, RoPE,
// a cache of keys and values with pages, and decoding. A step is recorded once; the lengths of the
// cache, which grow on the device, are all that changes.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/vk"
)

const heads, kvHeads, dim, vocab, steps = 4, 2, 32, 50, 40
const width, fused = heads * dim, (heads + 2*kvHeads) * dim

func main() {
	d, err := vk.Open(vk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	tokens, err := generate(context.Background(), d, newWeights(), 7)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(tokens)
}

// generate returns the tokens that follow the first.
func generate(ctx context.Context, d *vk.Device, w weights, token int) (tokens []int, err error) {
	cache, err := attention.NewKVCache(ctx, d, attention.KVCacheConfig{DecodeProblem: attention.DecodeProblem{Problem: attention.Problem{
		Batch: 1, NumHeads: heads, NumKVHeads: kvHeads, SeqQ: 1, SeqKV: 64, HeadDim: dim, DType: dtype.Float32, Causal: true,
	}, PageSize: 16, Pages: 4}})
	if err != nil {
		return nil, err
	}
	defer cache.Close()
	if err := cache.Reserve(ctx, steps); err != nil {
		return nil, err
	}
	p := attention.AppendProblem{DecodeProblem: cache.Problem(1, 1), RoPE: attention.RoPE{Dims: dim}}
	cosines, sines := attention.RoPETable(p.SeqKV, dim, 10000)
	t := tensors{ctx: ctx, d: d} // keeps the first error
	defer t.close()
	wqkv, wo, head := t.add(w.qkv, width, fused), t.add(w.o, width, width), t.add(w.head, vocab, width)
	cos, sin := t.add(cosines, p.SeqKV, dim/2), t.add(sines, p.SeqKV, dim/2)
	x, qkv, o, logits := t.add(nil, 1, width), t.add(nil, 1, 1, fused), t.add(nil, 1, heads, 1, dim), t.add(nil, 1, vocab)
	c, err := d.NewCmd("step")
	if cmp.Or(err, t.err) != nil {
		return nil, cmp.Or(err, t.err)
	}
	defer c.Close()
	// Recording calls leave their errors with c, and Submit returns the first.
	product := func(dst, a, b vk.Tensor, p gemm.Problem) {
		p.M, p.DType = 1, a.DType
		_ = gemm.Forward(c, gemm.Tensors{A: a, B: b, C: dst}, p, gemm.Options{})
	}
	product(vk.View(qkv.Buffer, qkv.DType, 1, fused), x, wqkv, gemm.Problem{N: fused, K: width})
	rows, _ := attention.SplitHeads(qkv, heads+2*kvHeads) // q, k and v are views of the product
	q, k, v := rows.Slice(1, 0, heads), rows.Slice(1, heads, heads+kvHeads), rows.Slice(1, heads+kvHeads, heads+2*kvHeads)
	_ = cache.Step(c, 0, attention.StepTensors{DecodeTensors: attention.DecodeTensors{Q: q, O: o}, NewK: k, NewV: v, Cos: cos, Sin: sin}, p, attention.Options{})
	_ = cache.Advance(c, 1)
	product(x, vk.View(o.Buffer, o.DType, 1, width), wo, gemm.Problem{N: width, K: width, Beta: 1}) // x += o * wo
	product(logits, x, head, gemm.Problem{N: vocab, K: width, TransB: true})

	scores := make([]float32, vocab)
	for range steps {
		if err := cmp.Or(x.Upload(ctx, w.embed[token*width:][:width]), c.Submit(ctx), logits.Download(ctx, scores)); err != nil {
			return nil, err
		}
		token = slices.Index(scores, slices.Max(scores))
		tokens = append(tokens, token)
	}
	return tokens, cache.Status(ctx)
}

// weights are those of the layer, row-major.
type weights struct{ qkv, o, embed, head []float32 }

// newWeights returns random ones.
func newWeights() weights {
	r := rand.New(rand.NewPCG(1, 2))
	normal := func(n int) []float32 {
		list := make([]float32, n)
		for i := range list {
			list[i] = float32(r.NormFloat64()) / 2
		}
		return list
	}
	return weights{normal(width * fused), normal(width * width), normal(vocab * width), normal(vocab * width)}
}

// tensors are float32 on the device.
type tensors struct {
	ctx  context.Context
	d    *vk.Device
	list []vk.Tensor
	err  error
}

// add returns one more, with data if there are.
func (t *tensors) add(data []float32, shape ...int) vk.Tensor {
	if t.err != nil {
		return vk.Tensor{}
	}
	x, err := t.d.NewTensor("tensor", dtype.Float32, shape...)
	if err == nil {
		t.list = append(t.list, x)
	}
	if err == nil && data != nil {
		err = x.Upload(t.ctx, data)
	}
	t.err = err
	return x
}

func (t *tensors) close() {
	for _, x := range t.list {
		x.Close()
	}
}
