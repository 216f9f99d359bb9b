package layouttest

import (
	"os"
	"slices"
	"testing"

	spirv "github.com/flashvk/flashvk/internal/shaders/reflect"
	"github.com/flashvk/flashvk/shaders"
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
	if err != nil {
		t.Fatal(err)
	}
	return shaders.Module{Name: "layout", SPIRV: code}
}

func TestCheck(t *testing.T) {
	for _, env := range []string{"vulkan1.2", "vulkan1.3"} {
		Check(t, module(t, env), layoutParams{}, layoutSpec{}, "X", "Y", "Rstd", "Table")
		Check(t, module(t, env), layoutParams{}, layoutSpec{}, "X4", "Y", "Rstd", "Table")
		Check(t, module(t, env), embedding{}, layoutSpec{}, "X", "Y", "Rstd", "Table")
	}
}

// embedding is layoutParams with its first fields in an embedded struct.
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

// Two mirrors of the specialization that are wrong.
type specSwapped struct {
	SaveRstd      bool    `glsl:"SAVE_RSTD"`
	WorkgroupSize uint32  `glsl:"WORKGROUP_SIZE"`
	Eps           float32 `glsl:"EPS"`
	Unused        int32   `glsl:"UNUSED"`
}

type specShort struct {
	WorkgroupSize uint32  `glsl:"WORKGROUP_SIZE"`
	SaveRstd      bool    `glsl:"SAVE_RSTD"`
	Eps           float32 `glsl:"EPS"`
}

type swappedInside struct {
	Head  uint32 `glsl:"head"`
	Batch uint32 `glsl:"batch"`
}

type beginnings struct {
	Batch uint32 `glsl:"_batch"`
	Head  uint32 `glsl:"_head"`
}

// TestCompareFinds hands over structs and names that are wrong in one way each.
func TestCompareFinds(t *testing.T) {
	type renamed struct {
		Ptr   uint64    `glsl:"ptr"`
		Base  uint64    `glsl:"base"`
		NRows uint32    `glsl:"n_rows"`
		Scale float32   `glsl:"scale"`
		Q     strides   `glsl:"q"`
		Shape [3]uint32 `glsl:"shape"`
		Shift int32     `glsl:"shift"`
	}
	type swapped struct {
		Base  uint64    `glsl:"base"`
		Ptr   uint64    `glsl:"ptr"`
		Rows  uint32    `glsl:"rows"`
		Scale float32   `glsl:"scale"`
		Q     strides   `glsl:"q"`
		Shape [3]uint32 `glsl:"shape"`
		Shift int32     `glsl:"shift"`
	}
	type nested struct {
		Ptr   uint64        `glsl:"ptr"`
		Base  uint64        `glsl:"base"`
		Rows  uint32        `glsl:"rows"`
		Scale float32       `glsl:"scale"`
		Q     swappedInside `glsl:"q"`
		Shape [3]uint32     `glsl:"shape"`
		Shift int32         `glsl:"shift"`
	}
	type flat struct {
		Ptr   uint64     `glsl:"ptr"`
		Base  uint64     `glsl:"base"`
		Rows  uint32     `glsl:"rows"`
		Scale float32    `glsl:"scale"`
		Q     beginnings `glsl:"q"`
		Shape [3]uint32  `glsl:"shape"`
		Shift int32      `glsl:"shift"`
	}
	type retyped struct {
		Ptr   uint64    `glsl:"ptr"`
		Base  uint64    `glsl:"base"`
		Rows  int32     `glsl:"rows"`
		Scale float32   `glsl:"scale"`
		Q     strides   `glsl:"q"`
		Shape [3]uint32 `glsl:"shape"`
		Shift int32     `glsl:"shift"`
	}
	type short struct {
		Ptr   uint64    `glsl:"ptr"`
		Base  uint64    `glsl:"base"`
		Rows  uint32    `glsl:"rows"`
		Scale float32   `glsl:"scale"`
		Q     strides   `glsl:"q"`
		Shape [3]uint32 `glsl:"shape"`
	}
	type untagged struct {
		Ptr   uint64    `glsl:"ptr"`
		Base  uint64    `glsl:"base"`
		Rows  uint32    `glsl:"rows"`
		Scale float32   `glsl:"scale"`
		Q     strides   `glsl:"q"`
		Shape [3]uint32 `glsl:"shape"`
		Shift int32
	}
	for _, tt := range []struct {
		name         string
		params, spec any
		bindings     []string
		want         []string
	}{
		{"renamed", renamed{}, layoutSpec{}, layoutBindings, []string{"renamed field 2 is {n_rows 16}, want {rows 16}"}},
		{"swapped", swapped{}, layoutSpec{}, layoutBindings,
			[]string{"swapped field 0 is {base 0}, want {ptr 0}", "swapped field 1 is {ptr 8}, want {base 8}"}},
		{"nested", nested{}, layoutSpec{}, layoutBindings,
			[]string{"nested field 4 is {q.head 24}, want {q.batch 24}", "nested field 5 is {q.batch 28}, want {q.head 28}"}},
		{"flat", flat{}, layoutSpec{}, layoutBindings,
			[]string{"flat field 4 is {q_batch 24}, want {q.batch 24}", "flat field 5 is {q_head 28}, want {q.head 28}"}},
		{"retyped", retyped{}, layoutSpec{}, layoutBindings, []string{"retyped field 2 is {rows int 16}, want {rows uint 16}"}},
		{"short", short{}, layoutSpec{}, layoutBindings,
			[]string{"short has 7 fields, want the 8 of Params", "short has a hole of 4 bytes at its end"}},
		{"untagged", untagged{}, layoutSpec{}, layoutBindings,
			[]string{"untagged: Shift has no glsl tag", "untagged field 7 is { 44}, want {shift 44}"}},
		{"no params", nil, layoutSpec{}, layoutBindings, []string{"the shader has push constants Params, the host none"}},
		{"not a struct", 3, layoutSpec{}, layoutBindings, []string{"int is not a struct"}},
		{"spec swapped", layoutParams{}, specSwapped{}, layoutBindings, []string{
			"specSwapped field 0 is {SAVE_RSTD bool}, want {WORKGROUP_SIZE uint}",
			"specSwapped field 1 is {WORKGROUP_SIZE uint}, want {SAVE_RSTD bool}"}},
		{"spec short", layoutParams{}, specShort{}, layoutBindings, []string{"specShort has 3 fields, want one for each of 4 specialization constants"}},
		{"no spec", layoutParams{}, nil, layoutBindings, []string{"the shader has 4 specialization constants, the host none"}},
		{"binding renamed", layoutParams{}, layoutSpec{}, []string{"X", "Z", "Rstd", "Table"}, []string{"binding 1 is Y, want Z"}},
		{"aliased binding renamed", layoutParams{}, layoutSpec{}, []string{"X8", "Y", "Rstd", "Table"}, []string{"binding 0 is X4/X, want X8"}},
		{"binding missing", layoutParams{}, layoutSpec{}, []string{"X", "Y"}, []string{"the shader has 4 bindings, want 2 (X, Y)"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := spirv.Parse(module(t, "vulkan1.3").SPIRV)
			if err != nil {
				t.Fatal(err)
			}
			if got := compare(m, MaxParamsBytes, tt.params, tt.spec, tt.bindings); !slices.Equal(got, tt.want) {
				t.Errorf("problems are %q, want %q", got, tt.want)
			}
		})
	}
}

