package vk

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/flashvk/flashvk/shaders"
)

// TestAccess has instructions on two buffers, variables 1 and 2.
func TestAccess(t *testing.T) {
	const function, value, x, y, p, q = 50, 40, 1, 2, 10, 11
	begin := [][]uint32{{opFunction, 0, function, 0, 0}}
	for name, c := range map[string]struct {
		code [][]uint32 // opcode, operands
		want [2]access
	}{
		"nothing":          {nil, [2]access{}},
		"load, store":      {[][]uint32{{opLoad, 0, value, x}, {opStore, y, value}}, [2]access{reads, writes}},
		"chain of a chain": {[][]uint32{{opAccessChain, 0, p, x, value}, {66, 0, q, p, value}, {opStore, q, value}}, [2]access{writes, 0}},
		"parameter": {[][]uint32{
			{opFunctionParameter, 0, p},
			{opLoad, 0, value, p},
			{opFunction, 0, 51, 0, 0},
			{opFunctionParameter, 0, q},
			{opStore, q, value},
			{opFunctionCall, 0, 41, function, x},
			{opFunctionCall, 0, 42, 51, y},
		}, [2]access{reads, writes}},
		"call before the function": {[][]uint32{{opFunctionCall, 0, 41, 51, y}, {opFunction, 0, 51, 0, 0}, {opFunctionParameter, 0, q}, {opLoad, 0, value, q}}, [2]access{0, reads}},
		"atomic":                   {[][]uint32{{234, 0, value, x, 0, 0, 43}, {opAtomicLoad, 0, value, y, 0, 0}}, [2]access{reads | writes, reads}},
		"atomic store":             {[][]uint32{{opAtomicStore, x, 43, 44, value}}, [2]access{writes, 0}},
		"matrices":                 {[][]uint32{{opMatrixLoad, 0, value, x, 43, 44}, {opMatrixStore, y, value, 43, 44}}, [2]access{reads, writes}},
		"tensors of matrices":      {[][]uint32{{opMatrixLoadTensor, 0, value, x, 43, 44, 0, 0}, {opMatrixStoreTensor, y, value, 43, 0, 0}}, [2]access{reads, writes}},
		"copy":                     {[][]uint32{{opCopyMemory, x, y}}, [2]access{writes, reads}},
		"one or the other":         {[][]uint32{{opSelect, 0, p, 43, x, y}, {opStore, p, value}}, [2]access{writes, writes}},
		"length":                   {[][]uint32{{opArrayLength, 0, value, x, 0}}, [2]access{}},
		"unknown":                  {[][]uint32{{6000, 0, value, x}, {opExtInst, 0, value, 30, 31, y}}, [2]access{reads | writes, reads | writes}},
		"returned":                 {[][]uint32{{opReturnValue, x}}, [2]access{reads | writes, 0}},
		"stored":                   {[][]uint32{{opStore, 43, y}}, [2]access{0, reads | writes}},
	} {
		m := module{pointers: newPointers(), ids: map[uint32]*idInfo{
			x: {class: classStorageBuffer, binding: 0, hasBinding: true},
			y: {class: classStorageBuffer, binding: 1, hasBinding: true},
		}}
		for _, in := range append(begin[:1:1], c.code...) {
			m.pointers.instruction(in[0], in[1:])
		}
		if got := m.access(2); !slices.Equal(got, c.want[:]) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestAccesses compares what the instructions of our kernels do with what their shaders
// declare: readonly and writeonly.
func TestAccesses(t *testing.T) {
	const nonWritable, nonReadable = 24, 25
	all, both, less := 0, 0, 0
	for _, s := range allModules(t) {
		got, err := accesses(s.SPIRV)
		if err != nil {
			t.Fatal(err)
		}
		m, not := module{ids: map[uint32]*idInfo{}, pointers: newPointers()}, map[uint32]access{}
		for code := s.SPIRV[20:]; len(code) > 0; {
			first := binary.LittleEndian.Uint32(code)
			in := make([]uint32, first>>16-1)
			for i := range in {
				in[i] = binary.LittleEndian.Uint32(code[4+4*i:])
			}
			m.instruction(first&0xffff, in)
			if first&0xffff == opMemberDecorate {
				switch in[2] {
				case nonWritable:
					not[in[0]] |= writes
				case nonReadable:
					not[in[0]] |= reads
				}
			}
			code = code[first>>16*4:]
		}
		declared := make([]access, len(got))
		for _, v := range m.ids {
			if v.class == classStorageBuffer {
				declared[v.binding] |= (reads | writes) &^ not[m.at(v.typ).of[1]]
			}
		}
		for i := range got {
			all++
			if got[i]&^declared[i] != 0 {
				t.Errorf("%s does %v with binding %d, and declares %v", s.Name, got[i], i, declared[i])
			}
			if got[i] == reads|writes {
				both++
			}
			if got[i] != declared[i] {
				less++
			}
		}
	}
	if all < 800 || both == 0 || less == 0 {
		t.Errorf("of %d bindings %d are read and written, %d have less than they declare", all, both, less)
	}
}

// allModules returns the modules that are compiled.
func allModules(t *testing.T) (list []shaders.Module) {
	for _, row := range shaders.Variants() {
		m, err := shaders.Get(row.Kernel, row.Type)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, m)
	}
	return list
}
