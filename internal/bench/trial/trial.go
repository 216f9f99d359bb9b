// Package trial draws random problems of every kernel, over all that the library
// accepts, and checks each on a device against the float64 reference of its package:
// what a fixed table of cases did not think of.
//
//	Kernel   a row of All: draws problems of one kernel
//	Problem  one of them: JSON that says all of it, and how it is checked
//	Runner   runs the calls of a problem, amid poison, and counts the modules that ran
//	Run      checks many problems on all cores, repeats and shrinks those that fail
//
// Problem n of a seed is the same in every run and on every device that draws from the
// same Space. Each is computed at least twice, and the bits compared, with NaN in
// outputs, workspaces, scratch memory, shared memory and registers before the call.
package trial

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// A Problem is one problem of one kernel, with its data. It is a struct of plain exported fields
// that encoding/json writes and reads, and everything follows from them. One of them is the seed
// of the inputs.
type Problem interface {
	// String says what it is in a line.
	String() string
	// Supports returns nil if a kernel on the device computes the problem on its path, and
	// otherwise the reason, which wraps vk.ErrUnsupported.
	Supports(caps *vk.Caps) error
	// Check computes the problem on the device, all of its passes, twice, and returns
	// the first thing that is wrong, or nil.
	Check(ctx context.Context, r *Runner) error
	// Smaller returns problems that are a step simpler, the boldest step first: a
	// feature less, half a size, a plain layout, plain values. Shrinking a failure
	// takes the first that fails, too.
	Smaller() []Problem
}

// A Kernel is one that problems are drawn for.
type Kernel struct {
	Name   string
	Weight int            // the share of its problems, relative to other kernels' weights
	New    func() Problem // an empty one, a pointer that JSON is read into
	// Draw draws a problem. What a pipeline is compiled for (path, formats, features,
	// head_dim, tile sizes) comes from family, which is the same for some problems one
	// after the other, all else from rng: compiling takes longer than computing.
	Draw func(family, rng *rand.Rand, s Space) Problem
}

// A Space is what problems are drawn from.
type Space struct {
	Impls  []string      // paths, "auto" among them; nil: all that a kernel has
	DTypes []dtype.DType // nil: all
	// Soft is for software drivers, which compile matrix kernels for seconds and compute
	// at 1 GFLOP/s: narrow heads, small tiles, small sizes.
	Soft bool
	// Work bounds the float64 operations of the references of an average problem. One problem
	// in eight may take eight times as many. Larger problems are compared on a sample.
	Work float64
}

// Impl draws one of a kernel's paths that the Space has; false: it has none of them.
func (s Space) Impl(rng *rand.Rand, all ...string) (string, bool) { return draw(rng, all, s.Impls) }

// DType draws one of a kernel's formats that the Space has; false: it has none of them.
func (s Space) DType(rng *rand.Rand, all ...dtype.DType) (dtype.DType, bool) {
	return draw(rng, all, s.DTypes)
}

// draw draws one of all that is also in some; nil is everything.
func draw[T comparable](rng *rand.Rand, all, some []T) (x T, ok bool) {
	var list []T
	for _, x := range all {
		for _, y := range some {
			if x == y {
				list = append(list, x)
			}
		}
	}
	if some == nil {
		list = all
	}
	if len(list) == 0 {
		return x, false
	}
	return list[rng.IntN(len(list))], true
}

// Size draws a size from 1 to most: near an edge of a tile (a multiple of 8 to 256, one
// or two beside it) more often than not, else any, small ones more often.
func Size(rng *rand.Rand, most int) int {
	n := 0
	switch rng.IntN(8) {
	case 0:
		n = 1 + rng.IntN(4)
	case 1, 2, 3, 4:
		tile := 8 << rng.IntN(6)
		n = tile*(1+rng.IntN(4)) + rng.IntN(5) - 2
	default:
		n = 1 + int(float64(most)*rng.Float64()*rng.Float64())
	}
	return max(1, min(n, most))
}

// All lists the kernels.
func All() []Kernel {
	return []Kernel{
		attentionKernel(), callKernel("decode", 3, drawDecode), callKernel("append", 2, drawAppend), callKernel("step", 2, drawStep),
		gemmKernel(), gemmGroupKernel(), callKernel("mlp", 2, drawMLP), callKernel("grouped", 3, drawGrouped),
		callKernel("mixture", 2, drawMixture), callKernel("gmm", 1, drawGMM), callKernel("norm", 2, drawNorm), callKernel("optim", 1, drawOptim),
	}
}

// Find returns the Kernel of a name.
func Find(name string) (Kernel, error) {
	for _, k := range All() {
		if k.Name == name {
			return k, nil
		}
	}
	return Kernel{}, fmt.Errorf("trial: no kernel %q", name)
}
