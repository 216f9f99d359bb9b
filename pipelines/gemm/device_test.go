package gemm_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/chips"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/cover"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/gemmtest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/vk"
)

// onDevice runs gemm.Multiply for the suite.
type onDevice struct {
	d   *vk.Device
	opt gemm.Options
}

// Device returns the device.
func (f onDevice) Device() *vk.Device { return f.d }

// Multiply runs one product.
func (f onDevice) Multiply(c *vk.Cmd, t gemm.Tensors, p gemm.Problem) error {
	opt := f.opt
	opt.Residual, opt.X, opt.S = t.Residual, t.X, t.S
	return gemm.Multiply(c, t.C, t.A, t.B, p, opt)
}

// formats calls f as a subtest for every operand format that a path takes on the
// device.
func formats(t *testing.T, d *vk.Device, impl gemm.Impl, f func(t *testing.T, format dtype.DType)) {
	ran := false
	for _, format := range dtype.All() {
		p := gemm.Problem{M: 1, N: 1, K: 1, DType: format, Out: format}
		if gemm.Supports(d.Caps(), impl, p) != nil {
			continue
		}
		ran = true
		t.Run(format.String(), func(t *testing.T) { f(t, format) })
	}
	if !ran {
		vktest.Require(t, impl.String(), gemm.Supports(d.Caps(), impl, gemm.Problem{M: 1, N: 1, K: 1, DType: dtype.Float16, Out: dtype.Float16}))
	}
}

// TestMultiply runs the suite on every path of the device.
func TestMultiply(t *testing.T) {
	for _, impl := range gemm.Impls() {
		t.Run(impl.String(), func(t *testing.T) {
			d := vktest.Open(t)
			formats(t, d, impl, func(t *testing.T, format dtype.DType) {
				cases := gemmtest.Cases(format)
				switch { // float16 has what the format does not change
				case format == dtype.Float16:
				case impl == gemm.CoopMat && !vktest.Thorough(d):
					cases = every(21, 0, cases)
				case d.Caps().Type == vk.CPU:
					cases = every(7, 0, cases)
				}
				cases = representative(d, impl, cases)
				gemmtest.Test(t, cases, onDevice{d, gemm.Options{Impl: impl}})
			})
		})
	}
}

// side returns that of a matrix, 16 if there are none.
func side(d *vk.Device) int {
	if shape, lack := chips.MatrixShape(d.Caps(), dtype.Float16); lack == "" {
		return int(shape.N)
	}
	return 16
}

// representative returns the cases for a path of the device: where lavapipe compiles for
// seconds, those in which every two of a kernel's choices meet.
func representative(d *vk.Device, impl gemm.Impl, cases []*gemmtest.Case) []*gemmtest.Case {
	if impl != gemm.CoopMat || vktest.Thorough(d) {
		return cases
	}
	return cover.Pairs(cases, func(c *gemmtest.Case) []any {
		aligned := func(shape []int) bool {
			pad := c.Layout.Pad
			return c.Layout.Offset%8 == 0 && (pad < 0 || (shape[len(shape)-1]+pad)%8 == 0)
		}
		return []any{
			c.TransA, c.TransB, aligned(c.AShape()), aligned(c.BShape()), aligned(c.CShape()),
			c.Activation.String(), c.Out.String(), c.Residual, c.Beta != 0,
		}
	}, func(*gemmtest.Case) []any { return nil })
}

// every returns one of n cases, from the first on that i counts to: lavapipe compiles a
// kernel for nearly each, for half a second and more.
func every(n, i int, cases []*gemmtest.Case) []*gemmtest.Case {
	var some []*gemmtest.Case
	for i %= n; i < len(cases); i += n {
		some = append(some, cases[i])
	}
	return some
}

