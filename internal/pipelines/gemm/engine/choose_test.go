package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips/chipstest"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// device returns an H200 with changes.
func device(change ...func(caps *vk.Caps)) *vk.Caps {
	caps := chipstest.H200()
	for _, f := range change {
		f(caps)
	}
	return caps
}

func parsed(t *testing.T, text string) Config {
	c, err := ParseConfig(text)
	require.NoError(t, err)
	return c
}

// half and float are products of a format.
func half(batch, m, n, k int, trans string) Problem {
	return Problem{Batch: batch, M: m, N: n, K: k, TransA: trans[0] == 't', TransB: trans[1] == 't', DType: dtype.BFloat16, Out: dtype.BFloat16}
}

func float(m, n, k int) Problem { return Problem{M: m, N: n, K: k} }

// TestChoose wants of problems on a large device the tile, and how k is divided: not where blocks fill
// it; among all workgroups where there are few; and of the rows or products that are left after whole
// rounds, where k is long. A CPU device has plain arithmetic, unless matrices are asked for.
func TestChoose(t *testing.T) {
	large := device()
	cpu := device(func(caps *vk.Caps) { caps.Type = vk.CPU })
	none := device(func(caps *vk.Caps) { caps.CoopMat = false })
	for _, x := range []struct {
		p    Problem
		want string
		caps *vk.Caps
		impl Impl
	}{
		{p: half(0, 4096, 4096, 4096, "nn"), want: "coopmat s2x2 t3x4 k64 align packb g22 splits4 rows3936"},
		{p: half(0, 512, 1365, 11000, "tn"), want: "coopmat s4x2 t4x4 k48 align g8 splits6"},
		{p: half(0, 512, 1365, 11000, "nt"), want: "coopmat s4x2 t3x4 k64 align g10 splits4"}, // few rows read the copy of b
		{p: half(0, 18048, 1536, 512, "nn"), want: "coopmat s2x2 t4x4 k64 align packb g10"},
		{p: half(0, 11000, 512, 1365, "nn"), want: "coopmat s2x2 t3x4 k64 align packb g22"},
		{p: half(0, 11000, 1365, 512, "nn"), want: "coopmat s2x2 t3x4 k64 align packb g22"},
		{p: half(0, 5000, 512, 512, "nn"), want: "coopmat s2x2 t4x4 k32 align g16"},
		{p: half(0, 512, 512, 512, "nn"), want: "coopmat s2x2 t2x2 k32 align g8"},
		{p: half(10, 512, 1365, 16000, "tn"), want: "coopmat s4x2 t4x4 k48 align g8 splits3 rows3072"},
		{p: half(10, 512, 1365, 5000, "tn"), want: "coopmat s4x2 t4x4 k48 align g8 splits3 rows3072"},
		{p: half(10, 512, 1365, 1000, "tn"), want: "coopmat s4x2 t4x4 k48 align g8"}, // sums take longer
		{p: half(10, 16000, 1365, 512, "nn"), want: "coopmat s2x2 t4x4 k64 align packb g10"},
		{p: half(0, 16000, 512, 13680, "nt"), want: "coopmat s2x2 t3x4 k64 align packb g22 splits5 rows12672"},
		{p: half(0, 205000, 512, 1365, "nt"), want: "coopmat s2x2 t3x4 k64 align packb g22"}, // half a round of 33
		{p: float(11000, 512, 1365), want: "coopmat s2x2 t4x4 k16 loadahead1 g16 splits3 rows8448"},
		{p: float(512, 1365, 11000), want: "coopmat s2x2 t4x4 k16 loadahead1 g16 splits6"},
		{p: float(11000, 32, 1365), want: "scalar 64x64 t8x16 k16 g8 splits3"},
		{p: float(1<<20, 64, 1024), want: "scalar 64x64 t8x16 k16 g8"}, // parts of 4 GiB and more
		{p: half(0, 512, 1365, 1100, "nn"), want: "scalar", caps: cpu},
		{p: float(512, 1365, 1100), want: "scalar", caps: cpu},
		{p: float(512, 1365, 1100), want: "coopmat", caps: cpu, impl: CoopMat},
		{p: half(0, 4096, 4096, 4096, "nn"), want: "scalar", caps: none},
		{p: half(0, 4096, 4096, 4096, "nn"), want: "gemm: coopmat: the device has no VK_KHR_cooperative_matrix", caps: none, impl: CoopMat},
		{
			p: half(0, 4096, 4096, 4096, "nn"), want: "gemm: bfloat16 needs 16-bit storage",
			caps: device(func(caps *vk.Caps) { caps.Storage16 = false }),
		},
		{
			p: half(0, 4096, 4096, 4096, "nn"), want: "coopmat s2x2 t2x2 k32", impl: CoopMat,
			caps: device(func(caps *vk.Caps) { caps.MaxSharedMemoryBytes = 16384 }),
		},
		{p: half(0, 1, 4096, 4096, "nt"), want: "gemv 16x4 t1x128 k1024 g1"},
		{p: half(0, 16, 4096, 4096, "nt"), want: "gemv 16x16 t1x512 k2048 matrix g1"},
		{p: half(0, 3, 4096, 4096, "nt"), want: "gemv 16x4 t1x128 k1024 g1"},
		{p: half(0, 4096, 24, 576, "nt"), want: "coopmat s2x1 t1x1 k96 align g16"},
		{p: half(0, 8, 1536, 4096, "tn"), want: "coopmat s2x4 t1x3 k96 align g16 splits9"},
		{p: half(2, 192, 8, 4096, "tn"), want: "coopmat s4x2 t3x1 k96 align g16 splits9"},
		{p: half(0, 4096, 3072, 16, "nt"), want: "coopmat s2x2 t2x2 k32 align g16"},
		{p: half(0, 4096, 576, 1536, "nt"), want: "coopmat s2x4 t3x3 k64 align g16"},
		{p: half(0, 4096, 960, 576, "nt"), want: "coopmat s2x4 t4x4 k64 align packb g4"},
		{p: half(0, 16000, 512, 1408, "nt"), want: "coopmat s2x2 t3x4 k64 align packb g22"},
		{p: half(0, 16, 4096, 4096, "nn"), want: "coopmat s2x2 t4x4 k32 align g16 splits8"},
		{p: half(0, 8, 1024, 4096, "nt"), want: "gemv 16x1 t1x128 k1024 g1"}, // too few columns for four each
		{p: half(0, 1, 576, 576, "nt"), want: "gemv 16x4 t4x32 k256 g1"},
		{p: half(0, 8, 4096, 4096, "nn"), want: "gemv 16x32 t4x64 k512 g1"},
		{p: half(0, 8, 1024, 8192, "nn"), want: "gemv 16x16 t2x64 k512 g1 splits3"}, // 64 blocks of 16 KB
		{p: half(0, 17, 4096, 4096, "nt"), want: "coopmat s2x2 t4x4 k32 align g16 splits8"},
		{p: half(0, 8, 4096, 4096, "tn"), want: "coopmat s2x4 t1x3 k96 align g16 splits5"},
		{p: half(0, 8, 4096, 4096, "nt"), want: "gemv", caps: cpu},
		{p: half(0, 64, 16, 1<<20, "nn"), want: "coopmat s4x2 t3x4 k64 align g10", caps: device(func(caps *vk.Caps) { caps.ComputeUnits = 0 })},
	} {
		if x.caps == nil {
			x.caps = large
		}
		c, err := Choose(x.caps, x.p, Options{Impl: x.impl})
		if strings.HasPrefix(x.want, "gemm") {
			require.ErrorIs(t, err, vk.ErrUnsupported)
			require.ErrorContains(t, err, x.want)
			continue
		}
		require.NoError(t, err)
		if x.caps == large {
			require.Equal(t, x.want, c.String(), x.p)
		}
		require.True(t, strings.HasPrefix(c.String(), x.want), "%v: %v", x.p, c)
	}
}

