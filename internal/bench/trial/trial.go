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

	"github.com/flashvk/flashvk/internal/call"
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
	Draw func(family, rng *rand.Rand, s call.Space) Problem
}

// All lists the kernels.
func All() (list []Kernel) {
	for _, k := range call.All() {
		list = append(list, described(k))
	}
	return list
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
