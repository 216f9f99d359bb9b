package compile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var testRows = []Row{
	{Name: "scale.f32", File: "scale.comp", Defines: []string{"TYPE=float"}, Env: "vulkan1.2"},
	{Name: "scale.u32", File: "scale.comp", Defines: []string{"TYPE=uint"}, Env: "vulkan1.3"},
}

// copyShaders returns a shader folder of its own with testdata in it.
func copyShaders(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "shaders")
	require.NoError(t, os.CopyFS(dir, os.DirFS("testdata")))
	return dir
}

// compiler returns the compiler, or skips the test where there is none.
func compiler(t *testing.T) *Compiler {
	t.Helper()
	must := os.Getenv("FLASHVK_REQUIRE_TOOLS") != ""
	path, err := Find("../../..", "glslc", must)
	if err != nil {
		require.False(t, must, err)
		t.Skip(err)
	}
	c, err := New(path)
	require.NoError(t, err)
	return c
}

// edit replaces old, which must be there, in a file.
func edit(t *testing.T, path, old, new string) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(text), old)
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(text), old, new)), 0o666); err != nil {
		t.Fatal(err)
	}
}

// wantOne checks that errs is one error that contains want.
func wantOne(t *testing.T, errs []error, want string) {
	t.Helper()
	require.Len(t, errs, 1)
	require.Contains(t, errs[0].Error(), want)
}

func TestGenerate(t *testing.T) {
	c := compiler(t)
	dir := copyShaders(t)
	require.NoError(t, Generate(dir, testRows, c, false))
	for _, with := range []*Compiler{c, nil} {
		require.Empty(t, Check(dir, testRows, with))
	}
	for _, r := range testRows {
		code, err := os.ReadFile(filepath.Join(dir, "spv", r.Name+".spv"))
		require.NoError(t, err)
		require.Contains(t, string(code), "factor", r.Name)
	}
	// A row that leaves the table takes its files with it.
	require.NoError(t, Generate(dir, testRows[:1], c, false))
	if _, err := os.Stat(filepath.Join(dir, "spv", "scale.u32.spv")); !os.IsNotExist(err) {
		t.Errorf("scale.u32.spv is still there: %v", err)
	}
}

// TestGenerateChanged checks that a module which the manifest describes is kept, and that one
// whose source, line or file has changed is compiled.
func TestGenerateChanged(t *testing.T) {
	c := compiler(t)
	dir := copyShaders(t)
	rows := testRows[:1]
	require.NoError(t, Generate(dir, rows, c, true))
	path := filepath.Join(dir, "spv", "scale.f32.spv")
	code, err := os.ReadFile(path)
	require.NoError(t, err)
	generate := func(want string) {
		t.Helper()
		require.NoError(t, Generate(dir, rows, c, true))
		if got, err := os.ReadFile(path); err != nil || Hash(got) != want {
			t.Errorf("the module is %s, want %s: %v", Hash(got), want, err)
		}
	}
	edit(t, path, "factor", "fuctor")
	generate(Hash(code)) // the file was not what the manifest says
	edit(t, path, "factor", "fuctor")
	changed, err := os.ReadFile(path)
	require.NoError(t, err)
	edit(t, filepath.Join(dir, "spv", manifestName), Hash(code), Hash(changed))
	generate(Hash(changed)) // all hashes agree, so it is kept
	edit(t, filepath.Join(dir, "lib", "index.glsl"), "GlobalInvocationID.x", "GlobalInvocationID.x + 0")
	require.NoError(t, Generate(dir, rows, c, true))
	require.Empty(t, Check(dir, rows, c))
}

// TestCheckFinds makes spv/ stale in every way there is, without a compiler.
func TestCheckFinds(t *testing.T) {
	c := compiler(t)
	for _, tt := range []struct {
		name, want string
		change     func(t *testing.T, dir string)
		rows       []Row
	}{
		{"include edited", "scale.f32.spv is stale", func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, "lib", "index.glsl"), "GlobalInvocationID.x", "GlobalInvocationID.y")
		}, nil},
		{"define changed", "scale.f32.spv is stale", func(*testing.T, string) {},
			[]Row{{Name: "scale.f32", File: "scale.comp", Defines: []string{"TYPE=int"}, Env: "vulkan1.2"}}},
		{"target changed", "scale.f32.spv is stale", func(*testing.T, string) {},
			[]Row{{Name: "scale.f32", File: "scale.comp", Defines: []string{"TYPE=float"}, Env: "vulkan1.3"}}},
		{"module edited", "not the file that its manifest line", func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, "spv", "scale.f32.spv"), "factor", "fuctor")
		}, nil},
		{"module lost", "no such file", func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "spv", "scale.f32.spv")))
		}, nil},
		{"orphan", "old.f16.spv is an orphan", func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "spv", "old.f16.spv"), nil, 0o666))
		}, nil},
		{"line without a row", "old.f16 has a line, but no row", func(t *testing.T, dir string) {
			line := fmt.Sprintf("old.f16 %s %s\n", Hash(nil), Hash(nil))
			edit(t, filepath.Join(dir, "spv", manifestName), "\nscale", "\n"+line+"scale")
		}, nil},
		{"row without a line", "scale.f32 has no line", func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, "spv", manifestName), "\nscale.f32", "\n#")
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := copyShaders(t)
			require.NoError(t, Generate(dir, testRows[:1], c, false))
			tt.change(t, dir)
			if tt.rows == nil {
				tt.rows = testRows[:1]
			}
			wantOne(t, Check(dir, tt.rows, nil), tt.want)
		})
	}
}