// TestTable wants every row to be feasible on a device that has it all.
func TestTable(t *testing.T) {
	for _, row := range rows() {
		p, caps := half(0, 4096, 4096, 4096, "nn"), device()
		if row.Formats == table.OfFloat32 {
			p = float(4096, 4096, 4096)
		}
		p.TransB = row.Shape.trans == "nt"
		if row.Family == "lavapipe" {
			caps.SubgroupSize = 8
			for i := range caps.CoopMatShapes {
				s := &caps.CoopMatShapes[i]
				s.M, s.N, s.K = 8, 8, 8
			}
		}
		require.NoError(t, row.Config.Feasible(caps, p), row.Config)
		require.Equal(t, row.Config, parsed(t, row.Config.String()))
	}
}

// TestFeasible wants errors that name the rule.
func TestFeasible(t *testing.T) {
	caps := device(func(caps *vk.Caps) { caps.MaxWorkgroupCount[2] = 64 })
	ten, one := half(10, 100, 30, 5000, "nn"), half(0, 100, 30, 5000, "nn")
	for _, x := range []struct {
		config string
		p      Problem
		want   string
	}{
		{"coopmat s1x1 t1x1 k32 g2 splits4 rows300", ten, ""},
		{"coopmat s1x1 t1x1 k32 g2 splits4 rows1000", ten, ""},
		{"coopmat s1x1 t1x1 k32 g2 splits7 rows100", ten, ""},
		{"coopmat s1x1 t1x1 k32 g2 splits64 rows5000", ten, ""},
		{"coopmat s1x1 t1x1 k32 g2 splits4 rows120", ten, "gemm: coopmat: rows120 are no whole products of m=100"},
		{"coopmat s1x1 t1x1 k32 g2 splits257", ten, "gemm: coopmat: k32 and g2 must be positive, splits257 at most 256, rows0 not negative"},
		{"coopmat s1x1 t1x1 k32 g2 splits7", ten, "gemm: coopmat: splits7 of 10 products are more than the device's 64 workgroups"},
		{"coopmat s1x1 t1x1 k32 g2 splits8 rows100", ten, "gemm: coopmat: splits8 of 9 products are more than the device's 64 workgroups"},
		{"scalar 64x64 t8x8 k8 g1 splits2 rows20", one, "gemm: scalar: rows20 is not a multiple of 8"},
		{"coopmat s2x2 t4x4 k9 g16", one, "gemm: coopmat: k9 is not a multiple of the matrix size 16"},
		{"coopmat s2x2 t1x4 k64 packb g3", float(100, 30, 5000), "gemm: coopmat: float32 operands are not packed"},
		{"gemv 16x32 t4x32 k256 g1", one, ""},
		{"gemv 16x32 t4x32 k256 g1", half(0, 100, 30, 5000, "tn"), "gemm: gemv: a is transposed"},
		{"gemv 16x24 t4x24 k192 g1", one, "gemm: gemv: 96 invocations are not rows of 24, a power of two"},
		{"gemv 16x30 t4x32 k256 g1", one, "gemm: gemv: 30 columns do not divide among 4 rows of invocations"},
		{"gemv 16x32 t4x32 k200 g1", one, "gemm: gemv: k200 is not a multiple of 32 vectors of 8 elements"},
		{"gemv 16x16 t4x32 k256 g1", one, "gemm: gemv: an invocation has 4 columns, and 16 bytes of op(B) have 8"},
		{"gemv 32x32 t4x32 k768 g1", one, "gemm: gemv: 256 sums and 24 vectors of an invocation are more than 128 and 16"},
		{"gemv 16x32 t2x64 k512 matrix g1", half(0, 100, 30, 5000, "nt"), ""},
		{"gemv 16x32 t2x64 k512 matrix g1", one, "gemm: gemv: on matrices a is no ones, and b is transposed"},
		{"gemv 16x32 t2x64 k512 matrix g1", Problem{M: 9, N: 30, K: 50, TransB: true}, "gemm: gemv: float32 operands do not go into matrices"},
		{"gemv 4x32 t2x64 k512 matrix g1", half(0, 100, 30, 5000, "nt"), "gemm: gemv: a block on matrices has 8 or 16 rows, not 4"},
		{"gemv 16x32 t2x64 k96 matrix g1", half(0, 100, 30, 5000, "nt"), "gemm: gemv: k96 does not divide among the subgroups of 64 invocations, 32 elements at a time"},
		{"gemv 16x16 t2x64 k512 matrix g1", half(0, 100, 30, 5000, "nt"), "gemm: gemv: 8 columns of a subgroup are not whole matrices of 16"},
		{"gemv 16x32 t2x64 k640 matrix g1", half(0, 100, 30, 5000, "nt"), "gemm: gemv: 1 matrices of sums and 40 vectors of an invocation are more than 8 and 32"},
		{"scalar 64x64 t8x8 k8 g1", Problem{M: 1, N: 3, K: 4, Ones: true}, "gemm: scalar: only path gemv has no a, but ones"},
	} {
		if err := parsed(t, x.config).Feasible(caps, x.p); x.want == "" {
			require.NoError(t, err, x.config)
		} else {
			require.ErrorIs(t, err, vk.ErrUnsupported)
			require.ErrorContains(t, err, x.want)
		}
	}
}

