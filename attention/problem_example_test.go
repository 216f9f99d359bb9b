package attention_test

import (
	"fmt"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
)

// The mask that is drawn in the documentation: two queries, five keys.
func ExampleProblem() {
	p := attention.Problem{
		Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 2, SeqKV: 5, HeadDim: 64,
		DType: dtype.BFloat16, Causal: true,
	}
	fmt.Println(p.Validate())
	fmt.Println(p.Mask().Keys(0))
	fmt.Println(p.Mask().Keys(1))
	fmt.Println(p.Entries(), "entries")
	fmt.Println(p.FLOPs(), "operations,", p.Bytes(), "bytes at least")
	p.Window = attention.Window{On: true, Left: 2, Right: attention.Unlimited}
	fmt.Println(p.Mask().Keys(0))
	fmt.Println(p.Mask().Keys(1))
	p.HeadDim = 60
	fmt.Println(p.Validate())
	// Output:
	// <nil>
	// 0 4
	// 0 5
	// 9 entries
	// 2304 operations, 1800 bytes at least
	// 1 4
	// 2 5
	// attention: head_dim=60 is not a multiple of 8
}
