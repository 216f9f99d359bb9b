package engine

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips/chipstest"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/vk"
)

// candidateProblems are of every kind that candidates know: large and small, with few blocks,
// with rows that are not aligned, of several products, and of parts.
func candidateProblems() []Problem {
	list := []Problem{
		{M: 18048, N: 1536, K: 512, TransB: true},
		{M: 11000, N: 512, K: 1365, TransB: true},
		{M: 4096, N: 4096, K: 4096},
		{M: 512, N: 1365, K: 18048, TransA: true},
		{Batch: 10, M: 512, N: 1365, K: 5000, TransA: true},
		{M: 40, N: 24, K: 32},
	}
	for i := range list {
		list[i].DType, list[i].Out = dtype.BFloat16, dtype.BFloat16
	}
	return append(list, Problem{M: 4096, N: 1365, K: 2048})
}

// candidateDevices are large, of unknown size, and small.
func candidateDevices() []*vk.Caps {
	unknown, small := chipstest.H200(), chipstest.H200()
	unknown.ComputeUnits = 0
	small.ComputeUnits, small.MaxSharedMemoryBytes, small.MaxWorkgroupInvocations = 10, 16384, 128
	return []*vk.Caps{chipstest.H200(), unknown, small}
}

// TestCandidates wants candidates and variants that are feasible, different, led by the table's
// choice, and what their words say.
func TestCandidates(t *testing.T) {
	for _, caps := range candidateDevices() {
		for _, p := range candidateProblems() {
			for _, impl := range Impls() {
				list, err := Candidates(caps, p, impl)
				require.NoError(t, err)
				start, err := Choose(caps, p, Options{Impl: impl})
				require.NoError(t, err)
				require.Equal(t, start, list[0])
				require.Greater(t, len(list), 5, "%v %v", impl, p)
				seen := map[string]bool{}
				check := func(c Config) {
					require.NoError(t, c.Feasible(caps, p))
					require.Equal(t, c, c.Fit(&p))
					require.Equal(t, impl, c.Impl)
					parsed, err := ParseConfig(c.String())
					require.NoError(t, err)
					parsed.Splits = max(parsed.Splits, 1) // none
					require.Equal(t, c, parsed)
				}
				for _, c := range list {
					check(c)
					require.False(t, seen[c.String()], c)
					seen[c.String()] = true
					require.Equal(t, c, c.withSplits(caps, &p, c.costs(caps, &p)))
				}
				for _, c := range list[:5] {
					variants := Variants(caps, p, c)
					for i, v := range variants {
						check(v)
						require.NotEqual(t, c, v)
						require.NotContains(t, variants[:i], v)
					}
				}
			}
		}
	}
	none := chipstest.H200()
	none.CoopMat = false
	_, err := Candidates(none, candidateProblems()[0], CoopMat)
	require.ErrorIs(t, err, vk.ErrUnsupported)
}

// TestCandidatesOrder wants what was fast on an H200 (TUNING.md) among the first, as a search
// may get no further.
func TestCandidatesOrder(t *testing.T) {
	for trans, fast := range map[string][]string{
		"nt": {"s2x2 t3x4 k64 align packb", "s4x2 t3x4 k64", "s2x2 t4x4 k32", "s2x2 t4x4 k64", "s4x2 t2x4 k64"},
		"tn": {"s4x2 t4x4 k48", "s4x2 t4x5 k48", "s2x2 t4x4 k32"},
	} {
		p := Problem{M: 4096, N: 4096, K: 4096, DType: dtype.BFloat16, Out: dtype.BFloat16}
		var err error
		p.TransA, p.TransB, err = problem.ParseTransposes(trans)
		require.NoError(t, err)
		list, err := Candidates(chipstest.H200(), p, CoopMat)
		require.NoError(t, err)
		for _, words := range fast {
			at := slices.IndexFunc(list, func(c Config) bool { return strings.HasPrefix(c.String(), "coopmat "+words+" ") })
			require.GreaterOrEqual(t, at, 0, words)
			require.Less(t, at, 42, words)
		}
	}
}