// TestConfigs runs the suite on configurations that the tuning table does not take on
// this device: grids and tiles of other shapes, slabs that wait in registers or in a
// second buffer, and blocks whose workgroups share k.
func TestConfigs(t *testing.T) {
	d := vktest.Open(t)
	k, panel := side(d), 4
	if !vktest.Thorough(d) {
		panel = 2 // as TestFragments
	}
	for i, text := range []string{
		"coopmat s1x2 t2x1 k16 g2",
		fmt.Sprintf("coopmat s2x2 t1x2 k%d fence1 g3", 2*k),
		fmt.Sprintf("coopmat s2x1 t2x2 k%d g4", k),
		fmt.Sprintf("coopmat s1x1 t3x1 k%d pack g1", 3*k),
		fmt.Sprintf("coopmat s1x2 t2x3 k%d g1", k), // C leaves in strips of two and one matrices
		fmt.Sprintf("coopmat s1x2 t1x1 k%d g2 splits2 rows16", k),
		fmt.Sprintf("coopmat s2x1 t1x3 k%d g8 splits3", k),
		"scalar 16x32 t4x8 k8 g1",
		"scalar 64x64 t8x16 k16 g8 splits2",
		fmt.Sprintf("coopmat s2x2 t1x%d k%d pack fragments g3", panel, 4*k),
		fmt.Sprintf("coopmat s1x2 t2x2 k%d fence1 fragments g1", 4*k),
	} {
		t.Run(text, func(t *testing.T) {
			config, err := gemm.ParseConfig(text)
			require.NoError(t, err)
			formats(t, d, config.Impl, func(t *testing.T, format dtype.DType) {
				step := 5 // all of them take the reference minutes
				switch {
				case !vktest.Thorough(d) && config.Impl == gemm.CoopMat:
					step = 62
				case d.Caps().Type == vk.CPU:
					step = 31
				}
				if testing.Short() {
					step *= 3
				}
				if config.Fragments && format == dtype.Float32 {
					t.Skip("float32 operands have no fragments")
				}
				if format == dtype.Float32 && config.Impl == gemm.CoopMat && i != 0 && i%4 != 2 && !vktest.Thorough(d) {
					t.Skip("kernels on parts are compiled for longest: these configurations have several tiles and slabs of one matrix and two")
				}
				// Fragments are for one product, and so are rows that are no whole ones.
				all := slices.DeleteFunc(gemmtest.Cases(format), func(c *gemmtest.Case) bool {
					return c.Batches() > 1 && (config.Fragments || config.Rows > 0)
				})
				// Other cases for each configuration and format.
				cases := every(step, 7*i+3*int(format), all)
				gemmtest.Test(t, cases, onDevice{d, gemm.Options{Config: &config}})
			})
		})
	}
}

// TestFragments copies op(B) of all transposes into fragments, with less than a slab of k, whole
// slabs, and some and a part, and columns that do not fill a panel; k also in parts, for all rows
// and for the last ones. The copy is of the steps that come first, unless b may be what kernels
// before make.
func TestFragments(t *testing.T) {
	d := vktest.Open(t)
	k := side(d)
	tiles := 4
	if !vktest.Thorough(d) {
		tiles = 2 // as TestPadB: compiled in a fifth of the time, and columns do not fill a panel either
	}
	config, err := gemm.ParseConfig(fmt.Sprintf("coopmat s2x2 t1x%d k%d fragments g3", tiles, 4*k))
	require.NoError(t, err)
	formats(t, d, gemm.CoopMat, func(t *testing.T, format dtype.DType) {
		p := gemm.Problem{M: 37, N: 45, DType: format, Out: format}
		if format == dtype.Float32 {
			p.K = 1
			require.ErrorContains(t, config.Feasible(d.Caps(), p), "float32 operands have no fragments")
			return
		}
		var cases []*gemmtest.Case
		for i, depth := range []int{k + 1, 4 * k, 11*k + 3} {
			p.K = depth
			for _, p.TransA = range []bool{false, true} {
				for _, p.TransB = range []bool{false, true} {
					cases = append(cases, &gemmtest.Case{Problem: p, Layout: gemmtest.Layout{Pad: (k - depth%k) % k}}, // aligned
						&gemmtest.Case{Problem: p, Layout: gemmtest.Layout{Offset: i, Pad: i}})
				}
			}
		}
		if !vktest.Thorough(d) {
			cases = every(5, 0, cases) // aligned and not, all transposes but two
		}
		gemmtest.Test(t, cases, onDevice{d, gemm.Options{Config: &config}})
		shared := config
		for _, shared.Splits = range []int{2, 3} {
			for _, shared.Rows = range []int{0, 16} {
				if shared.Splits == 2 && shared.Rows == 16 && !vktest.Thorough(d) {
					continue
				}
				gemmtest.Test(t, cases, onDevice{d, gemm.Options{Config: &shared}})
			}
		}
		p.TransA, p.TransB = false, false
		a, b, dst := random(t, d, p.M, p.K, format), random(t, d, p.K, p.N, format), random(t, d, p.M, p.N, format)
		c, err := d.NewCmd("fragments")
		require.NoError(t, err)
		defer c.Close()
		for _, aligned := range []bool{false, true} {
			s, err := gemm.MultiplySteps(c, dst, a, b, p, gemm.Options{Config: &config, AlignedB: aligned})
			require.NoError(t, err)
			require.Equal(t, aligned, len(s.Copies) == 0)
			require.Len(t, slices.Concat(s.Copies, s.Product), 2)
		}
	})
}

