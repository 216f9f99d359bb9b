package vk

import (
	"errors"
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/internal/spirv"
)

// moduleInfo is what NewKernel needs to know of a SPIR-V module.
type moduleInfo struct {
	entry     string    // name of the compute entry point
	bindings  int       // storage buffers 0..bindings-1 of descriptor set 0
	pushBytes int       // size of the push-constant block, 0 for none
	constants []uint32  // constant_ids of its specialization constants, in order
	workgroup [3]uint32 // its size, with the specialization applied; 0 if unknown
	shared    int64     // bytes of shared memory, at most; -1 if unknown
	access    []access  // of each binding
	needs     []uint32  // capabilities
}

// module is a module with the values of its specialization constants.
type module struct {
	*spirv.Module
	spec []uint32
}

// scanModule reads the interface of a compute shader and refuses what Dispatch
// could not bind: anything but storage buffers 0..n-1 of set 0. Spec are the
// specialization constants.
func scanModule(code []byte, spec []uint32) (info moduleInfo, err error) {
	parsed, err := spirv.Parse(code)
	if err != nil {
		return info, err
	}
	m := module{parsed, spec}
	const glCompute = 5
	var size []uint32 // ids of the workgroup's
	for _, in := range m.Instructions {
		switch a := in.Args; {
		case in.Op == spirv.OpCapability:
			info.needs = append(info.needs, a[0])
		case in.Op == spirv.OpEntryPoint && a[0] == glCompute:
			info.entry = spirv.Text(a[2:])
		case in.Op == spirv.OpExecutionMode && a[1] == spirv.ModeLocalSize:
			copy(info.workgroup[:], a[2:])
		case in.Op == spirv.OpExecutionModeID && a[1] == spirv.ModeLocalSizeID:
			size = a[2:]
		}
	}
	if info.entry == "" {
		return info, errors.New("no compute entry point")
	}
	for _, x := range m.IDs {
		if id, ok := x.Decorations[spirv.SpecID]; ok {
			info.constants = append(info.constants, id)
		}
		if x.Decorations[spirv.BuiltIn] == spirv.WorkgroupSize {
			size = x.Args // it overrides the execution mode
		}
	}
	for i := range min(len(size), 3) {
		info.workgroup[i], _ = m.constant(size[i])
	}
	slices.Sort(info.constants) // glslang decorates a second constant with the id of local_size_x_id
	info.constants = slices.Compact(info.constants)
	info.shared = m.sharedBytes()
	return info, info.collect(&m)
}

// collect checks and counts the module's resources.
func (info *moduleInfo) collect(m *module) error {
	var bindings []uint32
	for _, v := range m.IDs {
		if v.Op != spirv.OpVariable {
			continue
		}
		at, bound := v.Decorations[spirv.BindingPoint]
		set := v.Decorations[spirv.DescriptorSet]
		switch v.Args[0] {
		case spirv.ClassPushConstant:
			if p := m.At(v.Type); p.Op == spirv.OpTypePointer {
				info.pushBytes = m.size(p.Args[1])
			}
		case spirv.ClassUniform, spirv.ClassUniformConstant:
			return fmt.Errorf("binding %d of set %d is not a storage buffer", at, set)
		case spirv.ClassStorageBuffer:
			if !bound || set != 0 {
				return fmt.Errorf("storage buffer at binding %d of set %d, only set 0 is bound", at, set)
			}
			bindings = append(bindings, at)
		}
	}
	slices.Sort(bindings)
	bindings = slices.Compact(bindings) // one binding may have several views
	for i, b := range bindings {
		if i != int(b) {
			return fmt.Errorf("bindings %v are not 0 to %d", bindings, len(bindings)-1)
		}
	}
	info.bindings = len(bindings)
	info.access = m.access(len(bindings))
	return nil
}

// size returns the bytes of a type in a block; 0 for one that has no place there.
func (m *module) size(typ uint32) int {
	t := m.At(typ)
	switch t.Op {
	case spirv.OpTypeInt, spirv.OpTypeFloat:
		return int(t.Args[0]) / 8
	case spirv.OpTypeVector:
		return m.size(t.Args[0]) * int(t.Args[1])
	case spirv.OpTypeArray:
		length, _ := m.constant(t.Args[1])
		return int(t.Decorations[spirv.ArrayStride]) * int(length)
	case spirv.OpTypeStruct:
		end := 0
		for i, member := range t.Args {
			end = max(end, int(t.MemberDecorations[[2]uint32{uint32(i), spirv.Offset}])+m.size(member))
		}
		return end
	}
	return 0
}

// adapt returns a module without what it does not need and the device does not have.
func (c *Caps) adapt(code []byte) []byte {
	if !c.Storage16 {
		code = without16(code)
	}
	if !c.MaximalReconvergence {
		code = withoutReconvergence(code)
	}
	return code
}

