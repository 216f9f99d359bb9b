package attention

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
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
	tunedMatrix = Config{Impl: CoopMat2, Subgroups: 2, RowTiles: 2, BlockN: 32, Fence: 2}
	tunedKHR    = Config{Impl: CoopMat, Subgroups: 2, RowTiles: 1, BlockN: 32}
	tunedScalar = Config{Impl: Scalar, Threads: 64, ThreadsX: 8, BlockM: 16, BlockN: 16, Depth: 8, ValueRows: 4}
)

func tuning() *Tuning {
	t := NewTuning(tunedCaps())
	t.Add(tunedProblem(), tunedMatrix, 1000)
	t.Add(tunedProblem(), tunedScalar, 5000)
	return t
}

// text returns the file of t.
func text(t *testing.T, x *Tuning) string {
	t.Helper()
	var b bytes.Buffer
	if err := x.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestTuningFile(t *testing.T) {
	path := TuningPath(filepath.Join(t.TempDir(), "deep", "er"), tunedCaps())
	if want := "10de-2684-4-91234000.json"; filepath.Base(path) != want {
		t.Errorf("path %s, want %s", path, want)
	}
	if _, err := LoadTuningFile(path, tunedCaps()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	for range 2 { // the second time the file is there
		if err := tuning().WriteFile(path); err != nil {
			t.Fatal(err)
		}
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v: want one file", entries, err)
	}
	got, err := LoadTuningFile(path, tunedCaps())
	if err != nil || got.Len() != 2 || got.Stale() != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	for i, want := range tuning().rows {
		if got.rows[i] != want {
			t.Errorf("row %d is %+v, want %+v", i, got.rows[i], want)
		}
	}
	// The folder cannot be made: an error, and nothing else.
	if err := tuning().WriteFile(filepath.Join(path, "x.json")); err == nil || !strings.HasPrefix(err.Error(), "attention: tuning: ") {
		t.Errorf("folder in a file: %v", err)
	}
}

// TestTuningBad says that nothing of a file counts that is damaged, of another
// device, or newer.
func TestTuningBad(t *testing.T) {
	good := text(t, tuning())
	edit := func(old, new string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("%q is not in %s", old, good)
		}
		return strings.Replace(good, old, new, 1)
	}
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "unexpected end of JSON input"},
		{"not JSON", "hello", "invalid character"},
		{"a list", "[]", "cannot unmarshal array"},
		{"more behind", good + "{}", "invalid character"},
		{"no format", edit(`"format": 1,`, ``), "format=0 is not 1"},
		{"newer", edit(`"format": 1`, `"format": 2`), "format=2 is not 1, which this version reads"},
		{"unknown choice", edit(`"Subgroups"`, `"Clusters"`), `unknown field "Clusters"`},
		{"other vendor", edit(`"vendor_id": 4318`, `"vendor_id": 4319`), "not on this device"},
		{"other device", edit(`"device_id": 9860`, `"device_id": 9861`), "not on this device"},
		{"other name", edit(`RTX 4090`, `RTX 4080`), `measured on "NVIDIA GeForce RTX 4080"`},
		{"other driver", edit(`"driver_id": 4`, `"driver_id": 3`), "not on this device with this driver"},
		{"other version", edit(`"driver_version": 2435`, `"driver_version": 2436`), "not on this device with this driver"},
		{"no path", edit(`"Impl": "coopmat2",`, ``), "row 0: impl auto is not a path"},
		{"unknown path", edit(`"coopmat2"`, `"coopmat3"`), `impl "coopmat3" is not one of`},
		{"negative", edit(`"Subgroups": 2`, `"Subgroups": -2`), "row 0: Subgroups=-2 is not between 0 and 65536"},
		{"overflow", edit(`"Subgroups": 2`, `"Subgroups": 4611686018427387904`), "row 0: Subgroups=4611686018427387904 is not between"},
		{"a fraction", edit(`"Subgroups": 2`, `"Subgroups": 2.5`), "cannot unmarshal number"},
		{"no time", edit(`"ns": 1000`, `"ns": 0`), "row 0: ns=0 is not a time"},
		{"bad dtype", edit(`"float16"`, `"float8"`), "row 0: "},
		{"bad problem", edit(`"kv_heads": 4`, `"kv_heads": 3`), "row 0: attention: num_heads=16 is not a multiple of num_kv_heads=3"},
		{"large", good + strings.Repeat(" ", maxTuningBytes), "more than 4194304 bytes"},
	} {
		got, err := LoadTuning(strings.NewReader(c.text), tunedCaps())
		if got != nil || err == nil || !strings.HasPrefix(err.Error(), "attention: tuning: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v, want %s", c.name, got, err, c.want)
		}
	}
	for n := range len(good) - 1 { // the last byte is a newline
		if got, err := LoadTuning(strings.NewReader(good[:n]), tunedCaps()); got != nil || err == nil {
			t.Fatalf("the first %d of %d bytes are taken", n, len(good))
		}
	}
}

