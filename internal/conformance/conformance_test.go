package conformance

import (
	"bytes"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/conformance"
	"github.com/flashvk/flashvk/internal/spirv"
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
		m.conclude()
		r.Modules = append(r.Modules, m)
	}
	r.sort()
	return r
}

// softly is h200 of a CPU.
func softly(modules ...Module) *Record {
	r := h200(modules...)
	r.Device, r.Type, r.Driver, r.DriverVersion, r.Family = "llvmpipe (LLVM 21.1.8, 256 bits)", vk.CPU, "llvmpipe", "Mesa 26.1.6-1 (LLVM 21.1.8)", "lavapipe"
	return r
}

// TestRan counts what ran modules.
func TestRan(t *testing.T) {
	r := h200()
	require.Equal(t, "hopper", r.Family)
	require.Equal(t, "nvidia-h200-580.159.04.json", r.FileName())
	require.Equal(t, "llvmpipe-llvm-21.1.8-256-bits-mesa-26.1.6-1-llvm-21.1.8.json", softly().FileName())
	named := spirv.Encode(nil, []spirv.Instruction{{Op: spirv.OpName, Args: []uint32{1, 0x61}}})
	a, b := vk.ModuleInfo{Name: "a", SPIRV: named}, vk.ModuleInfo{Name: "b"}
	r.Ran(b, "gemm", true)
	r.Ran(a, "", true)
	r.Ran(b, "gemm", true)
	r.Ran(b, "mlp", true)
	r.Ran(b, "mlp", false)
	r.Random = []Random{{Kernel: "gemm"}}
	r.At("8f5bb0a").sort()
	require.Equal(t, []Module{
		{"a", spirv.Hash(spirv.Encode(nil, nil)), Pass, "8f5bb0a", 1, map[string]int{}, 0, nil},
		{"b", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", Fail, "8f5bb0a", 0, map[string]int{"gemm": 2, "mlp": 1}, 1, nil},
	}, r.Modules)
	require.Equal(t, "8f5bb0a", r.Random[0].Commit)
}

// TestFormat says that reading brings back what was written, which TestCommitted compares with files.
func TestFormat(t *testing.T) {
	r := h200(
		Module{Name: "norm_fwd.f16", SHA256: hash("b"), Wrong: 2},
		Module{Name: "gemm_coopmat.f16", SHA256: hash("a"), Commit: "8f5bb0a", Random: map[string]int{"mlp": 2, "gemm": 31}, Fixed: 7},
	)
	r.Random = []Random{{"norm", 18446744073709551615, "", 5, 2}, {"gemm", 1, "8f5bb0a", 31, 0}}
	back, err := Parse(Format(r))
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
		{"without the suite it stays", run(one, "x", 3, 5, 1), run(one, "y", 0, 20, 0), after(run(one, "x", 3, 5, 1), run(one, "y", 0, 20, 0))},
		{"it goes for fewer cases and more problems", run(one, "x", 3, 5, 1), run(one, "y", 1, 8, 0), run(one, "y", 1, 8, 0)},
		{"it goes", run(one, "x", 3, 5, 1), run(one, "y", 3, 6, 0), run(one, "y", 3, 6, 0)},
		{"it goes after the suite and problems", after(run(one, "x", 3, 5, 1), run(one, "y", 3, 0, 0)), run(one, "z", 0, 6, 0), run(one, "y", 3, 6, 0)},
		{"wrong again", after(run(one, "x", 3, 5, 1), run(one, "y", 3, 0, 0)), run(one, "z", 0, 6, 1), run(one, "x", 3, 6, 1)},
		{"of its own commit again", after(run(one, "x", 3, 5, 1), run(one, "y", 3, 0, 0)), run(one, "x", 4, 6, 0), after(run(one, "x", 4, 6, 1), run(one, "y", 3, 0, 0))},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := string(Format(h200(c.b)))
			got, err := Merge(h200(c.a), h200(c.b))
			require.NoError(t, err)
			require.Equal(t, []Module{c.w}, got.Modules)
			again, err := Parse([]byte(b))
			require.NoError(t, err)
			once := string(Format(got))
			again, err = Merge(got, again)
			require.NoError(t, err)
			require.Equal(t, once, string(Format(again)), "merging b twice is not merging it once")
		})
	}
}