// TestChooseGroup wants of groups on a large device the tile by the blocks of all products, without
// copies.
func TestChooseGroup(t *testing.T) {
	for _, x := range []struct {
		rows         []int
		format       dtype.DType
		config, want string
	}{
		{rows: []int{1024, 4096, 0, 2048, 1500}, format: dtype.BFloat16, want: "coopmat s4x2 t3x4 k64 g10"},
		{rows: []int{100, 0, 300}, format: dtype.BFloat16, want: "coopmat s2x2 t2x2 k32 g8"},
		{want: "scalar 32x32 t8x8 k32 g8"},
		{rows: []int{4096}, want: "scalar 64x64 t8x16 k16 g8"},
		{rows: []int{1}, config: "coopmat s2x2 t4x4 k32 align g16", format: dtype.Float16, want: "gemm: coopmat s2x2 t4x4 k32 align g16: a group has no copies and no splits"},
		{rows: []int{1}, config: "scalar 64x64 t8x16 k16 g8 splits2", want: "gemm: scalar 64x64 t8x16 k16 g8 splits2: a group has no copies and no splits"},
		{rows: []int{1}, config: "coopmat s2x2 t4x4 k32 g16", want: "gemm: coopmat: groups of float32 products have no kernel"},
	} {
		var g []Problem
		var opt Options
		for _, m := range x.rows {
			g = append(g, Problem{M: m, N: 1365, K: 512, DType: x.format, Out: x.format})
		}
		if x.config != "" {
			config := parsed(t, x.config)
			opt.Config = &config
		}
		if c, err := ChooseGroup(device(), g, opt); x.config == "" {
			require.NoError(t, err)
			require.Equal(t, x.want, c.String(), x.rows)
		} else {
			require.ErrorIs(t, err, vk.ErrUnsupported)
			require.ErrorContains(t, err, x.want)
		}
	}
}

