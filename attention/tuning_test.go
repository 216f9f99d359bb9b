package attention

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// tunedCaps and tunedProblem are what the tests of this file tune.
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
	tunedKHR    = Config{Impl: CoopMat, Subgroups: 2, RowTiles: 1, BlockN: 32}
	tunedScalar = Config{Impl: Scalar, Threads: 64, ThreadsX: 8, BlockM: 16, BlockN: 16, Depth: 8, ValueRows: 4}
)

// add adds a row of the forward pass.
func add(t testing.TB, x *kit.Tuning, p Problem, c Config, ns float64) {
	t.Helper()
	require.NoError(t, x.Add("attention", kit.Forward, p, c, ns))
}

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
	if err := x.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestTuningChoose says what a row decides, and what it does not.
func TestTuningChoose(t *testing.T) {
	caps := tunedCaps()
	builtIn := func(p Problem, impl Impl) Config {
		c, err := chooseForward(caps, p, Options{Impl: impl})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	change := func(f func(*Problem)) Problem {
		p := tunedProblem()
		f(&p)
		return p
	}
	for _, c := range []struct {
		name string
		p    Problem
		same bool // the row counts
	}{
		{"the problem", tunedProblem(), true},
		{"other heads", change(func(p *Problem) { p.NumHeads, p.NumKVHeads, p.Scale = 12, 12, 2 }), true},
		{"larger, enough already", change(func(p *Problem) { p.SeqQ, p.SeqKV = 1<<17, 1<<17 }), true},
		{"a bit smaller", change(func(p *Problem) { p.SeqQ, p.SeqKV = 512, 1024 }), true},
		{"far smaller", change(func(p *Problem) { p.Batch, p.NumHeads, p.SeqQ = 1, 8, 512 }), false},
		{"one query", change(func(p *Problem) { p.Batch, p.SeqQ = 8192, 1 }), false},
		{"few keys", change(func(p *Problem) { p.SeqKV = 100 }), false},
		{"full", change(func(p *Problem) { p.Causal = false }), false},
		{"other head_dim", change(func(p *Problem) { p.HeadDim = 56 }), false},
		{"other type", change(func(p *Problem) { p.DType = dtype.BFloat16 }), false},
	} {
		for _, x := range []struct {
			impl  Impl
			tuned Config
		}{{Auto, tunedMatrix}, {CoopMat2, tunedMatrix}, {Scalar, tunedScalar}} {
			want := builtIn(c.p, x.impl)
			if c.same {
				want = x.tuned
			}
			if got, err := chooseForward(caps, c.p, Options{Impl: x.impl, Tuning: tuning(t)}); got != want || err != nil {
				t.Errorf("%s, %v: %v, %v, want %v", c.name, x.impl, got, err, want)
			}
		}
		// A path that was not measured stays with the table.
		if got, err := chooseForward(caps, c.p, Options{Impl: CoopMat, Tuning: tuning(t)}); got != builtIn(c.p, CoopMat) || err != nil {
			t.Errorf("%s, coopmat: %v, %v", c.name, got, err)
		}
	}
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

// TestTuningAuto says when a measurement changes the order of the paths.
func TestTuningAuto(t *testing.T) {
	caps, p := tunedCaps(), tunedProblem()
	other := p
	other.SeqKV *= 2
	usual, err := chooseForward(caps, p, Options{})
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		p  Problem
		c  Config
		ns float64
	}
	unfused := Config{Impl: Unfused, Threads: 64, ThreadsX: 8, BlockM: 16, BlockN: 16, Depth: 8}
	huge := tunedKHR
	huge.BlockN = 1 << 12
	for _, c := range []struct {
		name string
		rows []row
		want Config
	}{
		{"none", nil, usual},
		{"slower", []row{{p, tunedMatrix, 10}, {p, tunedKHR, 11}}, tunedMatrix},
		{"faster", []row{{p, tunedMatrix, 10}, {p, tunedKHR, 9}}, tunedKHR},
		{"fastest", []row{{p, tunedScalar, 8}, {p, tunedMatrix, 10}, {p, tunedKHR, 9}}, tunedScalar},
		{"faster on another problem", []row{{p, tunedMatrix, 10}, {other, tunedKHR, 9}}, tunedMatrix},
		{"the usual path was not measured", []row{{p, tunedKHR, 9}}, usual},
		{"unfused is never automatic", []row{{p, tunedMatrix, 10}, {p, unfused, 1}}, tunedMatrix},
		{"faster but too large", []row{{p, tunedMatrix, 10}, {p, huge, 9}}, tunedMatrix},
		{"the usual path's is too large", []row{{p, Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 1, BlockN: 1 << 12}, 10}, {p, tunedKHR, 9}}, usual},
		{"measured again", []row{{p, tunedMatrix, 10}, {p, tunedKHR, 9}, {p, tunedKHR, 11}}, tunedMatrix},
		{"the nearest", []row{{other, usual, 10}, {p, tunedMatrix, 20}}, tunedMatrix},
	} {
		x := kit.NewTuning(caps)
		for _, r := range c.rows {
			add(t, x, r.p, r.c, r.ns)
		}
		if got, err := chooseForward(caps, p, Options{Tuning: x}); got != c.want || err != nil {
			t.Errorf("%s: %v, %v, want %v", c.name, got, err, c.want)
		}
		// On another device nothing of it counts.
		foreign := *caps
		foreign.DriverVersion++
		if got, err := chooseForward(&foreign, p, Options{Tuning: x}); got != usual || err != nil {
			t.Errorf("%s, other driver: %v, %v, want %v", c.name, got, err, usual)
		}
	}
}

