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

func TestAnalyse(t *testing.T) {
	c := compiletest.Tool(t, "../..", "glslc", false)
	for _, tt := range []struct {
		name, source string
		want         []string
	}{
		{"straight", `void main() { put(subgroupMax(lane())); barrier(); put(cell[0]); }`, nil},

		// Inside.
		{"if", `void main() { if (mine()) put(subgroupMax(lane())); }`, []string{"inside subgroupMax#1"}},
		{"else", `void main() { if (mine()) put(1); else put(subgroupMax(lane())); }`, []string{"inside subgroupMax#1"}},
		{"switch", `void main() { switch (lane() % 3) { case 0: put(1); break; case 1: put(subgroupMax(lane())); break; } }`,
			[]string{"inside subgroupMax#1"}},
		{"return before", `void main() { if (mine()) return; put(subgroupMax(lane())); }`, []string{"inside subgroupMax#1"}},
		{"loop of its own length", `void main() { for (uint i = lane(); i < p.n; i += 7) put(subgroupMax(i)); }`, []string{"inside subgroupMax#1"}},
		{"break", `void main() { for (uint i = 0; i < p.n; i++) { if (from[i + lane()] == 0) break; put(subgroupMax(i)); } }`,
			[]string{"inside subgroupMax#1"}},
		{"break after", `void main() { for (uint i = 0; i < p.n; i++) { put(subgroupMax(i)); if (from[i + lane()] == 0) break; } }`,
			[]string{"inside subgroupMax#1"}},
		{"continue", `void main() { for (uint i = 0; i < p.n; i++) { if (from[i + lane()] == 0) continue; put(subgroupMax(i)); } }`,
			[]string{"inside subgroupMax#1"}},
		{"called inside", `uint f() { return subgroupMax(lane()); } void main() { if (mine()) put(f()); }`, []string{"inside subgroupMax#1"}},
		{"argument decides", `uint f(bool x) { return x ? subgroupMax(lane()) : 0; } void main() { put(f(mine())); }`, []string{"inside subgroupMax#1"}},
		{"argument of one call decides", `uint f(bool x) { return x ? subgroupMax(lane()) : 0; } void main() { put(f(p.n > 3)); put(f(mine())); }`,
			[]string{"inside subgroupMax#1"}},
		{"result decides", `bool f() { return lane() > 3; } void main() { if (f()) put(subgroupMax(lane())); }`, []string{"inside subgroupMax#1"}},
		{"return decides", `bool f() { if (lane() > 3) return true; return false; } void main() { if (f()) put(subgroupMax(lane())); }`,
			[]string{"inside subgroupMax#1"}},
		{"out argument decides", `void f(out bool x) { x = mine(); } void main() { bool x; f(x); if (x) put(subgroupMax(lane())); }`,
			[]string{"inside subgroupMax#1"}},
		{"variable stored in a branch", `void main() { bool x = false; if (mine()) x = true; barrier(); if (x) put(subgroupMax(lane())); }`,
			[]string{"inside subgroupMax#1"}},
		{"variable of a loop of its own length", `void main() { uint i = 0; while (i < lane()) i++; barrier(); if (i == 3) put(subgroupMax(lane())); }`,
			[]string{"inside subgroupMax#1"}},
		{"global", `bool x; void main() { x = mine(); if (x) put(subgroupMax(lane())); }`, []string{"inside subgroupMax#1"}},
		{"array", `void main() { bool x[4]; x[0] = true; x[lane() % 4] = false; if (x[0]) put(subgroupMax(lane())); }`, []string{"inside subgroupMax#1"}},
		{"and", `void main() { if (p.n > 3 && from[lane()] > 3) put(subgroupMax(lane())); }`, []string{"inside subgroupMax#1"}},
		{"own place of a buffer", `void main() { if (from[lane()] > 3) put(subgroupMax(lane())); }`, []string{"inside subgroupMax#1"}},
		{"buffer that is written", `void main() { if (to[0] > 3) put(subgroupMax(lane())); }`, []string{"inside subgroupMax#1"}},
		{"atomic", `void main() { if (atomicAdd(to[0], 1) > 3) put(subgroupMax(lane())); }`, []string{"inside subgroupMax#1"}},
		{"elect", `void main() { if (subgroupElect()) put(subgroupMax(lane())); }`, []string{"inside subgroupMax#1"}},
		{"scan", `void main() { if (subgroupExclusiveAdd(1) > 3) put(subgroupMax(lane())); }`, []string{"inside subgroupMax#1"}},
		{"shuffle", `void main() { if (subgroupShuffle(lane(), lane() / 2) > 3) put(subgroupMax(lane())); }`, []string{"inside subgroupMax#1"}},
		{"barrier by subgroup", `void main() { if (gl_SubgroupID == 0) barrier(); put(subgroupMax(lane())); }`, []string{"inside barrier#1"}},
		{"barrier by vote", `void main() { if (subgroupAny(mine())) barrier(); }`, []string{"inside barrier#1"}},
		{"barrier by shared memory", `void main() { if (cell[0] > 3) barrier(); }`, []string{"inside barrier#1"}},
		{"subgroupBarrier", `void main() { if (mine()) subgroupBarrier(); }`, []string{"inside subgroupBarrier#1"}},

		// The same for all.
		{"same for the workgroup", `void main() {
			for (uint i = gl_WorkGroupID.x; i < min(p.n, from[p.n]); i += gl_NumWorkGroups.x) {
				if (CHOICE || never[i] > 3) { barrier(); put(subgroupMax(i)); }
			} }`, nil},
		{"same for the subgroup", `void main() {
			if (gl_SubgroupID == 3) put(subgroupMax(1));
			if (subgroupAny(mine())) put(subgroupMax(2));
			if (subgroupAdd(lane()) > 3) put(subgroupMax(3));
			if (cell[gl_SubgroupID] > 3) put(subgroupMax(4));
			if (subgroupBroadcastFirst(lane()) > 3) put(subgroupMax(5)); }`, nil},
		{"argument is the same", `uint f(bool x) { return x ? subgroupMax(lane()) : 0; } void main() { put(f(p.n > 3)); put(f(CHOICE)); }`, nil},
		{"select", `void main() { put(subgroupMax(mine() ? 1 : 0)); }`, nil},

		// After.
		{"known defect", `void main() { for (uint i = 0; i < p.n; i++) {
			uint x = from[i + lane()];
			if (from[i * 2 + lane()] > 3) { x = 0; }
			put(subgroupMax(x));
			barrier();
			if (i > gl_SubgroupID) continue;
			put(2);
			} }`, []string{"after subgroupMax#1"}},
		{"known defect without branch", `void main() { for (uint i = 0; i < p.n; i++) {
			uint x = from[i + lane()];
			x = mix(x, 0, from[i * 2 + lane()] > 3);
			put(subgroupMax(x));
			barrier();
			if (i > gl_SubgroupID) continue;
			put(2);
			} }`, nil},
		{"known defect with a barrier", `void main() { for (uint i = 0; i < p.n; i++) {
			uint x = from[i + lane()];
			if (from[i * 2 + lane()] > 3) { x = 0; }
			barrier();
			put(subgroupMax(x));
			if (i > gl_SubgroupID) continue;
			put(2);
			} }`, nil},
		{"known defect with subgroupBarrier", `void main() { for (uint i = 0; i < p.n; i++) {
			uint x = from[i + lane()];
			if (from[i * 2 + lane()] > 3) { x = 0; }
			subgroupBarrier();
			put(subgroupMax(x));
			if (i > gl_SubgroupID) continue;
			put(2);
			} }`, nil},
		{"turn before", `void main() { for (uint i = 0; i < p.n; i++) {
			put(subgroupMax(i));
			barrier();
			if (i > gl_SubgroupID) continue;
			if (mine()) put(2);
			} }`, []string{"after subgroupMax#1"}},
		{"in a subgroup's branch", `void main() { if (gl_SubgroupID == 0) { if (mine()) put(1); put(subgroupMax(lane())); } }`, []string{"after subgroupMax#1"}},
		{"left by a subgroup", `void main() { if (p.n > 3) { if (gl_SubgroupID == 0) return; if (mine()) put(1); } put(subgroupMax(lane())); }`,
			[]string{"after subgroupMax#1"}},
		{"return of a function", `uint f() { if (mine()) return 1; return to[0]; } void main() { put(subgroupMax(f())); }`, []string{"after subgroupMax#1"}},
		{"in another function", `uint f() { return subgroupMax(lane()); }
			void main() { if (gl_SubgroupID == 0) { if (mine()) put(1); put(f()); } }`, []string{"after subgroupMax#1"}},

		{"two barriers", `void main() { if (gl_SubgroupID == 0) { if (mine()) { put(1); subgroupBarrier(); } else subgroupBarrier(); put(subgroupMax(lane())); } }`,
			[]string{"after subgroupMax#1", "inside subgroupBarrier#1", "inside subgroupBarrier#2"}},

		// Merged, as the specification promises.
		{"merged if", `void main() { if (mine()) put(1); put(subgroupMax(lane())); }`, []string{"merged subgroupMax#1"}},
		{"merged if in a loop", `void main() { for (uint i = 0; i < p.n; i++) { if (mine()) put(1); put(subgroupMax(lane())); } }`,
			[]string{"merged subgroupMax#1"}},
		{"merged if after a barrier of all", `void main() { for (uint i = 0; i < p.n; i++) {
			barrier();
			if (mine()) put(1);
			put(subgroupMax(lane()));
			if (i > gl_SubgroupID) continue;
			put(2);
			} }`, []string{"merged subgroupMax#1"}},
		{"if after a barrier of the subgroup", `void main() { for (uint i = 0; i < p.n; i++) {
			subgroupBarrier();
			if (mine()) put(1);
			put(subgroupMax(lane()));
			if (i > gl_SubgroupID) continue;
			put(2);
			} }`, []string{"after subgroupMax#1"}},
		{"merged loop", `void main() { for (uint i = 0; i < p.n; i++) { if (from[lane() + i] > 3) break; put(1); } put(subgroupMax(lane())); }`,
			[]string{"merged subgroupMax#1"}},
		{"merged call", `uint f() { if (mine()) return 1; return to[0]; } void main() { uint x; if (CHOICE) { x = f(); } put(subgroupMax(x)); }`,
			[]string{"merged subgroupMax#1"}},

		// Matrices.
		{"matrix", `#define M coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
			void main() { M m; coopMatLoad(m, matrix, gl_SubgroupID * 256, 16, gl_CooperativeMatrixLayoutRowMajor); m += M(1.0);
			coopMatStore(m, matrix, gl_SubgroupID * 256, 16, gl_CooperativeMatrixLayoutRowMajor); }`, nil},
		{"matrix in a branch", `#define M coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
			void main() { M m; coopMatLoad(m, matrix, 0, 16, gl_CooperativeMatrixLayoutRowMajor);
			if (m[0] > 3) coopMatStore(m, matrix, 0, 16, gl_CooperativeMatrixLayoutRowMajor); }`, []string{"inside coopMatStore#1"}},
		{"matrix at its own place", `#define M coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
			void main() { M m; coopMatLoad(m, matrix, lane(), 16, gl_CooperativeMatrixLayoutRowMajor);
			coopMatStore(m, matrix, 0, 16, gl_CooperativeMatrixLayoutRowMajor); }`, []string{"operand coopMatLoad#1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.want, faults(t, compile(t, c, tt.source), nil, core))
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

// The command as it is started, without arguments, names a line that excuses nothing.
func TestRunUnused(t *testing.T) {
	defer func(text string) { judgedText = text }(judgedText)
	if ok, err := run(false, false, core, []string{}); !ok || err != nil {
		t.Errorf("judged.txt as it is: ok %v, err %v", ok, err)
	}
	judgedText += "\ninside never( barrier#1: a finding that there is not.\n"
	if ok, err := run(false, false, core, []string{}); ok || err != nil {
		t.Errorf("with a line that excuses nothing: ok %v, err %v", ok, err)
	}
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
