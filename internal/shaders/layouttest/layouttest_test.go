package layouttest

import (
	"os"
	"reflect"
	"strings"
	"testing"

	spirv "github.com/flashvk/flashvk/internal/shaders/reflect"
	"github.com/flashvk/flashvk/shaders"

	"github.com/stretchr/testify/require"
)

// The mirrors of ../reflect/testdata/layout.comp.
type strides struct {
	Batch uint32 `glsl:"batch"`
	Head  uint32 `glsl:"head"`
}

type layoutParams struct {
	Ptr   uint64    `glsl:"ptr"`
	Base  uint64    `glsl:"base"`
	Rows  uint32    `glsl:"rows"`
	Scale float32   `glsl:"scale"`
	Q     strides   `glsl:"q"`
	Shape [3]uint32 `glsl:"shape"`
	Shift int32     `glsl:"shift"`
}

type layoutSpec struct {
	WorkgroupSize uint32  `glsl:"WORKGROUP_SIZE"`
	SaveRstd      bool    `glsl:"SAVE_RSTD"`
	Eps           float32 `glsl:"EPS"`
	Unused        int32   `glsl:"UNUSED"`
}

var layoutBindings = []string{"X", "Y", "Rstd", "Table"}

func module(t *testing.T, env string) shaders.Module {
	t.Helper()
	code, err := os.ReadFile("../reflect/testdata/layout." + env + ".spv")
	require.NoError(t, err)
	return shaders.Module{Name: "layout", SPIRV: code}
}

func parsed(t *testing.T, env string) *spirv.Module {
	t.Helper()
	m, err := spirv.Parse(module(t, env).SPIRV)
	require.NoError(t, err)
	return m
}

func TestCheck(t *testing.T) {
	type addresses struct {
		Ptr  uint64 `glsl:"ptr"`
		Base uint64 `glsl:"base"`
	}
	type embedding struct {
		addresses
		Rows  uint32    `glsl:"rows"`
		Scale float32   `glsl:"scale"`
		Q     strides   `glsl:"q"`
		Shape [3]uint32 `glsl:"shape"`
		Shift int32     `glsl:"shift"`
	}
	for _, env := range []string{"vulkan1.2", "vulkan1.3"} {
		Check(t, module(t, env), layoutParams{}, layoutSpec{}, "X", "Y", "Rstd", "Table")
		Check(t, module(t, env), layoutParams{}, layoutSpec{}, "X4", "Y", "Rstd", "Table")
		Check(t, module(t, env), embedding{}, layoutSpec{}, "X", "Y", "Rstd", "Table")
	}
}

// changed returns a value of a struct type like x's, with other fields.
func changed(x any, change func(f []reflect.StructField) []reflect.StructField) any {
	return reflect.Zero(reflect.StructOf(change(reflect.VisibleFields(reflect.TypeOf(x))))).Interface()
}

