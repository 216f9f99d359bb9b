package engine_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// on replaces $1, $2, … in words of a configuration by multiples of the side of the device's matrices,
// and returns the path too.
func on(d *vk.Device, config string) (impl, words string) {
	side := 16
	if shape, lack := chips.MatrixShape(d.Caps(), dtype.Float16); lack == "" {
		side = int(shape.N)
	}
	for n := range 12 {
		config = strings.ReplaceAll(config, fmt.Sprintf("$%d", n), fmt.Sprint(n*side))
	}
	if impl, _, ok := strings.Cut(config, " "); ok {
		return impl, config
	}
	return config, ""
}

// run checks the calls that the device takes: n of them where a driver compiles each for seconds, other
// ones in each row; some more on other devices.
func run[C call.Call](t *testing.T, d *vk.Device, impl string, row, n int, cases []C) {
	t.Helper()
	var last error
	cases = slices.DeleteFunc(cases, func(c C) bool {
		_, err := c.Choose(d.Caps(), kit.Forward)
		if err != nil {
			require.ErrorIs(t, err, vk.ErrUnsupported)
			last = err
		}
		return err != nil
	})
	if len(cases) == 0 && !strings.HasSuffix(t.Name(), "/"+dtype.Float16.String()) {
		t.Skip(last) // a device with matrices may have none of this format
	}
	if len(cases) == 0 {
		vktest.Require(t, impl, last)
	}
	if vktest.Thorough(d) {
		n *= 16
	}
	step := max(1, len(cases)/n)
	for i := row % step; i < len(cases); i += step {
		t.Run(fmt.Sprint(cases[i]), func(t *testing.T) { call.Test(t, d, cases[i], nil, guard.Packed, kit.Forward) })
	}
}

// A list has cases.
type list []*call.Gemm

// add adds a product whose tensors lie as a letter of Data.Layout says.
func (l *list) add(layout string, p engine.Problem, change ...func(g *call.Gemm)) {
	g := &call.Gemm{Problem: p, Data: call.Data{Seed: uint64(len(*l)), Layout: layout}}
	for _, f := range change {
		f(g)
	}
	*l = append(*l, g)
}

// transposes are nn, nt, tn and tt.
var transposes = [][2]bool{{false, false}, {false, true}, {true, false}, {true, true}}

// sizes has, with every transpose, 1, one less and one more than 16, 32 and 64, depths that end within
// a k-tile, within 8 elements, and at them; rows that start anywhere.
func sizes(format dtype.DType) (l list) {
	for i, s := range [][3]int{
		{1, 1, 1}, {1, 40, 24}, {37, 1, 9}, {16, 16, 16}, {15, 17, 8}, {33, 31, 65}, {64, 72, 128}, {65, 63, 100}, {130, 20, 7}, {24, 131, 33},
	} {
		for _, x := range transposes {
			p := engine.Problem{Batch: i % 2, M: s[0], N: s[1], K: s[2], TransA: x[0], TransB: x[1], DType: format, Out: format}
			l.add("t", p)
			l.add("e", p)
		}
	}
	return l
}

// epilogues has every activation with and without residual, alpha and beta, in every output format, in
// aligned rows and others; and batches, which may share A.
func epilogues(format dtype.DType) (l list) {
	for _, out := range dtype.All() {
		for i, act := range problem.Activations() {
			p := engine.Problem{M: 35, N: 22, K: 20, Out: out, Activation: act, TransB: true, DType: format}
			l.add("t", p)
			l.add("e", p)
			p.Residual, p.Beta, p.Alpha = true, -0.75, 1.5
			l.add("e", p)
			p.Batch, p.Residual, p.N = 2, i%2 == 0, 23
			l.add("o", p)
		}
	}
	for _, layout := range []string{"t", "a", "o"} {
		p := engine.Problem{Batch: 3, M: 20, N: 18, K: 30, TransA: layout == "a", DType: format, Out: format}
		l.add(layout, p)
		l.add(layout, p, func(g *call.Gemm) { g.Broadcast = true })
	}
	return l
}

// deep has a k that is worth dividing, and what lies beside the workspace watched.
func deep(format dtype.DType) (l list) {
	for i, act := range problem.Activations() {
		p := engine.Problem{M: 19, N: 21 + i, K: 515, DType: format, Out: format, Activation: act, Batch: i % 2, TransA: i%2 == 0}
		l.add("t", p)
		p.Residual, p.Beta, p.N, p.Out = true, 0.5, 20, dtype.Float32
		l.add("e", p, func(g *call.Gemm) { g.Data.Workspace = true })
	}
	return l
}

