// Package layouttest compares the Go structs that the host hands to a kernel with
// what the kernel's SPIR-V declares.
//
//	type rmsnormFwdParams struct {           layout(push_constant, scalar) uniform Params {
//		Rows uint32  `glsl:"rows"`     <->       uint rows;
//		Eps  float32 `glsl:"eps"`                float eps;
//	}                                        } p;
//
//	type rmsnormFwdSpec struct {
//		BlockM uint32 `glsl:"BLOCK_M"` <->   layout(constant_id = 0) const uint BLOCK_M = 64;
//	}
//
// The runtime copies the structs as memory and knows no names, so nothing but this
// comparison notices two fields in the wrong order.
package layouttest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	spirv "github.com/flashvk/flashvk/internal/shaders/reflect"
	"github.com/flashvk/flashvk/shaders"
)

// MaxParamsBytes is the size of push constants that every Vulkan device takes.
const MaxParamsBytes = 128

// Check fails t wherever a struct differs from module m.
//
// params (nil for none) must have the fields of the push-constant block: number,
// names (tag glsl), order, offsets, types, no holes, at most MaxParamsBytes. A
// struct in the block is a struct in Go, with tags on both levels; the fields of an
// embedded struct stand in its place.
//
// spec (nil for none) must have one field for each specialization constant, in
// order of constant_id from 0, of type uint32, int32, float32 or bool. The fields of
// a struct stand in its place.
//
// bindings are the names of the buffer blocks at binding 0, 1, … of set 0. Where a
// shader declares several blocks at one binding, any of their names will do.
func Check(t *testing.T, m shaders.Module, params, spec any, bindings ...string) {
	t.Helper()
	CheckWithin(t, MaxParamsBytes, m, params, spec, bindings...)
}

// A Row is a package's description of a kernel.
type Row struct {
	params, spec any
	bindings     []string
}

// Of returns the Row of what Check takes.
func Of(params, spec any, bindings ...string) Row { return Row{params, spec, bindings} }

// CheckAll is Check for every module whose kernel begins with prefix: each has a row under the
// kernel's name.
func CheckAll(t *testing.T, prefix string, rows map[string]Row) {
	t.Helper()
	for _, v := range shaders.Variants() {
		if !strings.HasPrefix(v.Kernel, prefix) {
			continue
		}
		row, ok := rows[v.Kernel]
		if !ok {
			t.Errorf("%s has no row", v.Kernel)
			continue
		}
		m, err := shaders.Get(v.Kernel, v.Type)
		if err != nil {
			t.Error(err)
			continue
		}
		Check(t, m, row.params, row.spec, row.bindings...)
	}
}

// CheckWithin is Check for a kernel that may have maxBytes of push constants, and
// runs only where the device takes them.
func CheckWithin(t *testing.T, maxBytes int, m shaders.Module, params, spec any, bindings ...string) {
	t.Helper()
	module, err := spirv.Parse(m.SPIRV)
	if err != nil {
		t.Errorf("%s: %v", m.Name, err)
		return
	}
	for _, problem := range compare(module, maxBytes, params, spec, bindings) {
		t.Errorf("%s: %s", m.Name, problem)
	}
}

// CheckRows fails t wherever a struct differs from the rows of a table in module m, the
// buffer block of that name, as in `buffer Table { Row rows[]; }`. The struct follows the rules
// of Check for params.
func CheckRows(t *testing.T, m shaders.Module, table string, row any) {
	t.Helper()
	module, err := spirv.Parse(m.SPIRV)
	if err != nil {
		t.Errorf("%s: %v", m.Name, err)
		return
	}
	for _, problem := range compareRows(module.Bindings, table, row) {
		t.Errorf("%s: %s", m.Name, problem)
	}
}

func compare(m *spirv.Module, maxBytes int, params, spec any, bindings []string) []string {
	problems := differences(structLines(params), blockLines(m.PushConstants))
	if m.PushConstants != nil && m.PushConstants.Size > maxBytes {
		problems = append(problems, fmt.Sprintf("%d bytes of push constants are more than %d", m.PushConstants.Size, maxBytes))
	}
	var constants, bound, names []string
	for _, s := range m.Specs {
		constants = append(constants, fmt.Sprintf("constant %d %s %s", s.ID, s.Type, s.Name))
	}
	for i, b := range m.Bindings {
		name := strings.Join(b.Names, "/")
		if i < len(bindings) && slices.Contains(b.Names, bindings[i]) {
			name = bindings[i]
		}
		bound = append(bound, fmt.Sprintf("%s at binding %d of set %d", name, b.Binding, b.Set))
	}
	for i, name := range bindings {
		names = append(names, fmt.Sprintf("%s at binding %d of set 0", name, i))
	}
	return slices.Concat(problems, differences(specLines(spec), constants), differences(names, bound))
}

