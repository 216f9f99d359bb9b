package attention_test

import (
	"context"
	"fmt"
	"log"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// A projection (batch, seq, heads*dim) is Q without a copy, and O likewise what the next product
// reads. Grouped, a query head lies beside those that share its key head.
func ExampleSplitHeads() {
	d, err := vk.Open(vk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	x, err := d.NewTensor("projection", dtype.Float16, 2, 100, 6*64)
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	q, err := attention.SplitHeads(x, 6)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(q.Shape, q.Strides)
	grouped, err := attention.GroupHeads(q, 2)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(grouped.Shape, grouped.Strides)
	if q, err = attention.UngroupHeads(grouped); err != nil {
		log.Fatal(err)
	}
	merged, err := attention.MergeHeads(q)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(merged.Shape, merged.Strides)
	_, err = attention.MergeHeads(q.Permute(0, 2, 1, 3))
	fmt.Println(err)
	// Output:
	// [2 6 100 64] [38400 64 384 1]
	// [2 2 3 100 64] [38400 192 64 384 1]
	// [2 100 384] [38400 384 1]
	// attention: merge heads: strides [38400 384 64 1]: heads of 64 elements do not follow one another, so that no view merges them
}

// What a device would run for a step of decoding.
func ExampleChooseDecode() {
	p := attention.DecodeProblem{Problem: attention.Problem{Batch: 4, NumHeads: 8, NumKVHeads: 2, SeqQ: 1, SeqKV: 4096, HeadDim: 64, DType: dtype.Float16}}
	plan, err := attention.ChooseDecode(&plainDevice, p, attention.Options{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(plan.Kernels())
	// Output: [attention_decode.f16]
}

// A sequence's bad length shows in the state, in words.
func ExampleDecodeStatus() {
	d, err := vk.Open(vk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	ctx := context.Background()
	p := attention.DecodeProblem{Problem: attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 64, HeadDim: 8}}
	state, err := d.NewTensor("state", dtype.Int32, p.StateShape()...)
	if err != nil {
		log.Fatal(err)
	}
	defer state.Close()
	if err := state.Zero(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(attention.DecodeStatus(ctx, state, p))
	// Output: <nil>
}