// withoutReconvergence returns a module that does not ask for maximal reconvergence.
func withoutReconvergence(code []byte) []byte {
	list, err := spirv.Decode(code)
	if err != nil {
		return code
	}
	return spirv.Encode(code, slices.DeleteFunc(list, func(in spirv.Instruction) bool {
		return in.Op == spirv.OpExtension && spirv.Text(in.Args) == spirv.Reconvergence ||
			in.Op == spirv.OpExecutionMode && in.Args[1] == spirv.ModeMaximallyReconverges
	}))
}

// Capabilities that without16 knows.
const (
	capabilityFloat16   = 9
	capabilityInt16     = 22
	capabilityStorage16 = 4433
)

// without16 returns a module whose views of buffers have integers of 32 bits in place of 16, for a device
// without 16-bit storage. In calls of float32 nothing reads or writes these views, which are for other
// formats, behind specialization constants. A module that computes in 16 bits stays as it is.
//
// Without Int16, SPIR-V has values of 16 bits loaded, stored and converted alone.
func without16(code []byte) []byte {
	list, err := spirv.Decode(code)
	var needs []uint32
	var half, word uint32     // types
	is16 := map[uint32]bool{} // arrays and values of the type half
	for _, in := range list {
		switch a := in.Args; {
		case in.Op == spirv.OpCapability:
			needs = append(needs, a[0])
		case in.Op == spirv.OpTypeInt && a[1] == 32 && a[2] == 0:
			word = a[0]
		case in.Op == spirv.OpTypeInt && a[1] == 16:
			half = a[0]
		case in.Op == spirv.OpTypeRuntimeArray && a[1] == half:
			is16[a[0]] = true
		case (in.Op == spirv.OpLoad || in.Op == spirv.OpUConvert) && a[0] == half:
			is16[a[1]] = true
		}
	}
	has := func(capability uint32) bool { return slices.Contains(needs, capability) }
	if err != nil || !has(capabilityStorage16) || has(capabilityInt16) || has(capabilityFloat16) || half == 0 || word == 0 {
		return code
	}
	var result []spirv.Instruction
	for _, in := range list {
		a := slices.Clone(in.Args)
		switch op := in.Op; {
		case op == spirv.OpCapability && a[0] == capabilityStorage16, op == spirv.OpTypeInt && a[0] == half:
			continue
		case op == spirv.OpDecorate && is16[a[0]] && a[1] == spirv.ArrayStride:
			a[2] = 4
		case op == spirv.OpTypeRuntimeArray && a[1] == half:
			a[1] = word
		case op == spirv.OpTypePointer && a[2] == half:
			a[2] = word
		case op == spirv.OpLoad && a[0] == half:
			a[0] = word
		case op == spirv.OpUConvert && (a[0] == half || is16[a[2]]):
			in.Op, a[0] = spirv.OpCopyObject, word
		}
		result = append(result, spirv.Instruction{Op: in.Op, Args: a})
	}
	return spirv.Encode(code, result)
}

// sharedAlignment is the alignment of a vec4: no variable in shared memory has a larger one.
const sharedAlignment = 16

// SharedBytes returns the most shared memory that a workgroup of a module takes, with spec as in
// NewKernel. It is the sum of its variables in Workgroup storage, used or not, each by the layout
// rules of storage buffers (std430) and rounded up to 16 bytes, because Vulkan lets a driver lay
// them out in any order.
func SharedBytes(spirv []byte, spec any) (int, error) {
	words, err := specWords(spec)
	if err != nil {
		return 0, err
	}
	info, err := scanModule(spirv, words)
	if err == nil && info.shared < 0 {
		err = errors.New("vk: the length of an array in shared memory is computed by what this library does not know")
	}
	return int(info.shared), err
}

// SharedVariables returns the count of SharedBytes for variables of these sizes.
func SharedVariables(bytes ...int) (sum int) {
	for _, n := range bytes {
		sum += roundUp(n, sharedAlignment)
	}
	return sum
}

// sharedBytes returns what SharedBytes does; -1 if it is not known.
func (m *module) sharedBytes() (bytes int64) {
	for _, v := range m.IDs {
		pointer := m.At(v.Type)
		if v.Op != spirv.OpVariable || v.Args[0] != spirv.ClassWorkgroup || pointer.Op != spirv.OpTypePointer {
			continue
		}
		n, _, known := m.sharedSize(pointer.Args[1])
		if !known {
			return -1
		}
		bytes += int64(SharedVariables(n))
	}
	return bytes
}

