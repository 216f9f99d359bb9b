// Package gemmtest is the test suite of matrix products: the cases, and every check
// that a result must pass. An implementation is a Multiplier of a few lines.
//
// Each tensor is a strided view of a backing slice that holds NaN around and between
// its rows in a first run, and large finite numbers in a second. Check wants, in this
// order: no error; inputs unchanged; nothing written outside C and X; every element
// written; the worst error within ref.Bound; and the same bits in both runs.
package gemmtest

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gemm/problem"
)

// A Case is a problem and where its tensors lie in memory.
type Case struct {
	problem.Problem
	Layout Layout
}

// A Layout says how tensors lie in memory, in elements.
type Layout struct {
	Offset    int  // before the first element
	Pad       int  // after each row
	BatchPad  int  // after each matrix
	Broadcast bool // all products share A: its batch stride is 0
}

// String names the case.
func (c *Case) String() string {
	return fmt.Sprintf("%v offset=%d pad=%d,%d broadcast=%v", c.Problem, c.Layout.Offset, c.Layout.Pad, c.Layout.BatchPad, c.Layout.Broadcast)
}

// padded makes the rows of every tensor start at multiples of 8 elements, whatever the
// sizes.
const padded = -1

// Cases returns the cases for kernels on operands of a format.
//
//	sizes      every transpose: 1, one less and one more than 16, 32 and 64, depths that end
//	           within a slab, within 8 elements, and at them; rows that start anywhere
//	epilogues  every activation with and without residual, alpha and beta, and some of
//	           them in the other output formats
//	layouts    aligned rows with odd lengths, offsets, gaps between rows and batches, shared A
//
// Left out: sizes beyond a few blocks, which benchmarks check by samples.
func Cases(format dtype.DType) []*Case {
	var list []*Case
	add := func(l Layout, p problem.Problem) {
		p.DType = format
		list = append(list, &Case{p, l})
	}
	sizes := [][3]int{
		{1, 1, 1}, {1, 40, 24}, {37, 1, 9}, {16, 16, 16}, {15, 17, 8}, {33, 31, 65}, {64, 72, 128},
		{65, 63, 100}, {130, 20, 7}, {24, 131, 33},
	}
	for _, s := range sizes {
		for _, t := range []string{"nn", "nt", "tn", "tt"} {
			p := problem.Problem{M: s[0], N: s[1], K: s[2], Out: format}
			p.TransA, p.TransB = t[0] == 't', t[1] == 't'
			add(Layout{}, p)
			if s[0] > 1 {
				add(Layout{Pad: padded}, p)
			}
		}
	}
	for _, out := range slices.Compact([]dtype.DType{format, dtype.Float32, dtype.Float16, dtype.BFloat16}) {
		for i, act := range problem.Activations() {
			if out != format && i%2 == 0 {
				continue
			}
			p := problem.Problem{M: 35, N: 22, K: 20, Out: out, Activation: act, TransB: true}
			add(Layout{}, p)
			p.Residual, p.Beta, p.Alpha = true, -0.75, 1.5
			add(Layout{Pad: padded}, p)
			p.Batch, p.Residual, p.N = 2, i%2 == 0, 23
			add(Layout{Offset: 3, Pad: 1, BatchPad: 5}, p)
		}
	}
	p := problem.Problem{Batch: 3, M: 20, N: 18, K: 30, Out: format}
	add(Layout{}, p)
	add(Layout{Offset: 8, Pad: padded, BatchPad: 16}, p)
	add(Layout{Offset: 1, Pad: 2, BatchPad: 7, Broadcast: true}, p)
	p.TransA = true
	add(Layout{Offset: 8, Pad: padded, Broadcast: true}, p)
	return list
}

// Deep returns cases with a k that is worth dividing among workgroups.
func Deep(format dtype.DType) []*Case {
	var list []*Case
	for i, act := range problem.Activations() {
		p := problem.Problem{M: 19, N: 21 + i, K: 515, DType: format, Out: format, Activation: act, Batch: 1 + i%2, TransA: i%2 == 0}
		list = append(list, &Case{p, Layout{}})
		p.Residual, p.Beta, p.N = true, 0.5, 20
		p.Out = dtype.Float32
		list = append(list, &Case{p, Layout{Pad: padded}})
	}
	return list
}
