package mutate

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/shaders/compile/compiletest"
	"github.com/flashvk/flashvk/shaders"
)

// TestAll says that the texts of all mutants and experiments still apply, and each has modules.
func TestAll(t *testing.T) {
	require.True(t, len(All()) > 15 && len(Experiments()) == 3)
	names := map[string]bool{}
	for _, m := range slices.Concat(All(), Experiments()) {
		require.False(t, names[m.Name], m.Name)
		require.True(t, m.Name != "" && m.What != "" && m.Kernel != "" && m.Modules != "" && len(m.Edits) > 0, "%+v", m)
		names[m.Name] = true
		require.NoError(t, m.sources("../../../shaders", t.TempDir()))
		modules := 0
		for _, v := range shaders.Variants() {
			if strings.HasPrefix(v.Name(), m.Modules) {
				modules++
			}
		}
		require.NotZero(t, modules, m.Name)
	}
}

// TestCompile compiles the mutant with the fewest modules, and says that it is not what is built in.
func TestCompile(t *testing.T) {
	glslc := compiletest.Tool(t, "../../..", "glslc", false)
	m := Mutant{Name: "poison", Modules: "poison", Edits: []Edit{{"poison.comp", []string{"different != 0"}, []string{"different == 0"}}}}
	dir := t.TempDir()
	require.NoError(t, m.Compile(glslc, "../../../shaders", dir))
	code, err := os.ReadFile(dir + "/poison.spv")
	require.NoError(t, err)
	built, err := os.ReadFile("../../../shaders/spv/poison.spv")
	require.NoError(t, err)
	require.NotEqual(t, string(built), string(code), "the mutant is the module as it is built in")
	m.Edits[0].Old = []string{"no such text"}
	require.ErrorContains(t, m.Compile(glslc, "../../../shaders", dir), "has the text to be replaced 0 times")
}
