package train

import (
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/embed"
	"github.com/flashvk/flashvk/vk"
)

// A gradient is the gradient by a node, as far as the backward pass has come.
type gradient struct {
	v       *Value   // in the shape of the node
	shared  bool     // its memory is the gradient by another node, too
	written []region // the rest is 0
	added   bool     // an op adds to it
}

// A place is where an op writes the gradient by one of its inputs, or adds it to what is there.
type place struct {
	v   *Value // nil: nobody wants it
	add bool
}

// grad returns the gradient by a value, which may be nil; nil if no op has written one.
func grad(v *Value) *Value {
	if v == nil || v.node.gradient == nil {
		return nil
	}
	return v.in(v.node.gradient.v)
}

// in returns the view of another tensor, which has the shape of v's, that v is of its own.
func (v *Value) in(other *Value) *Value {
	t := v.view
	t.DType = other.view.DType
	if other.view.Contiguous() {
		t.Offset += other.view.Offset
		return other.as(t)
	}
	if slices.Equal(t.Shape, v.node.shape) {
		return other
	}
	// A matrix of another row stride: rows and columns keep their meaning.
	cols, stride := v.node.shape[len(v.node.shape)-1], other.view.Strides[len(other.view.Strides)-2]
	t.Strides = slices.Clone(t.Strides)
	for i, s := range t.Strides {
		if s >= cols {
			t.Strides[i] = s / cols * stride
		}
	}
	t.Offset = other.view.Offset + t.Offset/cols*stride + t.Offset%cols
	return other.as(t)
}

// begin makes the memory of the gradient by a node.
func (t *Tape) begin(n *node) {
	g := &node{scope: n.scope, name: "gradient of " + n.name, dtype: n.grad, shape: n.shape}
	if n.weight != nil {
		g.weight = func() vk.Tensor { return t.model.gradient(n.params[0], n.shape) }
		g.gradientOf = n.params
	} else {
		g.memory = t.prog.Tensor(g.scope+g.name, g.dtype, g.shape...)
	}
	n.gradient = &gradient{v: newValue(g)}
}

// wanted reports whether there is a gradient by v, which may be nil.
func (v *Value) wanted() bool { return v != nil && v.node.wanted }

// into returns where an op writes the gradients by some of its inputs, in this order. Parts of one
// tensor that no op writes are 0.
func (t *Tape) into(values ...*Value) []place {
	parts := map[*node][]region{}
	for _, v := range values {
		if v.wanted() {
			parts[v.node] = with(parts[v.node], t.regionOf(v))
		}
	}
	places := make([]place, len(values))
	for i, v := range values {
		if !v.wanted() {
			continue
		}
		t.reach(v.node, parts[v.node])
		g, part := v.node.gradient, t.regionOf(v)
		places[i] = place{v.in(g.v), meets(g.written, part)}
		g.written, g.added = with(g.written, part), g.added || places[i].add
	}
	return places
}

// reach makes the gradient by a node ready to be written in some regions: zeros go before regions
// that leave something out, a copy before an addition to memory that another gradient shares.
func (t *Tape) reach(n *node, parts []region) {
	all := []region{t.whole(n)}
	switch g := n.gradient; {
	case g == nil:
		if n.rows != nil {
			t.reach(n.rows.node, []region{t.regionOf(n.rows)})
		}
		t.begin(n)
		if !slices.EqualFunc(parts, all, region.equal) {
			t.zero(n)
		}
	case g.shared:
		t.begin(n)
		n.gradient.written = all
		t.rowsInto("copy of "+n.gradient.v.node.name, n.gradient.v, g.v, false)
	}
}

// share makes the gradient by a node the tensor v, which is the gradient by another, too.
func (t *Tape) share(from *Value, v *Value) {
	n := from.node
	if !n.wanted {
		return
	}
	if n.gradient != nil || !slices.Equal(from.view.Shape, n.shape) || n.rows != nil {
		p := t.into(from)[0]
		t.rowsInto(p.v.node.name+", more", p.v, v, p.add)
		return
	}
	n.gradient = &gradient{v: v, shared: true, written: []region{t.whole(n)}}
}

// shared notes that the gradient by v is the gradient by another tensor, too.
func shared(v *Value) {
	if v.node.gradient != nil {
		v.node.gradient.shared = true
	}
}

// fresh returns where an op that cannot add writes a gradient. Done appends the addition.
func (t *Tape) fresh(p place) (v *Value, done func()) {
	if p.v == nil || !p.add {
		return p.v, func() {}
	}
	n := *p.v.node
	n.name, n.weight, n.shape = "another "+n.name, nil, p.v.view.Shape
	n.memory = t.prog.Tensor(n.scope+n.name, n.dtype, n.shape...)
	v = newValue(&n)
	return v, func() { t.rowsInto(p.v.node.name+", more", p.v, v, true) }
}

// zero appends 0 for the gradient by n, which runs unless ops write all of it and none adds to it.
func (t *Tape) zero(n *node) {
	g := n.gradient
	t.step("zeros of "+g.v.node.name, nil, []*Value{g.v}, 0, nil, func(c *vk.Cmd, m Call) error {
		if !g.added && slices.EqualFunc(g.written, []region{t.whole(n)}, region.equal) {
			return nil
		}
		x := m.Out[0]
		size := int64(x.DType.Size())
		c.Fill(x.Buffer, int64(x.Offset)*size, int64(x.NumElements())*size&^3, 0)
		return c.Err()
	})
}

// rowsInto appends to = from or, to add, to += from, of as many rows.
func (t *Tape) rowsInto(name string, to, from *Value, add bool) {
	dst, src := t.asMatrix(to), t.asMatrix(from)
	if dst == nil || src == nil {
		return
	}
	p := embed.Problem{Tokens: dst.view.Shape[0], Vocabulary: src.view.Shape[0], Dim: dst.view.Shape[1],
		DType: src.view.DType, Out: dtype.Some(dst.view.DType), Accumulate: add}
	if t.counts[p.Tokens] == nil {
		t.counts[p.Tokens] = t.Input("row numbers", dtype.Int32, p.Tokens)
	}
	t.gather(name, dst, t.counts[p.Tokens], src, p)
}

// asMatrix returns v with its rows, along the last axis, as the rows of a matrix.
func (t *Tape) asMatrix(v *Value) *Value {
	shape := v.view.Shape
	switch {
	case len(shape) == 2:
		return v
	case v.view.Contiguous() && len(shape) > 0:
		last := shape[len(shape)-1]
		return v.Reshape(v.view.NumElements()/last, last)
	case len(shape) == 3 && v.flat() != nil:
		return v.flat()
	}
	t.failf("%s of shape %v and strides %v is no matrix, to which a gradient could be added",
		v.Name(), shape, v.view.Strides)
	return nil
}

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
func count(x *big.Int) int { return strings.Count(x.Text(2), "1") }
