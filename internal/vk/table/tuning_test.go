package table

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// A pass is what a kit.Pass is for tables.
type pass string

func (p pass) String() string { return string(p) }

// The tests' kernel: a problem of n elements, which workgroups of some invocations share.
type (
	testProblem struct{ N, Kind int }
	testConfig  struct {
		Path    string
		Threads int
		Rows    int
		Part    struct{ Depth int }
		Splits  int
	}
	testShape struct{ n int }
)

func (s testShape) Has(p *testProblem) bool { return s.n == 0 || p.N <= s.n }

var hash = "abc"

var testTable = New(Table[testProblem, testConfig, testShape]{
	Kernel: "test", Pass: pass("backward"), Paths: []string{"fast", "plain", "naive"}, Manual: "naive",
	Family: func(caps *vk.Caps) string { return caps.Name },
	Rows: func() []Row[testShape, testConfig] {
		return []Row[testShape, testConfig]{
			{Family: "large huge", Formats: Of16Bits, Shape: testShape{100}, Fill: 2, Config: testConfig{Path: "fast", Threads: 64}},
			{Family: "large", Config: testConfig{Path: "fast", Threads: 32}},
			{Config: testConfig{Path: "plain", Threads: 16}},
			{Config: testConfig{Path: "naive", Threads: 1}},
		}
	},
	Format: func(p *testProblem) dtype.DType { return dtype.DType(p.Kind) },
	Path:   func(c *testConfig) string { return c.Path },
	Feasible: func(c *testConfig, caps *vk.Caps, _ *testProblem) error {
		if c.Threads > int(caps.MaxWorkgroupInvocations) {
			return fmt.Errorf("test: %d invocations: %w", c.Threads, vk.ErrUnsupported)
		}
		return nil
	},
	Blocks: func(c *testConfig, _ *vk.Caps, p *testProblem) int { return p.N / c.Threads },
	None:   func(path string, _ *testProblem) error { return fmt.Errorf("test: no %s: %w", path, vk.ErrUnsupported) },
	Fit: func(c testConfig, _ *vk.Caps, p *testProblem, measured bool) testConfig {
		if measured || c.Splits == 0 {
			c.Splits = p.N
		}
		return c
	},
	Likeness: func(p *testProblem) Likeness {
		return Likeness{Kind: p.Kind, Sizes: [4]Size{{float64(p.N), 1000}}}
	},
	Module: func(*testProblem, *testConfig) string { return hash },
	Large:  []string{"Rows"},
	Validate: func(p *testProblem) error {
		if p.N < 1 {
			return fmt.Errorf("test: n=%d is not positive", p.N)
		}
		return nil
	},
})

func testCaps() *vk.Caps {
	return &vk.Caps{Name: "large", VendorID: 0x10de, DeviceID: 0x2684, DriverID: 4, DriverVersion: 0x91234000, ComputeUnits: 1, MaxWorkgroupInvocations: 64}
}

func testTuning(t testing.TB) *Tuning {
	x := NewTuning(testCaps())
	require.NoError(t, x.Add("test", pass("backward"), testProblem{N: 50}, testConfig{Path: "fast", Threads: 48, Splits: 3}, 1000))
	require.NoError(t, x.Add("test", pass("backward"), testProblem{N: 50}, testConfig{Path: "plain", Threads: 8, Rows: 1 << 20}, 5000))
	return x
}

func testText(t testing.TB, x *Tuning) string {
	var b bytes.Buffer
	require.NoError(t, x.Write(&b))
	return b.String()
}

