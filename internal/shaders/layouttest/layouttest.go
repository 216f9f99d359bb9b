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

// A Row is what a package has of a kernel.
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

func compare(m *spirv.Module, maxBytes int, params, spec any, bindings []string) []string {
	return slices.Concat(compareParams(m.PushConstants, maxBytes, params), compareSpec(m.Specs, spec), compareBindings(m.Bindings, bindings))
}

// A field is one number of a Go struct, in the words of spirv.Member.
type field = spirv.Member

// fields returns the numbers of a struct type in order, those of nested structs
// included, and what is wrong with it. The fields of a struct are members of a struct of the shader, too,
// NAME.FIELD, or, where their tags begin with _, members of the block that have the beginning NAME
// in common.
func fields(t reflect.Type, prefix string, offset int) (list []field, problems []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, at := f.Tag.Get("glsl"), offset+int(f.Offset)
		if f.Anonymous && f.Type.Kind() == reflect.Struct {
			l, p := fields(f.Type, prefix, at)
			list, problems = append(list, l...), append(problems, p...)
			continue
		}
		if name == "" {
			problems = append(problems, fmt.Sprintf("%s has no glsl tag", f.Name))
		}
		if f.Type.Kind() == reflect.Struct {
			if f.Type.NumField() > 0 && !strings.HasPrefix(f.Type.Field(0).Tag.Get("glsl"), "_") {
				name += "."
			}
			l, p := fields(f.Type, prefix+name, at)
			list, problems = append(list, l...), append(problems, p...)
			continue
		}
		typ := glslType(f.Type)
		if typ == "" {
			problems = append(problems, fmt.Sprintf("%s is a %s, which no shader type equals", f.Name, f.Type))
		}
		list = append(list, field{Name: prefix + name, Type: typ, Offset: at, Size: int(f.Type.Size())})
	}
	return list, problems
}

// glslType returns the GLSL type with the memory of a Go type, "" if none has.
func glslType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Uint32:
		return "uint"
	case reflect.Int32:
		return "int"
	case reflect.Float32:
		return "float"
	case reflect.Bool:
		return "bool"
	case reflect.Uint64:
		return "uint64_t"
	case reflect.Int64:
		return "int64_t"
	case reflect.Array:
		// Arrays of small types have strides of their own in GLSL.
		if e := glslType(t.Elem()); e != "" && e != "bool" && t.Elem().Kind() != reflect.Array {
			return fmt.Sprintf("%s[%d]", e, t.Len())
		}
	}
	return ""
}

// structOf returns the struct type of v, for messages its name, and whether it is one.
func structOf(v any) (reflect.Type, string, bool) {
	t := reflect.TypeOf(v)
	if t == nil {
		return nil, "", false
	}
	return t, t.Name(), t.Kind() == reflect.Struct
}

func compareParams(block *spirv.Block, maxBytes int, params any) []string {
	t, name, ok := structOf(params)
	switch {
	case t == nil && block == nil:
		return nil
	case t == nil:
		return []string{fmt.Sprintf("the shader has push constants %s, the host none", block.Name)}
	case !ok:
		return []string{fmt.Sprintf("%s is not a struct", t)}
	case block == nil:
		return []string{fmt.Sprintf("%s: the shader has no push constants", name)}
	}
	problems := compareBlock(block, t, name)
	if size := max(int(t.Size()), block.Size); size > maxBytes {
		problems = append(problems, fmt.Sprintf("%s has %d bytes, more than %d", name, size, maxBytes))
	}
	return problems
}

func compareBlock(block *spirv.Block, t reflect.Type, name string) []string {
	got, problems := fields(t, "", 0)
	for i := range problems {
		problems[i] = name + ": " + problems[i]
	}
	if len(got) != len(block.Members) {
		problems = append(problems, fmt.Sprintf("%s has %d fields, want the %d of %s", name, len(got), len(block.Members), block.Name))
	}
	for i := range min(len(got), len(block.Members)) {
		problems = append(problems, compareField(name, i, got[i], block.Members[i])...)
	}
	end := 0
	for _, f := range got {
		if f.Offset != end {
			problems = append(problems, fmt.Sprintf("%s has a hole of %d bytes before %s", name, f.Offset-end, f.Name))
		}
		end = f.Offset + f.Size
	}
	if size := int(t.Size()); size != end {
		problems = append(problems, fmt.Sprintf("%s has a hole of %d bytes at its end", name, size-end))
	}
	return problems
}