// TestCompareModule changes the module instead: what a shader can do wrong.
func TestCompareModule(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(m *spirv.Module)
		want   []string
	}{
		{"offset", func(m *spirv.Module) { m.PushConstants.Members[7].Offset = 48 },
			[]string{"layoutParams field 7 is {shift 44}, want {shift 48}"}},
		{"too large", func(m *spirv.Module) { m.PushConstants.Size = 132 },
			[]string{"layoutParams has 132 bytes, more than 128"}},
		{"no push constants", func(m *spirv.Module) { m.PushConstants = nil },
			[]string{"layoutParams: the shader has no push constants"}},
		{"gap in ids", func(m *spirv.Module) { m.Specs[3].ID = 5 },
			[]string{"layoutSpec: UNUSED has constant_id 5, want 3"}},
		{"unnamed id", func(m *spirv.Module) { m.Specs[0].Name = "" },
			[]string{"layoutSpec field 0 is {WORKGROUP_SIZE uint}, want { uint}"}},
		{"other set", func(m *spirv.Module) { m.Bindings[2].Set = 1 },
			[]string{"Rstd is binding 2 of set 1, want binding 2 of set 0"}},
		{"gap in bindings", func(m *spirv.Module) { m.Bindings[2].Binding = 3 },
			[]string{"Rstd is binding 3 of set 0, want binding 2 of set 0"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := spirv.Parse(module(t, "vulkan1.2").SPIRV)
			if err != nil {
				t.Fatal(err)
			}
			tt.change(m)
			if got := compare(m, MaxParamsBytes, layoutParams{}, layoutSpec{}, layoutBindings); !slices.Equal(got, tt.want) {
				t.Errorf("problems are %q, want %q", got, tt.want)
			}
		})
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
	m, err := spirv.Parse(module(t, "vulkan1.3").SPIRV)
	if err != nil {
		t.Fatal(err)
	}
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
		if got := compareRows(m.Bindings, tt.table, tt.row); !slices.Equal(got, tt.want) {
			t.Errorf("%s, %T: problems are %q, want %q", tt.table, tt.row, got, tt.want)
		}
	}
}

// TestHoles checks that a struct with padding is refused even where its offsets
// are the shader's: bytes between fields would be copied uninitialized.
func TestHoles(t *testing.T) {
	type holes struct {
		Rows uint32 `glsl:"rows"`
		Ptr  uint64 `glsl:"ptr"`
	}
	block := &spirv.Block{Name: "Params", Size: 16, Members: []spirv.Member{
		{Name: "rows", Type: "uint", Offset: 0, Size: 4}, {Name: "ptr", Type: "uint64_t", Offset: 8, Size: 8}}}
	if got, want := compareParams(block, MaxParamsBytes, holes{}), []string{"holes has a hole of 4 bytes before ptr"}; !slices.Equal(got, want) {
		t.Errorf("problems are %q, want %q", got, want)
	}
}

// TestUnusable checks Go types that no shader has.
func TestUnusable(t *testing.T) {
	type unusable struct {
		Small [4]uint16 `glsl:"small"`
	}
	block := &spirv.Block{Name: "Params", Size: 8, Members: []spirv.Member{{Name: "small", Type: "uint16_t[4]", Size: 8}}}
	got := compareParams(block, MaxParamsBytes, unusable{})
	if len(got) != 2 || got[0] != "unusable: Small is a [4]uint16, which no shader type equals" {
		t.Errorf("problems are %q", got)
	}
}
