package vk

import (
	_ "embed"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/spirv"
	"github.com/flashvk/flashvk/shaders"
)

var (
	//go:embed testdata/axpy.spv
	axpyModule []byte
	//go:embed testdata/shape.spv
	shapeModule []byte
	//go:embed testdata/shape13.spv
	shape13Module []byte
)

func TestScanModule(t *testing.T) {
	got, err := scanModule(axpyModule, []uint32{1, 0})
	require.NoError(t, err)
	require.Equal(t, moduleInfo{entry: "main", bindings: 2, pushBytes: 16, constants: []uint32{0, 1, 2},
		workgroup: [3]uint32{64, 1, 1}, access: []access{reads, reads | writes}, needs: []uint32{1}}, got)
	// SPIR-V of Vulkan 1.2 and 1.3 state a specialized size differently.
	for name, module := range map[string][]byte{"shape": shapeModule, "shape13": shape13Module} {
		for _, spec := range [][]uint32{nil, {96}} {
			want := moduleInfo{entry: "main", bindings: 1, constants: []uint32{0, 1}, workgroup: [3]uint32{1, 1, 1},
				access: []access{reads | writes}, needs: []uint32{1, 61}} // 1: the default of a local size by id
			if spec != nil {
				want.workgroup[0] = spec[0]
			}
			got, err := scanModule(module, spec)
			require.NoError(t, err)
			require.Equal(t, want, got, name)
		}
	}
}

func TestScanModuleRefuses(t *testing.T) {
	// replace returns axpy with operands of an instruction in place of others.
	replace := func(op spirv.Op, at int, old, new []uint32) []byte {
		list, err := spirv.Decode(axpyModule)
		require.NoError(t, err)
		for _, in := range list {
			if in.Op == op && len(in.Args) >= at+len(old) && slices.Equal(in.Args[at:at+len(old)], old) {
				copy(in.Args[at:], new)
				return spirv.Encode(axpyModule, list)
			}
		}
		t.Fatal("the module has no such instruction")
		return nil
	}
	decoration := func(kind, value, changed uint32) []byte {
		return replace(spirv.OpDecorate, 1, []uint32{kind, value}, []uint32{kind, changed})
	}
	class := func(to uint32) []byte {
		return replace(spirv.OpVariable, 2, []uint32{spirv.ClassStorageBuffer}, []uint32{to})
	}
	for name, c := range map[string]struct {
		code []byte
		want string
	}{
		"text":        {[]byte("#version 450, a shader"), "not a SPIR-V module"},
		"header only": {axpyModule[:20], "no compute entry point"},
		"gap":         {decoration(spirv.BindingPoint, 1, 2), "bindings [0 2] are not 0 to 1"},
		"set 1":       {decoration(spirv.DescriptorSet, 0, 1), "of set 1"},
		"uniform":     {class(spirv.ClassUniform), "not a storage buffer"},
		"image":       {class(spirv.ClassUniformConstant), "not a storage buffer"},
		"graphics":    {replace(spirv.OpEntryPoint, 0, []uint32{5}, []uint32{4}), "no compute entry point"},
	} {
		_, err := scanModule(c.code, nil)
		require.ErrorContains(t, err, c.want, name)
	}
}

// TestWithoutReconvergence takes out the extension and the execution mode, and nothing that
// looks like them.
func TestWithoutReconvergence(t *testing.T) {
	extension := spirv.Instruction{Op: spirv.OpExtension, Args: spirv.Literal("SPV_KHR_maximal_reconvergence")}
	mode := spirv.Instruction{Op: spirv.OpExecutionMode, Args: []uint32{4, 6023}}
	other := []spirv.Instruction{
		{Op: spirv.OpCapability, Args: []uint32{1}}, {Op: spirv.OpExtension, Args: spirv.Literal("SPV_KHR_maximal")},
		{Op: spirv.OpEntryPoint, Args: []uint32{5, 4, 0x6e69616d, 0}},
		{Op: spirv.OpExecutionMode, Args: []uint32{4, spirv.ModeLocalSize, 8, 1, 1}}, {Op: spirv.OpConstant, Args: []uint32{1, 2, 6023}},
	}
	want := spirv.Encode(nil, other)
	require.Equal(t, want, withoutReconvergence(want))
	full := slices.Concat(other[:1], []spirv.Instruction{extension}, other[1:3], []spirv.Instruction{mode}, other[3:])
	require.Equal(t, want, withoutReconvergence(spirv.Encode(nil, full)))
}

