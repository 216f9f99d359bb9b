package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips/chipstest"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestAutoOfCPU wants plain arithmetic of a CPU device that has matrices, unless these are
// asked for.
func TestAutoOfCPU(t *testing.T) {
	caps := chipstest.H200()
	caps.Type = vk.CPU
	for _, format := range dtype.All() {
		p := Problem{M: 512, N: 1365, K: 1100, DType: format, Out: format}
		c, err := Choose(caps, p, Options{})
		require.NoError(t, err)
		require.Equal(t, Scalar, c.Impl)
		c, err = Choose(caps, p, Options{Impl: CoopMat})
		require.NoError(t, err)
		require.Equal(t, CoopMat, c.Impl)
	}
}

// TestChoose wants of problems on a large device the tile, and how k is divided: not
// where blocks fill it; among all workgroups where there are few; and of the rows or
// products that are left after whole rounds, where k is long.
func TestChoose(t *testing.T) {
	for _, x := range []struct {
		p    Problem
		want string
	}{
		{Problem{M: 4096, N: 4096, K: 4096, DType: dtype.BFloat16}, "coopmat s2x2 t3x4 k64 align packb g22 splits4 rows3936"},
		{Problem{M: 512, N: 1365, K: 11000, TransA: true, DType: dtype.BFloat16}, "coopmat s4x2 t4x4 k48 align g8 splits6"},
		{Problem{M: 512, N: 1365, K: 11000, TransB: true, DType: dtype.BFloat16}, "coopmat s4x2 t3x4 k64 align g10 splits4"}, // few rows read the copy of b
		{Problem{M: 18048, N: 1536, K: 512, DType: dtype.BFloat16}, "coopmat s2x2 t4x4 k64 align packb g10"},
		{Problem{M: 11000, N: 512, K: 1365, DType: dtype.BFloat16}, "coopmat s2x2 t3x4 k64 align packb g22"},
		{Problem{M: 11000, N: 1365, K: 512, DType: dtype.BFloat16}, "coopmat s2x2 t3x4 k64 align packb g22"},
		{Problem{M: 5000, N: 512, K: 512, DType: dtype.BFloat16}, "coopmat s2x2 t4x4 k32 align g16"},
		{Problem{M: 512, N: 512, K: 512, DType: dtype.BFloat16}, "coopmat s2x2 t2x2 k32 align g8"},
		{Problem{Batch: 10, M: 512, N: 1365, K: 16000, TransA: true, DType: dtype.BFloat16}, "coopmat s4x2 t4x4 k48 align g8 splits3 rows3072"},
		{Problem{Batch: 10, M: 512, N: 1365, K: 5000, TransA: true, DType: dtype.BFloat16}, "coopmat s4x2 t4x4 k48 align g8 splits3 rows3072"},
		{Problem{Batch: 10, M: 512, N: 1365, K: 1000, TransA: true, DType: dtype.BFloat16}, "coopmat s4x2 t4x4 k48 align g8"}, // sums take longer
		{Problem{Batch: 10, M: 16000, N: 1365, K: 512, DType: dtype.BFloat16}, "coopmat s2x2 t4x4 k64 align packb g10"},
		{Problem{M: 16000, N: 512, K: 13680, TransB: true, DType: dtype.BFloat16}, "coopmat s2x2 t3x4 k64 align packb g22 splits5 rows12672"},
		{Problem{M: 205000, N: 512, K: 1365, TransB: true, DType: dtype.BFloat16}, "coopmat s2x2 t3x4 k64 align packb g22"}, // half a round of 33
		{Problem{M: 11000, N: 512, K: 1365, DType: dtype.Float32}, "coopmat s2x2 t4x4 k16 loadahead1 g16 splits3 rows8448"},
		{Problem{M: 512, N: 1365, K: 11000, DType: dtype.Float32}, "coopmat s2x2 t4x4 k16 loadahead1 g16 splits6"},
		{Problem{M: 11000, N: 32, K: 1365, DType: dtype.Float32}, "scalar 64x64 t8x16 k16 g8 splits3"},
		{Problem{M: 1 << 20, N: 64, K: 1024, DType: dtype.Float32}, "scalar 64x64 t8x16 k16 g8"}, // parts of 4 GiB and more
	} {
		x.p.Out = x.p.DType
		c, err := Choose(chipstest.H200(), x.p, Options{})
		require.NoError(t, err)
		require.Equal(t, x.want, c.String(), x.p)
	}
}

