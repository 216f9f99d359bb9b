package shaders_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/shaders/compile"
	"github.com/flashvk/flashvk/internal/shaders/compile/compiletest"
	"github.com/flashvk/flashvk/internal/spirv"
	"github.com/flashvk/flashvk/shaders"
)

var (
	generate = flag.Bool("generate", false, "TestCurrent compiles the rows of variants.go whose sources have changed, and writes spv/")
	all      = flag.Bool("all", false, "with -generate: every row")
)

// rows is the table of variants as the compiler wants it.
func rows() []compile.Row {
	var rows []compile.Row
	for _, v := range shaders.Variants() {
		rows = append(rows, compile.Row{Name: v.Name(), File: v.File, Defines: v.Defines, Env: v.Env})
	}
	return rows
}

// requireTools says whether a missing tool is a failure; `make` sets it.
func requireTools() bool { return os.Getenv("FLASHVK_REQUIRE_TOOLS") != "" }

// TestCurrent checks that spv/ is what the sources compile to. With -generate it
// makes it so.
func TestCurrent(t *testing.T) {
	path, err := compile.Find("..", "glslc", *generate || requireTools())
	var c *compile.Compiler
	if err == nil {
		c, err = compile.New(path)
	}
	switch {
	case err != nil && (*generate || requireTools()):
		t.Fatal(err)
	case err != nil:
		t.Logf("only hashes are compared: %v", err)
	}
	if *generate {
		require.NoError(t, compile.Generate(".", rows(), c, !*all))
		c = nil // it has just compiled
	}
	for _, err := range compile.Check(".", rows(), c) {
		t.Error(err)
	}
	if t.Failed() && !*generate {
		t.Log("`make shaders` makes the SPIR-V anew")
	}
}

// TestValid runs spirv-val on every module in spv/.
func TestValid(t *testing.T) {
	path := compiletest.Tool(t, "..", "spirv-val", false)
	for _, v := range shaders.Variants() {
		out, err := exec.Command(path, "--target-env", v.Env, "--scalar-block-layout", filepath.Join("spv", v.Name()+".spv")).CombinedOutput()
		require.NoError(t, err, "%s: %s", v.Name(), out)
	}
}

// TestReductions checks that no module reduces integers over a subgroup: in kernels that are
// short of registers NVIDIA's driver 580 computes that wrong. It reduces floats by shuffles.
// (docs/drivers.md.)
func TestReductions(t *testing.T) {
	integers := map[spirv.Op]string{
		349: "IAdd", 351: "IMul", 353: "SMin", 354: "UMin", 356: "SMax", 357: "UMax",
		359: "BitwiseAnd", 360: "BitwiseOr", 361: "BitwiseXor",
	}
	for _, v := range shaders.Variants() {
		m, err := shaders.Get(v.Kernel, v.Type)
		require.NoError(t, err)
		list, err := spirv.Decode(m.SPIRV)
		require.NoError(t, err)
		for _, in := range list {
			require.Empty(t, integers[in.Op], v.Name())
		}
	}
}

// TestNames checks the table: every kernel file has a row, no name is used twice,
// and each value is one that the rest knows.
func TestNames(t *testing.T) {
	seen, kernels := map[string]bool{}, map[string]bool{}
	for _, v := range shaders.Variants() {
		require.False(t, seen[v.Name()], "%s is in the table twice", v.Name())
		seen[v.Name()], kernels[v.File] = true, true
		require.Regexp(t, `^[a-z][a-z0-9_]*$`, v.Kernel)
		require.Contains(t, []string{"", "f16", "bf16", "f32", "int8"}, v.Type, v.Name())
		require.Contains(t, []string{"vulkan1.2", "vulkan1.3"}, v.Env, v.Name())
	}
	files, err := filepath.Glob("*.comp")
	require.NoError(t, err)
	for _, file := range files {
		require.True(t, kernels[file], "%s has no row in variants.go", file)
	}
}

// TestGet checks that every row of the table is embedded, as the file in spv/.
func TestGet(t *testing.T) {
	for _, v := range shaders.Variants() {
		m, err := shaders.Get(v.Kernel, v.Type)
		require.NoError(t, err)
		want, err := os.ReadFile(filepath.Join("spv", v.Name()+".spv"))
		require.NoError(t, err)
		require.Equal(t, v.Name(), m.Name)
		require.True(t, bytes.Equal(want, m.SPIRV), v.Name())
	}
}

// TestHash says that a hash is of the modules that it names, of their types, and no others.
func TestHash(t *testing.T) {
	seen := map[string]bool{}
	for _, of := range [][]string{
		{"f16", "norm_fwd"}, {"bf16", "norm_fwd"}, {"f16", "norm_bwd"}, {"f16", "norm_fwd", "norm_bwd"}, {"f16", "norm_fwd", "gemm_combine"}, {"f16"},
	} {
		h := shaders.Hash(of[0], of[1:]...)
		require.Equal(t, h, shaders.Hash(of[0], of[1:]...))
		require.Len(t, h, 16)
		require.False(t, seen[h], of)
		seen[h] = true
	}
	require.Equal(t, shaders.Hash("f32", "gemm_combine"), shaders.Hash("f16", "gemm_combine"), "a kernel of one type")
}

// A kernel is named by its file and its element type.
func ExampleGet() {
	m, err := shaders.Get("attention_fwd_scalar", "f16")
	fmt.Println(m.Name, len(m.SPIRV)%4, err)
	_, err = shaders.Get("attention_fwd_scalar", "f64")
	fmt.Println(err)
	// Output:
	// attention_fwd_scalar.f16 0 <nil>
	// shaders: no module attention_fwd_scalar.f64
}
