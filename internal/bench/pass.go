package bench

import "github.com/flashvk/flashvk/vk/kit"

// A Pass says what of a kernel is computed. The zero value is Forward.
type Pass uint8

const (
	Forward  Pass = iota
	Backward      // the gradients, from what a forward pass left
	Both          // one after the other
)

// Kit returns the pass of package kit. For both passes it is the backward pass, which may need a
// workspace.
func (p Pass) Kit() kit.Pass {
	if p == Forward {
		return kit.Forward
	}
	return kit.Backward
}

// suffix returns the ending of the names of kernels in results.
func (p Pass) suffix() string {
	switch p {
	case Backward:
		return "_bwd"
	case Both:
		return "_fwd_bwd"
	}
	return "_fwd"
}

// String names the pass in words.
func (p Pass) String() string {
	switch p {
	case Backward:
		return "backward"
	case Both:
		return "forward and backward"
	}
	return "forward"
}
