package vk

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
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
}

// SPIR-V numbers in use.
const (
	spirvMagic = 0x07230203

	opExtension             = 10
	opEntryPoint            = 15
	opExecutionMode         = 16
	opTypeInt               = 21
	opTypeFloat             = 22
	opTypeVector            = 23
	opTypeArray             = 28
	opTypeStruct            = 30
	opTypePointer           = 32
	opConstant              = 43
	opConstantComposite     = 44
	opSpecConstantTrue      = 48
	opSpecConstantFalse     = 49
	opSpecConstant          = 50
	opSpecConstantComposite = 51
	opVariable              = 59
	opDecorate              = 71
	opMemberDecorate        = 72
	opExecutionModeID       = 331

	modelGLCompute           = 5
	modeLocalSize            = 17
	modeLocalSizeID          = 38
	modeMaximallyReconverges = 6023

	decorationSpecID        = 1
	decorationArrayStride   = 6
	decorationBuiltIn       = 11
	decorationBinding       = 33
	decorationDescriptorSet = 34
	decorationOffset        = 35
	builtInWorkgroupSize    = 25

	classUniformConstant = 0
	classUniform         = 2
	classPushConstant    = 9
	classStorageBuffer   = 12
)

// idInfo collects what is said about one id.
type idInfo struct {
	class         uint32 // of a variable; ^0 for other ids
	typ           uint32 // of a variable
	set, binding  uint32
	hasBinding    bool
	value         uint32 // of a constant
	isConst       bool
	expression    []uint32 // of a constant that is computed: the operation, ids of its operands
	specID        uint32
	hasSpecID     bool
	parts         []uint32 // ids of a composite constant
	op            uint32   // of a type, 0 for other ids
	of            []uint32 // its operands
	offsets       []uint32 // of the members of a struct
	stride        uint32   // of an array
	workgroupSize bool     // decorated as BuiltIn WorkgroupSize
}

// module is the part of a SPIR-V module that scanModule looks at.
type module struct {
	entry       string
	localSize   []uint32 // numbers
	localSizeID []uint32 // ids of numbers
	ids         map[uint32]*idInfo
	pointers    pointers
}

func (m *module) at(id uint32) *idInfo {
	if m.ids[id] == nil {
		m.ids[id] = &idInfo{class: ^uint32(0)}
	}
	return m.ids[id]
}

// scanModule reads the interface of a compute shader and refuses what Dispatch
// could not bind: anything but storage buffers 0..n-1 of set 0. Spec are the
// specialization constants.
func scanModule(code []byte, spec []uint32) (info moduleInfo, err error) {
	if len(code) < 20 || len(code)%4 != 0 || binary.LittleEndian.Uint32(code) != spirvMagic {
		return moduleInfo{}, fmt.Errorf("not a SPIR-V module (%d bytes)", len(code))
	}
	words := make([]uint32, len(code)/4)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(code[4*i:])
	}
	m := module{ids: map[uint32]*idInfo{}, pointers: newPointers()}
	for rest := words[5:]; len(rest) > 0; {
		n, op := int(rest[0]>>16), rest[0]&0xffff
		if n == 0 || n > len(rest) {
			return moduleInfo{}, fmt.Errorf("truncated SPIR-V module")
		}
		m.instruction(op, rest[1:n])
		m.pointers.instruction(op, rest[1:n])
		rest = rest[n:]
	}
	if m.entry == "" {
		return moduleInfo{}, fmt.Errorf("no compute entry point")
	}
	info = moduleInfo{entry: m.entry, workgroup: m.workgroup(spec), constants: m.constants()}
	info.shared = m.sharedBytes(spec)
	return info, info.collect(&m)
}

// instruction notes what one instruction says; in are its operands.
func (m *module) instruction(op uint32, in []uint32) {
	switch n := len(in); {
	case op == opEntryPoint && n > 2 && in[0] == modelGLCompute:
		m.entry = literalString(in[2:])
	case op == opExecutionMode && n > 4 && in[1] == modeLocalSize:
		m.localSize = in[2:5]
	case op == opExecutionModeID && n > 4 && in[1] == modeLocalSizeID:
		m.localSizeID = in[2:5]
	case op == opDecorate && n > 2:
		m.decoration(m.at(in[0]), in[1], in[2])
	case op == opMemberDecorate && n > 3 && in[2] == decorationOffset:
		s := m.at(in[0])
		for int(in[1]) >= len(s.offsets) && in[1] < maxPushBytes {
			s.offsets = append(s.offsets, 0)
		}
		if int(in[1]) < len(s.offsets) {
			s.offsets[in[1]] = in[3]
		}
	case op == opTypeBool && n > 0:
		m.at(in[0]).op = op
	case op >= opTypeInt && op <= opTypePointer && n > 1:
		t := m.at(in[0])
		t.op, t.of = op, in[1:]
	case (op == opConstant || op == opSpecConstant) && n > 2:
		c := m.at(in[1])
		c.value, c.isConst = in[2], true
	case (op == opConstantTrue || op == opSpecConstantTrue) && n > 1:
		m.at(in[1]).value, m.at(in[1]).isConst = 1, true
	case (op == opConstantFalse || op == opSpecConstantFalse) && n > 1:
		m.at(in[1]).isConst = true
	case op == opSpecConstantOp && n > 3:
		m.at(in[1]).expression = in[2:]
	case (op == opConstantComposite || op == opSpecConstantComposite) && n > 2:
		m.at(in[1]).parts = in[2:]
	case op == opVariable && n > 2:
		m.at(in[1]).typ, m.at(in[1]).class = in[0], in[2]
	}
}

