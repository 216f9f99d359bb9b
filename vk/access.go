package vk

import "errors"

// An access says whether a kernel reads or writes a storage buffer.
type access uint8

// Both may be set. A buffer that no instruction touches has neither.
const (
	reads access = 1 << iota
	writes
)

// accesses returns the accesses of a module to storage buffers 0 to n-1. It follows the
// instructions, through access chains and parameters of functions, and ignores specialization. A
// buffer counts as read and written if its pointer goes where this package cannot follow. Accesses
// through addresses do not count.
func accesses(spirv []byte) ([]access, error) {
	module, err := scanModule(spirv, nil)
	if err != nil {
		return nil, errors.New("vk: " + err.Error())
	}
	return module.access, nil
}

// SPIR-V numbers of instructions on pointers. Type and result come first of what an
// instruction with a result has.
const (
	opFunction          = 54
	opFunctionParameter = 55
	opFunctionCall      = 57
	opLoad              = 61
	opStore             = 62
	opCopyMemory        = 63
	opCopyMemorySized   = 64
	opAccessChain       = 65
	opInBoundsPtrChain  = 70 // 65 to 70: access chains, but for
	opArrayLength       = 68 // of no memory
	opCopyObject        = 83
	opAtomicLoad        = 227
	opAtomicStore       = 228
	opAtomicXor         = 242 // 229 to 242: atomics that read and write
	opPhi               = 245
	opReturnValue       = 254
	opMatrixLoad        = 4457 // OpCooperativeMatrixLoadKHR
	opMatrixStore       = 4458
	opMatrixLoadTensor  = 5367 // OpCooperativeMatrixLoadTensorNV
	opMatrixStoreTensor = 5368
	opLastCore          = 403 // numbers above are of extensions
)

// pointers is what a module does with pointers.
type pointers struct {
	function   uint32              // whose body is read
	parameters map[uint32][]uint32 // of functions
	calls      [][]uint32          // the function, and what it is given
	from       map[uint32][]uint32 // ids that a pointer may be, or point into
	used       map[uint32]access   // by instructions, through a pointer
}

func newPointers() pointers {
	return pointers{parameters: map[uint32][]uint32{}, from: map[uint32][]uint32{}, used: map[uint32]access{}}
}

// instruction notes what one instruction does with pointers; in are its operands.
func (p *pointers) instruction(op uint32, in []uint32) {
	if op == opFunction && len(in) > 1 {
		p.function = in[1]
	}
	if p.function == 0 {
		return // types, constants, decorations
	}
	switch n := len(in); {
	case op == opReturnValue && n > 0:
		p.leak(in)
	case op == opFunctionParameter && n > 1:
		p.parameters[p.function] = append(p.parameters[p.function], in[1])
	case op == opFunctionCall && n > 2:
		p.calls = append(p.calls, in[2:])
	case (op == opStore || op == opMatrixStore || op == opMatrixStoreTensor) && n > 1:
		p.used[in[0]] |= writes
		p.leak(in[1:2]) // a pointer that is stored
	case op == opAtomicStore && n > 0:
		p.used[in[0]] |= writes
	case (op == opCopyMemory || op == opCopyMemorySized) && n > 1:
		p.used[in[0]] |= writes
		p.used[in[1]] |= reads
	case n < 3: // no pointer among its operands
	case op == opLoad || op == opMatrixLoad || op == opAtomicLoad || op == opMatrixLoadTensor:
		p.used[in[2]] |= reads
	case op > opAtomicStore && op <= opAtomicXor:
		p.used[in[2]] |= reads | writes
	case op == opArrayLength:
	case op >= opAccessChain && op <= opInBoundsPtrChain || op == opCopyObject:
		p.from[in[1]] = append(p.from[in[1]], in[2])
	case op == opSelect || op == opPhi:
		p.from[in[1]] = append(p.from[in[1]], in[2:]...)
	case op == opExtInst && n > 4:
		p.leak(in[4:])
	case op > opLastCore || op >= opConvertFToU && op <= opBitcast:
		p.leak(in[2:])
	}
}

// Instructions that may take a pointer for what is not known here.
const (
	opExtInst     = 12
	opConvertFToU = 109 // 109 to 124: conversions
	opBitcast     = 124
)

// leak notes ids that go where they are not followed. Those that are no pointers do not
// matter.
func (p *pointers) leak(ids []uint32) {
	for _, id := range ids {
		p.used[id] |= reads | writes
	}
}

// access returns what the instructions do with each of the bindings.
func (m *module) access(bindings int) []access {
	p := &m.pointers
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
			if v := m.ids[id]; v != nil && v.class == classStorageBuffer {
				list[v.binding] |= what
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
