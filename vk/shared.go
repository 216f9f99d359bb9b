package vk

import "errors"

// SPIR-V numbers of what the lengths of arrays are computed by.
const (
	opTypeBool       = 20
	opConstantTrue   = 41
	opConstantFalse  = 42
	opSpecConstantOp = 52

	opIAdd                  = 128
	opISub                  = 130
	opIMul                  = 132
	opUDiv                  = 134
	opUMod                  = 137
	opLogicalEqual          = 164
	opLogicalNotEqual       = 165
	opLogicalOr             = 166
	opLogicalAnd            = 167
	opLogicalNot            = 168
	opSelect                = 169
	opIEqual                = 170
	opINotEqual             = 171
	opUGreaterThan          = 172
	opUGreaterThanEqual     = 174
	opULessThan             = 176
	opULessThanEqual        = 178
	opShiftRightLogical     = 194
	opShiftLeftLogical      = 196
	opBitwiseOr             = 197
	opBitwiseXor            = 198
	opBitwiseAnd            = 199
	classWorkgroup          = 4
	sharedAlignment     int = 16 // of a vec4, the most that a variable has
)

// SharedBytes returns the most shared memory that a workgroup of a module takes, with spec as in
// NewKernel. It is the sum of its variables in Workgroup storage, used or not, each by the layout
// rules of storage buffers (std430) and rounded up to 16 bytes, because Vulkan lets a driver lay
// them out in any order.
func SharedBytes(spirv []byte, spec any) (int, error) {
	words, err := specWords(spec)
	if err != nil {
		return 0, err
	}
	module, err := scanModule(spirv, words)
	if err == nil && module.shared < 0 {
		err = errors.New("vk: the length of an array in shared memory is computed by what this library does not know")
	}
	return int(module.shared), err
}

// SharedVariables returns the count of SharedBytes for variables of these sizes.
func SharedVariables(bytes ...int) (sum int) {
	for _, n := range bytes {
		sum += roundUp(n, sharedAlignment)
	}
	return sum
}

// sharedBytes returns what SharedBytes does, with the specialization applied; -1 if it is not
// known.
func (m *module) sharedBytes(spec []uint32) (bytes int64) {
	for _, v := range m.ids {
		pointer := m.at(v.typ)
		if v.class != classWorkgroup || pointer.op != opTypePointer || len(pointer.of) < 2 {
			continue
		}
		n, _, known := m.sharedSize(pointer.of[1], spec)
		if !known {
			return -1
		}
		bytes += int64(SharedVariables(n))
	}
	return bytes
}

// sharedSize returns the bytes and the alignment of a type in shared memory.
func (m *module) sharedSize(typ uint32, spec []uint32) (size, align int, known bool) {
	t := m.at(typ)
	switch {
	case t.op == opTypeBool:
		return 4, 4, true
	case t.op == opTypeInt || t.op == opTypeFloat:
		return int(t.of[0]) / 8, int(t.of[0]) / 8, true
	case t.op == opTypeVector && len(t.of) > 1:
		size, _, known = m.sharedSize(t.of[0], spec)
		return size * int(t.of[1]), max(size*int(t.of[1]+t.of[1]%2), 1), known // three components are aligned as four
	case t.op == opTypeArray && len(t.of) > 1:
		length, ok := m.constant(t.of[1], spec)
		size, align, known = m.sharedSize(t.of[0], spec)
		return roundUp(size, align) * int(length), align, known && ok
	case t.op == opTypeStruct:
		align, known = 1, true
		for _, member := range t.of {
			n, of, ok := m.sharedSize(member, spec)
			size, align, known = roundUp(size, of)+n, max(align, of), known && ok
		}
		return roundUp(size, align), align, known
	}
	return 0, 1, false
}

func roundUp(n, unit int) int {
	return (n + unit - 1) / unit * unit
}

// constant returns the value of a constant of 32 bits or a bool, 0 or 1, with the
// specialization applied; false if it is computed by what is not known here.
func (m *module) constant(id uint32, spec []uint32) (value uint32, known bool) {
	c := m.at(id)
	switch {
	case c.hasSpecID && int(c.specID) < len(spec):
		return spec[c.specID], true
	case c.isConst:
		return c.value, true
	case len(c.expression) == 0:
		return 0, false
	}
	var x [3]uint32
	for i, operand := range c.expression[1:] {
		if i == len(x) {
			return 0, false
		}
		if x[i], known = m.constant(operand, spec); !known {
			return 0, false
		}
	}
	return operate(c.expression[0], x)
}

// operate applies an operation to its operands.
func operate(op uint32, x [3]uint32) (value uint32, known bool) {
	truth := func(b bool) (uint32, bool) {
		if b {
			return 1, true
		}
		return 0, true
	}
	switch op {
	case opIAdd:
		return x[0] + x[1], true
	case opISub:
		return x[0] - x[1], true
	case opIMul:
		return x[0] * x[1], true
	case opUDiv:
		return x[0] / max(x[1], 1), x[1] != 0
	case opUMod:
		return x[0] % max(x[1], 1), x[1] != 0
	case opShiftLeftLogical:
		return x[0] << x[1], true
	case opShiftRightLogical:
		return x[0] >> x[1], true
	case opBitwiseAnd:
		return x[0] & x[1], true
	case opBitwiseOr:
		return x[0] | x[1], true
	case opBitwiseXor:
		return x[0] ^ x[1], true
	case opLogicalAnd:
		return truth(x[0] != 0 && x[1] != 0)
	case opLogicalOr:
		return truth(x[0] != 0 || x[1] != 0)
	case opLogicalNot:
		return truth(x[0] == 0)
	case opIEqual, opLogicalEqual:
		return truth(x[0] == x[1])
	case opINotEqual, opLogicalNotEqual:
		return truth(x[0] != x[1])
	case opUGreaterThan:
		return truth(x[0] > x[1])
	case opUGreaterThanEqual:
		return truth(x[0] >= x[1])
	case opULessThan:
		return truth(x[0] < x[1])
	case opULessThanEqual:
		return truth(x[0] <= x[1])
	case opSelect:
		if x[0] != 0 {
			return x[1], true
		}
		return x[2], true
	}
	return 0, false
}