// TestGroupTable wants each product's first block to follow the last of the one before, and a
// product without k to load the first element of its buffers and no other, which no device
// here would notice.
func TestGroupTable(t *testing.T) {
	config := parsed(t, "scalar 32x16 t8x8 k8 g2")
	table, blocks := groupTable(device(), []product{{p: Problem{M: 33, N: 17, K: 9, Alpha: 3}}, {p: Problem{M: 1, N: 100, K: 8}}, {p: Problem{M: 5, N: 6, Beta: 2}}}, &config)
	require.Equal(t, 12, blocks)
	require.Equal(t, []groupRow{
		{Params: Params{M: 33, N: 17, K: 9, SplitK: 16, Splits: 1, Tiles: 4, Alpha: 3}, First: 0, ASize: 33, BSize: 17},
		{Params: Params{M: 1, N: 100, K: 8, SplitK: 8, Splits: 1, Tiles: 7, Alpha: 1}, First: 4, ASize: 1, BSize: 100},
		{Params: Params{M: 5, N: 6, K: 1, SplitK: 0, Splits: 1, Tiles: 1, Alpha: 1, Beta: 2}, First: 11, ASize: 1, BSize: 1},
	}, table)
	require.Equal(t, groupRowBytes, binary.Size(table[0]))
}