// shared has batches whose last products may be shared.
func shared(format dtype.DType) (l list) {
	for i, act := range problem.Activations() {
		p := engine.Problem{Batch: 5, M: 19, N: 21, K: 77, TransA: i%2 == 0, TransB: i%3 == 0, Activation: act, DType: format, Out: format}
		l.add("tao"[i%3:][:1], p, func(g *call.Gemm) { g.Broadcast = i%3 == 2 })
		p.Residual, p.Beta, p.Alpha, p.Out, p.N, p.K = true, -0.5, 1.5, dtype.Float32, 40, 96
		l.add("aot"[i%3:][:1], p, func(g *call.Gemm) { g.Data.Workspace = true })
	}
	return l
}

// packed has less than a k-tile of k, whole ones, and some and a part, and columns that do not fill a
// panel, for a packed op(B), of which b may be a corner.
func packed(format dtype.DType) (l list) {
	for i, k := range []int{9, 17, 32, 64, 91, 179} {
		for _, x := range transposes {
			p := engine.Problem{M: 37, N: 45, K: k, TransA: x[0], TransB: x[1], Activation: engine.SiLU, DType: format, Out: format}
			l.add("e", p)
			l.add("o", p, func(g *call.Gemm) { g.PadK, g.PadN = i%8, 11*(i%3) })
		}
	}
	return l
}

// direct has every epilogue where results leave straight from registers, in runs of 16 bytes: whole
// blocks, and those that end within a run.
func direct(format dtype.DType) (l list) {
	for i, act := range problem.Activations() {
		for j, out := range []dtype.DType{format, dtype.BFloat16, dtype.Float32} {
			p := engine.Problem{M: 19, N: 86, K: 21 + 200*(j%2), TransB: i%2 == 0, DType: format, Out: out, Activation: act, Residual: i%3 == 1, Beta: float64(i%2) / 2}
			l.add("e", p)
		}
	}
	return l
}

// copied has operands that are copied first: one, the other, both, and one that all products share;
// promised to be aligned, which they are not, they are not copied.
func copied(format dtype.DType) (l list) {
	for _, s := range [][3]int{{20, 256, 9}, {256, 17, 8}, {257, 259, 21}} {
		for _, trans := range []bool{false, true} {
			p := engine.Problem{Batch: 2, M: s[0], N: s[1], K: s[2], TransA: trans, TransB: trans, DType: format, Out: format}
			l.add("o", p, func(g *call.Gemm) { g.Broadcast = trans })
			l.add("o", p, func(g *call.Gemm) { g.AlignedA, g.AlignedB = true, true })
		}
	}
	return l
}