// TestTable has each column of a row decide, and the reasons where none matches.
func TestTable(t *testing.T) {
	for _, c := range []struct {
		family  string
		units   uint32
		n       int
		format  dtype.DType
		threads uint32
		want    int
	}{
		{"large", 1, 128, dtype.Float16, 64, 32}, // n
		{"large", 1, 100, dtype.Float16, 64, 32}, // one block
		{"large", 0, 100, dtype.Float16, 64, 64}, // a driver that does not tell
		{"large", 0, 100, dtype.Float32, 64, 32},
		{"huge", 0, 100, dtype.BFloat16, 64, 64},
		{"huge", 0, 100, dtype.Float32, 64, 16},
		{"hug", 0, 100, dtype.BFloat16, 64, 16},
		{"", 0, 100, dtype.BFloat16, 64, 16},
		{"large", 0, 100, dtype.Float16, 63, 32},
		{"large", 0, 100, dtype.Float16, 16, 16},
	} {
		caps := &vk.Caps{Name: c.family, ComputeUnits: c.units, MaxWorkgroupInvocations: c.threads}
		got, origin, err := testTable.Choose(caps, &testProblem{c.n, int(c.format)}, Query[testConfig]{Auto: []string{"fast", "plain"}})
		require.NoError(t, err)
		require.Equal(t, c.want, got.Threads, "%+v", c)
		require.Equal(t, c.n, got.Splits)
		require.Equal(t, Origin{}, origin)
	}
	caps := &vk.Caps{MaxWorkgroupInvocations: 4}
	_, _, err := testTable.Choose(caps, &testProblem{1, 0}, Query[testConfig]{Auto: []string{"fast", "plain"}})
	require.EqualError(t, err, "test: 16 invocations: unsupported on this device")
	_, _, err = testTable.Choose(caps, &testProblem{1, 0}, Query[testConfig]{Path: "fast"})
	require.EqualError(t, err, "test: no fast: unsupported on this device")
	every := *testTable
	every.EveryReason = true
	_, _, err = every.Choose(caps, &testProblem{1, 0}, Query[testConfig]{Auto: []string{"fast", "plain"}})
	require.EqualError(t, err, "test: no fast: unsupported on this device\ntest: 16 invocations: unsupported on this device")
	_, _, err = testTable.Choose(testCaps(), &testProblem{1, 0}, Query[testConfig]{Path: "plain", More: func(*testConfig) error { return errors.New("no") }})
	require.EqualError(t, err, "no")
	got, _, err := testTable.Choose(testCaps(), &testProblem{1, int(dtype.Float16)}, Query[testConfig]{Path: "fast", Blocks: func(*testConfig) int { return 2 }})
	require.NoError(t, err)
	require.Equal(t, 64, got.Threads)
}

// TestTuned has a row of the user's decide what it is for, and nothing else.
func TestTuned(t *testing.T) {
	caps, x := testCaps(), testTuning(t)
	auto := []string{"fast", "plain"}
	choose := func(p testProblem, q Query[testConfig]) (testConfig, Origin) {
		c, origin, err := testTable.Choose(caps, &p, q)
		require.NoError(t, err)
		return c, origin
	}
	for _, c := range []struct {
		p             testProblem
		path          string
		threads, size int
		tuned         bool
	}{
		{testProblem{50, 0}, "", 48, 3, true},
		{testProblem{50, 0}, "fast", 48, 3, true},
		{testProblem{50, 0}, "plain", 8, 0, true},
		{testProblem{200, 0}, "", 48, 200, true}, // splits are of other sizes
		{testProblem{201, 0}, "", 32, 201, false},
		{testProblem{50, 1}, "plain", 16, 50, false}, // another kind
		{testProblem{50, 0}, "naive", 1, 50, false},
	} {
		got, origin := choose(c.p, Query[testConfig]{Path: c.path, Auto: auto, Tuning: x})
		require.Equal(t, c.threads, got.Threads, "%+v", c)
		require.Equal(t, c.size, got.Splits, "%+v", c)
		require.Equal(t, Origin{Tuned: c.tuned}, origin, "%+v", c)
	}
	// A path that was faster beside the usual one, but for one that is asked for only.
	faster := x.Clone()
	require.NoError(t, faster.Add("test", pass("backward"), testProblem{N: 50}, testConfig{Path: "plain", Threads: 4}, 999))
	require.NoError(t, faster.Add("test", pass("backward"), testProblem{N: 50}, testConfig{Path: "naive", Threads: 1}, 1))
	got, _ := choose(testProblem{50, 0}, Query[testConfig]{Auto: auto, Tuning: faster})
	require.Equal(t, 4, got.Threads)
	got, _ = choose(testProblem{50, 0}, Query[testConfig]{Auto: auto, Tuning: x})
	require.Equal(t, 48, got.Threads, "a clone is no part of what it is of")

	// The device cannot run the nearest row: the next one counts, or what is built in.
	caps.MaxWorkgroupInvocations = 40
	got, origin := choose(testProblem{50, 0}, Query[testConfig]{Auto: auto, Tuning: x})
	require.Equal(t, 32, got.Threads)
	require.False(t, origin.Tuned)
	require.EqualError(t, origin.Passed, "the tuned row {fast 48 0 {0} 3} is passed over: test: 48 invocations: unsupported on this device")
	require.NoError(t, x.Add("test", pass("backward"), testProblem{N: 60}, testConfig{Path: "fast", Threads: 24}, 1))
	got, origin = choose(testProblem{50, 0}, Query[testConfig]{Auto: auto, Tuning: x})
	require.Equal(t, 24, got.Threads)
	require.True(t, origin.Tuned)
	require.ErrorContains(t, origin.Passed, "48 invocations")
	require.ErrorContains(t, x.Rows(caps)[0].Err, "48 invocations")
	require.NoError(t, x.Rows(caps)[1].Err)

	caps.DriverVersion++
	got, origin = choose(testProblem{50, 0}, Query[testConfig]{Auto: auto, Tuning: x})
	require.Equal(t, 32, got.Threads, "rows of another driver count")
	require.Equal(t, Origin{}, origin)
}

