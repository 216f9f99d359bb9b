package attention_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// FlashInfer's lists for sequences of 13 and 3 keys in pages of 8, one key of which is new.
func ExamplePageTable() {
	ctx := context.Background()
	d, err := vk.Open(vk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()

	p := attention.DecodeProblem{Problem: attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 1, SeqKV: 16, HeadDim: 8}, PageSize: 8, Pages: 9, NewKeys: 1}
	vector := func(x ...int32) vk.Tensor {
		t := exampleTensor(d, dtype.Int32, 0, len(x))
		if err := t.UploadInts(ctx, x); err != nil {
			log.Fatal(err)
		}
		return t
	}
	t := attention.PageTableTensors{
		Indptr: vector(0, 2, 3), Indices: vector(7, 4, 1), LastPageLen: vector(5, 3),
		BlockTable: exampleTensor(d, dtype.Int32, 0, p.BlockTableShape()...), SeqLens: vector(0, 0), State: vector(0),
	}
	for _, x := range []vk.Tensor{t.Indptr, t.Indices, t.LastPageLen, t.BlockTable, t.SeqLens, t.State} {
		defer x.Close()
	}
	c, err := d.NewCmd("tables")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	_ = attention.PageTable(c, t, p) // Append and Decode of all layers follow
	if err := c.Submit(ctx); err != nil {
		log.Fatal(err)
	}
	for _, x := range []vk.Tensor{t.BlockTable, t.SeqLens} {
		raw, list := make([]byte, 4*x.NumElements()), make([]int32, x.NumElements())
		if err := x.DownloadRaw(ctx, raw); err != nil {
			log.Fatal(err)
		}
		if _, err := binary.Decode(raw, binary.LittleEndian, list); err != nil {
			log.Fatal(err)
		}
		fmt.Println(list)
	}
	// Output:
	// [7 4 1 -1]
	// [12 2]
}