// TestProducts runs cases on the paths, and on configurations that the table does not take on this
// device: grids and tiles of other shapes, operands that are loaded ahead, and shared k.
func TestProducts(t *testing.T) {
	for row, x := range []struct {
		config string
		n      int
		cases  []func(dtype.DType) list
	}{
		{"coopmat", 4, []func(dtype.DType) list{sizes, epilogues}},
		{"scalar", 5, []func(dtype.DType) list{sizes, epilogues}},
		{"coopmat s1x2 t2x1 k16 g2", 1, []func(dtype.DType) list{sizes, epilogues}},
		{"coopmat s2x2 t1x2 k$2 loadahead1 g3", 1, []func(dtype.DType) list{sizes, epilogues}},
		{"coopmat s2x1 t2x2 k$1 g4", 1, []func(dtype.DType) list{sizes, epilogues}},
		{"coopmat s1x1 t3x1 k$3 align g1", 1, []func(dtype.DType) list{sizes, epilogues}},
		{"coopmat s1x2 t2x3 k$1 g1", 1, []func(dtype.DType) list{epilogues}}, // C leaves in strips of two and one matrices
		{"coopmat s1x2 t1x1 k$1 g2 splits2 rows16", 1, []func(dtype.DType) list{sizes, deep}},
		{"coopmat s2x1 t1x3 k$1 g8 splits3", 1, []func(dtype.DType) list{deep, shared}},
		{"coopmat s2x1 t1x1 k$1 g8 splits200", 1, []func(dtype.DType) list{deep}},
		{"scalar 16x32 t4x8 k8 g1", 1, []func(dtype.DType) list{sizes, epilogues}},
		{"scalar 64x64 t8x16 k16 g8 splits2", 1, []func(dtype.DType) list{sizes, deep}},
		{"scalar 32x32 t8x8 k32 g8 splits200", 1, []func(dtype.DType) list{deep}},
		{"scalar 16x16 t4x4 k8 g2 splits3 rows76", 1, []func(dtype.DType) list{shared}},
		{"coopmat s1x1 t1x2 k$2 g2 splits3 rows38", 1, []func(dtype.DType) list{shared}},
		{"coopmat s2x1 t1x1 k$1 g1 splits200 rows19", 1, []func(dtype.DType) list{shared}},
		{"coopmat s2x2 t1x2 k$4 align packb g3", 2, []func(dtype.DType) list{packed}},
		{"coopmat s1x2 t1x2 k$4 loadahead1 packb g1", 2, []func(dtype.DType) list{packed, epilogues}},
		{"coopmat s2x2 t1x2 k$4 packb g3 splits3 rows16", 1, []func(dtype.DType) list{packed}},
		{"coopmat s1x1 t1x8 k$1 packb g2", 2, []func(dtype.DType) list{direct}},
		{"coopmat s1x2 t2x2 k$4 packb g2 splits2 rows16", 1, []func(dtype.DType) list{direct}},
		{"coopmat s2x2 t1x1 k16 align g2 splits2", 1, []func(dtype.DType) list{copied}},
	} {
		t.Run(x.config, func(t *testing.T) {
			d := vktest.Open(t)
			impl, config := on(d, x.config)
			for _, format := range dtype.All() {
				t.Run(format.String(), func(t *testing.T) {
					var all list
					for _, cases := range x.cases {
						all = append(all, cases(format)...)
					}
					for _, g := range all {
						g.Impl, g.Config = impl, config
					}
					if format != dtype.Float16 && row%5 > 1 && !vktest.Thorough(d) {
						t.Skip("float16 has what the format does not change")
					}
					run(t, d, impl, 7*row+3*int(format), x.n, all)
				})
			}
		})
	}
}

// TestManyProducts runs more products than a device counts along one axis, some of them shared, and
// refuses more splits than it counts.
func TestManyProducts(t *testing.T) {
	d := vktest.Open(t)
	d.Caps().MaxWorkgroupCount[2] = 6
	for config, want := range map[string]string{
		"splits3 rows70": "", // 14 products in three dispatches, and 2 * 3 workgroups
		"splits6 rows75": "",
		"splits3 rows65": "gemm: scalar: splits3 of 3 products are more than the device's 6 workgroups",
		"splits2":        "gemm: scalar: splits2 of 16 products are more than the device's 6 workgroups",
	} {
		g := &call.Gemm{Problem: engine.Problem{Batch: 16, M: 5, N: 7, K: 40}, Config: "scalar 16x16 t4x4 k8 g2 " + config}
		if want == "" {
			call.Test(t, d, g, nil, guard.Packed, kit.Forward)
			continue
		}
		_, err := g.Choose(d.Caps(), kit.Forward)
		require.ErrorIs(t, err, vk.ErrUnsupported)
		require.ErrorContains(t, err, want)
	}
}

// groups has, with every transpose, products of one element, of one block and of several, without rows,
// columns or k; every activation, with factors that differ from product to product; more products than
// one command writes to the table, of every size up to a few elements; one product; only empty sums.
func groups(format dtype.DType) (l []*call.GemmGroup) {
	add := func(lie call.GemmLie, g call.GemmGroup) {
		g.DType, g.Lie, g.Data = format, lie, call.Data{Seed: uint64(len(l)), Workspace: len(l)%3 == 1}
		l = append(l, &g)
	}
	sizes := []call.GemmProduct{
		{M: 0, N: 20, K: 16}, {M: 1, N: 1, K: 1}, {M: 35, N: 40, K: 16}, {M: 70, N: 37, K: 33}, {M: 12, N: 0, K: 9}, {M: 7, N: 24, K: 0}, {M: 24, N: 9, K: 80}, {M: 40, N: 40, K: 7},
	}
	for i, x := range transposes {
		g := call.GemmGroup{Products: sizes, TransA: x[0], TransB: x[1], Out: format}
		add(call.GemmLie{Pad: -1}, g)
		add(call.GemmLie{Offset: 3 * (i % 2), Pad: i}, g)
	}
	for i, act := range problem.Activations() {
		g := call.GemmGroup{Activation: act, TransB: true, Residual: i%2 == 0, Out: []dtype.DType{format, dtype.Float32}[i%2]}
		for j, x := range sizes {
			x.Alpha, x.Beta = []float64{0, 1.5, -1}[j%3], []float64{0, -0.75}[(i+j)%2]
			g.Products = append(g.Products, x)
		}
		add([]call.GemmLie{{Pad: -1}, {Offset: 5, Pad: 1}}[i/2%2], g)
	}
	many := call.GemmGroup{Out: format}
	for i := range 700 {
		many.Products = append(many.Products, call.GemmProduct{M: i % 4, N: 1 + i%5, K: i % 3})
	}
	add(call.GemmLie{}, many)
	for _, products := range [][]call.GemmProduct{sizes[3:4], {{M: 16, N: 24, K: 48}, {M: 9, N: 7, K: 5}}, {{M: 3, N: 20}, {M: 20, N: 3}}} {
		add(call.GemmLie{}, call.GemmGroup{Products: products, Out: format})
	}
	return l
}