// TestTuningAdd has the rows that there cannot be.
func TestTuningAdd(t *testing.T) {
	x := NewTuning(testCaps())
	p, c := testProblem{N: 1}, testConfig{Path: "fast"}
	deep := c
	deep.Part.Depth = -1
	for _, bad := range []struct {
		kernel          string
		problem, config any
		ns              float64
		want            string
	}{
		{"none", p, c, 1, "none backward has no configurations to choose from"},
		{"test", c, p, 1, "has problems of table.testProblem and configurations of table.testConfig, not table.testConfig and table.testProblem"},
		{"test", testProblem{}, c, 1, "test: n=0 is not positive"},
		{"test", p, testConfig{Path: "slow"}, 1, "impl slow is not a path"},
		{"test", p, c, 0, "ns=0 is not a time"},
		{"test", p, c, math.NaN(), "ns=NaN is not a time"},
		{"test", p, testConfig{Path: "fast", Threads: 1<<16 + 1}, 1, "Threads=65537 is not between 0 and 65536"},
		{"test", p, testConfig{Path: "fast", Rows: 1<<31 + 1}, 1, "Rows=2147483649 is not between 0 and 2147483648"},
		{"test", p, deep, 1, "Depth=-1 is not between"},
	} {
		require.ErrorContains(t, x.Add(bad.kernel, pass("backward"), bad.problem, bad.config, bad.ns), bad.want)
	}
	require.Error(t, x.Add("test", pass("forward"), p, c, 1), "the pass has no table")
	require.Zero(t, x.Len())
	require.Panics(t, func() { New(*testTable) })
}

// TestTuningFile writes and reads a file.
func TestTuningFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "er", "x.json")
	for range 2 { // the second time the file is there
		require.NoError(t, testTuning(t).WriteFile(path))
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	got, err := Load(bytes.NewReader(text), testCaps())
	require.NoError(t, err)
	require.Equal(t, 2, got.Len())
	require.Zero(t, got.Stale())
	require.Equal(t, testTuning(t).Rows(nil), got.Rows(nil))
	// The folder cannot be made: an error, and nothing else.
	require.ErrorContains(t, testTuning(t).WriteFile(filepath.Join(path, "x.json")), "kit: tuning: ")
	var none *Tuning
	require.Zero(t, none.Len()+none.Stale()+len(none.Rows(nil)))
}

// TestTuningBad says that nothing of a file counts that is damaged, of another
// device, or newer.
func TestTuningBad(t *testing.T) {
	good := testText(t, testTuning(t))
	edit := func(old, new string) string {
		require.Contains(t, good, old)
		return strings.Replace(good, old, new, 1)
	}
	for _, c := range []struct {
		name, text, want string
		newer            bool
	}{
		{"empty", "", "unexpected end of JSON input", false},
		{"not JSON", "hello", "invalid character", false},
		{"a list", "[]", "cannot unmarshal array", false},
		{"more behind", good + "{}", "invalid character", false},
		{"no format", edit(`"format": 5,`, ``), "format=0 is not 5: measure again", false},
		{"older", edit(`"format": 5`, `"format": 4`), "format=4 is not 5: measure again", false},
		{"newer", edit(`"format": 5`, `"format": 6`), "format=6 is above 5, which this version reads: a newer version of flashvk wrote it", true},
		{"newer, with more", edit(`"format": 5`, `"format": 6, "more": 1`), "format=6 is above 5", true},
		{"unknown field", edit(`"format": 5`, `"format": 5, "more": 1`), `unknown field "more"`, false},
		{"unknown field of a row", edit(`"ns": 1000`, `"ns": 1000, "more": 1`), `json: unknown field "more"`, false},
		{"other vendor", edit(`"vendor_id": 4318`, `"vendor_id": 4319`), "not on this device", false},
		{"other device", edit(`"device_id": 9860`, `"device_id": 9861`), "not on this device", false},
		{"other name", edit(`large`, `small`), `measured on "small"`, false},
		{"other driver", edit(`"driver_id": 4`, `"driver_id": 3`), "not on this device with this driver", false},
		{"other version", edit(`"driver_version": 2435`, `"driver_version": 2436`), "not on this device with this driver", false},
		{"no time", edit(`"ns": 1000`, `"ns": 0`), "row 0: ns=0 is not a time", false},
		{"no date", edit(`"made": "2`, `"made": "x`), `row 0: made="x`, false},
		{"two names of one field", edit(`"threads": 48`, `"threads": 48, "Threads": 48`), `occurs twice`, false},
		{"no kernel", strings.Replace(good, `"kernel": "test",`, ``, 1), `row 0: kernel="", pass="backward": one is missing`, false},
		{"no pass", strings.Replace(good, `"pass": "backward",`, ``, 1), `row 0: kernel="test", pass="": one is missing`, false},
		{"nothing of a configuration", `{"format": 5, "device"` + strings.SplitN(strings.SplitN(good, `"device"`, 2)[1], "[", 2)[0] + `[{"kernel": "test", "pass": "backward", "ns": 1}]}`, "row 0: problem and config: unexpected end of JSON input", false},
		{"no problem", edit(`"n": 50`, `"n": 0`), "row 0: test: n=0 is not positive", false},
		{"unknown size", edit(`"n": 50`, `"M": 50`), `row 0: problem: unknown field "M"`, false},
		{"no configuration", edit(`"threads": 48`, `"threads": -48`), "row 0: Threads=-48 is not between 0 and 65536", false},
		{"large", good + strings.Repeat(" ", maxTuningBytes), "more than 4194304 bytes", false},
	} {
		got, err := Load(strings.NewReader(c.text), testCaps())
		require.Nil(t, got, c.name)
		require.ErrorContains(t, err, "kit: tuning: ", c.name)
		require.ErrorContains(t, err, c.want, c.name)
		require.Equal(t, c.newer, errors.Is(err, ErrNewer), c.name)
	}
	for n := range len(good) - 1 { // the last byte is a newline
		got, err := Load(strings.NewReader(good[:n]), testCaps())
		require.Nil(t, got)
		require.Error(t, err, "the first %d of %d bytes are taken", n, len(good))
	}
}

