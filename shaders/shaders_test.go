package shaders_test

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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
		file := filepath.Join("spv", v.Name()+".spv")
		args := []string{"--target-env", v.Env, "--scalar-block-layout", file}
		if out, err := exec.Command(path, args...).CombinedOutput(); err != nil {
			t.Errorf("%s: spirv-val: %v\n%s", file, err, bytes.TrimSpace(out))
		}
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
	kernel := regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	seen := map[string]bool{}
	kernels := map[string]bool{}
	for _, v := range shaders.Variants() {
		if seen[v.Name()] {
			t.Errorf("%s is in the table twice", v.Name())
		}
		seen[v.Name()] = true
		kernels[v.File] = true
		require.True(t, kernel.MatchString(v.Kernel))
		require.True(t, slices.Contains([]string{"", "f16", "bf16", "f32"}, v.Type), v.Name())
		if v.Env != "vulkan1.2" && v.Env != "vulkan1.3" {
			t.Errorf("%s: environment %q is neither vulkan1.2 nor vulkan1.3", v.Name(), v.Env)
		}
	}
	files, err := filepath.Glob("*.comp")
	require.NoError(t, err)
	for _, file := range files {
		require.True(t, kernels[file])
	}
}

// TestGet checks that every row of the table is embedded, as the file in spv/.
func TestGet(t *testing.T) {
	for _, v := range shaders.Variants() {
		m, err := shaders.Get(v.Kernel, v.Type)
		if err != nil {
			t.Error(err)
			continue
		}
		want, err := os.ReadFile(filepath.Join("spv", v.Name()+".spv"))
		if err != nil {
			t.Error(err)
			continue
		}
		require.Equal(t, v.Name(), m.Name, v.Kernel)
		require.True(t, bytes.Equal(m.SPIRV, want), v.Kernel)
	}
	_, err := shaders.Get("no_such_kernel", "f16")
	require.Error(t, err)
	require.Equal(t, "shaders: no module no_such_kernel.f16", err.Error())
}