// TestTuningBad says that nothing of a file counts that has rows that attention cannot have.
func TestTuningBad(t *testing.T) {
	good := text(t, tuning(t))
	edit := func(old, new string) string {
		require.Contains(t, good, old)
		return strings.Replace(good, old, new, 1)
	}
	for _, c := range []struct{ name, text, want string }{
		{"unknown choice", edit(`"subgroups"`, `"clusters"`), `row 0: config: json: unknown field "clusters"`},
		{"no path", edit(`"impl": "coopmat2",`, ``), "row 0: impl auto is not a path"},
		{"unknown path", edit(`"coopmat2"`, `"coopmat3"`), `row 0: config: attention: impl "coopmat3" is not one of`},
		{"negative", edit(`"subgroups": 2`, `"subgroups": -2`), "row 0: Subgroups=-2 is not between 0 and 65536"},
		{"overflow", edit(`"subgroups": 2`, `"subgroups": 4611686018427387904`), "row 0: Subgroups=4611686018427387904 is not between"},
		{"a fraction", edit(`"subgroups": 2`, `"subgroups": 2.5`), "cannot unmarshal number"},
		{"bad dtype", edit(`"float16"`, `"float8"`), "row 0: problem: "},
		{"bad problem", edit(`"kv_heads": 4`, `"kv_heads": 3`), "row 0: attention: num_heads=16 is not a multiple of num_kv_heads=3"},
		{"unknown size", edit(`"kv_heads": 4`, `"kw_heads": 4`), `row 0: problem: json: unknown field "kw_heads"`},
	} {
		x, err := kit.LoadTuning(strings.NewReader(c.text), tunedCaps())
		require.Nil(t, x, c.name)
		require.ErrorContains(t, err, "kit: tuning: ", c.name)
		require.ErrorContains(t, err, c.want, c.name)
	}
	windowed := tunedProblem()
	windowed.Softcap = 3
	require.ErrorContains(t, kit.NewTuning(tunedCaps()).Add("attention", kit.Forward, windowed, tunedMatrix, 1), "features have no rows")
}

// TestTuningHash says that each path of each format and pass has a hash of its own.
func TestTuningHash(t *testing.T) {
	hashes := make(map[string]bool)
	for _, impl := range Impls() {
		for _, d := range dtype.All() {
			hashes[moduleHash(fwdModules, impl, d)] = true
			hashes[moduleHash(bwdModules, impl, d)] = true
		}
	}
	require.Len(t, hashes, 2*12)
}

// TestTuningBackward says that rows of the backward pass decide about it, and not about the
// forward pass, and that one that the device cannot run is passed over, with the reason.
func TestTuningBackward(t *testing.T) {
	caps, p := tunedCaps(), tunedProblem()
	tile := BackwardTile{Subgroups: 2, RowTiles: 1, Stream: 16}
	mine := BackwardConfig{Impl: CoopMat2, DKV: tile, DQ: tile}
	x := tuning(t)
	require.NoError(t, x.Add("attention", kit.Backward, p, mine, 10))
	x, err := kit.LoadTuning(strings.NewReader(text(t, x)), caps)
	require.NoError(t, err)
	near := p
	near.SeqQ *= 2
	for _, q := range []Problem{p, near} {
		plan, err := Choose(caps, q, kit.Backward, Options{Tuning: x})
		require.NoError(t, err)
		require.Equal(t, mine, plan.Backward)
		require.Equal(t, kit.Origin{Tuned: true}, plan.Origin)
		forward, err := Choose(caps, q, kit.Forward, Options{Tuning: x})
		require.NoError(t, err)
		require.Equal(t, tunedMatrix, forward.Config)
	}
	usual, err := Choose(caps, p, kit.Backward, Options{})
	require.NoError(t, err)
	require.NotEqual(t, mine, usual.Backward)
	require.False(t, usual.Origin.Tuned)
	wide := mine
	wide.DQ.Stream = 1 << 12
	require.NoError(t, x.Add("attention", kit.Backward, p, wide, 9))
	plan, err := Choose(caps, p, kit.Backward, Options{Tuning: x})
	require.NoError(t, err)
	require.Equal(t, usual.Backward, plan.Backward)
	require.False(t, plan.Origin.Tuned)
	require.ErrorContains(t, plan.Origin.Passed, "is passed over: attention: coopmat2: stream=4096 is more than the 64 invocations")
}

// FuzzLoadTuning says that no file makes Choose fail or choose what is not feasible, and that
// what is read of one is what is read of it written again.
func FuzzLoadTuning(f *testing.F) {
	x := tuning(f)
	tile := BackwardTile{Subgroups: 2, RowTiles: 1, Stream: 16}
	require.NoError(f, x.Add("attention", kit.Backward, tunedProblem(), BackwardConfig{Impl: CoopMat2, DKV: tile, DQ: tile}, 10))
	f.Add([]byte(text(f, x)))
	f.Add([]byte(`{"format": 5}`))
	caps := tunedCaps()
	f.Fuzz(func(t *testing.T, data []byte) {
		x, err := kit.LoadTuning(bytes.NewReader(data), caps)
		if (x == nil) == (err == nil) {
			t.Fatal(x, err)
		}
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
		if err != nil || !reflect.DeepEqual(again.Rows(caps), x.Rows(caps)) {
			t.Errorf("%v, %v, %v", err, again.Rows(caps), x.Rows(caps))
		}
	})
}

// TestConfigJSON says that a Config survives JSON, whatever its fields.
func TestConfigJSON(t *testing.T) {
	for _, want := range []Config{{}, tunedMatrix, tunedKHR, tunedScalar, {Impl: Unfused, Prefetch: true, PeelMask: true, Detour: true}} {
		data, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got Config
		if err := json.Unmarshal(data, &got); err != nil || got != want {
			t.Errorf("%s: %+v, %v", data, got, err)
		}
	}
}
