package attention_test

import (
	"context"
	"fmt"
	"log"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// exampleTensor returns a tensor with the same number everywhere.
func exampleTensor(d *vk.Device, f dtype.DType, x float32, shape ...int) vk.Tensor {
	t, err := d.NewTensor("example", f, shape...)
	if err != nil {
		log.Fatal(err)
	}
	data := make([]float32, t.NumElements())
	for i := range data {
		data[i] = x
	}
	if f == dtype.Int32 {
		list := make([]int32, len(data))
		for i := range list {
			list[i] = int32(x)
		}
		err = t.UploadInts(context.Background(), list)
	} else {
		err = t.Upload(context.Background(), data)
	}
	if err != nil {
		log.Fatal(err)
	}
	return t
}

// A cache of two sequences with room for 16 keys each. They have 3 and 5 keys, as only the
// device knows.
func ExampleDecode() {
	ctx := context.Background()
	d, err := vk.Open(vk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()

	p := attention.DecodeProblem{Problem: attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 1, SeqKV: 16, HeadDim: 8, DType: dtype.Float16, Causal: true}}
	t := attention.DecodeTensors{
		Q: exampleTensor(d, p.DType, 0, p.QShape()...), // so each row of O is the mean of the values that it sees
		K: exampleTensor(d, p.DType, 1, p.KShape()...), V: exampleTensor(d, p.DType, 100, p.VShape()...),
		O: exampleTensor(d, p.DType, 0, p.OShape()...), SeqLens: exampleTensor(d, dtype.Int32, 0, p.SeqLensShape()...),
		State: exampleTensor(d, dtype.Int32, 0, p.StateShape()...),
	}
	for _, x := range []vk.Tensor{t.Q, t.K, t.V, t.O, t.SeqLens, t.State} {
		defer x.Close()
	}
	for i := range 5 { // value number i is i, in all sequences and heads
		v := t.V.Slice(2, i, i+1)
		row := make([]float32, v.NumElements())
		for e := range row {
			row[e] = float32(i)
		}
		if err := v.Upload(ctx, row); err != nil {
			log.Fatal(err)
		}
	}
	if err := t.SeqLens.UploadInts(ctx, []int32{3, 5}); err != nil {
		log.Fatal(err)
	}
	c, err := d.NewCmd("decode")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if err := attention.Decode(c, t, p, attention.Options{}); err != nil {
		log.Fatal(err)
	}
	if err := c.Submit(ctx); err != nil {
		log.Fatal(err)
	}
	o := make([]float32, 2*4*8)
	if err := t.O.Download(ctx, o); err != nil {
		log.Fatal(err)
	}
	fmt.Println(o[0], o[4*8], attention.DecodeStatus(ctx, t.State, p))
	// Output: 1 2 <nil>
}

// A key goes to position 3 of a contiguous cache, turned by its position: by 3 radians in its
// first pair.
func ExampleAppend() {
	ctx := context.Background()
	d, err := vk.Open(vk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()

	p := attention.AppendProblem{
		DecodeProblem: attention.DecodeProblem{
			Problem: attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 8, HeadDim: 8, DType: dtype.Float32},
			NewKeys: 1,
		},
		RoPE: attention.RoPE{Dims: 4, Interleaved: true}, // pairs (0, 1) and (2, 3)
	}
	t := attention.AppendTensors{
		NewK: exampleTensor(d, p.DType, 1, p.NewKShape()...), NewV: exampleTensor(d, p.DType, 2, p.NewVShape()...),
		K: exampleTensor(d, p.DType, 0, p.KShape()...), V: exampleTensor(d, p.DType, 0, p.VShape()...),
		Cos: exampleTensor(d, dtype.Float32, 0, 8, 2), Sin: exampleTensor(d, dtype.Float32, 0, 8, 2),
		SeqLens: exampleTensor(d, dtype.Int32, 3, p.SeqLensShape()...), State: exampleTensor(d, dtype.Int32, 0, 1),
	}
	for _, x := range []vk.Tensor{t.NewK, t.NewV, t.K, t.V, t.Cos, t.Sin, t.SeqLens, t.State} {
		defer x.Close()
	}
	cos, sin := attention.RoPETable(8, 4, 10000)
	if err := t.Cos.Upload(ctx, cos); err != nil {
		log.Fatal(err)
	}
	if err := t.Sin.Upload(ctx, sin); err != nil {
		log.Fatal(err)
	}
	c, err := d.NewCmd("append")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if err := attention.Append(c, t, p); err != nil {
		log.Fatal(err)
	}
	if err := attention.Advance(c, t.SeqLens, 1); err != nil { // the sequence has 4 keys from now on
		log.Fatal(err)
	}
	if err := c.Submit(ctx); err != nil {
		log.Fatal(err)
	}
	k := make([]float32, 8*8)
	if err := t.K.Download(ctx, k); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.3f\n", k[3*8:4*8]) // cos 3 - sin 3, cos 3 + sin 3, the same of 0.03, and what is not turned
	// Output: [-1.131 -0.849 0.970 1.030 1.000 1.000 1.000 1.000]
}

// A step writes a key and its value after three others, and a query of each head sees all four.
func ExampleStep() {
	ctx := context.Background()
	d, err := vk.Open(vk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()

	p := attention.AppendProblem{DecodeProblem: attention.DecodeProblem{
		Problem: attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 1, SeqQ: 1, SeqKV: 8, HeadDim: 8, DType: dtype.Float32, Causal: true},
		NewKeys: 1,
	}}
	t := attention.StepTensors{
		DecodeTensors: attention.DecodeTensors{
			Q: exampleTensor(d, p.DType, 0, p.QShape()...), O: exampleTensor(d, p.DType, 0, p.OShape()...),
			K: exampleTensor(d, p.DType, 1, p.KShape()...), V: exampleTensor(d, p.DType, 1, p.VShape()...),
			SeqLens: exampleTensor(d, dtype.Int32, 3, p.SeqLensShape()...), State: exampleTensor(d, dtype.Int32, 0, p.StateShape()...),
		},
		NewK: exampleTensor(d, p.DType, 2, p.NewKShape()...), NewV: exampleTensor(d, p.DType, 5, p.NewVShape()...),
	}
	for _, x := range []vk.Tensor{t.Q, t.K, t.V, t.O, t.SeqLens, t.State, t.NewK, t.NewV} {
		defer x.Close()
	}
	plan, err := attention.ChooseStep(d.Caps(), p, attention.Options{})
	if err != nil {
		log.Fatal(err)
	}
	c, err := d.NewCmd("step")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if err := attention.Step(c, t, p, attention.Options{}); err != nil {
		log.Fatal(err)
	}
	if err := c.Submit(ctx); err != nil {
		log.Fatal(err)
	}
	o, k := make([]float32, 2*8), make([]float32, 8*8)
	if err := t.O.Download(ctx, o); err != nil {
		log.Fatal(err)
	}
	if err := t.K.Download(ctx, k); err != nil {
		log.Fatal(err)
	}
	fmt.Println(o[0], k[2*8], k[3*8]) // the mean of three values 1 and the new one, 5; the last old key and the new one
	fmt.Println(len(plan.Kernels()))  // float32 has no matrices
	// Output:
	// 2 1 2
	// 2
}

// A recorded step decodes token after token; two sequences then go on from what one has, and
// share its full pages.
func ExampleKVCache() {
	ctx := context.Background()
	d, err := vk.Open(vk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()

	cache, err := attention.NewKVCache(ctx, d, attention.KVCacheConfig{DecodeProblem: attention.DecodeProblem{
		Problem:  attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 1, SeqKV: 64, HeadDim: 8, DType: dtype.Float16, Causal: true},
		PageSize: 8, Pages: 8,
	}})
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	p := attention.AppendProblem{DecodeProblem: cache.Problem(1, 1)} // a query and a key of each sequence
	q, k, v, o := exampleTensor(d, p.DType, 0, p.QShape()...), exampleTensor(d, p.DType, 1, p.NewKShape()...), exampleTensor(d, p.DType, 0, p.NewVShape()...), exampleTensor(d, p.DType, 0, p.OShape()...)
	for _, x := range []vk.Tensor{q, k, v, o} {
		defer x.Close()
	}
	step, err := d.NewCmd("step")
	if err != nil {
		log.Fatal(err)
	}
	defer step.Close()
	if err := cache.Reserve(ctx, 11); err != nil { // pages for 11 keys
		log.Fatal(err)
	}
	// Errors of recording stay with step: Submit returns the first.
	_ = cache.Step(step, 0, attention.StepTensors{DecodeTensors: attention.DecodeTensors{Q: q, O: o}, NewK: k, NewV: v}, p, attention.Options{})
	_ = cache.Advance(step, 1)

	row, values := make([]float32, o.NumElements()), make([]float32, v.NumElements())
	for i := range 11 {
		for e := range values {
			values[e] = float32(i)
		}
		if err := v.Upload(ctx, values); err != nil {
			log.Fatal(err)
		}
		if err := step.Submit(ctx); err != nil {
			log.Fatal(err)
		}
	}
	if err := o.Download(ctx, row); err != nil {
		log.Fatal(err)
	}
	lens, err := cache.Len(ctx)
	fmt.Println(row[0], lens, cache.Free(), err) // the mean of 0 to 10

	if err := cache.Prefill(ctx, 0, 1); err != nil {
		log.Fatal(err)
	}
	fmt.Println(cache.Free(), cache.Status(ctx)) // the first page is that of both, and a page of the second is free
	// Output:
	// 5 [11 11] 4 <nil>
	// 5 <nil>
}
