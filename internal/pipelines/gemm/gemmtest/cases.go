// Package gemmtest has the cases of matrix products, and what package guard should find of each. An
// implementation is a Multiplier of a few lines.
//
// Memory ends with the last element of a tensor, and those of a group lie side by side in it.
package gemmtest

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
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

// A GroupCase is a group and where its tensors lie in memory.
type GroupCase struct {
	problem.Group
	Layout Layout
	// Inputs returns what product i reads; nil: random normal numbers.
	Inputs func(p problem.Problem, i int) ref.Inputs
}

// String names the case.
func (c *GroupCase) String() string {
	return fmt.Sprintf("%v offset=%d pad=%d", c.Group, c.Layout.Offset, c.Layout.Pad)
}

// padded makes the rows of every tensor start at multiples of 8 elements, whatever the
// sizes.
const padded = -1

// Cases returns the cases for kernels on operands of a format.
//
//	sizes      every transpose: 1, one less and one more than 16, 32 and 64, depths that end
//	           within a slab, within 8 elements, and at them; rows that start anywhere
//	epilogues  every activation with and without residual, alpha and beta, in rows that are
//	           aligned and others, and some of them in the other output formats
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
			add(Layout{Pad: padded}, p)
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

// Groups returns the cases of groups for kernels on operands of a format.
//
//	sizes      every transpose: products of one element, of one block and of several; depths
//	           that end within a k-tile and at its end; products without rows, columns, or k
//	epilogues  every activation; factors that differ from product to product, and beta 0
//	           beside another, where C holds no numbers
//	many       more products than one command writes to the table, and of every size up to
//	           a few elements; one product; one whose rows are aligned, of the longest k, and
//	           one whose are not; only empty sums
func Groups(format dtype.DType) []*GroupCase {
	var list []*GroupCase
	add := func(l Layout, g problem.Group) { list = append(list, &GroupCase{Group: g, Layout: l}) }
	sizes := []problem.Product{
		{M: 0, N: 20, K: 16}, {M: 1, N: 1, K: 1}, {M: 35, N: 40, K: 16}, {M: 70, N: 37, K: 33}, {M: 12, N: 0, K: 9},
		{M: 7, N: 24, K: 0}, {M: 24, N: 9, K: 80}, {M: 40, N: 40, K: 7},
	}
	for i, t := range []string{"nn", "nt", "tn", "tt"} {
		g := problem.Group{Products: sizes, TransA: t[0] == 't', TransB: t[1] == 't', DType: format, Out: format}
		add(Layout{Pad: padded}, g)
		add(Layout{Offset: 3 * (i % 2), Pad: i}, g)
	}
	for i, act := range problem.Activations() {
		g := problem.Group{Activation: act, TransB: true, Residual: i%2 == 0, DType: format, Out: []dtype.DType{format, dtype.Float32}[i%2]}
		for j, x := range sizes {
			x.Alpha, x.Beta = []float64{0, 1.5, -1}[j%3], []float64{0, -0.75}[(i+j)%2]
			g.Products = append(g.Products, x)
		}
		add([]Layout{{Pad: padded}, {Offset: 5, Pad: 1}}[i/2%2], g)
	}
	many := problem.Group{DType: format, Out: format}
	for i := range 700 {
		many.Products = append(many.Products, problem.Product{M: i % 4, N: 1 + i%5, K: i % 3})
	}
	add(Layout{}, many)
	add(Layout{}, problem.Group{Products: sizes[3:4], DType: format, Out: format})
	add(Layout{}, problem.Group{Products: []problem.Product{{M: 16, N: 24, K: 48}, {M: 9, N: 7, K: 5}}, DType: format, Out: format})
	add(Layout{}, problem.Group{Products: []problem.Product{{M: 3, N: 20}, {M: 20, N: 3}}, TransA: true, DType: format, Out: format})
	return list
}
