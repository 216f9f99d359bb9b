package mutate

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/flashvk/flashvk/internal/shaders/compile/compiletest"
	"github.com/flashvk/flashvk/shaders"
)

// TestAll says that the texts of all mutants and experiments still apply, and each has modules.
func TestAll(t *testing.T) {
	names := map[string]bool{}
	for _, m := range slices.Concat(All(), Experiments()) {
		if names[m.Name] || m.Name == "" || m.What == "" || m.Kernel == "" || len(m.Edits) == 0 {
			t.Errorf("%+v: a name twice, or a field is empty", m)
		}
		names[m.Name] = true
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS("../../../shaders")); err != nil {
			t.Fatal(err)
		}
		for _, e := range m.Edits {
			if err := e.apply(dir); err != nil {
				t.Errorf("%s: %v", m.Name, err)
			}
		}
		modules := 0
		for _, v := range shaders.Variants() {
			if strings.HasPrefix(v.Name(), m.Modules) {
				modules++
			}
		}
		if modules == 0 {
			t.Errorf("%s: no module's name begins with %q", m.Name, m.Modules)
		}
	}
}

// TestCompile compiles the mutant with the fewest modules, and says that it is not what is built in.
func TestCompile(t *testing.T) {
	glslc := compiletest.Tool(t, "../../..", "glslc", false)
	m := Mutant{Name: "poison", Modules: "poison", Edits: []Edit{{"poison.comp", "different != 0", "different == 0"}}}
	dir := t.TempDir()
	if err := m.Compile(glslc, "../../../shaders", dir); err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile(dir + "/poison.spv")
	if err != nil {
		t.Fatal(err)
	}
	built, err := os.ReadFile("../../../shaders/spv/poison.spv")
	if err != nil {
		t.Fatal(err)
	}
	if string(code) == string(built) {
		t.Error("the mutant is the module as it is built in")
	}
	m.Edits[0].Old = "no such text"
	if err := m.Compile(glslc, "../../../shaders", dir); err == nil || !strings.Contains(err.Error(), "has the text to be replaced 0 times") {
		t.Errorf("a text that is not there: %v", err)
	}
}