// sharedSize returns the bytes and the alignment of a type in shared memory.
func (m *module) sharedSize(typ uint32) (size, align int, known bool) {
	t := m.At(typ)
	switch t.Op {
	case spirv.OpTypeBool:
		return 4, 4, true
	case spirv.OpTypeInt, spirv.OpTypeFloat:
		return int(t.Args[0]) / 8, int(t.Args[0]) / 8, true
	case spirv.OpTypeVector:
		size, _, known = m.sharedSize(t.Args[0])
		return size * int(t.Args[1]), max(size*int(t.Args[1]+t.Args[1]%2), 1), known // three components are aligned as four
	case spirv.OpTypeArray:
		length, ok := m.constant(t.Args[1])
		size, align, known = m.sharedSize(t.Args[0])
		return roundUp(size, align) * int(length), align, known && ok
	case spirv.OpTypeStruct:
		align, known = 1, true
		for _, member := range t.Args {
			n, of, ok := m.sharedSize(member)
			size, align, known = roundUp(size, of)+n, max(align, of), known && ok
		}
		return roundUp(size, align), align, known
	}
	return 0, 1, false
}

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

// constant returns the value of a constant of 32 bits or a bool, 0 or 1, with the
// specialization applied. Known is false if values that are not known here decide the constant.
func (m *module) constant(id uint32) (value uint32, known bool) {
	c := m.At(id)
	if n, ok := c.Decorations[spirv.SpecID]; ok && int(n) < len(m.spec) {
		return m.spec[n], true
	}
	switch c.Op {
	case spirv.OpConstant, spirv.OpSpecConstant:
		return c.Args[0], true
	case spirv.OpConstantTrue, spirv.OpSpecConstantTrue:
		return 1, true
	case spirv.OpConstantFalse, spirv.OpSpecConstantFalse:
		return 0, true
	case spirv.OpSpecConstantOp:
		var x [3]uint32
		if len(c.Args) > 1+len(x) {
			return 0, false
		}
		for i, operand := range c.Args[1:] {
			if x[i], known = m.constant(operand); !known {
				return 0, false
			}
		}
		op := spirv.Op(c.Args[0])
		f := operations[op]
		if f == nil || x[1] == 0 && (op == spirv.OpUDiv || op == spirv.OpUMod) {
			return 0, false
		}
		return f(x[0], x[1], x[2]), true
	}
	return 0, false
}

// operations are what constants are computed by.
var operations = map[spirv.Op]func(x, y, z uint32) uint32{
	spirv.OpIAdd:              func(x, y, _ uint32) uint32 { return x + y },
	spirv.OpISub:              func(x, y, _ uint32) uint32 { return x - y },
	spirv.OpIMul:              func(x, y, _ uint32) uint32 { return x * y },
	spirv.OpUDiv:              func(x, y, _ uint32) uint32 { return x / y },
	spirv.OpUMod:              func(x, y, _ uint32) uint32 { return x % y },
	spirv.OpShiftLeftLogical:  func(x, y, _ uint32) uint32 { return x << y },
	spirv.OpShiftRightLogical: func(x, y, _ uint32) uint32 { return x >> y },
	spirv.OpBitwiseAnd:        func(x, y, _ uint32) uint32 { return x & y },
	spirv.OpBitwiseOr:         func(x, y, _ uint32) uint32 { return x | y },
	spirv.OpBitwiseXor:        func(x, y, _ uint32) uint32 { return x ^ y },
	spirv.OpLogicalAnd:        func(x, y, _ uint32) uint32 { return onOff(x != 0 && y != 0) },
	spirv.OpLogicalOr:         func(x, y, _ uint32) uint32 { return onOff(x != 0 || y != 0) },
	spirv.OpLogicalNot:        func(x, _, _ uint32) uint32 { return onOff(x == 0) },
	spirv.OpIEqual:            func(x, y, _ uint32) uint32 { return onOff(x == y) },
	spirv.OpLogicalEqual:      func(x, y, _ uint32) uint32 { return onOff(x == y) },
	spirv.OpINotEqual:         func(x, y, _ uint32) uint32 { return onOff(x != y) },
	spirv.OpLogicalNotEqual:   func(x, y, _ uint32) uint32 { return onOff(x != y) },
	spirv.OpUGreaterThan:      func(x, y, _ uint32) uint32 { return onOff(x > y) },
	spirv.OpUGreaterThanEqual: func(x, y, _ uint32) uint32 { return onOff(x >= y) },
	spirv.OpULessThan:         func(x, y, _ uint32) uint32 { return onOff(x < y) },
	spirv.OpULessThanEqual:    func(x, y, _ uint32) uint32 { return onOff(x <= y) },
	spirv.OpSelect: func(x, y, z uint32) uint32 {
		if x != 0 {
			return y
		}
		return z
	},
}
