package attention

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/vk"
)

// SplitHeads returns the view (batch, heads, seq, dim) of a tensor (batch, seq, heads*dim), which
// is the output of a projection.
func SplitHeads(t vk.Tensor, heads int) (vk.Tensor, error) {
	if len(t.Shape) != 3 || heads < 1 || t.Shape[2]%heads != 0 {
		return vk.Tensor{}, fmt.Errorf("attention: split heads: shape %v, want (batch, seq, n) with n a multiple of heads=%d", t.Shape, heads)
	}
	dim, s := t.Shape[2]/heads, t.Strides
	t.Shape, t.Strides = []int{t.Shape[0], heads, t.Shape[1], dim}, []int{s[0], dim * s[2], s[1], s[2]}
	return t, nil
}

// MergeHeads undoes SplitHeads: it returns the view (batch, seq, heads*dim) of a tensor (batch,
// heads, seq, dim). The heads must follow one another in memory.
func MergeHeads(t vk.Tensor) (vk.Tensor, error) {
	if len(t.Shape) != 4 {
		return vk.Tensor{}, fmt.Errorf("attention: merge heads: shape %v, want (batch, heads, seq, dim)", t.Shape)
	}
	n, s := t.Shape, t.Strides
	step, ok := joined(t, 1, 3)
	if !ok {
		return vk.Tensor{}, fmt.Errorf("attention: merge heads: strides %v: heads of %d elements do not follow one another, so that no view merges them", s, n[3])
	}
	t.Shape, t.Strides = []int{n[0], n[2], n[1] * n[3]}, []int{s[0], s[2], step}
	return t, nil
}

// GroupHeads returns the view (batch, kv_heads, heads/kv_heads, seq, dim) of a tensor (batch,
// heads, seq, dim): the query heads of each key head.
func GroupHeads(t vk.Tensor, kvHeads int) (vk.Tensor, error) {
	if len(t.Shape) != 4 || kvHeads < 1 || t.Shape[1]%kvHeads != 0 {
		return vk.Tensor{}, fmt.Errorf("attention: group heads: shape %v, want (batch, heads, seq, dim) with heads a multiple of kv_heads=%d", t.Shape, kvHeads)
	}
	group := t.Shape[1] / kvHeads
	t.Shape, t.Strides = slices.Insert(slices.Clone(t.Shape), 2, group), slices.Insert(slices.Clone(t.Strides), 1, group*t.Strides[1])
	t.Shape[1] = kvHeads
	return t, nil
}

// UngroupHeads undoes GroupHeads. The groups must follow one another in memory.
func UngroupHeads(t vk.Tensor) (vk.Tensor, error) {
	if len(t.Shape) != 5 {
		return vk.Tensor{}, fmt.Errorf("attention: ungroup heads: shape %v, want (batch, kv_heads, group, seq, dim)", t.Shape)
	}
	n, s := t.Shape, t.Strides
	step, ok := joined(t, 1, 2)
	if !ok {
		return vk.Tensor{}, fmt.Errorf("attention: ungroup heads: strides %v: groups of %d heads do not follow one another, so that no view ungroups them", s, n[2])
	}
	t.Shape, t.Strides = []int{n[0], n[1] * n[2], n[3], n[4]}, []int{s[0], step, s[3], s[4]}
	return t, nil
}

// joined merges two axes of a tensor: it returns the stride of the merged axis, and whether the
// parts of the outer axis follow one another, so that a view can merge them.
func joined(t vk.Tensor, outer, inner int) (stride int, ok bool) {
	if stride = t.Strides[inner]; t.Shape[inner] == 1 {
		stride = t.Strides[outer]
	}
	return stride, t.Shape[outer] <= 1 || t.Strides[outer] == t.Shape[inner]*stride
}
