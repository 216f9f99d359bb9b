package call

import "math/rand/v2"

// A Kernel is a kernel whose calls are described here, with what draws and proves them.
type Kernel struct {
	Name   string // of its random problems, as in norm:{"Rows":3}
	Weight int    // the share of its random problems, relative to other kernels' weights
	New    func() Call
	// Draw draws a call; nil: the Space has none. What a pipeline is compiled for (path, formats,
	// features, tile sizes) comes from family, which is the same for some calls one after the other,
	// all else from rng: compiling takes longer than computing.
	Draw func(family, rng *rand.Rand, s Space) Call
	// Cases are calls that run every module. tests/conformance checks them on each device.
	Cases []Fixed
	// Gradients are small calls in float32. tests/gradients compares their gradients with finite
	// differences. Backward is the function that computes them, "" for none.
	Gradients []Call
	Backward  string
	Contract  Contract
}

// A Fixed is a call in any format on some paths.
type Fixed struct {
	Name      string
	Functions string   // that record it: package.Function, separated by spaces
	Paths     []string // Impl of the call; none: the kernel has one
	// Problem is the call's JSON without braces and data, with words of tests/conformance: $dtype for
	// the format of tensors, $half for that or float16 instead of float32, $impl for the path, $side
	// for the columns of the device's matrices, $2side and $4side for more, $split for a configuration
	// of attention.Forward in which workgroups divide keys.
	Problem string
	Halves  bool // the kernel has no float32
	// Own says that float32 has kernels of its own on matrices, not only the same source in
	// another format.
	Own bool
}

// A Contract has a valid problem and the functions of a package that keeps the contract of package
// kit. Backward is nil for a kernel whose gradients are calls of itself. More are the other functions
// that record into a Cmd. Without a Problem there is no such package.
type Contract struct {
	Problem, Forward, Backward, Choose, Supports, Workspace any

	More map[string]any
}

// All lists the kernels.
func All() []Kernel {
	return []Kernel{
		kernelAttention(), kernelDecode(), kernelAppend(), kernelStep(), kernelGemm(), kernelGemmGroup(),
		kernelMLP(), kernelGrouped(), kernelMixture(), kernelGMM(), kernelNorm(), kernelOptim(),
	}
}