// CheckRows fails t wherever a struct differs from the rows of a table in module m, the
// buffer block of that name, as in `buffer Table { Row rows[]; }`. The rules for the struct
// are those of Check for params.
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

func compareRows(bindings []spirv.Binding, table string, row any) []string {
	t, name, ok := structOf(row)
	if !ok {
		return []string{fmt.Sprintf("%T is not a struct", row)}
	}
	i := slices.IndexFunc(bindings, func(b spirv.Binding) bool { return b.Rows != nil && slices.Contains(b.Names, table) })
	if i < 0 {
		return []string{fmt.Sprintf("the shader has no table %s of structs", table)}
	}
	problems := compareBlock(bindings[i].Rows, t, name)
	if size, want := int(t.Size()), bindings[i].Rows.Size; size != want {
		problems = append(problems, fmt.Sprintf("%s has %d bytes, want the %d of a row of %s", name, size, want, table))
	}
	return problems
}

// compareField compares field i; the message has the types only where they differ.
func compareField(name string, i int, got, want field) []string {
	switch {
	case got == want:
		return nil
	case got.Type == want.Type:
		return []string{fmt.Sprintf("%s field %d is {%s %d}, want {%s %d}", name, i, got.Name, got.Offset, want.Name, want.Offset)}
	}
	return []string{fmt.Sprintf("%s field %d is {%s %s %d}, want {%s %s %d}", name, i,
		got.Name, got.Type, got.Offset, want.Name, want.Type, want.Offset)}
}

// specFields returns the fields of a struct, with those of structs among them in
// their place.
func specFields(t reflect.Type) (list []reflect.StructField) {
	for i := range t.NumField() {
		if f := t.Field(i); f.Type.Kind() == reflect.Struct {
			list = append(list, specFields(f.Type)...)
		} else {
			list = append(list, f)
		}
	}
	return list
}

func compareSpec(specs []spirv.Spec, spec any) []string {
	t, name, ok := structOf(spec)
	switch {
	case t == nil && len(specs) == 0:
		return nil
	case t == nil:
		return []string{fmt.Sprintf("the shader has %d specialization constants, the host none", len(specs))}
	case !ok:
		return []string{fmt.Sprintf("%s is not a struct", t)}
	}
	var problems []string
	fields := specFields(t)
	if n := len(fields); n != len(specs) {
		problems = append(problems, fmt.Sprintf("%s has %d fields, want one for each of %d specialization constants", name, n, len(specs)))
	}
	for i := range min(len(fields), len(specs)) {
		f, want := fields[i], specs[i]
		typ := glslType(f.Type)
		if tag := f.Tag.Get("glsl"); tag != want.Name || typ != want.Type {
			problems = append(problems, fmt.Sprintf("%s field %d is {%s %s}, want {%s %s}", name, i, tag, typ, want.Name, want.Type))
		}
		if int(want.ID) != i {
			problems = append(problems, fmt.Sprintf("%s: %s has constant_id %d, want %d", name, want.Name, want.ID, i))
		}
	}
	return problems
}

func compareBindings(got []spirv.Binding, want []string) []string {
	var problems []string
	if len(got) != len(want) {
		problems = append(problems, fmt.Sprintf("the shader has %d bindings, want %d (%s)", len(got), len(want), strings.Join(want, ", ")))
	}
	for i := range min(len(got), len(want)) {
		b := got[i]
		if b.Set != 0 || int(b.Binding) != i {
			problems = append(problems, fmt.Sprintf("%s is binding %d of set %d, want binding %d of set 0", strings.Join(b.Names, "/"), b.Binding, b.Set, i))
		}
		if !slices.Contains(b.Names, want[i]) {
			problems = append(problems, fmt.Sprintf("binding %d is %s, want %s", i, strings.Join(b.Names, "/"), want[i]))
		}
	}
	return problems
}
