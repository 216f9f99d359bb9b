package conformance

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/conformance"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// hash returns a made-up one.
func hash(digit string) string { return strings.Repeat(digit, 64) }

// h200 returns a record of a made-up run on an H200.
func h200(modules ...Module) *Record {
	r := New(&vk.Caps{
		Name: "NVIDIA H200", Type: vk.DiscreteGPU, VendorID: 0x10de, DeviceID: 0x2335,
		DriverName: "NVIDIA", DriverInfo: "580.159.04", APIVersion: vk.MakeVersion(1, 4, 312),
	})
	for _, m := range modules {
		r.Add(m)
	}
	return r
}

// softly is h200 of a CPU.
func softly(modules ...Module) *Record {
	r := h200(modules...)
	r.Device, r.Type, r.Driver, r.DriverVersion, r.Family = "llvmpipe (LLVM 21.1.8, 256 bits)", vk.CPU, "llvmpipe", "Mesa 26.1.6-1 (LLVM 21.1.8)", "lavapipe"
	return r
}

func TestAdd(t *testing.T) {
	r := h200()
	require.Equal(t, "hopper", r.Family)
	require.Equal(t, "nvidia-h200-580.159.04.json", r.FileName())
	require.Equal(t, "llvmpipe-llvm-21.1.8-256-bits-mesa-26.1.6-1-llvm-21.1.8.json", softly().FileName())
	random := map[string]int{"gemm": 3}
	r.Add(Module{Name: "b", SHA256: hash("1"), Random: random})
	r.Add(Module{Name: "a", SHA256: hash("2"), Fixed: 1})
	r.Add(Module{Name: "b", SHA256: hash("1"), Fixed: 2, Wrong: 1, Random: map[string]int{"gemm": 1, "mlp": 1}})
	require.Equal(t, []Module{
		{Name: "a", SHA256: hash("2"), Verdict: Pass, Fixed: 1},
		{Name: "b", SHA256: hash("1"), Verdict: Fail, Fixed: 2, Random: map[string]int{"gemm": 4, "mlp": 1}, Wrong: 1},
	}, r.Modules)
	require.Equal(t, map[string]int{"gemm": 3}, random, "the caller's map was changed")
}

// TestFormat says what a file looks like, and that reading brings it back.
func TestFormat(t *testing.T) {
	r := h200(
		Module{Name: "norm_fwd.f16", SHA256: hash("b"), Wrong: 2},
		Module{Name: "gemm_coopmat.f16", SHA256: hash("a"), Commit: "8f5bb0a", Random: map[string]int{"mlp": 2, "gemm": 31}, Fixed: 7},
	)
	r.AddRandom(Random{Kernel: "norm", Seed: 18446744073709551615, Problems: 5, Failed: 2})
	r.AddRandom(Random{Kernel: "gemm", Seed: 1, Commit: "8f5bb0a", Problems: 31})
	want := `{
	"device": "NVIDIA H200",
	"type": "discrete GPU",
	"vendor_id": "0x10de",
	"device_id": "0x2335",
	"driver": "NVIDIA",
	"driver_version": "580.159.04",
	"vulkan": "1.4.312",
	"family": "hopper",
	"modules": [
		{"name":"gemm_coopmat.f16","sha256":"` + hash("a") + `","verdict":"pass","commit":"8f5bb0a","fixed":7,"random":{"gemm":31,"mlp":2}},
		{"name":"norm_fwd.f16","sha256":"` + hash("b") + `","verdict":"fail","wrong":2}
	],
	"random": [
		{"kernel":"gemm","seed":1,"commit":"8f5bb0a","problems":31},
		{"kernel":"norm","seed":18446744073709551615,"problems":5,"failed":2}
	]
}
`
	require.Equal(t, want, string(Format(r)))
	back, err := Parse([]byte(want))
	require.NoError(t, err)
	require.Equal(t, r, back)
	empty, err := Parse(Format(h200()))
	require.NoError(t, err)
	require.Contains(t, string(Format(empty)), "\t\"modules\": [],\n\t\"random\": []\n}\n")
}