// TestSplits runs products with a long k, in more and fewer parts than there are slabs.
func TestSplits(t *testing.T) {
	d := vktest.Open(t)
	for _, impl := range gemm.Impls() {
		formats(t, d, impl, func(t *testing.T, format dtype.DType) {
			config, err := gemm.Choose(d.Caps(), gemm.Problem{M: 20, N: 20, K: 20, DType: format, Out: format}, gemm.Options{Impl: impl})
			require.NoError(t, err)
			for _, config.Splits = range []int{2, 5, 200} {
				t.Run(config.String(), func(t *testing.T) {
					gemmtest.Test(t, gemmtest.Deep(format), onDevice{d, gemm.Options{Config: &config}})
				})
			}
		})
	}
}

// TestWorkspace wants a call with memory of Workspace bytes to give what one without
// gives, and to refuse less.
func TestWorkspace(t *testing.T) {
	d := vktest.Open(t)
	config, err := gemm.ParseConfig("scalar 32x32 t8x8 k32 g8 splits4")
	require.NoError(t, err)
	c := gemmtest.Deep(dtype.Float32)[0]
	opt := gemm.Options{Config: &config}
	bytes, err := gemm.Workspace(d.Caps(), c.Problem, opt)
	require.NoError(t, err)
	require.Equal(t, int64(4*4*c.M*24+255)&^255, bytes)
	for _, less := range []int64{0, 256} {
		opt.Workspace, err = d.NewBuffer("workspace", bytes-less)
		require.NoError(t, err)
		defer opt.Workspace.Close()
		_, err = gemmtest.Check(c, onDevice{d, opt})
		if less == 0 {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "gemm: workspace has")
		}
	}
}