func (m *module) decoration(id *idInfo, kind, value uint32) {
	switch kind {
	case decorationArrayStride:
		id.stride = value
	case decorationBinding:
		id.binding, id.hasBinding = value, true
	case decorationDescriptorSet:
		id.set = value
	case decorationSpecID:
		id.specID, id.hasSpecID = value, true
	case decorationBuiltIn:
		id.workgroupSize = id.workgroupSize || value == builtInWorkgroupSize
	}
}

// workgroup returns the size of the workgroup, 0 where it is not known. A constant that is
// decorated as the built-in overrides the execution mode.
func (m *module) workgroup(spec []uint32) (size [3]uint32) {
	copy(size[:], m.localSize)
	ids := m.localSizeID
	for _, id := range m.ids {
		if id.workgroupSize && len(id.parts) == 3 {
			ids = id.parts
		}
	}
	for i, id := range ids {
		size[i], _ = m.constant(id, spec)
	}
	return size
}

// collect checks and counts the module's resources.
func (m *moduleInfo) collect(of *module) error {
	seen := map[uint32]bool{}
	for _, v := range of.ids {
		switch v.class {
		case classPushConstant:
			if p := of.at(v.typ); p.op == opTypePointer && len(p.of) > 1 {
				m.pushBytes = of.size(p.of[1])
			}
		case classUniform, classUniformConstant:
			return fmt.Errorf("binding %d of set %d is not a storage buffer", v.binding, v.set)
		case classStorageBuffer:
			if !v.hasBinding || v.set != 0 {
				return fmt.Errorf("storage buffer at binding %d of set %d, only set 0 is bound", v.binding, v.set)
			}
			seen[v.binding] = true // one binding may have several views
		}
	}
	var list []int
	for b := range seen {
		list = append(list, int(b))
	}
	sort.Ints(list)
	for i, b := range list {
		if i != b {
			return fmt.Errorf("bindings %v are not 0 to %d", list, len(list)-1)
		}
	}
	m.bindings = len(list)
	m.access = of.access(len(list))
	return nil
}

// constants returns the constant_ids of the specialization constants, in order, each once:
// glslang decorates a second constant with that of local_size_x_id.
func (m *module) constants() (list []uint32) {
	for _, id := range m.ids {
		if id.hasSpecID {
			list = append(list, id.specID)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// size returns the bytes of a type in a block; 0 for one that has no place there.
func (m *module) size(typ uint32) int {
	t := m.at(typ)
	switch {
	case t.op == opTypeInt || t.op == opTypeFloat:
		return int(t.of[0]) / 8
	case t.op == opTypeVector && len(t.of) > 1:
		return m.size(t.of[0]) * int(t.of[1])
	case t.op == opTypeArray && len(t.of) > 1:
		return int(t.stride) * int(m.at(t.of[1]).value)
	case t.op == opTypeStruct:
		end := 0
		for i, member := range t.of {
			if i < len(t.offsets) {
				end = max(end, int(t.offsets[i])+m.size(member))
			}
		}
		return end
	}
	return 0
}

// literalString decodes a NUL-terminated string packed into words.
func literalString(words []uint32) string {
	var s []byte
	for _, w := range words {
		for range 4 {
			if byte(w) == 0 {
				return string(s)
			}
			s = append(s, byte(w))
			w >>= 8
		}
	}
	return string(s)
}

// withoutReconvergence returns a module that does not ask for maximal reconvergence, which
// scanModule has read.
func withoutReconvergence(code []byte) []byte {
	const header = 20
	out := append(make([]byte, 0, len(code)), code[:header]...)
	for rest := code[header:]; len(rest) > 0; {
		first := binary.LittleEndian.Uint32(rest)
		n := int(first>>16) * 4
		words := make([]uint32, n/4-1)
		for i := range words {
			words[i] = binary.LittleEndian.Uint32(rest[4+4*i:])
		}
		extension := first&0xffff == opExtension && literalString(words) == "SPV_KHR_maximal_reconvergence"
		mode := first&0xffff == opExecutionMode && len(words) == 2 && words[1] == modeMaximallyReconverges
		if !extension && !mode {
			out = append(out, rest[:n]...)
		}
		rest = rest[n:]
	}
	return out
}