// TestWithout16 has a module that loads an integer of 16 bits, converts it and stores it.
func TestWithout16(t *testing.T) {
	const word, half, array, pointer, value, wide = 10, 11, 12, 13, 14, 15
	in := func(op spirv.Op, args ...uint32) spirv.Instruction { return spirv.Instruction{Op: op, Args: args} }
	shader := in(spirv.OpCapability, 1)
	full := []spirv.Instruction{
		shader, in(spirv.OpCapability, 4433), in(spirv.OpDecorate, array, spirv.ArrayStride, 2), in(spirv.OpDecorate, half, spirv.ArrayStride, 2),
		in(spirv.OpTypeInt, word, 32, 0), in(spirv.OpTypeInt, half, 16, 0), in(spirv.OpTypeRuntimeArray, array, half),
		in(spirv.OpTypePointer, pointer, spirv.ClassStorageBuffer, half), in(spirv.OpConstant, word, 9, half),
		in(spirv.OpLoad, half, value, pointer), in(spirv.OpUConvert, word, wide, value), in(spirv.OpUConvert, half, 16, wide), in(spirv.OpUConvert, 8, 17, wide),
	}
	want := []spirv.Instruction{
		shader, in(spirv.OpDecorate, array, spirv.ArrayStride, 4), in(spirv.OpDecorate, half, spirv.ArrayStride, 2),
		in(spirv.OpTypeInt, word, 32, 0), in(spirv.OpTypeRuntimeArray, array, word),
		in(spirv.OpTypePointer, pointer, spirv.ClassStorageBuffer, word), in(spirv.OpConstant, word, 9, half),
		in(spirv.OpLoad, word, value, pointer), in(spirv.OpCopyObject, word, wide, value), in(spirv.OpCopyObject, word, 16, wide), in(spirv.OpUConvert, 8, 17, wide),
	}
	require.Equal(t, spirv.Encode(nil, want), without16(spirv.Encode(nil, full)))
	require.Equal(t, spirv.Encode(nil, want), without16(spirv.Encode(nil, want)))
	for _, computes := range []uint32{9, 22} {
		code := spirv.Encode(nil, append([]spirv.Instruction{in(spirv.OpCapability, computes)}, full...))
		require.Equal(t, code, without16(code))
	}
}

