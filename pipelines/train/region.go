package train

import (
	"cmp"
	"slices"
)

// A region is the rows of a node, counted by its first axis, and the elements of a row that a view
// has.
type region struct{ rows, cols runs }

// regionOf returns the region of a view of a node.
func (t *Tape) regionOf(v *Value) region {
	whole := v.node.whole()
	row := whole.cols.size()
	size := v.view.NumElements()
	if at := v.view.Offset; v.view.Contiguous() && at%row == 0 && size%row == 0 {
		return region{run(at/row, (at+size)/row), whole.cols}
	}
	first, col := v.view.Offset/row, v.view.Offset%row
	r := region{run(first, first+1), run(col, col+1)}
	for i, n := range slices.Backward(v.view.Shape) {
		if stride := v.view.Strides[i]; stride >= row {
			r.rows = r.rows.repeated(n, stride/row)
		} else {
			r.cols = r.cols.repeated(n, stride)
		}
	}
	if r.cols.end() > row || r.rows.size()*r.cols.size() != size {
		t.failf("%s has a view of shape %v and strides %v that is no rows and columns: it has no gradient",
			v.Name(), v.view.Shape, v.view.Strides)
	}
	return r
}

// whole returns the region of all elements.
func (n *node) whole() region {
	return region{run(0, n.shape[0]), run(0, max(elements(n.shape)/n.shape[0], 1))}
}

func (r region) equal(x region) bool { return r.rows.equal(x.rows) && r.cols.equal(x.cols) }

// meets reports whether an element of x is in one of the regions.
func meets(list []region, x region) bool {
	return slices.ContainsFunc(list, func(r region) bool {
		return r.rows.meets(x.rows) && r.cols.meets(x.cols)
	})
}

// with adds a region. Regions of the same rows or of the same columns become one.
func with(list []region, x region) []region {
	for i, r := range list {
		switch {
		case r.cols.equal(x.cols):
			r.rows = r.rows.and(x.rows)
		case r.rows.equal(x.rows):
			r.cols = r.cols.and(x.cols)
		default:
			continue
		}
		return with(slices.Delete(slices.Clone(list), i, i+1), r)
	}
	return append(slices.Clone(list), x)
}

// runs are the numbers of list, each run from a first one to just before another, in order, and the
// same again count times, each a period later than the one before: parts of each of many tasks are few
// runs. With a count of 1 there is no period.
type runs struct {
	list          [][2]int
	period, count int
}

// run returns the numbers from first to end-1.
func run(first, end int) runs { return runs{[][2]int{{first, end}}, 0, 1} }

// size returns how many numbers there are.
func (r runs) size() int { return sizeOf(r.list) * r.count }

// end returns the number after the last.
func (r runs) end() int { return (r.count-1)*r.period + r.list[len(r.list)-1][1] }

// repeated returns the runs n times, each stride after the one before.
func (r runs) repeated(n, stride int) runs {
	switch {
	case n == 1:
		return r
	case r.count == 1 && len(r.list) == 1 && r.size() == stride:
		return run(r.list[0][0], r.list[0][0]+n*stride)
	case r.count == 1 && r.end() <= stride:
		return runs{r.list, stride, n}
	}
	r = r.spread()
	return runs{runs{r.list, stride, n}.spread().list, 0, 1}
}

// spread returns the same numbers with a count of 1.
func (r runs) spread() runs {
	var list [][2]int
	for i := range r.count {
		for _, x := range r.list {
			list = append(list, [2]int{x[0] + i*r.period, x[1] + i*r.period})
		}
	}
	return runs{merged(list), 0, 1}
}

// alike returns r and x with the same period, so that lists are all that is left to compare.
func (r runs) alike(x runs) (_, _ runs) {
	all := func(r, x runs) bool { // r is all numbers of the periods of x
		return r.count == 1 && len(r.list) == 1 && r.list[0] == [2]int{0, x.period * x.count}
	}
	switch {
	case r.period == x.period && r.count == x.count:
		return r, x
	case all(r, x):
		return runs{[][2]int{{0, x.period}}, x.period, x.count}, x
	case all(x, r):
		return r, runs{[][2]int{{0, r.period}}, r.period, r.count}
	}
	return r.spread(), x.spread()
}

// and returns the numbers of both.
func (r runs) and(x runs) runs {
	r, x = r.alike(x)
	r.list = merged(slices.Concat(r.list, x.list))
	if r.count > 1 && sizeOf(r.list) == r.period {
		return run(0, r.period*r.count)
	}
	return r
}

// meets reports whether both have a number.
func (r runs) meets(x runs) bool { return r.and(x).size() < r.size()+x.size() }

func (r runs) equal(x runs) bool {
	r, x = r.alike(x)
	return slices.Equal(r.list, x.list)
}

// merged returns runs in order, those that meet as one.
func merged(runs [][2]int) (list [][2]int) {
	slices.SortFunc(runs, func(a, b [2]int) int { return cmp.Compare(a[0], b[0]) })
	for _, x := range runs {
		if n := len(list); n > 0 && x[0] <= list[n-1][1] {
			list[n-1][1] = max(list[n-1][1], x[1])
			continue
		}
		list = append(list, x)
	}
	return list
}

func sizeOf(list [][2]int) (n int) {
	for _, x := range list {
		n += x[1] - x[0]
	}
	return n
}
