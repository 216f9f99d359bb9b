package problem_test

import (
	"fmt"

	"github.com/flashvk/flashvk/attention/problem"
	"github.com/flashvk/flashvk/dtype"
)

// The mask that is drawn in the documentation: two queries, five keys.
func ExampleProblem() {
	p := problem.Problem{
		Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 2, SeqKV: 5, HeadDim: 64,
		DType: dtype.BFloat16, Causal: true,
	}
	fmt.Println(p.Validate())
	fmt.Println(p.VisibleKeys(0), p.VisibleKeys(1), p.Entries())
	fmt.Println(p.FLOPs(), "operations,", p.Bytes(), "bytes at least")
	p.CausalAlign = problem.TopLeft
	fmt.Println(p.VisibleKeys(0), p.VisibleKeys(1), p.Entries())
	p.HeadDim = 60
	fmt.Println(p.Validate())
	// Output:
	// <nil>
	// 4 5 9
	// 2304 operations, 1800 bytes at least
	// 1 2 3
	// attention: head_dim=60 is not a multiple of 8
}