func TestParseRefuses(t *testing.T) {
	good := string(Format(h200(Module{Name: "a", SHA256: hash("1"), Fixed: 1})))
	for _, c := range []struct{ old, new, want string }{
		{"{", "", "not a record"},
		{`"type"`, `"host": "x", "type"`, `unknown field "host"`},
		{"]\n}", "]\n}{}", "something follows it"},
		{`"NVIDIA H200"`, `""`, "device or driver_version is missing"},
		{hash("1"), "1", `sha256 "1", not 64 digits`},
		{`"pass"`, `"fail"`, `verdict "fail" with 0 wrong`},
		{`,"fixed":1`, "", "nothing ran it"},
		{`,"fixed":1`, `,"fixed":1,"since":{"sha256":"` + hash("1") + `","fixed":1}`, "runs since it was wrong that are none"},
		{`"discrete GPU"`, `"toaster"`, "toaster"},
		{"0x10de", "NVIDIA", "not a record"},
	} {
		require.Contains(t, good, c.old)
		_, err := Parse([]byte(strings.Replace(good, c.old, c.new, 1)))
		require.ErrorContains(t, err, c.want, "%s for %s", c.new, c.old)
	}
}

// TestMerge takes runs of one module after the other.
func TestMerge(t *testing.T) {
	one, two := hash("1"), hash("2")
	run := func(sha, commit string, fixed, gemm, wrong int) Module {
		m := Module{Name: "a", SHA256: sha, Commit: commit, Fixed: fixed, Wrong: wrong}
		if gemm > 0 {
			m.Random = map[string]int{"gemm": gemm}
		}
		m.conclude()
		return m
	}
	after := func(m Module, since Module) Module {
		m.Since = &since
		return m
	}
	for _, c := range []struct {
		name    string
		a, b, w Module
	}{
		{"the same twice", run(one, "x", 3, 5, 0), run(one, "x", 3, 5, 0), run(one, "x", 3, 5, 0)},
		{"the larger counts, the first commit", run(one, "x", 3, 5, 0), run(one, "y", 1, 9, 0), run(one, "x", 3, 9, 0)},
		{"other SPIR-V replaces", run(one, "x", 3, 5, 0), run(two, "y", 1, 0, 0), run(two, "y", 1, 0, 0)},
		{"other SPIR-V replaces what failed", run(one, "x", 3, 5, 2), run(two, "x", 1, 0, 0), run(two, "x", 1, 0, 0)},
		{"a failure is a failure", run(one, "x", 3, 5, 0), run(one, "y", 0, 0, 1), run(one, "x", 3, 5, 1)},
		{"of one commit it stays", run(one, "x", 3, 5, 1), run(one, "x", 30, 50, 0), run(one, "x", 30, 50, 1)},
		{"of no commit it stays", run(one, "", 3, 5, 1), run(one, "", 30, 50, 0), run(one, "", 30, 50, 1)},
		{"of an unknown commit it stays", run(one, "x", 3, 5, 1), run(one, "", 30, 50, 0), run(one, "x", 30, 50, 1)},
		{"after less it stays", run(one, "x", 3, 5, 1), run(one, "y", 3, 4, 0), after(run(one, "x", 3, 5, 1), run(one, "y", 3, 4, 0))},
		{"without what failed it stays", run(one, "x", 3, 5, 1), run(one, "y", 3, 5, 0), after(run(one, "x", 3, 5, 1), run(one, "y", 3, 5, 0))},
		{"it goes", run(one, "x", 3, 5, 1), run(one, "y", 3, 6, 0), run(one, "y", 3, 6, 0)},
		{"it goes after the suite and problems", after(run(one, "x", 3, 5, 1), run(one, "y", 3, 0, 0)), run(one, "z", 0, 6, 0), run(one, "y", 3, 6, 0)},
		{"wrong again", after(run(one, "x", 3, 5, 1), run(one, "y", 3, 0, 0)), run(one, "z", 0, 6, 1), run(one, "x", 3, 6, 1)},
		{"of its own commit again", after(run(one, "x", 3, 5, 1), run(one, "y", 3, 0, 0)), run(one, "x", 4, 6, 0), after(run(one, "x", 4, 6, 1), run(one, "y", 3, 0, 0))},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := h200(c.a), h200(c.b)
			before := string(Format(a)) + string(Format(b))
			got, err := Merge(a, b)
			require.NoError(t, err)
			require.Equal(t, []Module{c.w}, got.Modules)
			again, err := Merge(got, b)
			require.NoError(t, err)
			require.Equal(t, string(Format(got)), string(Format(again)), "merging b twice is not merging it once")
			require.Equal(t, before, string(Format(a))+string(Format(b)), "an argument was changed")
		})
	}
}

