package layouttest

import (
	"os"
	"reflect"
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

// changed returns a value of a struct type like that of x, with other fields.
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
		want         []string // of types without names
	}{
		"renamed": {params(func(f fields) fields { f[2].Tag = `glsl:"n_rows"`; return f }), layoutSpec{}, layoutBindings,
			[]string{" field 2 is {n_rows 16}, want {rows 16}"}},
		"swapped": {params(swap), layoutSpec{}, layoutBindings,
			[]string{" field 0 is {base 0}, want {ptr 0}", " field 1 is {ptr 8}, want {base 8}"}},
		"nested": {params(typed(4, swappedInside{})), layoutSpec{}, layoutBindings,
			[]string{" field 4 is {q.head 24}, want {q.batch 24}", " field 5 is {q.batch 28}, want {q.head 28}"}},
		"flat": {params(typed(4, beginnings{})), layoutSpec{}, layoutBindings,
			[]string{" field 4 is {q_batch 24}, want {q.batch 24}", " field 5 is {q_head 28}, want {q.head 28}"}},
		"retyped": {params(typed(2, int32(0))), layoutSpec{}, layoutBindings,
			[]string{" field 2 is {rows int 16}, want {rows uint 16}"}},
		"short": {params(short), layoutSpec{}, layoutBindings,
			[]string{" has 7 fields, want the 8 of Params", " has a hole of 4 bytes at its end"}},
		"untagged": {params(func(f fields) fields { f[6].Tag = ""; return f }), layoutSpec{}, layoutBindings,
			[]string{": Shift has no glsl tag", " field 7 is { 44}, want {shift 44}"}},
		"no params":    {nil, layoutSpec{}, layoutBindings, []string{"the shader has push constants Params, the host none"}},
		"not a struct": {3, layoutSpec{}, layoutBindings, []string{"int is not a struct"}},
		"spec swapped": {layoutParams{}, changed(layoutSpec{}, swap), layoutBindings,
			[]string{" field 0 is {SAVE_RSTD bool}, want {WORKGROUP_SIZE uint}", " field 1 is {WORKGROUP_SIZE uint}, want {SAVE_RSTD bool}"}},
		"spec short": {layoutParams{}, changed(layoutSpec{}, short), layoutBindings,
			[]string{" has 3 fields, want one for each of 4 specialization constants"}},
		"no spec": {layoutParams{}, nil, layoutBindings,
			[]string{"the shader has 4 specialization constants, the host none"}},
		"binding renamed": {layoutParams{}, layoutSpec{}, []string{"X", "Z", "Rstd", "Table"}, []string{"binding 1 is Y, want Z"}},
		"alias renamed":   {layoutParams{}, layoutSpec{}, []string{"X8", "Y", "Rstd", "Table"}, []string{"binding 0 is X4/X, want X8"}},
		"binding missing": {layoutParams{}, layoutSpec{}, []string{"X", "Y"}, []string{"the shader has 4 bindings, want 2 (X, Y)"}},
	} {
		require.Equal(t, tt.want, compare(parsed(t, "vulkan1.3"), MaxParamsBytes, tt.params, tt.spec, tt.bindings), name)
	}
}

// TestCompareModule changes the module instead: what a shader can do wrong.
func TestCompareModule(t *testing.T) {
	for want, change := range map[string]func(m *spirv.Module){
		"layoutParams field 7 is {shift 44}, want {shift 48}":       func(m *spirv.Module) { m.PushConstants.Members[7].Offset = 48 },
		"layoutParams has 132 bytes, more than 128":                 func(m *spirv.Module) { m.PushConstants.Size = 132 },
		"layoutParams: the shader has no push constants":            func(m *spirv.Module) { m.PushConstants = nil },
		"layoutSpec: UNUSED has constant_id 5, want 3":              func(m *spirv.Module) { m.Specs[3].ID = 5 },
		"layoutSpec field 0 is {WORKGROUP_SIZE uint}, want { uint}": func(m *spirv.Module) { m.Specs[0].Name = "" },
		"Rstd is binding 2 of set 1, want binding 2 of set 0":       func(m *spirv.Module) { m.Bindings[2].Set = 1 },
		"Rstd is binding 3 of set 0, want binding 2 of set 0":       func(m *spirv.Module) { m.Bindings[2].Binding = 3 },
	} {
		m := parsed(t, "vulkan1.2")
		change(m)
		require.Equal(t, []string{want}, compare(m, MaxParamsBytes, layoutParams{}, layoutSpec{}, layoutBindings))
	}
}

// TestRows compares structs with the rows of the table in layout.comp.
func TestRows(t *testing.T) {
	type swapped struct {
		Head  uint32 `glsl:"head"`
		Batch uint32 `glsl:"batch"`
	}
	type long struct {
		strides
		Pad uint32 `glsl:"pad"`
	}
	CheckRows(t, module(t, "vulkan1.2"), "Table", strides{})
	for _, tt := range []struct {
		table string
		row   any
		want  []string
	}{
		{"Table", strides{}, nil},
		{"Table", swapped{}, []string{"swapped field 0 is {head 0}, want {batch 0}", "swapped field 1 is {batch 4}, want {head 4}"}},
		{"Table", long{}, []string{"long has 3 fields, want the 2 of Strides", "long has 12 bytes, want the 8 of a row of Table"}},
		{"Table", 3, []string{"int is not a struct"}},
		{"Rstd", strides{}, []string{"the shader has no table Rstd of structs"}},
		{"Tables", strides{}, []string{"the shader has no table Tables of structs"}},
	} {
		require.Equal(t, tt.want, compareRows(parsed(t, "vulkan1.3").Bindings, tt.table, tt.row))
	}
}

// TestHoles checks that a struct with padding is refused even where its offsets
// are the shader's: bytes between fields would be copied uninitialized. No shader has its second type.
func TestHoles(t *testing.T) {
	type holes struct {
		Rows  uint32    `glsl:"rows"`
		Ptr   uint64    `glsl:"ptr"`
		Small [4]uint16 `glsl:"small"`
	}
	block := &spirv.Block{Name: "Params", Size: 24, Members: []spirv.Member{{Name: "rows", Type: "uint", Offset: 0, Size: 4},
		{Name: "ptr", Type: "uint64_t", Offset: 8, Size: 8}, {Name: "small", Type: "", Offset: 16, Size: 8}}}
	require.Equal(t, []string{
		"holes: Small is a [4]uint16, which no shader type equals", "holes has a hole of 4 bytes before ptr",
	}, compareParams(block, MaxParamsBytes, holes{}))
}
