package attention

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// tunedCaps and tunedProblem are the device and the problem that the tests of this file tune.
func tunedCaps() *vk.Caps {
	caps := nvidia("NVIDIA GeForce RTX 4090", 128, true)
	caps.DeviceID, caps.DriverVersion = 0x2684, 0x91234000
	return &caps
}

func tunedProblem() Problem {
	return Problem{Batch: 4, NumHeads: 16, NumKVHeads: 4, SeqQ: 2048, SeqKV: 4096, HeadDim: 64, DType: dtype.Float16, Causal: true}
}

var (
	tunedMatrix = Config{Impl: CoopMat2, Subgroups: 2, RowTiles: 2, BlockN: 32, LoadAhead: 2}
	tunedScalar = Config{Impl: Scalar, Threads: 64, ThreadsX: 8, BlockM: 16, BlockN: 16, Depth: 8, ValueRows: 4}
)

// add adds a row of the forward pass.
func add(t testing.TB, x *kit.Tuning, p Problem, c Config, ns float64) {
	t.Helper()
	require.NoError(t, x.Add("attention", kit.Forward, p, c, ns))
}

// tuning has rows of two paths.
func tuning(t testing.TB) *kit.Tuning {
	x := kit.NewTuning(tunedCaps())
	add(t, x, tunedProblem(), tunedMatrix, 1000)
	add(t, x, tunedProblem(), tunedScalar, 5000)
	return x
}

// text returns the file of t.
func text(t testing.TB, x *kit.Tuning) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, x.Write(&b))
	return b.String()
}

// TestTuningChoose says which choices a row decides, and which not. That package table reads and
// passes over rows is tested there.
func TestTuningChoose(t *testing.T) {
	caps, x := tunedCaps(), tuning(t)
	for _, c := range []struct {
		name   string
		change func(p *Problem)
		same   bool // the row counts
	}{
		{"the problem", func(*Problem) {}, true},
		{"other heads", func(p *Problem) { p.NumHeads, p.NumKVHeads, p.Scale = 12, 12, 2 }, true},
		{"larger, enough already", func(p *Problem) { p.SeqQ, p.SeqKV = 1<<17, 1<<17 }, true},
		{"a bit smaller", func(p *Problem) { p.SeqQ, p.SeqKV = 512, 1024 }, true},
		{"far smaller", func(p *Problem) { p.Batch, p.NumHeads, p.SeqQ = 1, 8, 512 }, false},
		{"one query", func(p *Problem) { p.Batch, p.SeqQ = 8192, 1 }, false},
		{"few keys", func(p *Problem) { p.SeqKV = 100 }, false},
		{"full", func(p *Problem) { p.Causal = false }, false},
		{"other head_dim", func(p *Problem) { p.HeadDim = 56 }, false},
		{"other type", func(p *Problem) { p.DType = dtype.BFloat16 }, false},
	} {
		p := tunedProblem()
		c.change(&p)
		for impl, tuned := range map[Impl]Config{Auto: tunedMatrix, CoopMat2: tunedMatrix, Scalar: tunedScalar, CoopMat: {}} {
			want, err := chooseForward(caps, p, Options{Impl: impl})
			require.NoError(t, err)
			if c.same && impl != CoopMat { // which was not measured
				want = tuned
			}
			got, err := chooseForward(caps, p, Options{Impl: impl, Tuning: x})
			require.NoError(t, err)
			require.Equal(t, want, got, "%s, %v", c.name, impl)
		}
	}
	// A path that was faster comes first, but for unfused.
	add(t, x, tunedProblem(), Config{Impl: CoopMat, Subgroups: 2, RowTiles: 1, BlockN: 32}, 900)
	add(t, x, tunedProblem(), Config{Impl: Unfused, Threads: 64, ThreadsX: 8, BlockM: 16, BlockN: 16, Depth: 8}, 1)
	got, err := chooseForward(caps, tunedProblem(), Options{Tuning: x})
	require.NoError(t, err)
	require.Equal(t, CoopMat, got.Impl)
}

// TestTuningSplits says that a measured number of splits is for the sizes that
// were measured, and that others get theirs by the rule.
func TestTuningSplits(t *testing.T) {
	caps := tunedCaps()
	p := Problem{Batch: 1, NumHeads: 8, NumKVHeads: 8, SeqQ: 1, SeqKV: 8192, HeadDim: 64, DType: dtype.Float16}
	usual, err := chooseForward(caps, p, Options{Impl: CoopMat2})
	require.NoError(t, err)
	tuned := tunedMatrix
	tuned.Splits = 7
	x := kit.NewTuning(caps)
	add(t, x, p, tuned, 10)
	for _, c := range []struct{ seqKV, want int }{{8192, 7}, {16384, 2 * usual.Splits}, {4096, 8}, {1100, 2}, {1024, 2}} {
		q := p
		q.SeqKV = c.seqKV
		for _, impl := range []Impl{Auto, CoopMat2} {
			got, err := chooseForward(caps, q, Options{Impl: impl, Tuning: x})
			require.NoError(t, err)
			want := tuned
			want.Splits = c.want
			require.Equal(t, want, got, "seq_kv %d", c.seqKV)
		}
	}
}