// TestTuningStale says that rows of a kernel that has changed, or that is not
// known here, are left out.
func TestTuningStale(t *testing.T) {
	good := text(t, tuning())
	got, err := LoadTuning(strings.NewReader(strings.Replace(good, moduleHash(Scalar, dtype.Float16), "0123456789abcdef", 1)), tunedCaps())
	if err != nil || got.Len() != 1 || got.Stale() != 1 || got.rows[0].Config != tunedMatrix {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = LoadTuning(strings.NewReader(strings.Replace(good, `"attention_fwd"`, `"attention_bwd"`, 1)), tunedCaps())
	if err != nil || got.Len() != 1 || got.Stale() != 0 || got.rows[0].Config != tunedScalar {
		t.Errorf("%+v, %v", got, err)
	}
	hashes := make(map[string]bool)
	for _, impl := range Impls() {
		for _, d := range dtype.All() {
			hashes[moduleHash(impl, d)] = true
		}
	}
	if len(hashes) != 12 {
		t.Errorf("%d hashes of 12 different kernels", len(hashes))
	}
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
			if got, err := chooseForward(caps, c.p, Options{Impl: x.impl, Tuning: tuning()}); got != want || err != nil {
				t.Errorf("%s, %v: %v, %v, want %v", c.name, x.impl, got, err, want)
			}
		}
		// A path that was not measured stays with the table.
		if got, err := chooseForward(caps, c.p, Options{Impl: CoopMat, Tuning: tuning()}); got != builtIn(c.p, CoopMat) || err != nil {
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
	x := NewTuning(caps)
	x.Add(p, tuned, 10)
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
		x := NewTuning(caps)
		for _, r := range c.rows {
			x.Add(r.p, r.c, r.ns)
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

func TestDoublings(t *testing.T) {
	inf := math.Inf(1)
	for _, c := range []struct{ a, b, enough, want float64 }{
		{8, 8, 100, 0}, {8, 32, 100, 2}, {32, 8, 100, 2}, {8, 33, 100, inf}, {33, 8, 100, inf},
		{100, 1600, 100, 4}, {99, 1600, 100, inf}, {1600, 99, 100, inf},
	} {
		if got := doublings(c.a, c.b, c.enough); got != c.want {
			t.Errorf("from %v to %v: %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

// FuzzLoadTuning says that no file makes Choose fail or choose what is not
// feasible.
func FuzzLoadTuning(f *testing.F) {
	var b bytes.Buffer
	if err := tuning().Write(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte(`{"format": 1}`))
	caps := tunedCaps()
	f.Fuzz(func(t *testing.T, data []byte) {
		x, err := LoadTuning(bytes.NewReader(data), caps)
		if (x == nil) == (err == nil) {
			t.Fatal(x, err)
		}
		for _, impl := range append(Impls(), Auto) {
			c, err := chooseForward(caps, tunedProblem(), Options{Impl: impl, Tuning: x})
			if err != nil || c.Feasible(caps, tunedProblem()) != nil {
				t.Errorf("%v: %v, %v", impl, c, err)
			}
		}
	})
}

// TestConfigJSON says that a Config survives JSON, whatever its fields.
func TestConfigJSON(t *testing.T) {
	for _, want := range []Config{{}, tunedMatrix, tunedKHR, tunedScalar, {Impl: Unfused, Prefetch: true, SplitLoop: true, Detour: true}} {
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