// TestGroups runs groups on the paths, and on configurations that the table does not take.
func TestGroups(t *testing.T) {
	for row, x := range []struct {
		config string
		n      int
	}{{"coopmat", 5}, {"scalar", 5}, {"coopmat s1x2 t2x1 k16 loadahead1 g2", 1}, {"coopmat s2x1 t1x2 k$3 g3", 1}, {"scalar 16x32 t4x8 k8 g1", 1}} {
		t.Run(x.config, func(t *testing.T) {
			d := vktest.Open(t)
			impl, config := on(d, x.config)
			for _, format := range []dtype.DType{dtype.Float16, dtype.BFloat16, dtype.Float32} {
				if format == dtype.Float32 && impl == "coopmat" {
					continue // no kernel
				}
				t.Run(format.String(), func(t *testing.T) {
					all := groups(format)
					for _, g := range all {
						g.Impl, g.Config = impl, config
					}
					run(t, d, impl, 7*row+3*int(format), x.n, all)
				})
			}
		})
	}
}

// vector returns float32 numbers, closed with the test.
func vector(t *testing.T, d *vk.Device, values ...float32) vk.Tensor {
	return vktest.Values(t, d, dtype.Float32, values, len(values))
}

// at returns a contiguous view of x from an element on.
func at(x vk.Tensor, offset int, shape ...int) vk.Tensor {
	v := vk.View(x.Buffer, x.DType, shape...)
	v.Offset = offset
	return v
}

// TestGroupReplay submits two groups with one workspace twice, after their tensors and sizes have
// changed on the host, and with other inputs: the commands keep what was recorded.
func TestGroupReplay(t *testing.T) {
	d := vktest.Open(t)
	ctx := context.Background()
	a, b, c := vector(t, d, make([]float32, 6)...), vector(t, d, 1, 10), vector(t, d, make([]float32, 6)...)
	g := []engine.Problem{{M: 2, N: 2, K: 1}, {M: 2, N: 1, K: 1}}
	tensors := []engine.Tensors{
		{C: at(c, 2, 2, 2), A: at(a, 0, 2, 1), B: at(b, 0, 1, 2)},
		{C: at(c, 0, 2, 1), A: at(a, 4, 2, 1), B: at(b, 1, 1, 1)},
	}
	workspace, err := d.NewBuffer("workspace", engine.GroupWorkspace(g))
	require.NoError(t, err)
	defer workspace.Close()
	cmd, err := d.NewCmd("replay")
	require.NoError(t, err)
	defer cmd.Close()
	require.NoError(t, engine.MultiplyGroup(cmd, tensors[1:], g[1:], engine.Options{Workspace: workspace}))
	require.NoError(t, engine.MultiplyGroup(cmd, tensors, g, engine.Options{Workspace: workspace}))
	tensors[0].C.Offset, g[1].M = 0, 1
	for i := range 2 {
		x := float32(i)
		require.NoError(t, a.Upload(ctx, []float32{1 + x, 2 + x, -1, -1, 3 + x, 4 + x}))
		require.NoError(t, c.Upload(ctx, make([]float32, 6)))
		require.NoError(t, cmd.Submit(ctx))
		got := make([]float32, 6)
		require.NoError(t, c.Download(ctx, got))
		require.Equal(t, []float32{10 * (3 + x), 10 * (4 + x), 1 + x, 10 * (1 + x), 2 + x, 10 * (2 + x)}, got)
	}
}