// TestCheckCompiles checks that a module which its manifest line describes, but
// which is not what the source compiles to, is found by the manifest's compiler
// and passed by another.
func TestCheckCompiles(t *testing.T) {
	c := compiler(t)
	dir := copyShaders(t)
	rows := testRows[:1]
	require.NoError(t, Generate(dir, rows, c, false))
	path := filepath.Join(dir, "spv", "scale.f32.spv")
	code, err := os.ReadFile(path)
	require.NoError(t, err)
	edit(t, path, "factor", "fuctor")
	changed, err := os.ReadFile(path)
	require.NoError(t, err)
	edit(t, filepath.Join(dir, "spv", manifestName), Hash(code), Hash(changed))
	require.Empty(t, Check(dir, rows, nil))
	wantOne(t, Check(dir, rows, c), "scale.f32.spv is not what scale.comp compiles to")
	other := *c
	other.Version += ", another"
	require.Empty(t, Check(dir, rows, &other))
}

// TestGenerateFails checks that a shader which does not compile is reported once
// for all its rows, with file and line, and that nothing is written.
func TestGenerateFails(t *testing.T) {
	c := compiler(t)
	dir := copyShaders(t)
	edit(t, filepath.Join(dir, "lib", "scale.glsl"), "factor * x", "factor * z")
	err := Generate(dir, testRows, c, false)
	if err == nil || strings.Count(err.Error(), "shaders/lib/scale.glsl:4: error: 'z' : undeclared identifier") != 1 {
		t.Errorf("error is %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "spv")); !os.IsNotExist(err) {
		t.Errorf("spv was written: %v", err)
	}
}

func TestFlatten(t *testing.T) {
	text, err := flatten("testdata", "scale.comp")
	require.NoError(t, err)
	require.EqualValues(t, 1, strings.Count(string(text), "uint index()"))
	dir := copyShaders(t)
	edit(t, filepath.Join(dir, "lib", "scale.glsl"), "index.glsl", "missing.glsl")
	_, err = flatten(dir, "scale.comp")
	if want := "shaders/lib/scale.glsl:3: no such include: missing.glsl"; err == nil || err.Error() != want {
		t.Errorf("error is %v, want %s", err, want)
	}
}

func TestManifest(t *testing.T) {
	m := &Manifest{Compiler: "glslang 1, Target: SPIR-V 1.0", Entries: map[string]Entry{
		"b.f16": {Hash([]byte("1")), Hash([]byte("2"))},
		"a":     {Hash([]byte("3")), Hash([]byte("4"))},
	}}
	got, err := ParseManifest(m.Format())
	require.NoError(t, err)
	if got.Compiler != m.Compiler || len(got.Entries) != 2 || got.Entries["a"] != m.Entries["a"] || got.Entries["b.f16"] != m.Entries["b.f16"] {
		t.Errorf("read back %+v, want %+v", got, m)
	}
	h := Hash(nil)
	for _, bad := range []string{"a b c\n", "a " + h + "\n", strings.Repeat("a "+h+" "+h+"\n", 2)} {
		if _, err := ParseManifest([]byte(bad)); err == nil {
			t.Errorf("no error for %q", bad)
		}
	}
}

// TestFind checks that the environment decides before the toolchain is asked.
func TestFind(t *testing.T) {
	t.Setenv("FLASHVK_SPIRV_VAL", "/somewhere/spirv-val")
	if path, err := Find(t.TempDir(), "spirv-val", true); err != nil || path != "/somewhere/spirv-val" {
		t.Errorf("Find is %q, %v", path, err)
	}
	t.Setenv("FLASHVK_SPIRV_VAL", "")
	if path, err := Find(t.TempDir(), "spirv-val", true); err == nil {
		t.Errorf("Find without a toolchain is %q", path)
	}
}