// TestTuned wants a user's row of a product to decide about products like it, with splits of their own,
// and about nothing else; other kernels take no row with a copy of op(B).
func TestTuned(t *testing.T) {
	caps, p, mine := device(), half(0, 4096, 4096, 4096, "nn"), parsed(t, "coopmat s2x2 t2x2 k32 align g4 splits3 rows2048")
	tuning := kit.NewTuning(caps)
	require.NoError(t, tuning.Add("gemm", kit.Forward, p, mine, 1))
	var file bytes.Buffer
	require.NoError(t, tuning.Write(&file))
	tuning, err := kit.LoadTuning(&file, caps)
	require.NoError(t, err)
	scaled, silu := p, p
	scaled.Alpha, scaled.Beta, silu.Activation = 2, 3, SiLU
	for _, x := range []struct {
		p     Problem
		tuned bool
	}{{p, true}, {half(0, 8192, 4096, 4096, "nn"), true}, {scaled, true}, {half(0, 4096, 4096, 256, "nn"), false}, {half(0, 1000, 4096, 4096, "nn"), false}, {half(0, 4096, 4096, 4096, "nt"), false}, {silu, false}} {
		want, err := Choose(caps, x.p, Options{})
		require.NoError(t, err)
		if x.tuned {
			want = mine.withSplits(caps, &x.p, mine.costs(caps, &x.p))
		}
		if x.p == p {
			want = mine
		}
		got, origin, err := ChooseOrigin(caps, x.p, Options{Tuning: tuning})
		require.NoError(t, err)
		require.Equal(t, table.Origin{Tuned: x.tuned}, origin, x.p)
		require.Equal(t, want, got, x.p)
	}
	beside, err := ChooseBeside(caps, products, p, CoopMat, func(*Config) int { return 100 }, nil, false)
	require.NoError(t, err)
	require.False(t, beside.PackB, "a kernel of another kind has a copy of op(B)")
	mine.PackB, mine.Splits, mine.Rows = true, 1, 0
	require.NoError(t, tuning.Add("gemm", kit.Forward, p, mine, 1))
	got, err := ChooseBeside(caps, products, p, CoopMat, func(*Config) int { return 100 }, tuning, false)
	require.NoError(t, err)
	require.Equal(t, beside, got)
}

// TestCandidates wants candidates and variants that are feasible, different, led by the table's choice,
// and what their words say.
func TestCandidates(t *testing.T) {
	for _, caps := range []*vk.Caps{device(), device(func(caps *vk.Caps) { caps.ComputeUnits = 0 }), device(func(caps *vk.Caps) {
		caps.ComputeUnits, caps.MaxSharedMemoryBytes, caps.MaxWorkgroupInvocations = 10, 16384, 128
	})} {
		for _, p := range []Problem{
			half(0, 18048, 1536, 512, "nt"), half(0, 11000, 512, 1365, "nt"), half(0, 4096, 4096, 4096, "nn"), half(0, 512, 1365, 18048, "tn"),
			half(10, 512, 1365, 5000, "tn"), half(0, 40, 24, 32, "nn"), float(4096, 1365, 2048), half(0, 12, 4096, 4096, "nt"),
		} {
			for _, impl := range ProductImpls() {
				if impl == GEMV && p.TransA {
					continue
				}
				list, err := Candidates(caps, p, impl)
				require.NoError(t, err)
				start, err := Choose(caps, p, Options{Impl: impl})
				require.NoError(t, err)
				require.Equal(t, start, list[0])
				require.Greater(t, len(list), 5, "%v %v", impl, p)
				for _, all := range [][]Config{list, append(Variants(caps, p, list[3]), list[3])} {
					seen := map[string]bool{}
					for _, c := range all {
						require.NoError(t, c.Feasible(caps, p))
						require.Equal(t, c, c.Fit(&p))
						again := parsed(t, c.String())
						again.Splits = max(again.Splits, 1) // none
						require.Equal(t, c, again)
						require.False(t, seen[c.String()], c)
						seen[c.String()] = true
					}
				}
			}
		}
	}
}