// TestChooseGroup wants of groups on a large device the tile by the blocks of all products,
// without copies.
func TestChooseGroup(t *testing.T) {
	for _, x := range []struct {
		rows []int
		want string
	}{
		{[]int{1024, 4096, 0, 2048, 1500}, "coopmat s4x2 t3x4 k64 g10"},
		{[]int{100, 0, 300}, "coopmat s2x2 t2x2 k32 g8"},
		{nil, "coopmat s2x2 t2x2 k32 g8"},
	} {
		g := Group{DType: dtype.BFloat16, Out: dtype.BFloat16}
		for _, m := range x.rows {
			g.Products = append(g.Products, Product{M: m, N: 1365, K: 512})
		}
		c, err := ChooseGroup(chipstest.H200(), g, GroupOptions{})
		require.NoError(t, err)
		require.Equal(t, x.want, c.String(), x.rows)
		_, err = ChooseGroup(chipstest.H200(), g, GroupOptions{Impl: Scalar})
		require.NoError(t, err)
	}
	for text, want := range map[string]string{
		"coopmat s2x2 t4x4 k32 align g16":   "gemm: coopmat s2x2 t4x4 k32 align g16: a group has no copies and no splits",
		"scalar 64x64 t8x16 k16 g8 splits2": "gemm: scalar 64x64 t8x16 k16 g8 splits2: a group has no copies and no splits",
		"coopmat s2x2 t4x4 k9 g16":          "gemm: coopmat: k9 is not a multiple of the matrix size 16",
	} {
		config, err := ParseConfig(text)
		require.NoError(t, err)
		_, err = ChooseGroup(chipstest.H200(), Group{DType: dtype.Float16, Out: dtype.Float16}, GroupOptions{Config: &config})
		require.ErrorIs(t, err, vk.ErrUnsupported)
		require.ErrorContains(t, err, want)
	}
	floats := Group{Products: []Product{{M: 4096, N: 4096, K: 512}}}
	c, err := ChooseGroup(chipstest.H200(), floats, GroupOptions{})
	require.NoError(t, err)
	require.Equal(t, Scalar, c.Impl)
	for _, opt := range []GroupOptions{{Impl: CoopMat}, {Config: &rows[0].Config}} {
		_, err = ChooseGroup(chipstest.H200(), floats, opt)
		require.ErrorIs(t, err, vk.ErrUnsupported)
	}
}

// TestGroupTable wants each product's first block to follow the last of the one before, and a
// product without k to load the first element of its buffers and no other, which no device
// here would notice.
func TestGroupTable(t *testing.T) {
	config, err := ParseConfig("scalar 32x16 t8x8 k8 g2")
	require.NoError(t, err)
	g := Group{Products: []Product{{M: 33, N: 17, K: 9, Alpha: 3}, {M: 1, N: 100, K: 8}, {M: 5, N: 6, Beta: 2}}}
	var list []product
	for i := range g.Products {
		list = append(list, product{p: g.Problem(i)})
	}
	table, blocks := groupTable(chipstest.H200(), list, &config)
	require.Equal(t, 12, blocks)
	require.Equal(t, []groupRow{
		{Params: Params{M: 33, N: 17, K: 9, SplitK: 16, Splits: 1, Tiles: 4, Alpha: 3}, First: 0, ASize: 33, BSize: 17},
		{Params: Params{M: 1, N: 100, K: 8, SplitK: 8, Splits: 1, Tiles: 7, Alpha: 1}, First: 4, ASize: 1, BSize: 100},
		{Params: Params{M: 5, N: 6, K: 1, SplitK: 0, Splits: 1, Tiles: 1, Alpha: 1, Beta: 2}, First: 11, ASize: 1, BSize: 1},
	}, table)
	require.Equal(t, groupRowBytes, binary.Size(table[0]))
	require.EqualValues(t, 2*groupRowBytes, GroupWorkspace(Group{Products: []Product{{M: 1, N: 1}, {M: 1}, {M: 2, N: 2}}}))
}

// TestTable wants every row to be feasible on a device that has it all, and a device
// without matrices, 16-bit storage or much shared memory to say so or take a smaller row.
func TestTable(t *testing.T) {
	p := Problem{M: 4096, N: 4096, K: 4096, DType: dtype.Float16, Out: dtype.Float16}
	for _, row := range rows {
		q := p
		if row.Formats == table.OfFloat32 {
			q.DType, q.Out = dtype.Float32, dtype.Float32
		}
		caps := chipstest.H200()
		if row.Family == "lavapipe" {
			caps.SubgroupSize = 8
			for i := range caps.CoopMatShapes {
				s := &caps.CoopMatShapes[i]
				s.M, s.N, s.K = 8, 8, 8
			}
		}
		require.NoError(t, row.Config.Feasible(caps, q), row.Config)
		c, err := ParseConfig(row.Config.String())
		require.NoError(t, err)
		require.Equal(t, row.Config, c)
	}
	none := chipstest.H200()
	none.CoopMat = false
	c, err := Choose(none, p, Options{})
	require.NoError(t, err)
	require.Equal(t, Scalar, c.Impl)
	_, err = Choose(none, p, Options{Impl: CoopMat})
	require.ErrorIs(t, err, vk.ErrUnsupported)
	require.ErrorContains(t, err, "gemm: coopmat: the device has no VK_KHR_cooperative_matrix")
	small := chipstest.H200()
	small.MaxSharedMemoryBytes = 16384
	c, err = Choose(small, p, Options{Impl: CoopMat})
	require.NoError(t, err)
	require.Equal(t, 2, c.TilesM)
	none.Storage16 = false
	_, err = Choose(none, p, Options{})
	require.True(t, errors.Is(err, vk.ErrUnsupported))
}

