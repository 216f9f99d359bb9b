package bench

import "github.com/flashvk/flashvk/vk/kit"

// A Pass is what is computed of a kernel. The zero value is Forward.
type Pass uint8

const (
	Forward  Pass = iota
	Backward      // the gradients, from what a forward pass left
	Both          // one after the other
)

// Kit is the pass as packages of kernels name it; of both passes the second, which is the one
// that may need a workspace.
func (p Pass) Kit() kit.Pass {
	if p == Forward {
		return kit.Forward
	}
	return kit.Backward
}

// suffix returns what stands behind the name of a kernel in results.
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
