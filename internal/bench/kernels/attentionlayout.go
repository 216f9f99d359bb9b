package kernels

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/safetensors"
)

// Ordered is Flags of a kernel that takes files whose tensors have their axes in another order.
type Ordered interface {
	// Axes returns the permutation of the axes of a tensor of that rank: axis i of the kernel's
	// tensor is axis Axes[i] in the file. It is its own inverse. Nil: the file has the kernel's
	// order.
	Axes(tensor string, rank int) []int
	// Doubts returns reasons why a file that FromFile accepted may mean another problem, if
	// there are any.
	Doubts(in File) []string
}

// The orders of axes that files of attention may have.
const (
	layoutBHSD = "bhsd"
	layoutBSHD = "bshd" // flash-attn's
)

// swapHeads exchanges the axes of heads and of the sequence.
func swapHeads() []int { return []int{0, 2, 1, 3} }

// Axes implements Ordered. Packed sequences, of three axes, are (total, heads, headdim) in
// both orders.
func (f *attentionFlags) Axes(tensor string, rank int) []int {
	if f.callFlags.given.Order != layoutBSHD || rank != 4 || !slices.Contains([]string{"q", "k", "v", "o", "do", "dq", "dk", "dv"}, tensor) {
		return nil
	}
	return swapHeads()
}

// Doubts implements Ordered.
func (f *attentionFlags) Doubts(in File) (list []string) {
	for _, text := range []string{f.doubtOrder(in), f.doubtCorner(in)} {
		if text != "" {
			list = append(list, text)
		}
	}
	return list
}

// doubtCorner returns a doubt if no flag says to which corner a causal mask is aligned, and
// PyTorch's corner gives another mask.
func (f *attentionFlags) doubtCorner(in File) string {
	p, err := f.read(inOrder{in, f})
	if err != nil || !p.Causal || f.set.Changed("causal-align") || p.SeqQ == p.SeqKV && !p.Varlen.On {
		return ""
	}
	if q, kv := p.CuSeqlens(); p.Varlen.On && slices.Equal(q, kv) {
		return ""
	}
	return fmt.Sprintf("the causal mask of %d queries and %d keys ends in the bottom right corner, as flash-attn has it; is_causal=True of PyTorch's scaled_dot_product_attention is the other one, --causal-align top-left; --causal-align bottom-right says that this is meant",
		p.SeqQ, p.SeqKV)
}

// doubtOrder returns a doubt if no flag says the order of axes, seq_q is below the number of heads,
// and the file is also valid in flash-attn's order.
func (f *attentionFlags) doubtOrder(in File) string {
	q, ok := in.Tensor("q")
	if !ok || f.set.Changed("layout") || len(q.Shape) != 4 || q.Shape[2] >= q.Shape[1] {
		return ""
	}
	other := *f.callFlags
	other.given = call.Copy(other.given).(*attending)
	other.given.Order = layoutBSHD
	swapped := &attentionFlags{&other}
	if _, err := swapped.read(inOrder{in, swapped}); err != nil {
		return ""
	}
	return fmt.Sprintf("q %v has %d heads and sequences of %d: if the axes are (batch, seq, heads, headdim), as flash-attn has them, say --layout bshd; --layout bhsd says that they are not",
		q.Shape, q.Shape[1], q.Shape[2])
}

// InOrder returns the file with its tensors in the shapes that the kernel takes. The data that it
// reads stay in the file's order.
func InOrder(in File, flags Flags) File {
	if o, ok := flags.(Ordered); ok {
		return inOrder{in, o}
	}
	return in
}

// inOrder is a file whose shapes are permuted.
type inOrder struct {
	File
	order Ordered
}

// Tensors implements File.
func (f inOrder) Tensors() []safetensors.Tensor {
	list := slices.Clone(f.File.Tensors())
	for i := range list {
		list[i] = f.permute(list[i])
	}
	return list
}

// Tensor implements File.
func (f inOrder) Tensor(name string) (safetensors.Tensor, bool) {
	t, ok := f.File.Tensor(name)
	return f.permute(t), ok
}

func (f inOrder) permute(t safetensors.Tensor) safetensors.Tensor {
	t.Shape = Permuted(t.Shape, f.order.Axes(t.Name, len(t.Shape)))
	return t
}

// Permuted returns the shape whose axis i is axis axes[i] of shape; shape where axes is nil.
func Permuted(shape, axes []int) []int {
	if axes == nil {
		return shape
	}
	to := make([]int, len(axes))
	for i, a := range axes {
		to[i] = shape[a]
	}
	return to
}
