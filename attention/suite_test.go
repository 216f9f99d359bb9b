package attention_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// lavapipe compiles a kernel for a tenth of a second, and on matrices for seconds, the longer the wider
// its heads and the larger its tiles. Each head_dim, causal mask, alignment and choice of features is
// another kernel. Functions of this file leave cases out for that; a GPU runs all.

// software reports whether the device is lavapipe or the like.
func software(d *vk.Device) bool { return d.Caps().Type == vk.CPU }

// setOf returns the set of cases for the device.
func setOf(d *vk.Device) attntest.Set {
	if software(d) {
		return attntest.Short
	}
	return attntest.Full
}

type cases []*attntest.Case

// suites has the cases by set and pass. All tests of the package share what is expected of them.
var suites = func() (all [2][2]func() cases) {
	for set := range all {
		for pass := range all[set] {
			all[set][pass] = sync.OnceValue(func() cases { return attntest.Cases(attntest.Set(set), kit.Pass(pass)) })
		}
	}
	return all
}()

// suite returns the cases for the device: a software driver gets the short set.
func suite(d *vk.Device, pass kit.Pass) cases { return suites[setOf(d)][pass]() }

// where returns the cases that keep returns true for.
func (list cases) where(keep func(c *attntest.Case) bool) cases {
	return slices.DeleteFunc(slices.Clone(list), func(c *attntest.Case) bool { return !keep(c) })
}

// run runs cases with options as subtests. Where kernels are compiled for long, choose takes some
// of the cases: attntest.StandIns or attntest.KernelStandIns. The test fails if no case is
// supported.
func (list cases) run(t *testing.T, d *vk.Device, o attention.Options, choose func([]*attntest.Case) []*attntest.Case) {
	t.Helper()
	supported := list.where(func(c *attntest.Case) bool { return supports(d, c, o) == nil })
	require.NotEmpty(t, supported, "none of %d cases is supported", len(list))
	if !vktest.Thorough(d) && choose != nil {
		supported = choose(supported)
	}
	for _, c := range supported {
		t.Run(c.Name, func(t *testing.T) { call.Test(t, d, c.On(o), nil, c.Pass()) })
	}
}

// supports returns why a device does not run a case, or a software driver leaves it out.
func supports(d *vk.Device, c *attntest.Case, o attention.Options) error {
	p := c.Problem
	plan, err := attention.Choose(d.Caps(), p, c.Pass(), o)
	if err != nil || !software(d) {
		return err
	}
	most, impl, f32 := 128, plan.Config.Impl, p.DType == dtype.Float32
	given := o.Config != nil || o.BackwardConfig != nil
	if c.Backward {
		most, impl = 40, plan.Backward.Impl
		switch {
		case f32 && impl == attention.CoopMat:
			most = 16
		case f32 && p.Plain():
			most = 24
		case p.DType == dtype.Float16 && p.Plain() && impl == attention.CoopMat2:
			most = 72
		}
	} else if f32 {
		most = 40
	} else if !p.Plain() || impl == attention.CoopMat {
		most = 72
	}
	if !vktest.Thorough(d) && p.Plain() {
		most = map[[2]bool]int{{false, false}: 40, {false, true}: 24, {true, false}: 24, {true, true}: 8}[[2]bool{c.Backward, f32}]
	}
	if err := widerHeads(d, impl, p, most); err != nil {
		return err
	}
	return fewerFeatures(impl, takesAlone(d, given, c.Pass()), p)
}

// widerHeads returns why a problem is left out on a path of software because of its
// head_dim, for which a kernel is compiled too long: on matrices beyond most. The other paths take
// head_dims up to 40, which end within a block of columns and with it, and float16 only the
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

// takesAlone returns the path of software that takes each feature alone: the path whose kernels of
// the pass compile soonest, unless there is time, or the test has chosen its cases for given tiles.
func takesAlone(d *vk.Device, given bool, pass kit.Pass) attention.Impl {
	switch {
	case given || vktest.Thorough(d):
		return attention.CoopMat2
	case pass == kit.Backward:
		return attention.Unfused
	}
	return attention.Scalar
}

// fewerFeatures returns why a problem is left out on a path of software because it has too
// few features: path alone takes each feature by itself, in float16. The other formats have all at
// once, unless there is time: they differ in how an element is loaded, and attntest's TestMistakes
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

func onMatrices(impl attention.Impl) bool {
	return impl == attention.CoopMat2 || impl == attention.CoopMat
}

// pathError returns nil if a path runs on the device at all: for one of the storage types.
func pathError(caps *vk.Caps, impl attention.Impl) error {
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 1, HeadDim: 64}
	var err error
	for _, p.DType = range dtype.All() {
		if err = attention.Supports(caps, p, kit.Forward, attention.Options{Impl: impl}); err == nil {
			return nil
		}
	}
	return err
}