// TestParseConfig wants errors that name the word.
func TestParseConfig(t *testing.T) {
	for _, text := range []string{"coopmat s2x2 t1x2 k32 loadahead2 align g3 splits4 rows64", "coopmat s2x2 t1x4 k32 align packb g3", "scalar 32x64 t4x8 k8 g1 splits2"} {
		c, err := ParseConfig(text)
		require.NoError(t, err)
		require.Equal(t, text, c.String())
	}
	for text, want := range map[string]string{
		"":                 `gemm: configuration "" does not begin with a path`,
		"tensor s1x1":      `gemm: configuration "tensor s1x1" does not begin with a path`,
		"coopmat s2x2 u3":  `"u3" is not one of its choices`,
		"coopmat s2x2x":    `"s2x2x" is not one of its choices`,
		"scalar 8x8 align": `"align" is not one of its choices`,
	} {
		_, err := ParseConfig(text)
		require.ErrorContains(t, err, want)
	}
}

// TestTuned wants a user's row of a product to decide about products like it, with splits of their
// own, and about nothing else; and the tables of other kernels to have rows of their own.
func TestTuned(t *testing.T) {
	caps := chipstest.H200()
	p := Problem{M: 4096, N: 4096, K: 4096, DType: dtype.BFloat16, Out: dtype.BFloat16}
	mine, err := ParseConfig("coopmat s2x2 t2x2 k32 align g4 splits3 rows2048")
	require.NoError(t, err)
	tuning := kit.NewTuning(caps)
	require.NoError(t, tuning.Add("gemm", kit.Forward, p, mine, 1))
	var file bytes.Buffer
	require.NoError(t, tuning.Write(&file))
	tuning, err = kit.LoadTuning(&file, caps)
	require.NoError(t, err)
	change := func(f func(p *Problem)) Problem {
		q := p
		f(&q)
		return q
	}
	tiles := func(c Config) Config {
		c.Splits, c.Rows = 0, 0
		return c
	}
	for _, x := range []struct {
		p            Problem
		tuned, exact bool
	}{
		{p, true, true},
		{change(func(p *Problem) { p.M = 8192 }), true, false},
		{change(func(p *Problem) { p.Alpha, p.Beta = 2, 3 }), true, false},
		{change(func(p *Problem) { p.K = 256 }), false, false},
		{change(func(p *Problem) { p.M = 1000 }), false, false},
		{change(func(p *Problem) { p.TransB = true }), false, false},
		{change(func(p *Problem) { p.DType, p.Out = dtype.Float16, dtype.Float16 }), false, false},
		{change(func(p *Problem) { p.Activation = SiLU }), false, false},
	} {
		usual, err := Choose(caps, x.p, Options{})
		require.NoError(t, err)
		got, origin, err := ChooseOrigin(caps, x.p, Options{Tuning: tuning})
		require.NoError(t, err)
		require.Equal(t, table.Origin{Tuned: x.tuned}, origin, x.p)
		switch {
		case x.exact:
			require.Equal(t, mine, got)
		case x.tuned:
			require.Equal(t, tiles(mine), tiles(got), x.p)
			require.Equal(t, mine.withSplits(caps, &x.p, mine.costs(caps, &x.p)), got)
		default:
			require.Equal(t, usual, got, x.p)
		}
		require.NoError(t, got.Feasible(caps, x.p))
	}
	beside, err := ChooseBeside(caps, products, p, CoopMat, func(*Config) int { return 100 }, nil, false)
	require.NoError(t, err)
	require.False(t, beside.PackB, "a kernel of another kind has a copy of op(B)")
	copied := mine
	copied.PackB, copied.Splits, copied.Rows = true, 1, 0
	require.NoError(t, tuning.Add("gemm", kit.Forward, p, copied, 1))
	got, err := ChooseBeside(caps, products, p, CoopMat, func(*Config) int { return 100 }, tuning, false)
	require.NoError(t, err)
	require.Equal(t, beside, got)

	wide := mine
	wide.BlockK, wide.Splits, wide.Rows = 1<<12, 1, 0
	require.NoError(t, tuning.Add("gemm", kit.Forward, p, wide, 1))
	usual, err := Choose(caps, p, Options{})
	require.NoError(t, err)
	c, origin, err := ChooseOrigin(caps, p, Options{Tuning: tuning})
	require.NoError(t, err)
	require.Equal(t, usual, c)
	require.ErrorContains(t, origin.Passed, "bytes of shared memory are more than the device's")
}