// TestArguments wants an error that names the tensor that does not fit.
func TestArguments(t *testing.T) {
	d := vktest.Open(t)
	p := gemm.Problem{M: 4, N: 6, K: 8}
	tensor := func(format dtype.DType, shape ...int) vk.Tensor {
		x, err := d.NewTensor("x", format, shape...)
		require.NoError(t, err)
		t.Cleanup(x.Close)
		return x
	}
	a, b, c := tensor(dtype.Float32, 4, 8), tensor(dtype.Float32, 8, 6), tensor(dtype.Float32, 4, 6)
	column := a
	column.Strides = []int{1, 4}
	inner := c
	inner.Strides = []int{3, 1}
	for _, x := range []struct {
		c, a, b vk.Tensor
		opt     gemm.Options
		p       gemm.Problem
		want    string
	}{
		{c, a, b, gemm.Options{}, p, ""},
		{c, a, b, gemm.Options{}, gemm.Problem{M: 0, N: 6, K: 8}, "gemm: m=0 is not from 1 to"},
		{c, a, b, gemm.Options{}, gemm.Problem{M: 4, N: 6, K: 8, Alpha: 1e300}, "gemm: alpha=1e+300 is not a finite float32"},
		{c, b, a, gemm.Options{}, p, "gemm: a has shape [1 8 6]"},
		{c, a, vk.Tensor{}, gemm.Options{}, p, "gemm: b has no buffer"},
		{tensor(dtype.Float16, 4, 6), a, b, gemm.Options{}, p, "gemm: c is float16, want float32"},
		{c, column, b, gemm.Options{}, p, "gemm: a has strides [0 1 4]: the last axis is not contiguous"},
		{inner, a, b, gemm.Options{}, p, "gemm: c has strides [0 3 1] for shape [1 4 6]: elements of an output may not share memory"},
		{c, a, b, gemm.Options{Residual: c}, p, "gemm: residual is given, but the problem has none"},
		{c, a, b, gemm.Options{}, gemm.Problem{M: 4, N: 6, K: 8, Residual: true}, "gemm: residual has no buffer"},
		{c, a, b, gemm.Options{Residual: c}, gemm.Problem{M: 4, N: 6, K: 8, Residual: true}, ""},
		{c, a, b, gemm.Options{X: c}, gemm.Problem{M: 4, N: 6, K: 8, Activation: gemm.TimesDSiLU}, ""},
		{c, a, b, gemm.Options{X: c}, gemm.Problem{M: 4, N: 6, K: 8, Activation: gemm.SiLUKeep}, "gemm: x overlaps c"},
		{c, a, b, gemm.Options{X: c, S: c}, gemm.Problem{M: 4, N: 6, K: 8, Activation: gemm.TimesDSiLUKeep}, "gemm: s overlaps c"},
		{vk.Tensor{Buffer: a.Buffer, Shape: []int{4, 6}, Strides: []int{6, 1}, Offset: 2}, a, b, gemm.Options{}, p, "gemm: c overlaps a"},
	} {
		cmd, err := d.NewCmd("arguments")
		require.NoError(t, err)
		err = gemm.Multiply(cmd, x.c, x.a, x.b, x.p, x.opt)
		cmd.Close()
		if x.want == "" {
			require.NoError(t, err)
			continue
		}
		require.Error(t, err, x.want)
		require.True(t, strings.HasPrefix(err.Error(), x.want), "%v, want %s", err, x.want)
	}
}

// TestPack runs products whose operands are copied first: one, the other, both, and one
// that all products of a batch share. K of the last product is divided.
func TestPack(t *testing.T) {
	d := vktest.Open(t)
	text := "coopmat s2x2 t2x2 k16 pack g2 splits2"
	if !vktest.Thorough(d) {
		text = "coopmat s2x2 t1x1 k16 pack g2 splits2" // the same copies, and kernels that are compiled soon
	}
	config, err := gemm.ParseConfig(text)
	require.NoError(t, err)
	formats(t, d, gemm.CoopMat, func(t *testing.T, format dtype.DType) {
		if format == dtype.Float32 {
			t.Skip("operands are always brought into parts")
		}
		var cases []*gemmtest.Case
		for _, s := range [][3]int{{20, 256, 9}, {256, 17, 8}, {257, 259, 21}} {
			for _, trans := range []bool{false, true} {
				p := gemm.Problem{Batch: 2, M: s[0], N: s[1], K: s[2], TransA: trans, TransB: trans, DType: format, Out: format}
				cases = append(cases, &gemmtest.Case{Problem: p, Layout: gemmtest.Layout{Offset: 5, Pad: 3, BatchPad: 1, Broadcast: trans}})
			}
		}
		for _, c := range cases {
			config.Rows = c.M
			// The second time the rows are promised to be aligned, and are not: no copy.
			for _, promised := range []bool{false, true} {
				_, err := gemmtest.Check(c, onDevice{d, gemm.Options{Config: &config, AlignedA: promised, AlignedB: promised}})
				require.NoError(t, err, c)
			}
		}
		bytes, err := gemm.Workspace(d.Caps(), cases[4].Problem, gemm.Options{Config: &config})
		require.NoError(t, err)
		less, err := gemm.Workspace(d.Caps(), cases[4].Problem, gemm.Options{Config: &config, AlignedB: true})
		require.NoError(t, err)
		require.Equal(t, int64(2*2*21*264+255)&^255, bytes-less)
	})
}