// matrixSize returns how many columns a matrix of float16 has on the device, 16 if there are no matrices.
func matrixSize(d *vk.Device) int {
	if shape, lack := chips.MatrixShape(d.Caps(), dtype.Float16); lack == "" {
		return int(shape.N)
	}
	return 16
}

// heavy returns how many rows of matrices a subgroup of a test's tiles has, how many keys a tile, and
// whether a large kernel has two loops: lavapipe compiles a kernel with all of it for half a minute, so
// unless there is time a test spreads them over its tiles.
func heavy(d *vk.Device) (rows, keys int, both bool) {
	if vktest.Thorough(d) {
		return 2, 16, true
	}
	return 1, matrixSize(d), false
}

// TestForward runs the suite on every path of the device.
func TestForward(t *testing.T) { testPaths(t, kit.Forward) }

// TestBackward is TestForward for gradients.
func TestBackward(t *testing.T) { testPaths(t, kit.Backward) }

// testPaths runs the suite of a pass. Unfused has three to five kernels for each choice of features, the
// same with a causal mask and without; coopmat computes as coopmat2 does: attntest.KernelStandIns.
func testPaths(t *testing.T, pass kit.Pass) {
	for _, impl := range attention.Impls() {
		t.Run(impl.String(), func(t *testing.T) {
			t.Parallel() // lavapipe compiles on one core
			d := vktest.Open(t, vktest.WholeBuffers)
			vktest.Require(t, impl.String(), pathError(d.Caps(), impl))
			choose := attntest.StandIns
			if impl == attention.Unfused || impl == attention.CoopMat {
				choose = attntest.KernelStandIns
			}
			suite(d, pass).run(t, d, attention.Options{Impl: impl}, choose)
		})
	}
}

// drawn checks n drawn calls that a pass runs with options, after the calls of skip families, so
// that each test has draws of its own.
func drawn(t *testing.T, d *vk.Device, pass kit.Pass, impl attention.Impl, n, skip int, set func(a *call.Attention)) {
	t.Helper()
	calls := 0
	require.NoError(t, call.TestDrawn(t, d, "attention", n, call.Space{Impls: []string{impl.String()}, Thorough: vktest.Thorough(d)}, func(c call.Call) {
		a := c.(*call.Attention)
		if calls++; calls <= 2*skip {
			a.HeadDim = 0 // which no device takes
			return
		}
		a.Backward, a.NoLSE, a.DLSE = pass == kit.Backward, false, a.DLSE && pass == kit.Backward
		a.Config, a.BackwardConfig, a.DecodeConfig = nil, nil, nil
		set(a)
		a.Tidy()
	}))
}

