package compile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/spirv"
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
	if err != nil && !must {
		t.Skip(err)
	}
	require.NoError(t, err)
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
	require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(string(text), old, new)), 0o666))
}

// TestGenerate makes a folder, and makes it again where only what has changed is compiled: a module
// that the manifest describes is kept, one whose source or file has changed is not.
func TestGenerate(t *testing.T) {
	c := compiler(t)
	dir := copyShaders(t)
	path := filepath.Join(dir, "spv", "scale.f32.spv")
	read := func() string {
		code, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(code)
	}
	require.NoError(t, Generate(dir, testRows, c, false))
	require.Empty(t, Check(dir, testRows, c))
	require.Empty(t, Check(dir, testRows, nil))
	code := read()
	require.Contains(t, code, "factor", "it has lost its names")
	// A row that leaves the table takes its files with it.
	rows := testRows[:1]
	require.NoError(t, Generate(dir, rows, c, false))
	require.NoFileExists(t, filepath.Join(dir, "spv", "scale.u32.spv"))

	edit(t, path, "factor", "fuctor")
	require.NoError(t, Generate(dir, rows, c, true))
	require.Equal(t, code, read()) // the file was not what the manifest says
	edit(t, path, "factor", "fuctor")
	changed := read()
	edit(t, filepath.Join(dir, "spv", manifestName), Hash([]byte(code)), Hash([]byte(changed)))
	require.NoError(t, Generate(dir, rows, c, true))
	require.Equal(t, changed, read()) // all hashes agree, so it is kept
	// The manifest's compiler finds that it is not what the source compiles to, another passes it.
	require.Empty(t, Check(dir, rows, nil))
	require.ErrorContains(t, errors.Join(Check(dir, rows, c)...), "scale.f32.spv is not what scale.comp compiles to")
	require.Empty(t, Check(dir, rows, &Compiler{c.Path, c.Version + ", another"}))

	edit(t, filepath.Join(dir, "lib", "index.glsl"), "GlobalInvocationID.x", "GlobalInvocationID.x + 0")
	require.NoError(t, Generate(dir, rows, c, true))
	require.Empty(t, Check(dir, rows, c))
}

// TestCheckFinds makes spv/ stale in every way there is, without a compiler.
func TestCheckFinds(t *testing.T) {
	c := compiler(t)
	row := func(define, env string) []Row {
		return []Row{{Name: "scale.f32", File: "scale.comp", Defines: []string{"TYPE=" + define}, Env: env}}
	}
	line := fmt.Sprintf("old.f16 %s %s\n", Hash(nil), Hash(nil))
	for name, tt := range map[string]struct {
		want   string
		change func(dir string)
		rows   []Row
	}{
		"include edited": {"scale.f32.spv is stale", func(dir string) {
			edit(t, filepath.Join(dir, "lib", "index.glsl"), "GlobalInvocationID.x", "GlobalInvocationID.y")
		}, testRows[:1]},
		"define changed": {"scale.f32.spv is stale", func(string) {}, row("int", "vulkan1.2")},
		"target changed": {"scale.f32.spv is stale", func(string) {}, row("float", "vulkan1.3")},
		"module edited": {"not the file that its manifest line", func(dir string) {
			edit(t, filepath.Join(dir, "spv", "scale.f32.spv"), "factor", "fuctor")
		}, testRows[:1]},
		"module lost": {"no such file", func(dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "spv", "scale.f32.spv")))
		}, testRows[:1]},
		"orphan": {"old.f16.spv is an orphan", func(dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "spv", "old.f16.spv"), nil, 0o666))
		}, testRows[:1]},
		"line without a row": {"old.f16 has a line, but no row", func(dir string) {
			edit(t, filepath.Join(dir, "spv", manifestName), "\nscale", "\n"+line+"scale")
		}, testRows[:1]},
		"row without a line": {"scale.f32 has no line", func(dir string) {
			edit(t, filepath.Join(dir, "spv", manifestName), "\nscale.f32", "\n#")
		}, testRows[:1]},
	} {
		dir := copyShaders(t)
		require.NoError(t, Generate(dir, testRows[:1], c, false))
		tt.change(dir)
		errs := Check(dir, tt.rows, nil)
		require.Len(t, errs, 1, name)
		require.ErrorContains(t, errs[0], tt.want, name)
	}
}

// TestGenerateFails checks that a shader which does not compile is reported once
// for all its rows, with file and line, and that nothing is written.
func TestGenerateFails(t *testing.T) {
	c := compiler(t)
	dir := copyShaders(t)
	edit(t, filepath.Join(dir, "lib", "scale.glsl"), "factor * x", "factor * z")
	err := Generate(dir, testRows, c, false)
	require.Error(t, err)
	require.Equal(t, 1, strings.Count(err.Error(), "shaders/lib/scale.glsl:2: error: 'z' : undeclared identifier"), err)
	require.NoDirExists(t, filepath.Join(dir, "spv"))
}

func TestFlatten(t *testing.T) {
	dir := copyShaders(t)
	edit(t, filepath.Join(dir, "lib", "scale.glsl"), "index.glsl", "missing.glsl")
	_, err := flatten(dir, "scale.comp")
	require.EqualError(t, err, "shaders/lib/scale.glsl:1: no such include: missing.glsl")
}

func TestManifest(t *testing.T) {
	m := &Manifest{Compiler: "glslang 1, Target: SPIR-V 1.0", Entries: map[string]Entry{
		"b.f16": {Hash([]byte("1")), Hash([]byte("2"))},
		"a":     {Hash([]byte("3")), Hash([]byte("4"))},
	}}
	got, err := ParseManifest(m.Format())
	require.NoError(t, err)
	require.Equal(t, m, got)
	h := Hash(nil)
	for _, bad := range []string{"a b c\n", "a " + h + "\n", strings.Repeat("a "+h+" "+h+"\n", 2)} {
		_, err := ParseManifest([]byte(bad))
		require.Error(t, err, bad)
	}
}

// TestFind checks that the environment decides before the toolchain is asked.
func TestFind(t *testing.T) {
	t.Setenv("FLASHVK_SPIRV_VAL", "/somewhere/spirv-val")
	path, err := Find(t.TempDir(), "spirv-val", true)
	require.NoError(t, err)
	require.Equal(t, "/somewhere/spirv-val", path)
	t.Setenv("FLASHVK_SPIRV_VAL", "")
	_, err = Find(t.TempDir(), "spirv-val", true)
	require.Error(t, err)
}

// TestReconverge says which modules reconverge maximally, and that what they get stands where
// SPIR-V wants it: the extension behind the capabilities, the mode behind the entry point.
func TestReconverge(t *testing.T) {
	for capability, want := range map[uint32]bool{1: false, 60: false, 61: true, 63: true, 68: true, 69: false, 6022: true} {
		list := []spirv.Instruction{
			{Op: spirv.OpCapability, Args: []uint32{capability}}, {Op: spirv.OpEntryPoint, Args: []uint32{5, 4, 0x6e69616d, 0}},
			{Op: spirv.OpExecutionMode, Args: []uint32{4, spirv.ModeLocalSize, 8, 1, 1}},
		}
		got := reconverge(list)
		if !want {
			require.Equal(t, list, got, capability)
			continue
		}
		require.Equal(t, []spirv.Instruction{
			list[0], {Op: spirv.OpExtension, Args: spirv.Literal("SPV_KHR_maximal_reconvergence")},
			list[1], {Op: spirv.OpExecutionMode, Args: []uint32{4, 6023}}, list[2],
		}, got, capability)
	}
}
