// Generate is a loop that generates tokens with a layer of a transformer: projections by gemm, RoPE,
// a cache of keys and values with pages, and decoding. A step is recorded once; the lengths of the
// cache, which grow on the device, are all that changes.
package main

import (
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
	d := must(vk.Open(vk.Options{}))
	defer d.Close()
	fmt.Println(generate(context.Background(), d, newWeights(), 7))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

// generate returns the tokens that follow the first.
func generate(ctx context.Context, d *vk.Device, w weights, token int) (tokens []int) {
	cache := must(attention.NewKVCache(ctx, d, attention.KVCacheConfig{DecodeProblem: attention.DecodeProblem{Problem: attention.Problem{
		Batch: 1, NumHeads: heads, NumKVHeads: kvHeads, SeqQ: 1, SeqKV: 64, HeadDim: dim, DType: dtype.Float32, Causal: true,
	}, PageSize: 16, Pages: 4}}))
	defer cache.Close()
	check(cache.Reserve(ctx, steps))
	p := attention.AppendProblem{DecodeProblem: cache.Problem(1, 1), RoPE: attention.RoPE{Dims: dim}}
	cosines, sines := attention.Frequencies{Dims: dim}.Table(p.SeqKV)
	var all []vk.Tensor // float32 on the device
	defer func() {
		for _, x := range all {
			x.Close()
		}
	}()
	add := func(data []float32, shape ...int) vk.Tensor { // one more, with data if there are
		x := must(d.NewTensor("tensor", dtype.Float32, shape...))
		if all = append(all, x); data != nil {
			check(x.Upload(ctx, data))
		}
		return x
	}
	wqkv, wo, head := add(w.qkv, width, fused), add(w.o, width, width), add(w.head, vocab, width)
	cos, sin := add(cosines, p.SeqKV, dim/2), add(sines, p.SeqKV, dim/2)
	x, qkv, o, logits := add(nil, 1, width), add(nil, 1, 1, fused), add(nil, 1, heads, 1, dim), add(nil, 1, vocab)
	c := must(d.NewCmd("step"))
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
		check(x.Upload(ctx, w.embed[token*width:][:width]))
		check(c.Submit(ctx))
		check(logits.Download(ctx, scores))
		token = slices.Index(scores, slices.Max(scores))
		tokens = append(tokens, token)
	}
	check(cache.Status(ctx))
	return tokens
}

// weights are the weights of the layer, row-major.
type weights struct{ qkv, o, embed, head []float32 }

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
