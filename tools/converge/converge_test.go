package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/shaders/compile/compiletest"
)

// header is in front of each test's source. A test's main is walk.
const header = `#version 450
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_EXT_subgroup_uniform_control_flow : require
#extension GL_EXT_maximal_reconvergence : require
layout(local_size_x = 64) in;
layout(constant_id = 0) const bool CHOICE = false;
layout(push_constant) uniform Params { uint n; } p;
layout(binding = 0) readonly buffer In { uint from[]; };
layout(binding = 1) buffer Out { uint to[]; };
layout(binding = 2) buffer Never { uint never[]; };  // writable, but not written
shared uint cell[64];
shared float matrix[1024];
uint lane() { return gl_LocalInvocationIndex; }
bool mine() { return lane() % 3 == 0; }
void put(const uint x) { to[lane()] = x; }
`

// compile returns the module of a source behind the header.
func compile(t *testing.T, glslc, source string) *module {
	t.Helper()
	dir := t.TempDir()
	in, out := filepath.Join(dir, "test.comp"), filepath.Join(dir, "test.spv")
	require.NoError(t, os.WriteFile(in, []byte(header+source), 0o666))
	if text, err := exec.Command(glslc, "-O0", "--target-env=vulkan1.3", "-o", out, in).CombinedOutput(); err != nil {
		t.Fatalf("glslc: %v\n%s", err, text)
	}
	code, err := os.ReadFile(out)
	require.NoError(t, err)
	m, err := parse(code)
	require.NoError(t, err)
	return m
}

// faults returns the findings of a module, as "class kind#number", without causes.
func faults(t *testing.T, m *module, named map[string]bool, promise promise) []string {
	t.Helper()
	list, err := analyse(m, named, promise)
	require.NoError(t, err)
	var faults []string
	for _, f := range list {
		faults = append(faults, fmt.Sprintf("%s %s#%d", f.class, f.place.kind, f.place.number))
	}
	slices.Sort(faults)
	return slices.Compact(faults)
}

// TestAnalyse has the sources of testdata/cases.glsl: each line with == has a name and the findings.
func TestAnalyse(t *testing.T) {
	c := compiletest.Tool(t, "../..", "glslc", false)
	text, err := os.ReadFile("testdata/cases.glsl")
	require.NoError(t, err)
	cases := strings.Split(string(text), "\n// == ")[1:]
	require.Greater(t, len(cases), 52)
	for _, one := range cases {
		name, rest, _ := strings.Cut(one, ":")
		found, source, _ := strings.Cut(rest, "\n")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, strings.TrimSpace(found), strings.Join(faults(t, compile(t, c, source), nil, core), ", "))
		})
	}
}

// The execution modes promise more, and so do the constants that are given.
func TestPromise(t *testing.T) {
	c := compiletest.Tool(t, "../..", "glslc", false)
	const walk = `{ for (uint i = 0; i < p.n; i++) {
		uint x = from[i + lane()];
		if (from[i * 2 + lane()] > 3) { x = 0; }
		put(subgroupMax(x));
		if (i > gl_SubgroupID) continue;
		put(2);
		} }`
	const early = `uint f() { if (mine()) return 1; return to[0]; } void main() MODE { if (gl_SubgroupID == 0) { put(subgroupMax(f())); } }`
	const left = `void main() MODE { for (uint i = 0; i < p.n; i++) { if (mine()) { if (from[i] > 3) break; put(1); } put(subgroupMax(i)); } }`
	for _, tt := range []struct {
		source, mode string
		promise      promise
		want         string
	}{
		{"void main() MODE " + walk, "", core, "after subgroupMax#1"},
		{"void main() MODE " + walk, "", bySubgroup, "merged subgroupMax#1"},
		{"void main() MODE " + walk, "", maximal, "merged subgroupMax#1"},
		{"void main() MODE " + walk, "[[subgroup_uniform_control_flow]]", core, "merged subgroupMax#1"},
		{"void main() MODE " + walk, "[[maximally_reconverges]]", core, "merged subgroupMax#1"},
		{early, "", core, "after subgroupMax#1"},
		{early, "[[subgroup_uniform_control_flow]]", core, "after subgroupMax#1"}, // a return is no merge block
		{early, "[[maximally_reconverges]]", core, "merged subgroupMax#1"},
		// No promise brings those back who have left.
		{left, "[[maximally_reconverges]]", core, "inside subgroupMax#1"},
	} {
		m := compile(t, c, strings.ReplaceAll(tt.source, "MODE", tt.mode))
		require.Equal(t, []string{tt.want}, faults(t, m, nil, tt.promise), tt.mode)
	}
}