// TestTuningKeeps says that rows of kernels that have changed, or that this program does not
// have, do not count, and stay in the file until their problem is measured again.
func TestTuningKeeps(t *testing.T) {
	foreign := strings.Replace(testText(t, testTuning(t)), `"kernel": "test"`, `"kernel": "other"`, 1)
	x, err := Load(strings.NewReader(foreign), testCaps())
	require.NoError(t, err)
	require.Equal(t, []int{1, 0}, []int{x.Len(), x.Stale()})
	require.ErrorContains(t, x.Rows(nil)[0].Err, "this program has no kernel other backward")
	require.Equal(t, foreign, testText(t, x))

	text := testText(t, testTuning(t))
	hash = "def"
	defer func() { hash = "abc" }()
	x, err = Load(strings.NewReader(text), testCaps())
	require.NoError(t, err)
	require.Equal(t, []int{0, 2}, []int{x.Len(), x.Stale()})
	require.ErrorContains(t, x.Rows(nil)[0].Err, "have changed")
	require.Equal(t, text, testText(t, x))
	c, _, err := testTable.Choose(testCaps(), &testProblem{50, 0}, Query[testConfig]{Path: "fast", Tuning: x})
	require.NoError(t, err)
	require.Equal(t, 32, c.Threads)
	require.NoError(t, x.Add("test", pass("backward"), testProblem{N: 50}, testConfig{Path: "fast", Threads: 40}, 7))
	require.Equal(t, []int{1, 1}, []int{x.Len(), x.Stale()})
	require.Len(t, x.Rows(nil), 2)
}

func TestDoublings(t *testing.T) {
	inf := math.Inf(1)
	for _, c := range []struct{ a, b, enough, want float64 }{
		{8, 8, 100, 0}, {8, 32, 100, 2}, {32, 8, 100, 2}, {8, 33, 100, inf}, {33, 8, 100, inf},
		{100, 1600, 100, 4}, {99, 1600, 100, inf}, {1600, 99, 100, inf},
	} {
		require.Equal(t, c.want, doublings(c.a, c.b, c.enough), "from %v to %v", c.a, c.b)
	}
}

// TestWords reads what Text writes, and nothing that only looks like it.
func TestWords(t *testing.T) {
	type config struct {
		BlockM   int `word:"%dx%d BlockN"`
		BlockN   int
		Threads  int `word:"t%dx%d /ThreadsX"`
		ThreadsX int
		Ahead    bool `word:"ahead"`
	}
	c, err := Parse[config]("k", "8x16 t4x2 ahead")
	require.NoError(t, err)
	require.Equal(t, config{8, 16, 8, 2, true}, c)
	require.Equal(t, "8x16 t4x2 ahead", Text(c))
	for _, bad := range []string{"8", "8x", "08x16", "8x16x2", "8x+1", "8x-1", "8x99999999999", "t4", "aheadx"} {
		_, err := Parse[config]("k", bad)
		require.ErrorContains(t, err, "is not one of its choices", bad)
	}
}