// TestConfigs runs drawn calls on configurations that the tuning table does not take on this device.
func TestConfigs(t *testing.T) {
	d := vktest.Open(t, vktest.WholeBuffers)
	rows, _, _ := heavy(d)
	type config = attention.Config
	const m2, m1, scalar = attention.CoopMat2, attention.CoopMat, attention.Scalar
	list := []config{
		// One and several row tiles of a subgroup, keys that wait in registers, one loop and two, matrix
		// layouts that are not known.
		{Impl: m2, Subgroups: 1, RowTiles: 1, BlockN: 16, PeelMask: true},
		{Impl: m2, Subgroups: 2, RowTiles: 2, BlockN: 16, Prefetch: true, PeelMask: true, KeysFirst: true},
		{Impl: m2, Subgroups: 4, RowTiles: rows, BlockN: 16, Prefetch: true},
		{Impl: m2, Subgroups: 2, RowTiles: 1, BlockN: 16, Detour: true},
		{Impl: m1, Subgroups: 2, RowTiles: 2, BlockN: 16, PeelMask: true},
		{Impl: m1, Subgroups: 4, RowTiles: 1, BlockN: 32, Prefetch: true, Detour: true},
		{Impl: m1, Subgroups: 4, RowTiles: 1, BlockN: 32, PeelMask: true, Detour: true},
		{Impl: scalar, Threads: 64, ThreadsX: 8, BlockM: 16, BlockN: 16, Depth: 8, ValueRows: 4},
		{Impl: scalar, Threads: 128, ThreadsX: 16, BlockM: 32, BlockN: 64, Depth: 16, ValueRows: 16},
		{Impl: attention.Unfused, Threads: 64, ThreadsX: 16, BlockM: 16, BlockN: 16, Depth: 16},
		// Keys that are divided among workgroups: in equal and unequal shares, more of them than tiles that
		// a block sees, in rows that see nothing, with subgroups that have no rows.
		{Impl: m2, Subgroups: 2, RowTiles: 1, BlockN: 16, Prefetch: true, PeelMask: true, Splits: 3},
		{Impl: m2, Subgroups: 2, RowTiles: 2, BlockN: 16, Detour: true, Splits: 2},
		{Impl: m1, Subgroups: 2, RowTiles: 1, BlockN: 16, Splits: 5},
		{Impl: m1, Subgroups: 4, RowTiles: 1, BlockN: 32, Prefetch: true, Detour: true, Splits: 2},
		{Impl: scalar, Threads: 64, ThreadsX: 8, BlockM: 16, BlockN: 8, Depth: 16, ValueRows: 4, Splits: 6},
	}
	// Keys that go straight from memory to products: subgroups with rows of their own and subgroups that
	// share keys, more of them than tiles that a row sees, sums that pass through shared memory at once
	// and in parts.
	for _, n := range [][4]int{{2, 1, 16, 1}, {2, 2, 16, 2}, {4, 1, 32, 2}, {4, 1, 16, 4}, {8, 1, 32, 8}, {8, 2, 16, 4}, {1, 1, 64, 1}} {
		c := config{Impl: m2, Subgroups: n[0], RowTiles: n[1], BlockN: n[2], Stripes: n[3]}
		for _, c.Detour = range []bool{false, true} {
			long := software(d) && (c.Subgroups > 2 || c.BlockN > 32) // compiled for minutes; conformance runs four subgroups there
			if !long && (c.Detour || chips.Quads(d.Caps())) {         // otherwise the driver does not keep matrices as NVIDIA's does
				list = append(list, c)
			}
		}
	}
	for i, c := range list {
		t.Run(c.String(), func(t *testing.T) {
			vktest.Require(t, c.Impl.String(), pathError(d.Caps(), c.Impl))
			drawn(t, d, kit.Forward, c.Impl, 2, i, func(a *call.Attention) {
				config := c
				a.Config = &config
			})
		})
	}
	// Problems of few queries on the kernels of Decode.
	for i, c := range []attention.DecodeConfig{
		{Impl: scalar, Rows: 4, Subgroups: 4, Groups: 3}, {Impl: scalar, Rows: 1, Subgroups: 1, Groups: 40}, {Impl: m1, Rows: 16, Subgroups: 4, Groups: 7},
	} {
		t.Run("decode "+c.String(), func(t *testing.T) {
			if shape, _ := chips.MatrixShape(d.Caps(), dtype.Float16); c.Impl == m1 && !chips.Quads(d.Caps()) {
				c.Detour, c.Rows = true, int(shape.M)
			}
			drawn(t, d, kit.Forward, attention.Auto, 2*rows, i, func(a *call.Attention) { a.DecodeConfig = &c })
		})
	}
}

// TestLimits runs every path in several dispatches, as for more batches than the device has workgroups,
// and has a device so small that heads of several groups take turns with their blocks, which larger
// devices do from megabytes on. A dispatch of the unfused path has at least the heads of a group.
func TestLimits(t *testing.T) {
	none := func(*call.Attention) {}
	causal := func(a *call.Attention) { a.Causal, a.SeqQ, a.SeqKV = true, min(a.SeqQ, 48), min(a.SeqKV, 48) }
	type row struct {
		name  string
		axis  int
		limit uint32
		pass  kit.Pass
		impl  attention.Impl
		set   func(a *call.Attention)
	}
	fused := fusedConfigs(matrixSize(vktest.Open(t)))[2]
	list := []row{
		{"splits", 2, 1, kit.Forward, attention.Scalar, func(a *call.Attention) {
			a.Config = &attention.Config{Impl: attention.Scalar, Threads: 64, ThreadsX: 8, BlockM: 16, BlockN: 8, Depth: 16, ValueRows: 4, Splits: 2}
		}},
		{"fused", 2, 1, kit.Backward, fused.Impl, func(a *call.Attention) { a.BackwardConfig, a.SeqKV = &fused, min(a.SeqKV, 72) }},
		{"turns", 0, 3, kit.Backward, attention.CoopMat2, causal},
		{"turns", 0, 3, kit.Backward, attention.CoopMat, causal},
	}
	for _, impl := range attention.Impls() {
		limit, few := uint32(1), none
		if impl == attention.Unfused {
			limit, few = 2, func(a *call.Attention) { a.NumHeads = min(a.NumHeads, 2*a.NumKVHeads) }
		}
		list = append(list, row{"batches", 2, 1, kit.Forward, impl, none}, row{"batches", 2, limit, kit.Backward, impl, few})
	}
	for i, x := range list {
		t.Run(fmt.Sprintf("%s/%v/%v", x.name, x.pass, x.impl), func(t *testing.T) {
			d := vktest.Open(t)
			d.Caps().MaxWorkgroupCount[x.axis] = x.limit
			vktest.Require(t, x.impl.String(), pathError(d.Caps(), x.impl))
			drawn(t, d, x.pass, x.impl, 2, i, x.set)
		})
	}
}
