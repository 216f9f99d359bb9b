package attention_test

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// lavapipe compiles a kernel for a tenth of a second, and on matrices for seconds, the
// longer the wider its heads and the larger its tiles. Each head_dim, causal mask,
// alignment and choice of features is another kernel. This file says what lavapipe
// leaves out for that; a GPU runs all.

// software reports whether the device is lavapipe or the like.
func software(d *vk.Device) bool { return d.Caps().Type == vk.CPU }

// setOf returns the set of cases for the device.
func setOf(d *vk.Device) attntest.Set {
	if software(d) {
		return attntest.Short
	}
	return attntest.Full
}

// matrixSize returns how many columns a matrix of float16 has on the device, 16 if there
// are no matrices.
func matrixSize(d *vk.Device) int {
	if shape, lack := chips.MatrixShape(d.Caps(), dtype.Float16); lack == "" {
		return int(shape.N)
	}
	return 16
}

func onMatrices(impl attention.Impl) bool {
	return impl == attention.CoopMat2 || impl == attention.CoopMat
}

// fewerFeatures returns why a problem is left out on a path of software because it has too
// few features: path alone takes each feature by itself, in float16. The other formats have all at
// once, unless there is time: they differ in how an element is loaded, and attntest's TestMutations
// needs several at once in float16 alone. Every path takes a key mask beside a causal mask in float32,
// where a kernel was wrong (attntest's hidden-keys).
func fewerFeatures(impl, alone attention.Impl, p attention.Problem) error {
	least := attntest.Several
	switch {
	case p.DType == dtype.Float16 && impl == alone:
		least = 1
	case p.DType == dtype.Float32 && onMatrices(impl), p.DType != dtype.Float16 && alone != attention.CoopMat2:
		least = 6
	case impl == attention.CoopMat && alone != attention.CoopMat2:
		least = 6 // coopmat2 has the others: where layouts are known, as here, the two do the same
	}
	n := len(p.Features())
	hiddenKeys := n == 1 && p.KeyMask && p.Causal && p.DType == dtype.Float32
	if n > 0 && n < least && !hiddenKeys {
		return fmt.Errorf("%v: lavapipe compiles each choice of features: in %v only %d and more at once", impl, p.DType, least)
	}
	return nil
}

// takesAlone returns the path of software that takes each feature alone: the one whose kernels of
// the pass compile soonest, unless there is time, or the test has chosen its cases for tiles that
// are given.
func takesAlone(d *vk.Device, given bool, pass kit.Pass) attention.Impl {
	switch {
	case given || vktest.Thorough(d):
		return attention.CoopMat2
	case pass == kit.Backward:
		return attention.Unfused
	}
	return attention.Scalar
}

// widerHeads returns why a problem is left out on a path of software because of its
// head_dim, for which a kernel is compiled too long: on matrices beyond most. On the other paths
// there are those up to 40, which end within a block of columns and with it, and float16 has the
// largest, unless there is time: formats differ in how an element is loaded, head_dims in the loops
// over elements.
func widerHeads(d *vk.Device, impl attention.Impl, p attention.Problem, most int) error {
	switch dim := max(p.HeadDim, p.ValueHeadDim()); {
	case onMatrices(impl) && dim > most:
		return fmt.Errorf("%v: lavapipe compiles kernels of %v for up to minutes beyond head_dim %d", impl, p.DType, most)
	case !onMatrices(impl) && dim > 40 && (dim < attention.MaxHeadDim || p.DType != dtype.Float16) && !vktest.Thorough(d):
		return fmt.Errorf("%v: beyond head_dim 40 only %d of float16", impl, attention.MaxHeadDim)
	}
	return nil
}

// lightOnSoftware reports whether a case is none that lavapipe compiles for a long time
// on matrices: float32. Tests of what is the same in all formats leave it out there.
func lightOnSoftware(d *vk.Device, c *attntest.Case) bool {
	return !software(d) || c.Problem.DType != dtype.Float32
}

// heavy returns how many rows of matrices a subgroup of a test's tiles has, and whether a kernel
// that is large has two loops: lavapipe compiles what has both for half a minute, so unless there
// is time a test spreads them over its tiles.
func heavy(d *vk.Device) (rows int, both bool) {
	if vktest.Thorough(d) {
		return 2, true
	}
	return 1, false
}

// A filtered suite, as attntest.Suite and attntest.BackwardSuite are.
type filtered[S any] interface {
	Where(func(c *attntest.Case) bool) S
}

// standIns returns the cases of a suite that stand for all in a test of tiles: in software,
// where kernels are compiled for long, attntest.KernelStandIns of those that it supports.
func standIns[S filtered[S]](d *vk.Device, suite S, supports func(attention.Problem) error) S {
	return standInsBy(attntest.KernelStandIns, d, suite, supports)
}

// suiteStandIns returns the cases of a suite that stand for all of it on a path, attntest.StandIns.
// The unfused path has three to five kernels for each choice of features, which are the same with a
// causal mask and without: KernelStandIns.
func suiteStandIns[S filtered[S]](d *vk.Device, impl attention.Impl, suite S, supports func(attention.Problem) error) S {
	if impl == attention.Unfused {
		return standInsBy(attntest.KernelStandIns, d, suite, supports)
	}
	return standInsBy(attntest.StandIns, d, suite, supports)
}

func standInsBy[S filtered[S]](choose func([]*attntest.Case) []*attntest.Case, d *vk.Device, suite S, supports func(attention.Problem) error) S {
	if vktest.Thorough(d) {
		return suite
	}
	var all []*attntest.Case
	suite.Where(func(c *attntest.Case) bool {
		if supports(c.Problem) == nil {
			all = append(all, c)
		}
		return false
	})
	some := choose(all)
	return suite.Where(func(c *attntest.Case) bool { return slices.Contains(some, c) })
}