// TestCompareFinds hands over structs and names that are wrong in one way each.
func TestCompareFinds(t *testing.T) {
	type swappedInside struct {
		Head  uint32 `glsl:"head"`
		Batch uint32 `glsl:"batch"`
	}
	type beginnings struct {
		Batch uint32 `glsl:"_batch"`
		Head  uint32 `glsl:"_head"`
	}
	type fields = []reflect.StructField
	params := func(change func(f fields) fields) any { return changed(layoutParams{}, change) }
	typed := func(i int, x any) func(f fields) fields {
		return func(f fields) fields { f[i].Type = reflect.TypeOf(x); return f }
	}
	swap := func(f fields) fields { f[0], f[1] = f[1], f[0]; return f }
	short := func(f fields) fields { return f[:len(f)-1] }
	for name, tt := range map[string]struct {
		params, spec any
		bindings     []string
		want         []string // what host and shader have
	}{
		"renamed": {params(func(f fields) fields { f[2].Tag = `glsl:"n_rows"`; return f }), layoutSpec{}, layoutBindings,
			[]string{"uint n_rows at 16, the shader uint rows at 16"}},
		"untagged": {params(func(f fields) fields { f[6].Tag = ""; return f }), layoutSpec{}, layoutBindings,
			[]string{"int  at 44, the shader int shift at 44"}},
		"swapped": {params(swap), layoutSpec{}, layoutBindings,
			[]string{"uint64_t base at 0, the shader uint64_t ptr at 0", "uint64_t ptr at 8, the shader uint64_t base at 8"}},
		"nested": {params(typed(4, swappedInside{})), layoutSpec{}, layoutBindings,
			[]string{"uint q.head at 24, the shader uint q.batch at 24", "uint q.batch at 28, the shader uint q.head at 28"}},
		"flat": {params(typed(4, beginnings{})), layoutSpec{}, layoutBindings,
			[]string{"uint q_batch at 24, the shader uint q.batch at 24", "uint q_head at 28, the shader uint q.head at 28"}},
		"retyped": {params(typed(2, int32(0))), layoutSpec{}, layoutBindings, []string{"int rows at 16, the shader uint rows at 16"}},
		"short": {params(short), layoutSpec{}, layoutBindings,
			[]string{"a hole at its end, the shader int shift at 44"}},
		"not a struct": {3, nil, layoutBindings[:3], []string{"int, not a struct, the shader uint64_t ptr at 0"}},
		"spec swapped": {layoutParams{}, changed(layoutSpec{}, swap), layoutBindings,
			[]string{"constant 0 bool SAVE_RSTD, the shader constant 0 uint WORKGROUP_SIZE", "constant 1 uint WORKGROUP_SIZE, the shader constant 1 bool SAVE_RSTD"}},
		"spec short":      {layoutParams{}, changed(layoutSpec{}, short), layoutBindings, []string{"nothing, the shader constant 3 int UNUSED"}},
		"binding renamed": {layoutParams{}, layoutSpec{}, []string{"X", "Z", "Rstd", "Table"}, []string{"Z at binding 1 of set 0, the shader Y at binding 1 of set 0"}},
		"alias renamed":   {layoutParams{}, layoutSpec{}, []string{"X8", "Y", "Rstd", "Table"}, []string{"X8 at binding 0 of set 0, the shader X4/X at binding 0 of set 0"}},
		"binding missing": {layoutParams{}, layoutSpec{}, layoutBindings[:3], []string{"nothing, the shader Table at binding 3 of set 0"}},
	} {
		got := compare(parsed(t, "vulkan1.3"), MaxParamsBytes, tt.params, tt.spec, tt.bindings)
		require.GreaterOrEqual(t, len(got), len(tt.want), name)
		for i, want := range tt.want {
			require.Equal(t, "the host has "+want, got[i], name)
		}
		require.True(t, len(got) == len(tt.want) || name == "not a struct", "%s: %q", name, got)
	}
	require.Len(t, compare(parsed(t, "vulkan1.3"), MaxParamsBytes, nil, nil, nil), 9+4+4)
}

// TestCompareModule changes the module instead: what a shader can do wrong.
func TestCompareModule(t *testing.T) {
	for want, change := range map[string]func(m *spirv.Module){
		"the shader int shift at 48":                func(m *spirv.Module) { m.PushConstants.Members[7].Offset = 48 },
		"of push constants are more than 40":        func(*spirv.Module) {},
		"the host has uint64_t ptr at 0":            func(m *spirv.Module) { m.PushConstants = nil },
		"the shader constant 5 int UNUSED":          func(m *spirv.Module) { m.Specs[3].ID = 5 },
		"the shader Rstd at binding 2 of set 1":     func(m *spirv.Module) { m.Bindings[2].Set = 1 },
		"the shader Rstd at binding 3 of set 0":     func(m *spirv.Module) { m.Bindings[2].Binding = 3 },
		"the host has 48 bytes, the shader 44 byte": func(m *spirv.Module) { m.PushConstants.Size = 44 },
	} {
		m := parsed(t, "vulkan1.2")
		change(m)
		require.Contains(t, strings.Join(compare(m, 40, layoutParams{}, layoutSpec{}, layoutBindings), "; "), want)
	}
}

// TestRows compares structs with the rows of the table in layout.comp.
func TestRows(t *testing.T) {
	type long struct {
		strides
		Pad uint32 `glsl:"pad"`
	}
	CheckRows(t, module(t, "vulkan1.2"), "Table", strides{})
	bindings := parsed(t, "vulkan1.3").Bindings
	require.Equal(t, []string{"the host has uint pad at 8, the shader 8 bytes", "the host has 12 bytes, the shader nothing"}, compareRows(bindings, "Table", long{}))
	for _, table := range []string{"Rstd", "Tables"} {
		require.Equal(t, []string{"the shader has no table " + table + " of structs"}, compareRows(bindings, table, strides{}))
	}
}

// TestHoles checks that a struct with padding is refused even where its offsets
// are the shader's. No shader has its second type.
func TestHoles(t *testing.T) {
	type holes struct {
		Rows  uint32    `glsl:"rows"`
		Ptr   uint64    `glsl:"ptr"`
		Small [2]uint16 `glsl:"small"`
	}
	block := &spirv.Block{Name: "Params", Size: 24, Members: []spirv.Member{{Name: "rows", Type: "uint"},
		{Name: "ptr", Type: "uint64_t", Offset: 8}, {Name: "small", Type: "uint[1]", Offset: 16}}}
	require.Equal(t, []string{
		"the host has uint64_t ptr at 8 behind a hole, the shader uint64_t ptr at 8", "the host has [2]uint16 small at 16, the shader uint[1] small at 16",
		"the host has a hole at its end, the shader 24 bytes", "the host has 24 bytes, the shader nothing",
	}, differences(structLines(holes{}), blockLines(block)))
}