// refused wants an error that begins with the words, or none.
func refused(t *testing.T, d *vk.Device, want string, record func(c *vk.Cmd) error) {
	t.Helper()
	cmd, err := d.NewCmd("arguments")
	require.NoError(t, err)
	defer cmd.Close()
	if err = record(cmd); want == "" {
		require.NoError(t, err)
		return
	}
	require.Error(t, err, want)
	require.True(t, strings.HasPrefix(err.Error(), want), "%v, want %s", err, want)
}

// TestArguments wants an error that names the tensor that does not fit.
func TestArguments(t *testing.T) {
	d := vktest.Open(t)
	p := engine.Problem{M: 4, N: 6, K: 8}
	with := func(change func(p *engine.Problem)) engine.Problem {
		q := p
		change(&q)
		return q
	}
	residual := with(func(p *engine.Problem) { p.Residual = true })
	tensor := func(format dtype.DType, shape ...int) vk.Tensor { return vktest.Tensor(t, d, format, shape...) }
	a, b, c := tensor(dtype.Float32, 4, 8), tensor(dtype.Float32, 8, 6), tensor(dtype.Float32, 4, 6)
	column, inner := a, c
	column.Strides, inner.Strides = []int{1, 4}, []int{3, 1}
	packB := engine.Config{Impl: engine.Scalar, Threads: 64, ThreadsX: 8, BlockM: 32, BlockN: 32, BlockK: 32, GroupM: 8}
	for _, x := range []struct {
		t    engine.Tensors
		p    engine.Problem
		want string
	}{
		{engine.Tensors{A: a, B: b, C: c}, p, ""},
		{engine.Tensors{A: a, B: b, C: c}, with(func(p *engine.Problem) { p.M = 0 }), "gemm: m=0 is not from 1 to"},
		{engine.Tensors{A: a, B: b, C: c}, with(func(p *engine.Problem) { p.Alpha = 1e300 }), "gemm: alpha=1e+300 is not a finite float32"},
		{engine.Tensors{A: b, B: a, C: c}, p, "gemm: a has shape [1 8 6]"},
		{engine.Tensors{A: a, C: c}, p, "gemm: b has no buffer"},
		{engine.Tensors{A: a, B: b, C: tensor(dtype.Float16, 4, 6)}, p, "gemm: c is float16, want float32"},
		{engine.Tensors{A: column, B: b, C: c}, p, "gemm: a has strides [0 1 4]: the last axis is not contiguous"},
		{engine.Tensors{A: a, B: b, C: inner}, p, "gemm: c has strides [0 3 1] for shape [1 4 6]: elements of an output may not share memory"},
		{engine.Tensors{A: a, B: b, C: c, Residual: c}, p, "gemm: residual is given, but the problem has none"},
		{engine.Tensors{A: a, B: b, C: c}, residual, "gemm: residual has no buffer"},
		{engine.Tensors{A: a, B: b, C: c, Residual: c}, residual, ""},
		{engine.Tensors{A: a, B: b, C: c, X: c}, with(func(p *engine.Problem) { p.Activation = engine.TimesDSiLU }), ""},
		{engine.Tensors{A: a, B: b, C: c, X: c}, with(func(p *engine.Problem) { p.Activation = engine.SiLUKeep }), "gemm: x overlaps c"},
		{engine.Tensors{A: a, B: b, C: c, X: c, S: c}, with(func(p *engine.Problem) { p.Activation = engine.TimesDSiLUKeep }), "gemm: s overlaps c"},
		{engine.Tensors{A: a, B: b, C: vk.Tensor{Buffer: a.Buffer, Shape: []int{4, 6}, Strides: []int{6, 1}, Offset: 2}}, p, "gemm: c overlaps a"},
	} {
		refused(t, d, x.want, func(c *vk.Cmd) error { return engine.Multiply(c, x.t, x.p, engine.Options{}) })
	}
	refused(t, d, "gemm: scalar 32x32 t8x8 k32 g8: a part of op(B) is given", func(cmd *vk.Cmd) error {
		return engine.Multiply(cmd, engine.Tensors{A: a, B: b, C: c}, p, engine.Options{Config: &packB, PadB: true})
	})
}