func compareRows(bindings []spirv.Binding, table string, row any) []string {
	i := slices.IndexFunc(bindings, func(b spirv.Binding) bool { return b.Rows != nil && slices.Contains(b.Names, table) })
	if i < 0 {
		return []string{fmt.Sprintf("the shader has no table %s of structs", table)}
	}
	return differences(structLines(row), blockLines(bindings[i].Rows))
}

// differences compares the lines of the host with the lines of a shader, one by one.
func differences(host, shader []string) (list []string) {
	at := func(lines []string, i int) string {
		if i < len(lines) {
			return lines[i]
		}
		return "nothing"
	}
	for i := range max(len(host), len(shader)) {
		if h, s := at(host, i), at(shader, i); h != s {
			list = append(list, fmt.Sprintf("the host has %s, the shader %s", h, s))
		}
	}
	return list
}

func blockLines(b *spirv.Block) (lines []string) {
	if b == nil {
		return nil
	}
	for _, m := range b.Members {
		lines = append(lines, fmt.Sprintf("%s %s at %d", m.Type, m.Name, m.Offset))
	}
	return append(lines, fmt.Sprintf("%d bytes", b.Size))
}

// structLines returns what blockLines does of the block that a struct equals. Bytes between fields would
// be copied as they are, so there may be none even where the shader has the same.
func structLines(v any) []string {
	t := reflect.TypeOf(v)
	if t == nil {
		return nil
	}
	if t.Kind() != reflect.Struct {
		return []string{fmt.Sprintf("%v, not a struct", t)}
	}
	lines, end := fieldLines(t, "", 0, 0)
	if end != int(t.Size()) {
		lines = append(lines, "a hole at its end")
	}
	return append(lines, fmt.Sprintf("%d bytes", t.Size()))
}

// fieldLines returns the numbers of a struct and of its nested structs in order, and where
// the last one ends. The struct begins at offset, and the number before it ended at end. The fields of a
// struct are members of a struct of the shader, too, NAME.FIELD, or, where their tags begin with _,
// members of the block that have the beginning NAME in common.
func fieldLines(t reflect.Type, prefix string, offset, end int) (lines []string, last int) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, at := prefix+f.Tag.Get("glsl"), offset+int(f.Offset)
		if f.Type.Kind() == reflect.Struct {
			if !f.Anonymous && f.Type.NumField() > 0 && !strings.HasPrefix(f.Type.Field(0).Tag.Get("glsl"), "_") {
				name += "."
			}
			var inner []string
			inner, end = fieldLines(f.Type, name, at, end)
			lines = append(lines, inner...)
			continue
		}
		line := fmt.Sprintf("%s %s at %d", glslType(f.Type), name, at)
		if at != end {
			line += " behind a hole"
		}
		lines, end = append(lines, line), at+int(f.Type.Size())
	}
	return lines, end
}

// specLines returns the fields of a specialization, with a struct's fields in place of the struct.
func specLines(spec any) (lines []string) {
	var add func(t reflect.Type)
	add = func(t reflect.Type) {
		for i := range t.NumField() {
			if f := t.Field(i); f.Type.Kind() == reflect.Struct {
				add(f.Type)
			} else {
				lines = append(lines, fmt.Sprintf("constant %d %s %s", len(lines), glslType(f.Type), f.Tag.Get("glsl")))
			}
		}
	}
	if spec != nil {
		add(reflect.TypeOf(spec))
	}
	return lines
}

// glslType returns the GLSL type with the memory of a Go type, or Go's name of one that none has.
func glslType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Uint32:
		return "uint"
	case reflect.Int32:
		return "int"
	case reflect.Float32:
		return "float"
	case reflect.Uint64:
		return "uint64_t"
	case reflect.Int64:
		return "int64_t"
	case reflect.Array:
		// Arrays of small types have strides of their own in GLSL.
		if size := t.Elem().Size(); (size == 4 || size == 8) && t.Elem().Kind() != reflect.Array {
			return fmt.Sprintf("%s[%d]", glslType(t.Elem()), t.Len())
		}
	}
	return t.String()
}
