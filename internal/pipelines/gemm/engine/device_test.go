package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/cover"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/gemmtest"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// onDevice runs engine.Multiply for the suite.
type onDevice struct {
	d   *vk.Device
	opt engine.Options
}

// Device returns the device.
func (f onDevice) Device() *vk.Device { return f.d }

// Multiply runs one product.
func (f onDevice) Multiply(c *vk.Cmd, t engine.Tensors, p engine.Problem) error {
	return engine.Multiply(c, t, p, f.opt)
}

// formats calls f as a subtest for every operand format that a path takes on the
// device.
func formats(t *testing.T, d *vk.Device, impl engine.Impl, f func(t *testing.T, format dtype.DType)) {
	ran := false
	for _, format := range dtype.All() {
		p := engine.Problem{M: 1, N: 1, K: 1, DType: format, Out: format}
		if engine.Supports(d.Caps(), impl, p) != nil {
			continue
		}
		ran = true
		t.Run(format.String(), func(t *testing.T) { f(t, format) })
	}
	if !ran {
		vktest.Require(t, impl.String(), engine.Supports(d.Caps(), impl, engine.Problem{M: 1, N: 1, K: 1, DType: dtype.Float16, Out: dtype.Float16}))
	}
}

// TestMultiply runs the suite on every path of the device.
func TestMultiply(t *testing.T) {
	for _, impl := range engine.Impls() {
		t.Run(impl.String(), func(t *testing.T) {
			d := vktest.Open(t)
			formats(t, d, impl, func(t *testing.T, format dtype.DType) {
				cases := gemmtest.Cases(format)
				switch { // float16 has what the format does not change
				case format == dtype.Float16:
				case impl == engine.CoopMat && !vktest.Thorough(d):
					cases = every(21, 0, cases)
				case d.Caps().Type == vk.CPU:
					cases = every(7, 0, cases)
				}
				cases = representative(d, cases)
				gemmtest.Test(t, cases, onDevice{d, engine.Options{Impl: impl}})
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

// representative returns the cases for the device: where lavapipe compiles a kernel for nearly
// each, those in which every two of a kernel's choices meet.
func representative(d *vk.Device, cases []*gemmtest.Case) []*gemmtest.Case {
	if vktest.Thorough(d) {
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
		fmt.Sprintf("coopmat s2x2 t1x2 k%d loadahead1 g3", 2*k),
		fmt.Sprintf("coopmat s2x1 t2x2 k%d g4", k),
		fmt.Sprintf("coopmat s1x1 t3x1 k%d align g1", 3*k),
		fmt.Sprintf("coopmat s1x2 t2x3 k%d g1", k), // C leaves in strips of two and one matrices
		fmt.Sprintf("coopmat s1x2 t1x1 k%d g2 splits2 rows16", k),
		fmt.Sprintf("coopmat s2x1 t1x3 k%d g8 splits3", k),
		"scalar 16x32 t4x8 k8 g1",
		"scalar 64x64 t8x16 k16 g8 splits2",
		fmt.Sprintf("coopmat s2x2 t1x%d k%d align packb g3", panel, 4*k),
		fmt.Sprintf("coopmat s1x2 t%dx2 k%d loadahead1 packb g1", panel/2, 4*k),
	} {
		t.Run(text, func(t *testing.T) {
			config, err := engine.ParseConfig(text)
			require.NoError(t, err)
			formats(t, d, config.Impl, func(t *testing.T, format dtype.DType) {
				step := 5 // all of them take the reference minutes
				switch {
				case !vktest.Thorough(d) && config.Impl == engine.CoopMat:
					step = 62
				case d.Caps().Type == vk.CPU:
					step = 31
				}
				if config.PackB && format == dtype.Float32 {
					t.Skip("float32 operands have no fragments")
				}
				if format == dtype.Float32 && config.Impl == engine.CoopMat && i%4 != 2 && !vktest.Thorough(d) {
					t.Skip("kernels on parts are compiled for longest: these configurations have several tiles and slabs of one matrix and two")
				}
				// Rows that are no whole products are for one product.
				all := slices.DeleteFunc(gemmtest.Cases(format), func(c *gemmtest.Case) bool {
					return c.Batches() > 1 && config.Rows > 0
				})
				// Other cases for each configuration and format.
				cases := every(step, 7*i+3*int(format), all)
				gemmtest.Test(t, cases, onDevice{d, engine.Options{Config: &config}})
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
	config, err := engine.ParseConfig(fmt.Sprintf("coopmat s2x2 t1x%d k%d packb g3", tiles, 4*k))
	require.NoError(t, err)
	formats(t, d, engine.CoopMat, func(t *testing.T, format dtype.DType) {
		p := engine.Problem{M: 37, N: 45, DType: format, Out: format}
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
		gemmtest.Test(t, cases, onDevice{d, engine.Options{Config: &config}})
		shared := config
		for _, shared.Splits = range []int{2, 3} {
			for _, shared.Rows = range []int{0, 16} {
				if shared.Splits == 2 && shared.Rows == 16 && !vktest.Thorough(d) {
					continue
				}
				gemmtest.Test(t, cases, onDevice{d, engine.Options{Config: &shared}})
			}
		}
		p.TransA, p.TransB = false, false
		a, b, dst := random(t, d, p.M, p.K, format), random(t, d, p.K, p.N, format), random(t, d, p.M, p.N, format)
		c, err := d.NewCmd("fragments")
		require.NoError(t, err)
		defer c.Close()
		for _, aligned := range []bool{false, true} {
			s, err := engine.MultiplySteps(c, engine.Tensors{A: a, B: b, C: dst}, p, engine.Options{Config: &config, AlignedB: aligned})
			require.NoError(t, err)
			require.Equal(t, aligned, len(s.Copies) == 0)
			require.Len(t, slices.Concat(s.Copies, s.Product), 2)
		}
	})
}

// TestDirect runs every epilogue where results leave straight from registers, in runs of 16 bytes, and
// some of them in runs of two matrices: whole blocks, and those that end within a run; k also in parts.
func TestDirect(t *testing.T) {
	d := vktest.Open(t)
	for i, text := range []string{fmt.Sprintf("coopmat s1x1 t1x8 k%d packb g2", side(d)), fmt.Sprintf("coopmat s1x2 t2x2 k%d packb g2", 4*side(d))} {
		config, err := engine.ParseConfig(text)
		require.NoError(t, err)
		formats(t, d, engine.CoopMat, func(t *testing.T, format dtype.DType) {
			if format == dtype.Float32 {
				return // no fragments
			}
			var cases []*gemmtest.Case
			for j, act := range problem.Activations() {
				p := engine.Problem{M: 2*side(d) + 3, N: 11*side(d) - 2, K: 21, TransB: j%2 == 0, DType: format, Out: format, Activation: act}
				p.Residual, p.Beta = j%3 == 1, float64(j%2)/2
				if (i+j)%4 == 3 {
					p.Out = dtype.Float32
				} else if i == 0 && p.Activation == engine.SiLUKeep {
					p.Out = dtype.BFloat16
				}
				if vktest.Thorough(d) || (j == 3) == (i == 1) && j > 1 { // lavapipe compiles each for seconds
					cases = append(cases, &gemmtest.Case{Problem: p, Layout: gemmtest.Layout{Pad: (8 - p.N%8) % 8}})
				}
			}
			gemmtest.Test(t, cases, onDevice{d, engine.Options{Config: &config}})
			if i == 1 && !vktest.Thorough(d) {
				return
			}
			parts := config
			parts.Splits, parts.Rows = 2, 16
			deep := *cases[0]
			deep.K = 5 * config.BlockK
			gemmtest.Test(t, []*gemmtest.Case{&deep}, onDevice{d, engine.Options{Config: &parts}})
		})
	}
}

// TestSplits runs products with a long k, in more and fewer parts than there are slabs.
func TestSplits(t *testing.T) {
	d := vktest.Open(t)
	for _, impl := range engine.Impls() {
		formats(t, d, impl, func(t *testing.T, format dtype.DType) {
			config, err := engine.Choose(d.Caps(), engine.Problem{M: 20, N: 20, K: 20, DType: format, Out: format}, engine.Options{Impl: impl})
			require.NoError(t, err)
			for _, config.Splits = range []int{2, 5, 200} {
				t.Run(config.String(), func(t *testing.T) {
					gemmtest.Test(t, gemmtest.Deep(format), onDevice{d, engine.Options{Config: &config}})
				})
			}
		})
	}
}

// TestWorkspace wants a call with memory of Workspace bytes to give what one without
// gives, and to refuse less.
func TestWorkspace(t *testing.T) {
	d := vktest.Open(t)
	config, err := engine.ParseConfig("scalar 32x32 t8x8 k32 g8 splits4")
	require.NoError(t, err)
	c := gemmtest.Deep(dtype.Float32)[0]
	opt := engine.Options{Config: &config}
	bytes, err := engine.Workspace(d.Caps(), c.Problem, opt)
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
	p := engine.Problem{M: 4, N: 6, K: 8}
	tensor := func(format dtype.DType, shape ...int) vk.Tensor { return vktest.Tensor(t, d, format, shape...) }
	a, b, c := tensor(dtype.Float32, 4, 8), tensor(dtype.Float32, 8, 6), tensor(dtype.Float32, 4, 6)
	column := a
	column.Strides = []int{1, 4}
	inner := c
	inner.Strides = []int{3, 1}
	for _, x := range []struct {
		t    engine.Tensors
		p    engine.Problem
		want string
	}{
		{engine.Tensors{A: a, B: b, C: c}, p, ""},
		{engine.Tensors{A: a, B: b, C: c}, engine.Problem{M: 0, N: 6, K: 8}, "gemm: m=0 is not from 1 to"},
		{engine.Tensors{A: a, B: b, C: c}, engine.Problem{M: 4, N: 6, K: 8, Alpha: 1e300}, "gemm: alpha=1e+300 is not a finite float32"},
		{engine.Tensors{A: b, B: a, C: c}, p, "gemm: a has shape [1 8 6]"},
		{engine.Tensors{A: a, C: c}, p, "gemm: b has no buffer"},
		{engine.Tensors{A: a, B: b, C: tensor(dtype.Float16, 4, 6)}, p, "gemm: c is float16, want float32"},
		{engine.Tensors{A: column, B: b, C: c}, p, "gemm: a has strides [0 1 4]: the last axis is not contiguous"},
		{engine.Tensors{A: a, B: b, C: inner}, p, "gemm: c has strides [0 3 1] for shape [1 4 6]: elements of an output may not share memory"},
		{engine.Tensors{A: a, B: b, C: c, Residual: c}, p, "gemm: residual is given, but the problem has none"},
		{engine.Tensors{A: a, B: b, C: c}, engine.Problem{M: 4, N: 6, K: 8, Residual: true}, "gemm: residual has no buffer"},
		{engine.Tensors{A: a, B: b, C: c, Residual: c}, engine.Problem{M: 4, N: 6, K: 8, Residual: true}, ""},
		{engine.Tensors{A: a, B: b, C: c, X: c}, engine.Problem{M: 4, N: 6, K: 8, Activation: engine.TimesDSiLU}, ""},
		{engine.Tensors{A: a, B: b, C: c, X: c}, engine.Problem{M: 4, N: 6, K: 8, Activation: engine.SiLUKeep}, "gemm: x overlaps c"},
		{engine.Tensors{A: a, B: b, C: c, X: c, S: c}, engine.Problem{M: 4, N: 6, K: 8, Activation: engine.TimesDSiLUKeep}, "gemm: s overlaps c"},
		{engine.Tensors{A: a, B: b, C: vk.Tensor{Buffer: a.Buffer, Shape: []int{4, 6}, Strides: []int{6, 1}, Offset: 2}}, p, "gemm: c overlaps a"},
	} {
		cmd, err := d.NewCmd("arguments")
		require.NoError(t, err)
		err = engine.Multiply(cmd, x.t, x.p, engine.Options{})
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
	text := "coopmat s2x2 t2x2 k16 align g2 splits2"
	if !vktest.Thorough(d) {
		text = "coopmat s2x2 t1x1 k16 align g2 splits2" // the same copies, and kernels that are compiled soon
	}
	config, err := engine.ParseConfig(text)
	require.NoError(t, err)
	formats(t, d, engine.CoopMat, func(t *testing.T, format dtype.DType) {
		if format == dtype.Float32 {
			t.Skip("operands are always brought into parts")
		}
		var cases []*gemmtest.Case
		for _, s := range [][3]int{{20, 256, 9}, {256, 17, 8}, {257, 259, 21}} {
			for _, trans := range []bool{false, true} {
				p := engine.Problem{Batch: 2, M: s[0], N: s[1], K: s[2], TransA: trans, TransB: trans, DType: format, Out: format}
				cases = append(cases, &gemmtest.Case{Problem: p, Layout: gemmtest.Layout{Offset: 5, Pad: 3, BatchPad: 1, Broadcast: trans}})
			}
		}
		for _, c := range cases {
			config.Rows = c.M
			// The second time the rows are promised to be aligned, and are not: no copy.
			for _, promised := range []bool{false, true} {
				_, err := gemmtest.Check(c, onDevice{d, engine.Options{Config: &config, AlignedA: promised, AlignedB: promised}})
				require.NoError(t, err, c)
			}
		}
		bytes, err := engine.Workspace(d.Caps(), cases[4].Problem, engine.Options{Config: &config})
		require.NoError(t, err)
		less, err := engine.Workspace(d.Caps(), cases[4].Problem, engine.Options{Config: &config, AlignedB: true})
		require.NoError(t, err)
		require.Equal(t, int64(2*2*21*264+255)&^255, bytes-less)
	})
}
