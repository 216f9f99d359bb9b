package vk

import (
	_ "embed"
	"encoding/binary"
	"reflect"
	"strings"
	"testing"
)

//go:embed testdata/axpy.spv
var axpyModule []byte

//go:embed testdata/shape.spv
var shapeModule []byte

//go:embed testdata/shape13.spv
var shape13Module []byte

func TestScanModule(t *testing.T) {
	got, err := scanModule(axpyModule, []uint32{1, 0})
	if want := (moduleInfo{entry: "main", bindings: 2, pushBytes: 16, constants: []uint32{0, 1, 2}, workgroup: [3]uint32{64, 1, 1}, access: []access{reads, reads | writes}}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("axpy is %+v, %v, want %+v", got, err, want)
	}
	// SPIR-V of Vulkan 1.2 and 1.3 state a specialized size differently.
	for name, module := range map[string][]byte{"shape": shapeModule, "shape13": shape13Module} {
		for _, spec := range [][]uint32{nil, {96}} {
			want := moduleInfo{entry: "main", bindings: 1, constants: []uint32{0, 1}, workgroup: [3]uint32{1, 1, 1}, access: []access{reads | writes}} // the default of a local size by id
			if spec != nil {
				want.workgroup[0] = spec[0]
			}
			if got, err := scanModule(module, spec); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s with %v is %+v, %v, want %+v", name, spec, got, err, want)
			}
		}
	}
}

// TestSize has the types that push constants are made of.
func TestSize(t *testing.T) {
	m := module{ids: map[uint32]*idInfo{
		1: {op: opTypeInt, of: []uint32{32, 0}}, 2: {op: opTypeInt, of: []uint32{64, 0}}, 3: {op: opTypeFloat, of: []uint32{32}},
		4: {op: opTypeVector, of: []uint32{3, 4}},
		5: {value: 5, isConst: true}, 6: {op: opTypeArray, of: []uint32{1, 5}, stride: 4},
		7: {op: opTypeStruct, of: []uint32{2, 1, 4}, offsets: []uint32{0, 8, 12}},
		8: {op: opTypeStruct, of: []uint32{7, 6, 3}, offsets: []uint32{0, 28, 48}},
		9: {op: opTypeStruct, of: []uint32{1, 2}, offsets: []uint32{8, 0}},
	}}
	for id, want := range map[uint32]int{1: 4, 2: 8, 3: 4, 4: 16, 6: 20, 7: 28, 8: 52, 9: 12, 10: 0} {
		if got := m.size(id); got != want {
			t.Errorf("type %d has %d bytes, want %d", id, got, want)
		}
	}
}

func TestScanModuleRefuses(t *testing.T) {
	// replace returns axpy with one instruction operand changed.
	replace := func(op uint32, match func(in []uint32) int, value uint32) []byte {
		code := append([]byte(nil), axpyModule...)
		for at := 20; at < len(code); {
			word := binary.LittleEndian.Uint32(code[at:])
			n := int(word >> 16)
			in := make([]uint32, n-1)
			for i := range in {
				in[i] = binary.LittleEndian.Uint32(code[at+4+4*i:])
			}
			if word&0xffff == op {
				if i := match(in); i >= 0 {
					binary.LittleEndian.PutUint32(code[at+4+4*i:], value)
					return code
				}
			}
			at += 4 * n
		}
		t.Fatal("the module has no such instruction")
		return nil
	}
	decoration := func(kind, value uint32) func([]uint32) int {
		return func(in []uint32) int {
			if len(in) == 3 && in[1] == kind && in[2] == value {
				return 2
			}
			return -1
		}
	}
	class := func(in []uint32) int {
		if in[2] == classStorageBuffer {
			return 2
		}
		return -1
	}
	for _, c := range []struct {
		name string
		code []byte
		want string
	}{
		{"empty", nil, "not a SPIR-V module"},
		{"text", []byte("#version 450, a shader"), "not a SPIR-V module"},
		{"odd length", axpyModule[:len(axpyModule)-1], "not a SPIR-V module"},
		{"cut", axpyModule[:24], "truncated"},
		{"header only", axpyModule[:20], "no compute entry point"},
		{"gap", replace(opDecorate, decoration(decorationBinding, 1), 2), "bindings [0 2] are not 0 to 1"},
		{"set 1", replace(opDecorate, decoration(decorationDescriptorSet, 0), 1), "of set 1"},
		{"uniform", replace(opVariable, class, classUniform), "not a storage buffer"},
		{"image", replace(opVariable, class, classUniformConstant), "not a storage buffer"},
		{"graphics", replace(opEntryPoint, func([]uint32) int { return 0 }, 4), "no compute entry point"},
	} {
		if _, err := scanModule(c.code, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", c.name, err, c.want)
		}
	}
}
