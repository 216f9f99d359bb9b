package vk

import "github.com/flashvk/flashvk/internal/spirv"

// An access says whether a kernel reads or writes a storage buffer.
type access uint8

// Both may be set. A buffer that no instruction touches has neither.
const (
	reads access = 1 << iota
	writes
)

// pointers is what a module does with pointers.
type pointers struct {
	function   uint32              // whose body is read
	parameters map[uint32][]uint32 // of functions
	calls      [][]uint32          // the function, and what it is given
	from       map[uint32][]uint32 // ids that a pointer may be, or point into
	used       map[uint32]access   // by instructions, through a pointer
}

// instruction notes what one instruction does with pointers. Type and result come first of what an
// instruction with a result has.
func (p *pointers) instruction(op spirv.Op, in []uint32) {
	const lastCore = 403 // opcodes above are of extensions
	if op == spirv.OpFunction {
		p.function = in[1]
	}
	if p.function == 0 {
		return // types, constants, decorations
	}
	switch op {
	case spirv.OpReturnValue:
		p.leak(in)
		return
	case spirv.OpFunctionParameter:
		p.parameters[p.function] = append(p.parameters[p.function], in[1])
		return
	case spirv.OpFunctionCall:
		p.calls = append(p.calls, in[2:])
		return
	case spirv.OpStore, spirv.OpMatrixStore, spirv.OpMatrixStoreTensor:
		p.used[in[0]] |= writes
		p.leak(in[1:2]) // a pointer that is stored
		return
	case spirv.OpAtomicStore:
		p.used[in[0]] |= writes
		return
	case spirv.OpCopyMemory, spirv.OpCopyMemorySized:
		p.used[in[0]] |= writes
		p.used[in[1]] |= reads
		return
	}
	switch n := len(in); {
	case n < 3 || op == spirv.OpArrayLength: // no pointer to memory among its operands
	case op == spirv.OpLoad || op == spirv.OpMatrixLoad || op == spirv.OpAtomicLoad || op == spirv.OpMatrixLoadTensor:
		p.used[in[2]] |= reads
	case op > spirv.OpAtomicStore && op <= spirv.OpAtomicXor:
		p.used[in[2]] |= reads | writes
	case op >= spirv.OpAccessChain && op <= spirv.OpInBoundsPtrChain || op == spirv.OpCopyObject:
		p.from[in[1]] = append(p.from[in[1]], in[2])
	case op == spirv.OpSelect || op == spirv.OpPhi:
		p.from[in[1]] = append(p.from[in[1]], in[2:]...)
	case op == spirv.OpExtInst && n > 4:
		p.leak(in[4:])
	case op > lastCore || op >= spirv.OpConvertFToU && op <= spirv.OpBitcast:
		p.leak(in[2:])
	}
}

// leak notes ids that go where they are not followed. Those that are no pointers do not
// matter.
func (p *pointers) leak(ids []uint32) {
	for _, id := range ids {
		p.used[id] |= reads | writes
	}
}

// access returns the accesses of a module to storage buffers 0 to bindings-1. It follows the
// instructions, through access chains and parameters of functions, and ignores specialization. A
// buffer counts as read and written if its pointer goes where this package cannot follow. Accesses
// through addresses do not count.
func (m *module) access(bindings int) []access {
	p := &pointers{parameters: map[uint32][]uint32{}, from: map[uint32][]uint32{}, used: map[uint32]access{}}
	for _, in := range m.Instructions {
		p.instruction(in.Op, in.Args)
	}
	for _, call := range p.calls {
		for i, parameter := range p.parameters[call[0]] {
			if i+1 < len(call) {
				p.from[parameter] = append(p.from[parameter], call[i+1])
			}
		}
	}
	list := make([]access, bindings)
	for _, what := range []access{reads, writes} {
		seen := map[uint32]bool{}
		var reach func(id uint32)
		reach = func(id uint32) {
			if seen[id] {
				return
			}
			seen[id] = true
			if v := m.At(id); v.Op == spirv.OpVariable && v.Args[0] == spirv.ClassStorageBuffer {
				list[v.Decorations[spirv.BindingPoint]] |= what
			}
			for _, base := range p.from[id] {
				reach(base)
			}
		}
		for id, used := range p.used {
			if used&what != 0 {
				reach(id)
			}
		}
	}
	return list
}