func TestMergeLists(t *testing.T) {
	a := h200(Module{Name: "a", SHA256: hash("1"), Fixed: 1}, Module{Name: "c", SHA256: hash("1"), Fixed: 1})
	b := h200(Module{Name: "b", SHA256: hash("1"), Fixed: 1})
	a.Random = []Random{{"gemm", 1, "x", 100, 1}, {"gemm", 2, "x", 100, 1}, {"mlp", 1, "x", 7, 0}}
	b.Random = []Random{{"gemm", 1, "x", 50, 2}, {"gemm", 2, "y", 50, 0}, {"norm", 1, "y", 3, 0}}
	b.Vulkan = vk.MakeVersion(1, 4, 313)
	got, err := Merge(a, b)
	require.NoError(t, err)
	var names []string
	for _, m := range got.Modules {
		names = append(names, m.Name)
	}
	require.Equal(t, []string{"a", "b", "c"}, names)
	require.Equal(t, []Random{{"gemm", 1, "x", 100, 2}, {"gemm", 2, "y", 50, 0}, {"mlp", 1, "x", 7, 0}, {"norm", 1, "y", 3, 0}}, got.Random)
	require.Equal(t, b.Vulkan, got.Vulkan)
	_, err = Merge(a, softly())
	require.ErrorContains(t, err, "a record of NVIDIA H200, driver 580.159.04 and one of llvmpipe")
	b.DriverVersion = "590.1"
	_, err = Merge(a, b)
	require.ErrorContains(t, err, "driver 590.1 do not merge")
}

// TestFiles writes, reads and replaces a file, and leaves nothing beside it.
func TestFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	r := h200(Module{Name: "a", SHA256: hash("1"), Fixed: 1})
	path := filepath.Join(dir, r.FileName())
	require.NoError(t, WriteFile(path, h200()))
	require.NoError(t, WriteFile(path, r))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(Format(r)), string(text))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	info, err := entries[0].Info()
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o644), info.Mode())
	list, err := Read(os.DirFS(dir))
	require.NoError(t, err)
	require.Len(t, list, 1)
	_, err = Read(fstest.MapFS{"x.json": {Data: Format(r)}})
	require.ErrorContains(t, err, "should be named nvidia-h200-580.159.04.json")
	_, err = Read(fstest.MapFS{"x.json": {Data: []byte("{}")}})
	require.ErrorContains(t, err, "x.json: not a record")
	require.ErrorContains(t, WriteFile(filepath.Join(path, "below"), r), "conformance: ")
}

// TestCommitted says that the records of the repository are as this package writes them.
func TestCommitted(t *testing.T) {
	records, err := Records()
	require.NoError(t, err)
	for _, r := range records {
		text, err := conformance.Records.ReadFile(r.FileName())
		require.NoError(t, err)
		require.Equal(t, string(Format(r)), string(text), "%s was written by hand", r.FileName())
	}
	modules, err := Modules()
	require.NoError(t, err)
	require.Len(t, modules, len(shaders.Variants()))
	manifest, err := os.ReadFile("../../shaders/spv/manifest.txt")
	if os.IsNotExist(err) {
		return // only the binary of this test is here
	}
	require.NoError(t, err)
	for _, m := range modules {
		require.Regexp(t, "(?m)^"+m.Name+" [0-9a-f]{64} "+m.SHA256+"$", string(manifest))
	}
}

func TestUnproven(t *testing.T) {
	current := []Committed{{"a", hash("1")}}
	pass, fail := Module{Name: "a", SHA256: hash("1"), Fixed: 4}, Module{Name: "a", SHA256: hash("1"), Fixed: 4, Wrong: 1}
	older := Module{Name: "a", SHA256: hash("2"), Fixed: 4}
	h100 := func(m Module) *Record {
		r := h200(m)
		r.Device = "NVIDIA H100"
		return r
	}
	for _, c := range []struct {
		name    string
		records []*Record
		want    string
	}{
		{"none", nil, "no record"},
		{"another module", []*Record{h200(Module{Name: "b", SHA256: hash("1"), Fixed: 4})}, "no record"},
		{"right", []*Record{h200(pass)}, ""},
		{"of an older hash", []*Record{h200(older), h100(older)}, "the record of NVIDIA H100; NVIDIA H200 has an older hash"},
		{"on one", []*Record{h200(older), h100(pass), softly(fail)}, ""},
		{"wrong", []*Record{h200(fail)}, "failed on NVIDIA H200, driver 580.159.04 (1 of 5)"},
		{"right and wrong", []*Record{h200(pass), h100(fail)}, "failed on NVIDIA H100, driver 580.159.04 (1 of 5)"},
		{"on a CPU", []*Record{softly(pass)}, "no record of a GPU, only of llvmpipe (LLVM 21.1.8, 256 bits)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var want []Gap
			if c.want != "" {
				want = []Gap{{"a", c.want}}
			}
			require.Equal(t, want, Unproven(c.records, current))
		})
	}
}