// TestMergeSeeds has runs of two seeds since a module was wrong, which add up once.
func TestMergeSeeds(t *testing.T) {
	all := h200(Module{Name: "a", SHA256: hash("1"), Commit: "x", Random: map[string]int{"gemm": 9}, Wrong: 1})
	for _, run := range []struct {
		seed     uint64
		problems int
		since    map[string]int
	}{{1, 4, map[string]int{"gemm": 4}}, {2, 3, map[string]int{"gemm": 7}}, {2, 3, map[string]int{"gemm": 7}}, {1, 5, map[string]int{"gemm": 7}}, {3, 3, nil}} {
		b := h200(Module{Name: "a", SHA256: hash("1"), Commit: "y", Random: map[string]int{"gemm": run.problems}})
		b.Random = []Random{{"gemm", run.seed, "y", run.problems, 0}}
		var err error
		all, err = Merge(all, b)
		require.NoError(t, err)
		if run.since == nil {
			require.Equal(t, Pass, all.Modules[0].Verdict)
			return
		}
		require.Equal(t, run.since, all.Modules[0].Since.Random)
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
	require.Len(t, got.Modules, 3)
	require.Equal(t, "b", got.Modules[1].Name)
	require.Equal(t, []Random{{"gemm", 1, "x", 100, 2}, {"gemm", 2, "y", 50, 0}, {"mlp", 1, "x", 7, 0}, {"norm", 1, "y", 3, 0}}, got.Random)
	require.Equal(t, vk.MakeVersion(1, 4, 313), got.Vulkan)
	b.DriverVersion = "590.1"
	_, err = Merge(a, b)
	require.ErrorContains(t, err, "driver 590.1 do not merge")
}

// TestFiles finds, writes and merges the file of a device.
func TestFiles(t *testing.T) {
	dir, r := t.TempDir(), h200(Module{Name: "a", SHA256: hash("1"), Fixed: 1})
	path, err := File(dir, r)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "nvidia-h200-580.159.04.json"), path)
	require.NoError(t, os.WriteFile(path, nil, 0o666)) // as mktemp leaves it
	for range 2 {
		merged, err := MergeFile(path, h200(r.Modules...))
		require.NoError(t, err)
		require.Equal(t, r.Modules, merged.Modules, "the same run twice is one run")
		list, err := Read(os.DirFS(dir))
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.Equal(t, r.Modules, list[0].Modules)
	}
	_, err = File(path, softly())
	require.ErrorContains(t, err, "a record of NVIDIA H200, driver 580.159.04 and one of llvmpipe")
	_, err = MergeFile(path, softly())
	require.ErrorContains(t, err, "do not merge")
	_, err = Read(fstest.MapFS{"x.json": {Data: Format(r)}})
	require.ErrorContains(t, err, "should be named nvidia-h200-580.159.04.json")
	_, err = Read(fstest.MapFS{"x.json": {Data: []byte("{}")}})
	require.ErrorContains(t, err, "x.json: not a record")
}

// TestCommitted says that the records of the repository are as this package writes them.
func TestCommitted(t *testing.T) {
	records, err := Read(conformance.Records)
	require.NoError(t, err)
	for _, r := range records {
		text, err := conformance.Records.ReadFile(r.FileName())
		require.NoError(t, err)
		require.Equal(t, string(Format(r)), string(text), "%s was written by hand", r.FileName())
	}
	modules, err := Committed()
	require.NoError(t, err)
	require.Len(t, modules, len(shaders.Variants()))
}

func TestUnproven(t *testing.T) {
	current := []Module{{Name: "a", SHA256: hash("1")}}
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
			var want []string
			if c.want != "" {
				want = []string{"a: " + c.want}
			}
			require.Equal(t, want, Unproven(c.records, current))
		})
	}
}

// FuzzParse says that no record makes us panic, and that one that is accepted is read again as
// it is written.
func FuzzParse(f *testing.F) {
	records, err := Read(conformance.Records)
	if err != nil {
		f.Fatal(err)
	}
	for _, r := range records {
		small := *r
		small.Modules, small.Random = r.Modules[:min(3, len(r.Modules))], r.Random[:min(2, len(r.Random))]
		f.Add(Format(&small))
	}
	f.Add([]byte(`{"device": "x", "driver_version": "1", "modules": [{"name": "m", "sha256": "", "verdict": "proven"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := Parse(text)
		if err != nil {
			return
		}
		once := Format(r)
		again, err := Parse(once)
		if err != nil {
			t.Fatalf("%v of %s", err, once)
		}
		if twice := Format(again); !bytes.Equal(once, twice) {
			t.Errorf("%s is written as %s", once, twice)
		}
	})
}

var update = flag.Bool("update", false, "TestReadme writes the table of devices into README.md")

// What the table stands between in README.md.
const (
	tableBegin = "<!-- go test ./internal/conformance -run Readme -update writes this table -->\n"
	tableEnd   = "<!-- end of the table -->\n"
)

// TestReadme compares the table of devices in README.md with the records and the
// modules; with -update it writes the table.
func TestReadme(t *testing.T) {
	const path = "../../README.md"
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("README.md is not here")
	}
	require.NoError(t, err)
	records, err := Read(conformance.Records)
	require.NoError(t, err)
	modules, err := Committed()
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(text), tableBegin)
	old, after, ok2 := strings.Cut(rest, tableEnd)
	require.True(t, ok && ok2, "README.md does not have the lines\n%s%s", tableBegin, tableEnd)
	want := Table(records, modules)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(before+tableBegin+want+tableEnd+after), 0o644))
		return
	}
	require.Equal(t, want, old, "go test ./internal/conformance -run Readme -update writes the table anew")
}

func TestTable(t *testing.T) {
	current := []Module{{Name: "a", SHA256: hash("1")}, {Name: "b", SHA256: hash("1")}, {Name: "c", SHA256: hash("1")}}
	r := h200(Module{Name: "a", SHA256: hash("1"), Fixed: 1}, Module{Name: "b", SHA256: hash("1"), Wrong: 1}, Module{Name: "c", SHA256: hash("2"), Fixed: 1})
	r.Random = []Random{{"gemm", 1, "x", 100, 1}, {"mlp", 1, "x", 7, 0}}
	require.Equal(t, `| device | driver | modules proven, of 3 | wrong | random problems passed | failed |
| --- | --- | --- | --- | --- | --- |
| NVIDIA H200 | NVIDIA 580.159.04, Vulkan 1.4.312 | 1 | 1 | 106 | 1 |
| llvmpipe (LLVM 21.1.8, 256 bits) | llvmpipe Mesa 26.1.6-1 (LLVM 21.1.8), Vulkan 1.4.312 | none: it is a CPU, on which 1 are right | 0 | 0 | 0 |

No record covers these families of GPUs: AMD rdna3, rdna4; Intel xe2; NVIDIA ada, ampere, ampere-rtx, blackwell-rtx;
nor any GPU of a vendor without a family here (Apple, Arm, Imagination, Qualcomm).
`, Table([]*Record{softly(Module{Name: "a", SHA256: hash("1"), Fixed: 1}), r}, current))
}
