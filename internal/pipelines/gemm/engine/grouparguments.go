package engine

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/vk"
)

// A product is one of a group that has elements, with its tensors.
type product struct {
	p    Problem
	args Args
}

// newGroupArguments checks the tensors of a group, but not whether those of different products
// overlap. It returns the products that have elements, and the extents of all tensors.
func newGroupArguments(tensors []Tensors, problems []Problem) (list []product, extents []extent, err error) {
	if len(tensors) != len(problems) {
		return nil, nil, fmt.Errorf("gemm: the group has %d products, and there are tensors for %d", len(problems), len(tensors))
	}
	first := map[string]extent{} // of each tensor, by name
	for i, t := range tensors {
		p := problems[i]
		if p.Empty() {
			continue
		}
		args, err := newArguments(fmt.Sprintf("gemm: product %d of the group", i), t, p, false)
		if err != nil {
			return nil, nil, err
		}
		for _, x := range []extent{
			{"c", i, args.C, true}, {"a", i, args.A, false}, {"b", i, args.B, false},
			{"residual", i, args.R, false}, {"x", i, args.X, !p.ReadsX()}, {"s", i, args.S, true},
		} {
			if x.IsZero() {
				continue
			}
			if one, ok := first[x.name]; ok && one.Buffer != x.Buffer {
				return nil, nil, fmt.Errorf("gemm: %v of the group is in buffer %q, %v in %q: it must be one buffer for all products", x, x.Buffer.Name(), one, one.Buffer.Name())
			} else if !ok {
				first[x.name] = x
			}
			extents = append(extents, x)
		}
		list = append(list, product{p, args})
	}
	return list, extents, nil
}

// An extent is a tensor of a product, (1, rows, columns).
type extent struct {
	name    string
	product int
	vk.Tensor
	written bool
}

// noProduct is the product of the extent of the workspace.
const noProduct = -1

// String names the tensor in messages.
func (e extent) String() string {
	if e.product == noProduct {
		return e.name
	}
	return fmt.Sprintf("%s of product %d", e.name, e.product)
}

// checkExtents returns an error if a product writes elements that another one reads or
// writes. newArguments has compared those of the same product.
func checkExtents(list []extent) error {
	written := map[*vk.Buffer]int{} // in the order of the list
	for i := range list {
		root, _, _ := list[i].Memory()
		if _, ok := written[root]; list[i].written && !ok {
			written[root] = i
		}
	}
	list = slices.DeleteFunc(list, func(e extent) bool { root, _, _ := e.Memory(); _, ok := written[root]; return !ok })
	slices.SortStableFunc(list, func(a, b extent) int {
		aRoot, aStart, _ := a.Memory()
		bRoot, bStart, _ := b.Memory()
		return cmp.Or(cmp.Compare(written[aRoot], written[bRoot]), cmp.Compare(aStart, bStart))
	})
	for i := range list {
		e := &list[i]
		root, _, end := e.Memory()
		for j := i + 1; j < len(list); j++ {
			f := &list[j]
			if other, start, _ := f.Memory(); other != root || start >= end {
				break
			}
			if e.product != f.product && (e.written || f.written) && !interleaved(&e.Tensor, &f.Tensor) {
				return fmt.Errorf("gemm: %v of the group overlaps %v: outputs need memory of their own", f, e)
			}
		}
	}
	return nil
}

// interleaved reports whether two matrices of a buffer share no element though their ranges meet:
// both are columns of the same longer rows.
func interleaved(t, u *vk.Tensor) bool {
	stride := t.Strides[1]
	if t.Shape[1] == 1 {
		stride = u.Strides[1]
	}
	if t.Buffer != u.Buffer || t.DType != u.DType || stride == 0 || u.Shape[1] > 1 && u.Strides[1] != stride {
		return false
	}
	a, b := t.Offset%stride, u.Offset%stride
	aEnd, bEnd := a+t.Shape[2], b+u.Shape[2]
	return aEnd <= stride && bEnd <= stride && (aEnd <= b || bEnd <= a)
}

// boundGroup returns tensors that hold the buffers of all products, those of the first. Where all
// k are 0, C stands for A and B.
func boundGroup(list []product) (t Args) {
	for i := range list {
		a := &list[i].args
		for _, x := range []struct{ to, from *vk.Tensor }{{&t.C, &a.C}, {&t.A, &a.A}, {&t.B, &a.B}, {&t.R, &a.R}, {&t.X, &a.X}, {&t.S, &a.S}} {
			if x.to.IsZero() {
				*x.to = *x.from
			}
		}
	}
	for _, x := range []*vk.Tensor{&t.A, &t.B} {
		if x.IsZero() {
			*x = t.C
		}
	}
	return t
}