// TestGroupArguments wants an error that names the product and what does not fit, or none.
func TestGroupArguments(t *testing.T) {
	d := vktest.Open(t)
	tensor := func() vk.Tensor { return vktest.Tensor(t, d, dtype.Float32, 64) }
	a, b, c, other := tensor(), tensor(), tensor(), tensor()
	half := c
	var err error
	half.Buffer, err = c.Buffer.Slice(128, 128)
	require.NoError(t, err)
	columns := func(offset, n int) vk.Tensor { // of a matrix of 8 columns
		v := at(c, offset, 4, n)
		v.Strides[0] = 8
		return v
	}
	type tensors = []engine.Tensors
	for _, x := range []struct {
		want   string
		change func(g []engine.Problem, t tensors)
	}{
		{"", func([]engine.Problem, tensors) {}},
		{"", func(_ []engine.Problem, t tensors) { t[1].A = t[0].A }}, // inputs may be shared
		{"", func(g []engine.Problem, t tensors) { g[1].M, t[1] = 0, engine.Tensors{} }},
		{"", func(g []engine.Problem, t tensors) { g[1].K, t[1].A, t[1].B = 0, vk.Tensor{}, at(other, 0, 1) }},
		{"", func(_ []engine.Problem, t tensors) { t[0].C, t[1].C = columns(5, 3), columns(3, 2) }},
		{"c of product 0 of the group overlaps c of product 1: outputs", func(_ []engine.Problem, t tensors) { t[0].C, t[1].C = columns(5, 3), columns(4, 2) }},
		{"c of product 1 of the group overlaps c of product 0", func(_ []engine.Problem, t tensors) { t[0].C, t[1].C = columns(6, 3), columns(9, 2) }}, // across the end of a row
		{"c of product 1 of the group overlaps c of product 0", func(_ []engine.Problem, t tensors) { t[1].C.Offset = 11 }},
		{"b of product 1 of the group overlaps c of product 0", func(_ []engine.Problem, t tensors) { t[1].B, t[0].B = at(c, 2, 5, 2), at(c, 40, 5, 3) }},
		{"c of product 0 of the group overlaps b of product 1", func(_ []engine.Problem, t tensors) { // which is in a slice of the buffer
			t[1].B, t[0].B, t[0].C.Offset = at(half, 0, 5, 2), at(half, 17, 5, 3), 36
		}},
		{"b of product 1 of the group is in buffer", func(_ []engine.Problem, t tensors) { t[1].B = at(other, 0, 5, 2) }},
		{"product 1 of the group: b has no buffer", func(_ []engine.Problem, t tensors) { t[1].B = vk.Tensor{} }},
		{"product 0 of the group: x is given, but the problem has none", func(_ []engine.Problem, t tensors) { t[0].X = at(other, 0, 4, 3) }},
		{"product 1 of the group: n=-1 is not from 0 to", func(g []engine.Problem, _ tensors) { g[1].N = -1 }},
		{"product 0 of the group: beta=NaN is not a finite float32", func(g []engine.Problem, _ tensors) { g[0].Beta = math.NaN() }},
		{"out=int32 is not one of", func(g []engine.Problem, _ tensors) { g[0].Out, g[1].Out = dtype.Int32, dtype.Int32 }},
	} {
		g := []engine.Problem{{M: 4, N: 3, K: 5}, {M: 4, N: 2, K: 5}}
		list := tensors{{C: at(c, 0, 4, 3), A: at(a, 0, 4, 5), B: at(b, 0, 5, 3)}, {C: at(c, 12, 4, 2), A: at(a, 20, 4, 5), B: at(b, 15, 5, 2)}}
		if x.change(g, list); x.want != "" {
			x.want = "gemm: " + x.want
		}
		refused(t, d, x.want, func(c *vk.Cmd) error { return engine.MultiplyGroup(c, list, g, engine.Options{}) })
	}
	// Nothing to do is no error; the table is a tensor, too.
	refused(t, d, "", func(c *vk.Cmd) error { return engine.MultiplyGroup(c, nil, nil, engine.Options{}) })
	one := []engine.Problem{{M: 6, N: 7, K: 2}}
	refused(t, d, "gemm: the group has 1 products, and there are tensors for 0", func(c *vk.Cmd) error { return engine.MultiplyGroup(c, nil, one, engine.Options{}) })
	refused(t, d, "gemm: workspace of the group overlaps b of product 0: outputs need memory of their own", func(cmd *vk.Cmd) error {
		return engine.MultiplyGroup(cmd, tensors{{C: at(c, 0, 6, 7), A: at(a, 40, 6, 2), B: at(a, 0, 2, 7)}}, one, engine.Options{Workspace: a.Buffer})
	})
}