func TestConstants(t *testing.T) {
	c := compiletest.Tool(t, "../..", "glslc", false)
	m := compile(t, c, `void main() {
		const uint first = CHOICE ? gl_SubgroupID : 0;
		for (uint i = first; i < p.n; i++) { if (!CHOICE) { barrier(); } put(subgroupMax(i)); } }`)
	for _, tt := range []struct {
		named map[string]bool
		want  []string
	}{
		{nil, []string{"inside barrier#1"}},
		{map[string]bool{"CHOICE": true}, nil},
		{map[string]bool{"CHOICE": false}, nil},
	} {
		require.Equal(t, tt.want, faults(t, m, tt.named, core))
	}
}

// What a function is called, and where its branches are, is what judged.txt goes by.
func TestCause(t *testing.T) {
	c := compiletest.Tool(t, "../..", "glslc", false)
	m := compile(t, c, `uint f(uint x) { if (p.n > 3) put(1); if (x > 3) return 1; return to[0]; }
		void main() { put(subgroupMin(1)); put(subgroupMax(f(lane()))); }`)
	list, err := analyse(m, nil, core)
	require.NoError(t, err)
	want := finding{after, place{"main", "subgroupMax", 1, ""}, place{"f(u1;", "branch", 2, ""}}
	require.Len(t, list, 1)
	require.Equal(t, want, list[0])
	for text, excused := range map[string]bool{
		"after main subgroupMax#1: a reason":                          true,
		"after main subgroupMax#1 since f(u1; branch#2: a reason":     true,
		"after main subgroupMax#1 since f(u1; branch#1: a reason":     false,
		"after main subgroupMax#2: a reason":                          false,
		"inside main subgroupMax#1: a reason":                         false,
		"constant CHOICE true: a reason\nafter f subgroupMax#1: more": false,
	} {
		j, err := parseJudged("judged.txt", text+"\n")
		require.NoError(t, err)
		require.Equal(t, excused, j.excuses(want), text)
		require.Equal(t, excused, len(j.unused()) == 0, text)
	}
}

func TestParseJudged(t *testing.T) {
	for _, text := range []string{
		"after main subgroupMax#1",
		"after main subgroupMax#1:",
		"after main subgroupMax#1:  ",
		"merged main subgroupMax#1: a reason",
		"after main subgroupMax: a reason",
		"constant CHOICE: a reason",
		"constant CHOICE maybe: a reason",
	} {
		if _, err := parseJudged("judged.txt", text); err == nil || !strings.HasPrefix(err.Error(), "judged.txt:1: ") {
			t.Errorf("%q: error is %v", text, err)
		}
	}
	j, err := parseJudged("judged.txt", "# a comment\n\nconstant CHOICE either: a reason\n    that goes on\n")
	if err != nil || len(j.constants) != 1 || len(j.constants[0].values) != 2 {
		t.Errorf("judged is %+v, %v", j, err)
	}
}

// Nothing is open in any module, and a line that excuses nothing is named, no other.
func TestUnused(t *testing.T) {
	j, err := parseJudged("judged.txt", judgedText+"\ninside never( barrier#1: a finding that there is not.\n")
	require.NoError(t, err)
	modules, err := load(nil)
	require.NoError(t, err)
	r, err := report(modules, j, false, core)
	require.NoError(t, err)
	require.Empty(t, r.open)
	require.Len(t, j.unused(), 1)
	require.Equal(t, fmt.Sprintf("judged.txt:%d: excuses nothing: no module has this finding", strings.Count(judgedText, "\n")+2), j.unused()[0])
}

// Every module can be read: there is nothing in it that the analysis does not know. And
// every subgroup operation and barrier of the source is looked at.
func TestModules(t *testing.T) {
	j, err := parseJudged("judged.txt", judgedText)
	require.NoError(t, err)
	modules, err := load(nil)
	require.NoError(t, err)
	r, err := report(modules, j, false, maximal)
	require.NoError(t, err)
	require.NotEqual(t, 0, len(r.merged), "no module has a branch before a subgroup operation")
	if r, err = report(modules, j, true, core); err != nil || len(r.open) == 0 {
		t.Errorf("without the modes that modules declare %d places are open, err %v", len(r.open), err)
	}
}