// TestAccess has instructions on two buffers, variables 1 and 2.
func TestAccess(t *testing.T) {
	const function, value, x, y, p, q = 50, 40, 1, 2, 10, 11
	type code []spirv.Instruction
	in := func(op spirv.Op, args ...uint32) spirv.Instruction { return spirv.Instruction{Op: op, Args: args} }
	const both = reads | writes
	for name, c := range map[string]struct {
		code code
		want [2]access
	}{
		"nothing":     {nil, [2]access{}},
		"load, store": {code{in(spirv.OpLoad, 0, value, x), in(spirv.OpStore, y, value)}, [2]access{reads, writes}},
		"chain of a chain": {code{
			in(spirv.OpAccessChain, 0, p, x, value), in(66, 0, q, p, value), in(spirv.OpStore, q, value),
		}, [2]access{writes, 0}},
		"parameter": {code{
			in(spirv.OpFunctionParameter, 0, p), in(spirv.OpLoad, 0, value, p),
			in(spirv.OpFunction, 0, 51, 0, 0), in(spirv.OpFunctionParameter, 0, q), in(spirv.OpStore, q, value),
			in(spirv.OpFunctionCall, 0, 41, function, x), in(spirv.OpFunctionCall, 0, 42, 51, y),
		}, [2]access{reads, writes}},
		"call before the function": {code{
			in(spirv.OpFunctionCall, 0, 41, 51, y),
			in(spirv.OpFunction, 0, 51, 0, 0), in(spirv.OpFunctionParameter, 0, q), in(spirv.OpLoad, 0, value, q),
		}, [2]access{0, reads}},
		"atomic":       {code{in(234, 0, value, x, 0, 0, 43), in(spirv.OpAtomicLoad, 0, value, y, 0, 0)}, [2]access{both, reads}},
		"atomic store": {code{in(spirv.OpAtomicStore, x, 43, 44, value)}, [2]access{writes, 0}},
		"matrices": {code{
			in(spirv.OpMatrixLoad, 0, value, x, 43, 44), in(spirv.OpMatrixStore, y, value, 43, 44),
		}, [2]access{reads, writes}},
		"tensors of matrices": {code{
			in(spirv.OpMatrixLoadTensor, 0, value, x, 43, 44, 0, 0), in(spirv.OpMatrixStoreTensor, y, value, 43, 0, 0),
		}, [2]access{reads, writes}},
		"copy":             {code{in(spirv.OpCopyMemory, x, y)}, [2]access{writes, reads}},
		"one or the other": {code{in(spirv.OpSelect, 0, p, 43, x, y), in(spirv.OpStore, p, value)}, [2]access{writes, writes}},
		"length":           {code{in(spirv.OpArrayLength, 0, value, x, 0)}, [2]access{}},
		"unknown":          {code{in(6000, 0, value, x), in(spirv.OpExtInst, 0, value, 30, 31, y)}, [2]access{both, both}},
		"returned":         {code{in(spirv.OpReturnValue, x)}, [2]access{both, 0}},
		"stored":           {code{in(spirv.OpStore, 43, y)}, [2]access{0, both}},
	} {
		variable := func(binding uint32) *spirv.ID {
			return &spirv.ID{Op: spirv.OpVariable, Args: []uint32{spirv.ClassStorageBuffer}, Decorations: map[uint32]uint32{spirv.BindingPoint: binding}}
		}
		m := module{Module: &spirv.Module{
			Instructions: append(code{in(spirv.OpFunction, 0, function, 0, 0)}, c.code...),
			IDs:          map[uint32]*spirv.ID{x: variable(0), y: variable(1)},
		}}
		require.Equal(t, c.want[:], m.access(2), name)
	}
}

// TestAccesses compares what the instructions of our kernels do with what their shaders
// declare: readonly and writeonly.
func TestAccesses(t *testing.T) {
	all, both, less := 0, 0, 0
	for _, v := range shaders.Variants() {
		s, err := shaders.Get(v.Kernel, v.Type)
		require.NoError(t, err)
		info, err := scanModule(s.SPIRV, nil)
		require.NoError(t, err)
		m, err := spirv.Parse(s.SPIRV)
		require.NoError(t, err)
		declared := make([]access, len(info.access))
		for _, v := range m.IDs {
			if v.Op != spirv.OpVariable || v.Args[0] != spirv.ClassStorageBuffer {
				continue
			}
			may := reads | writes
			for of := range m.At(m.At(v.Type).Args[1]).MemberDecorations {
				switch of[1] {
				case spirv.NonWritable:
					may &^= writes
				case spirv.NonReadable:
					may &^= reads
				}
			}
			declared[v.Decorations[spirv.BindingPoint]] |= may
		}
		for i, got := range info.access {
			all++
			require.Zero(t, got&^declared[i], "%s does more with binding %d than it declares", s.Name, i)
			if got == reads|writes {
				both++
			}
			if got != declared[i] {
				less++
			}
		}
	}
	require.Greater(t, all, 800)
	require.Positive(t, both)
	require.Positive(t, less, "none has less than it declares")
}

// TestCheckSpec wants a field for each constant_id, from 0 on.
func TestCheckSpec(t *testing.T) {
	require.EqualError(t, checkSpec([]uint32{0, 2}, []uint32{7, 8}, struct{ A, B uint32 }{}),
		"the shader's constant_ids are [0 2]: there is none of 1 for field 1 of struct { A uint32; B uint32 }")
}
