package engine_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
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

// TestDrawn checks drawn products and groups on the paths, and on configurations that the table and the
// draws do not take on this device: grids and tiles of other shapes, operands that are loaded ahead, and
// shared k.
func TestDrawn(t *testing.T) {
	product := func(change func(g *call.Gemm)) func(c call.Call) {
		return func(c call.Call) { change(c.(*call.Gemm)) }
	}
	batch := product(func(g *call.Gemm) { g.Batch, g.M, g.N, g.K, g.Sample = 5, 19, 21, 77, 0 })
	deep := product(func(g *call.Gemm) { g.M, g.N, g.K = min(g.M, 24), min(g.N, 24), 515 })
	wide := product(func(g *call.Gemm) { g.M, g.N, g.Sample = g.M+256, g.N+256, 0 })
	padded := product(func(g *call.Gemm) { g.PadK, g.PadN = min(g.K-1, g.K%8), min(g.N-1, 11*(g.N%3)) })
	for row, x := range []struct {
		kernel, config string
		n              int
		change         func(c call.Call)
	}{
		{"gemm", "coopmat", 4, nil},
		{"gemm", "scalar", 10, nil},
		{"gemm", "coopmat s1x2 t2x1 k16 g2", 1, nil},
		{"gemm", "coopmat s2x2 t1x2 k$2 loadahead1 g3", 1, nil},
		{"gemm", "coopmat s2x1 t2x2 k$1 g4", 1, nil},
		{"gemm", "coopmat s1x1 t3x1 k$3 align g1", 1, nil},
		{"gemm", "coopmat s1x2 t2x3 k$1 g1", 1, nil}, // C leaves in strips of two and one matrices
		{"gemm", "coopmat s1x2 t1x1 k$1 g2 splits2 rows16", 1, deep},
		{"gemm", "coopmat s2x1 t1x3 k$1 g8 splits3", 1, batch},
		{"gemm", "coopmat s2x1 t1x1 k$1 g8 splits200", 1, deep},
		{"gemm", "scalar 16x32 t4x8 k8 g1", 4, nil},
		{"gemm", "scalar 64x64 t8x16 k16 g8 splits2", 4, nil},
		{"gemm", "scalar 32x32 t8x8 k32 g8 splits200", 4, deep},
		{"gemm", "scalar 16x16 t4x4 k8 g2 splits3 rows76", 4, batch},
		{"gemm", "coopmat s1x1 t1x2 k$2 g2 splits3 rows38", 1, batch},
		{"gemm", "coopmat s2x1 t1x1 k$1 g1 splits200 rows19", 1, batch},
		{"gemm", "coopmat s2x2 t1x2 k$4 align packb g3", 2, padded},
		{"gemm", "coopmat s1x2 t1x2 k$4 loadahead1 packb g1", 2, padded},
		{"gemm", "coopmat s2x2 t1x2 k$4 packb g3 splits3 rows16", 1, deep},
		{"gemm", "coopmat s1x1 t1x8 k$1 packb g2", 2, nil},
		{"gemm", "coopmat s1x2 t2x2 k$4 packb g2 splits2 rows16", 1, deep},
		{"gemm", "coopmat s2x2 t1x1 k16 align g2 splits2", 2, wide}, // operands are copied first
		{"gemm-group", "coopmat", 3, nil},
		{"gemm-group", "scalar", 8, nil},
		{"gemm-group", "coopmat s1x2 t2x1 k16 loadahead1 g2", 1, nil},
		{"gemm-group", "coopmat s2x1 t1x2 k$3 g3", 1, nil},
		{"gemm-group", "scalar 16x32 t4x8 k8 g1", 4, nil},
	} {
		t.Run(x.kernel+" "+x.config, func(t *testing.T) {
			d := vktest.Open(t)
			impl, config := on(d, x.config)
			s := call.Space{Impls: []string{impl}, Thorough: vktest.Thorough(d)}
			if impl == "coopmat" && row%5 > 1 && !vktest.Thorough(d) { // what the format does not change
				s.DTypes = []dtype.DType{dtype.Float16}
			}
			vktest.Require(t, impl, call.TestDrawn(t, d, x.kernel, x.n, s, func(c call.Call) {
				call.Field(c, "config").SetString(config)
				if x.change != nil {
					x.change(c)
				}
			}))
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
			call.Test(t, d, g, nil, kit.Forward)
			continue
		}
		_, err := g.Host().Choose(d.Caps(), kit.Forward)
		require.ErrorIs(t, err, vk.ErrUnsupported)
		require.ErrorContains(t, err, want)
	}
}

// TestGroups runs more products than one command writes to the table, of every size up to a few
// elements; one product; and only empty sums.
func TestGroups(t *testing.T) {
	d := vktest.Open(t)
	many := make([]call.GemmProduct, 700)
	for i := range many {
		many[i] = call.GemmProduct{M: i % 4, N: 1 + i%5, K: i % 3}
	}
	for _, products := range [][]call.GemmProduct{many, {{M: 70, N: 37, K: 33}}, {{M: 3, N: 20}, {M: 20, N: 3}}} {
		for _, impl := range engine.Impls() {
			g := &call.GemmGroup{Products: products, DType: dtype.Float16, Out: dtype.Float16, Impl: impl.String()}
			_, err := g.Host().Choose(d.Caps(), kit.Forward)
			vktest.Require(t, impl.String(), err)
			call.Test(t, d, g, nil, kit.Forward)
		}
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
// changed on the host, and with other inputs: the commands keep the recorded tensors and sizes.
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

// TestGroupArguments wants an error that names the product and the argument that does not fit, or
// none.
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