// TestTuningBackward says that rows of the backward pass decide about it alone, and that one that the
// device cannot run is passed over, with the reason.
func TestTuningBackward(t *testing.T) {
	caps, p := tunedCaps(), tunedProblem()
	tile := BackwardTile{Subgroups: 2, RowTiles: 1, BlockN: 16}
	mine := BackwardConfig{Impl: CoopMat2, DKV: tile, DQ: tile}
	x := tuning(t)
	require.NoError(t, x.Add("attention", kit.Backward, p, mine, 10))
	x, err := kit.LoadTuning(strings.NewReader(text(t, x)), caps)
	require.NoError(t, err)
	for _, p.SeqQ = range []int{2048, 4096} {
		plan, err := Choose(caps, p, kit.Backward, Options{Tuning: x})
		require.NoError(t, err)
		require.Equal(t, mine, plan.Backward)
		require.Equal(t, kit.Origin{Tuned: true}, plan.Origin)
		forward, err := Choose(caps, p, kit.Forward, Options{Tuning: x})
		require.NoError(t, err)
		require.Equal(t, tunedMatrix, forward.Config)
	}
	mine.DQ.BlockN = 1 << 12
	require.NoError(t, x.Add("attention", kit.Backward, tunedProblem(), mine, 9))
	plan, err := Choose(caps, tunedProblem(), kit.Backward, Options{Tuning: x})
	require.NoError(t, err)
	require.False(t, plan.Origin.Tuned)
	require.ErrorContains(t, plan.Origin.Passed, "is passed over: attention: coopmat2: by4096 is more than the 64 invocations")
}

// TestTuningBad has rows that attention cannot have, and wants a hash for each path, format and pass.
func TestTuningBad(t *testing.T) {
	good := text(t, tuning(t))
	for _, c := range []struct{ old, new, want string }{
		{`"subgroups"`, `"clusters"`, `row 0: config: unknown field "clusters"`},
		{`"impl": "coopmat2",`, ``, "row 0: impl auto is not a path"},
		{`"coopmat2"`, `"coopmat3"`, `row 0: config: impl: attention: impl "coopmat3" is not one of`},
		{`"subgroups": 2`, `"subgroups": -2`, "row 0: Subgroups=-2 is not between 0 and 65536"},
		{`"float16"`, `"float8"`, "row 0: problem: "},
		{`"kv_heads": 4`, `"kv_heads": 3`, "row 0: attention: num_heads=16 is not a multiple of num_kv_heads=3"},
	} {
		require.Contains(t, good, c.old)
		_, err := kit.LoadTuning(strings.NewReader(strings.Replace(good, c.old, c.new, 1)), tunedCaps())
		require.ErrorContains(t, err, c.want)
	}
	windowed := tunedProblem()
	windowed.Softcap = 3
	require.ErrorContains(t, kit.NewTuning(tunedCaps()).Add("attention", kit.Forward, windowed, tunedMatrix, 1), "features have no rows")
	var hashes []string
	for _, impl := range Impls() {
		for _, d := range dtype.All() {
			hashes = append(hashes, moduleHash(fwdModules, impl, d), moduleHash(bwdModules, impl, d))
		}
	}
	slices.Sort(hashes)
	require.Len(t, slices.Compact(hashes), 2*3*len(Impls()))
}

// FuzzLoadTuning says that no file makes Choose fail or choose an infeasible configuration, and
// that a file written from the rows of another reads as the same rows.
func FuzzLoadTuning(f *testing.F) {
	x := tuning(f)
	tile := BackwardTile{Subgroups: 2, RowTiles: 1, BlockN: 16}
	require.NoError(f, x.Add("attention", kit.Backward, tunedProblem(), BackwardConfig{Impl: CoopMat2, DKV: tile, DQ: tile}, 10))
	f.Add([]byte(text(f, x)))
	f.Add([]byte(`{"format": 5}`))
	caps := tunedCaps()
	f.Fuzz(func(t *testing.T, data []byte) {
		x, err := kit.LoadTuning(bytes.NewReader(data), caps)
		require.NotEqual(t, x == nil, err == nil)
		for _, impl := range append(Impls(), Auto) {
			c, err := chooseForward(caps, tunedProblem(), Options{Impl: impl, Tuning: x})
			if err != nil || c.Feasible(caps, tunedProblem()) != nil {
				t.Errorf("%v: %v, %v", impl, c, err)
			}
			b, err := chooseBackward(caps, tunedProblem(), Options{Impl: impl, Tuning: x})
			if err != nil || b.Feasible(caps, tunedProblem()) != nil {
				t.Errorf("%v: %v, %v", impl, b, err)
			}
		}
		if x == nil {
			return
		}
		again, err := kit.LoadTuning(strings.NewReader(text(t, x)), caps)
		require.NoError(t, err)
		require.Equal(t, x.Rows(caps), again.Rows(caps))
	})
}