// TestVariants wants each choice varied that candidates have from the table, and copies only
// of operands that are not aligned.
func TestVariants(t *testing.T) {
	words := func(c Config, p Problem) string {
		var list []string
		for _, v := range Variants(chipstest.H200(), p, c) {
			list = append(list, v.String())
		}
		return strings.Join(list, "\n") + "\n"
	}
	c := Config{Impl: CoopMat, SubgroupsM: 4, SubgroupsN: 2, TilesM: 3, TilesN: 4, BlockK: 64, AlignRows: true, GroupM: 10, Splits: 3}
	p := Problem{M: 512, N: 1365, K: 18048, DType: dtype.BFloat16, Out: dtype.BFloat16}
	got := words(c, p)
	for _, want := range []string{
		" loadahead1 align g10 splits3\n", " g10 splits3\n", " align g1 splits3\n", " align g32 splits3\n",
		" align g10\n", " align g10 splits2\n", " align g10 splits4\n", " align g10 splits8\n",
	} {
		require.Contains(t, got, "coopmat s4x2 t3x4 k64"+want)
	}
	p.N = 1360
	require.NotContains(t, words(c, p), "k64 g10 ")
	c.LoadAhead, c.Splits = 1, 1
	p.M, p.N = 4096, 4096
	got = words(c, p)
	require.Contains(t, got, " k64 align g10\n")
	require.Contains(t, got, " align g10 splits2 rows3840\n")
	c = Config{Impl: Scalar, Threads: 64, ThreadsX: 8, BlockM: 32, BlockN: 32, BlockK: 16, GroupM: 8, Splits: 1}
	require.Contains(t, words(c, p), "scalar 32x32 t8x8 k32 g8\n")
}

// TestTableRow wants rows that can be pasted: without splits, with what the table asks.
func TestTableRow(t *testing.T) {
	p := Problem{M: 4096, N: 4096, K: 4096, TransB: true, DType: dtype.BFloat16, Out: dtype.BFloat16}
	c := Config{Impl: CoopMat, SubgroupsM: 4, SubgroupsN: 2, TilesM: 3, TilesN: 4, BlockK: 64, AlignRows: true, LoadAhead: 1, GroupM: 10, Splits: 2, Rows: 3840}
	require.InDelta(t, 704.0/132, c.Fill(chipstest.H200(), p), 1e-9)
	require.Equal(t, `{Family: "hopper", Formats: table.Of16Bits, Shape: shape{trans: "nt"}, Fill: 5.33, Config: Config{Impl: CoopMat, SubgroupsM: 4, SubgroupsN: 2, TilesM: 3, TilesN: 4, BlockK: 64, AlignRows: true, LoadAhead: 1, GroupM: 10}},`,
		TableRow(chipstest.H200(), p, c, c.Fill(chipstest.H200(), p)))
	right := c
	right.PackB = true
	require.Contains(t, TableRow(chipstest.H200(), p, right, 3), `Shape: shape{trans: "nt", m: leastRows}, Fill: 3, `)
	require.Contains(t, TableRow(chipstest.H200(), p, right, 3), `AlignRows: true, PackB: true, LoadAhead: 1,`)
	unknown := chipstest.H200()
	unknown.Name, unknown.ComputeUnits = "new", 0
	require.Zero(t, c.Fill(unknown, p))
	p.DType, p.Out = dtype.Float32, dtype.Float32
	c.AlignRows, c.LoadAhead = false, 0
	require.Equal(t, `{Formats: table.OfFloat32, Config: Config{Impl: CoopMat, SubgroupsM: 4, SubgroupsN: 2, TilesM: 3, TilesN: 4, BlockK: 64, GroupM: 10}},`, TableRow(unknown, p, c, 0))
	c = Config{Impl: Scalar, Threads: 64, ThreadsX: 8, BlockM: 32, BlockN: 16, BlockK: 8, GroupM: 8, Splits: 1}
	require.Equal(t, `{Shape: shape{trans: "nt"}, Config: Config{Impl: Scalar, Threads: 64, ThreadsX: 8, BlockM: 32, BlockN: 16, BlockK: 8, GroupM: 8}},`, TableRow(unknown, p, c, 0))
}
