// Command block builds the forward pass of a transformer block from the kernels, in one recording:
//
//	q, k, v = norm(x) * wqkv
//	h       = x + attention(q, k, v) * wo     causal
//	y       = h + silu(norm(h) * w1) * w2
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/vk"
)

const tokens, heads, dim, width, hidden = 24, 2, 16, heads * dim, 48

func main() {
	y := block(func(name string, i int) float32 { return float32((i*i+3*len(name))%17-8) / 32 })
	fmt.Printf("y[0] begins with %.4f, y[%d] with %.4f\n", y[0], tokens-1, y[(tokens-1)*width])
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

// block returns y for tensors whose elements are values.
func block(values func(name string, i int) float32) (y []float32) {
	ctx := context.Background()
	d := must(vk.Open(vk.Options{})) // the best device there is
	defer d.Close()
	tensors := map[string]vk.Tensor{}
	for name, shape := range map[string][]int{
		"x": {tokens, width}, "wn": {width}, "wqkv": {width, 3 * width}, "wo": {width, width}, "w1": {width, hidden}, "w2": {hidden, width}, // inputs
		"n": {tokens, width}, "qkv": {tokens, 3 * width}, "o": {tokens, width}, "h": {tokens, width}, "m": {tokens, width}, "up": {tokens, hidden}, "y": {tokens, width},
	} {
		t := must(d.NewTensor(name, dtype.Float32, shape...))
		defer t.Close()
		x := make([]float32, t.NumElements())
		for i := range x {
			x[i] = values(name, i)
		}
		check(t.Upload(ctx, x))
		tensors[name] = t
	}
	t := func(name string) vk.Tensor { return tensors[name] }
	// Attention reads q, k and v, and writes o, where they lie, as (batch, heads, tokens, dim).
	part := func(i int) vk.Tensor {
		p := t("qkv").Slice(1, i*width, (i+1)*width)
		p.Shape, p.Strides = []int{1, heads, tokens, dim}, []int{tokens * p.Strides[0], dim, p.Strides[0], 1}
		return p
	}
	o := t("o")
	o.Shape, o.Strides = []int{1, heads, tokens, dim}, []int{tokens * width, dim, width, 1}
	c := must(d.NewCmd("block"))
	defer c.Close()
	// Each call records kernels. Barriers follow from what these read and write, and errors stay with
	// c: Submit returns the first, and runs nothing then.
	n := norm.Problem{Rows: tokens, Cols: width, Eps: 1e-5}
	norm.Forward(c, norm.Tensors{X: t("x"), W: t("wn"), Y: t("n")}, n, norm.Options{})
	gemm.Forward(c, gemm.Tensors{A: t("n"), B: t("wqkv"), C: t("qkv")}, gemm.Problem{M: tokens, N: 3 * width, K: width}, gemm.Options{})
	attention.Forward(c, attention.Tensors{Q: part(0), K: part(1), V: part(2), O: o},
		attention.Problem{Batch: 1, NumHeads: heads, NumKVHeads: heads, SeqQ: tokens, SeqKV: tokens, HeadDim: dim, Causal: true}, attention.Options{})
	// A product adds a residual itself, and computes the activation of what it writes.
	gemm.Forward(c, gemm.Tensors{A: t("o"), B: t("wo"), C: t("h"), Residual: t("x")}, gemm.Problem{M: tokens, N: width, K: width, Residual: true}, gemm.Options{})
	norm.Forward(c, norm.Tensors{X: t("h"), W: t("wn"), Y: t("m")}, n, norm.Options{})
	gemm.Forward(c, gemm.Tensors{A: t("m"), B: t("w1"), C: t("up")}, gemm.Problem{M: tokens, N: hidden, K: width, Activation: gemm.SiLU}, gemm.Options{})
	gemm.Forward(c, gemm.Tensors{A: t("up"), B: t("w2"), C: t("y"), Residual: t("h")}, gemm.Problem{M: tokens, N: width, K: hidden, Residual: true}, gemm.Options{})
	check(c.Submit(ctx))
	y = make([]float32, tokens*width)
	check(t("y").Download(ctx, y))
	return y
}