// TestCandidatesOrder wants configurations that were fast on an H200 (TUNING.md) among the first
// candidates, as a search may get no further, and each choice varied that candidates have from the
// table.
func TestCandidatesOrder(t *testing.T) {
	for trans, fast := range map[string][]string{
		"nt": {"s2x2 t3x4 k64 align packb", "s4x2 t3x4 k64", "s2x2 t4x4 k32", "s2x2 t4x4 k64", "s4x2 t2x4 k64"},
		"tn": {"s4x2 t4x4 k48", "s4x2 t4x5 k48", "s2x2 t4x4 k32"},
	} {
		list, err := Candidates(device(), half(0, 4096, 4096, 4096, trans), CoopMat)
		require.NoError(t, err)
		for _, words := range fast {
			at := slices.IndexFunc(list, func(c Config) bool { return strings.HasPrefix(c.String(), "coopmat "+words+" ") })
			require.GreaterOrEqual(t, at, 0, words)
			require.Less(t, at, 42, words)
		}
	}
	for _, x := range []struct {
		p          Problem
		from, want string
	}{
		{half(0, 512, 1365, 18048, "nn"), "coopmat s4x2 t3x4 k64 align g10 splits3", "loadahead1 align g10 splits3, g10 splits3, align packb g10 splits3, align g1 splits3, align g32 splits3, align g10, align g10 splits2, align g10 splits4, align g10 splits8"},
		{half(0, 4096, 4096, 4096, "nn"), "coopmat s4x2 t3x4 k64 loadahead1 align g10", "align g10, loadahead1 align g10 splits2 rows3840"}, // no copies to leave out
		{half(0, 4096, 4096, 4096, "nn"), "scalar 32x32 t8x8 k16 g8", "scalar 32x32 t8x8 k32 g8"},
	} {
		all := fmt.Sprint(Variants(device(), x.p, parsed(t, x.from)))
		for _, want := range strings.Split(x.want, ", ") {
			require.Regexp(t, want+`[ \]]`, strings.ReplaceAll(all, "coopmat s4x2 t3x4 k64 ", ""))
		}
	}
}

// TestWithSplits compares the choice with the estimates of all rows and products that may be shared and
// all numbers of splits.
func TestWithSplits(t *testing.T) {
	caps, taken := device(), map[bool]int{}
	for _, p := range []Problem{
		half(0, 4096, 4096, 4096, "nt"), half(0, 3000, 1000, 30000, "nn"), half(0, 16000, 512, 13680, "nt"), half(0, 512, 1365, 18048, "tn"),
		half(0, 11000, 512, 1365, "nn"), half(0, 18048, 1536, 512, "nn"), half(0, 1, 1, 100000, "nn"),
		half(10, 512, 1365, 16000, "tn"), half(7, 500, 1000, 4000, "tn"), half(3, 2000, 2000, 9000, "nn"), half(300, 100, 100, 3000, "nn"),
	} {
		for _, row := range rows() {
			config := row.Config
			if row.Formats == table.OfFloat32 || config.Impl == GEMV || config.Feasible(caps, p) != nil {
				continue
			}
			c := config.withSplits(caps, &p, config.costs(caps, &p))
			require.NoError(t, c.Feasible(caps, p))
			require.Equal(t, c, c.Fit(&p))
			x := c.costs(caps, &p)
			pieces, rows := c.pieces(caps, &p)
			time := func(kept int, c Config) float64 {
				return x.estimate((pieces-kept)*x.blocks/pieces, c.Splits, c.splitK(p.K))
			}
			none, least, other := x.estimate(0, 1, p.K), 1.0, c
			for kept := range pieces {
				if c.Impl == Scalar && (kept > 0 || x.blocks > x.slots) {
					continue
				}
				other.Rows = kept * rows
				for other.Splits = 2; other.Splits <= MaxSplits; other.Splits++ {
					if other.Fit(&p).Splits == other.Splits {
						least = min(least, time(kept, other))
					}
				}
			}
			if taken[c.Splits > 1]++; c.Splits > 1 {
				require.InEpsilon(t, least, time(c.Rows/rows, c), 1e-9, "%v: %v", p, c)
				require.Less(t, least, 0.97*none, "%v: %v", p, c)
			} else {
				require.GreaterOrEqual(t, least, 0.97*none, "%v: %v", p, c)
			}
		}
	}
	require.Greater(t, min(taken[true], taken[false]), 10)
}
