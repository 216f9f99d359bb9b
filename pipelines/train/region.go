package train

import (
	"fmt"
	"math/big"
	"math/bits"
	"slices"
)

// A region is the rows of a node, counted by its first axis, and the elements of a row that a view
// has: bit i of each is set where the view has number i.
type region struct{ rows, cols *big.Int }

// regionOf returns the region of a view of a node. Views of other nodes with the same sizes have the same one: of many
// layers one is computed.
func (t *Tape) regionOf(v *Value) region {
	key := fmt.Sprint(v.node.row(), v.view.Shape, v.view.Strides, v.view.Offset)
	r, ok := t.regions[key]
	if !ok {
		r = t.newRegion(v)
		t.regions[key] = r
	}
	return r
}

func (t *Tape) newRegion(v *Value) region {
	row, size := v.node.row(), v.view.NumElements()
	if at := v.view.Offset; v.view.Contiguous() && at%row == 0 && size%row == 0 {
		return region{span(at/row, (at+size)/row), span(0, row)}
	}
	first, col := v.view.Offset/row, v.view.Offset%row
	r := region{span(first, first+1), span(col, col+1)}
	for i, n := range slices.Backward(v.view.Shape) {
		if stride := v.view.Strides[i]; stride >= row {
			r.rows = repeat(r.rows, n, stride/row)
		} else {
			r.cols = repeat(r.cols, n, stride)
		}
	}
	if r.cols.BitLen() > row || count(r.rows)*count(r.cols) != size {
		t.failf("%s has a view of shape %v and strides %v that is no rows and columns: it has no gradient",
			v.Name(), v.view.Shape, v.view.Strides)
	}
	return r
}

// row returns the elements of a row.
func (n *node) row() int { return max(elements(n.shape)/n.shape[0], 1) }

// whole returns the region of all elements.
func (t *Tape) whole(n *node) region { return t.regionOf(newValue(n)) }

func (r region) equal(x region) bool { return r.rows.Cmp(x.rows) == 0 && r.cols.Cmp(x.cols) == 0 }

// meets reports whether an element of x is in one of the regions.
func meets(list []region, x region) bool {
	both := func(a, b *big.Int) bool { return new(big.Int).And(a, b).Sign() != 0 }
	return slices.ContainsFunc(list, func(r region) bool { return both(r.rows, x.rows) && both(r.cols, x.cols) })
}

// with adds a region. Regions of the same rows or of the same columns become one.
func with(list []region, x region) []region {
	for i, r := range list {
		switch {
		case r.cols.Cmp(x.cols) == 0:
			r.rows = new(big.Int).Or(r.rows, x.rows)
		case r.rows.Cmp(x.rows) == 0:
			r.cols = new(big.Int).Or(r.cols, x.cols)
		default:
			continue
		}
		return with(slices.Delete(slices.Clone(list), i, i+1), r)
	}
	return append(slices.Clone(list), x)
}

// span returns the numbers from first to end-1.
func span(first, end int) *big.Int {
	x := new(big.Int).Lsh(big.NewInt(1), uint(end-first))
	x.Sub(x, big.NewInt(1))
	return x.Lsh(x, uint(first))
}

// repeat returns the numbers n times, each stride after the one before.
func repeat(x *big.Int, n, stride int) *big.Int {
	all := new(big.Int)
	for ; n > 0; n /= 2 { // x has as many copies as the bit of n says, all those that come before it
		if n%2 == 1 {
			all.Or(all.Lsh(all, uint(stride)), x)
		}
		x = new(big.Int).Or(x, new(big.Int).Lsh(x, uint(stride)))
		stride *= 2
	}
	return all
}

// count returns how many numbers there are.
func count(x *big.Int) (n int) {
	for _, w := range x.Bits() {
		n += bits.OnesCount(uint(w))
	}
	return n
}
