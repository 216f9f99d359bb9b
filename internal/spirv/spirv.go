// Package spirv reads and writes modules of SPIR-V.
//
// Source: the SPIR-V specification, sections 2.3 and 3.
package spirv

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
)

const (
	magic       = 0x07230203
	headerBytes = 20
)

// An Instruction has the words behind the first one as operands.
type Instruction struct {
	Op   Op
	Args []uint32
}

// leastArgs is how many operands readers rely on. An instruction with fewer is an error of Decode.
var leastArgs = map[Op]int{
	OpName: 2, OpMemberName: 3, OpString: 2, OpLine: 3, OpEntryPoint: 3, OpExecutionMode: 2, OpExecutionModeID: 2,
	OpCapability: 1, OpTypeBool: 1, OpTypeInt: 3, OpTypeFloat: 2, OpTypeVector: 3, OpTypeArray: 3, OpTypeRuntimeArray: 2,
	OpTypeStruct: 1, OpTypePointer: 3, OpTypeCooperativeMatrix: 1, OpUndef: 2, OpConstantTrue: 2, OpConstantFalse: 2,
	OpConstant: 3, OpConstantComposite: 2, OpSpecConstantTrue: 2, OpSpecConstantFalse: 2, OpSpecConstant: 3,
	OpSpecConstantComposite: 2, OpSpecConstantOp: 4, OpFunction: 4, OpFunctionParameter: 2, OpFunctionCall: 3, OpVariable: 3,
	OpLoad: 3, OpStore: 2, OpCopyMemory: 2, OpCopyMemorySized: 3, OpAccessChain: 3, OpInBoundsAccess: 3,
	OpInBoundsPtrChain: 4, OpCopyObject: 3, OpDecorate: 2, OpMemberDecorate: 3, OpAtomicLoad: 3, OpAtomicStore: 4,
	OpLabel: 1, OpReturnValue: 1, OpMatrixLoad: 3, OpMatrixStore: 2, OpMatrixLoadTensor: 3, OpMatrixStoreTensor: 2,
}

// Decode returns the instructions of a module.
func Decode(code []byte) ([]Instruction, error) {
	if len(code) < headerBytes || len(code)%4 != 0 || binary.LittleEndian.Uint32(code) != magic {
		return nil, fmt.Errorf("not a SPIR-V module (%d bytes)", len(code))
	}
	words := make([]uint32, len(code)/4)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(code[4*i:])
	}
	var list []Instruction
	for rest := words[headerBytes/4:]; len(rest) > 0; {
		op, n := Op(rest[0]&0xffff), int(rest[0]>>16)
		if n == 0 || n > len(rest) || n-1 < leastArgs[op] {
			return nil, errors.New("truncated SPIR-V module")
		}
		list = append(list, Instruction{op, rest[1:n]})
		rest = rest[n:]
	}
	return list, nil
}

// Encode returns a module of instructions, with the header of another module; nil: one of zeros.
func Encode(header []byte, list []Instruction) []byte {
	code := binary.LittleEndian.AppendUint32(nil, magic)
	if code = append(code, make([]byte, headerBytes-4)...); header != nil {
		copy(code, header[:headerBytes])
	}
	for _, in := range list {
		code = binary.LittleEndian.AppendUint32(code, uint32(len(in.Args)+1)<<16|uint32(in.Op))
		for _, x := range in.Args {
			code = binary.LittleEndian.AppendUint32(code, x)
		}
	}
	return code
}

// silent are the opcodes that say nothing to a driver: OpNop, OpSourceContinued, OpSource,
// OpSourceExtension, OpName, OpMemberName, OpString, OpLine, OpNoLine, OpModuleProcessed.
var silent = []Op{0, 2, 3, 4, OpName, OpMemberName, OpString, OpLine, 317, 330}

// Code returns the instructions of a module without the silent ones, names and debug information.
// Ids stay as they are: glslang numbers them in the order of the source, and a number that moves
// is a change worth seeing.
func Code(module []byte) ([]Instruction, error) {
	list, err := Decode(module)
	return slices.DeleteFunc(list, func(in Instruction) bool { return slices.Contains(silent, in.Op) }), err
}

// Hash returns the SHA-256, in hexadecimal, of a module with its header and its Code alone, so that
// another name in the GLSL leaves it. Of bytes that are no module it is their own SHA-256.
func Hash(module []byte) string {
	if code, err := Code(module); err == nil {
		module = Encode(module, code)
	}
	sum := sha256.Sum256(module)
	return hex.EncodeToString(sum[:])
}

// Text reads a literal string: UTF-8 in words, lowest byte first, ended by a zero.
func Text(words []uint32) string {
	var b []byte
	for _, w := range words {
		for range 4 {
			if byte(w) == 0 {
				return string(b)
			}
			b = append(b, byte(w))
			w >>= 8
		}
	}
	return string(b)
}

// Literal returns the words of a string.
func Literal(text string) (words []uint32) {
	for b := append([]byte(text), make([]byte, 4-len(text)%4)...); len(b) > 0; b = b[4:] {
		words = append(words, binary.LittleEndian.Uint32(b))
	}
	return words
}

// A Module is a module with what it declares in front of its functions.
type Module struct {
	Instructions []Instruction
	IDs          map[uint32]*ID
}

// An ID is a type, a constant or a variable, or has a name or a decoration.
type ID struct {
	Op                Op       // that declares it; OpNop: none that is known
	Type              uint32   // of a constant or a variable
	Args              []uint32 // operands behind the result
	Name              string
	Decorations       map[uint32]uint32 // and their first literals
	MemberNames       map[uint32]string
	MemberDecorations map[[2]uint32]uint32 // by member and decoration
}

// At returns what is known of an id, which may be nothing.
func (m *Module) At(id uint32) ID {
	if x := m.IDs[id]; x != nil {
		return *x
	}
	return ID{}
}

// Parse decodes a module and reads its declarations.
func Parse(code []byte) (*Module, error) {
	list, err := Decode(code)
	if err != nil {
		return nil, err
	}
	m := &Module{list, map[uint32]*ID{}}
	for _, in := range list {
		if in.Op == OpFunction {
			break
		}
		m.declaration(in.Op, in.Args)
	}
	return m, nil
}

func (m *Module) declaration(op Op, a []uint32) {
	switch {
	case op == OpName:
		m.id(a[0]).Name = Text(a[1:])
	case op == OpMemberName:
		m.id(a[0]).MemberNames[a[1]] = Text(a[2:])
	case op == OpDecorate:
		m.id(a[0]).Decorations[a[1]] = literal(a[2:])
	case op == OpMemberDecorate:
		m.id(a[0]).MemberDecorations[[2]uint32{a[1], a[2]}] = literal(a[3:])
	case op >= OpTypeBool && op <= OpTypePointer && len(a) > 0 || op == OpTypeCooperativeMatrix:
		x := m.id(a[0])
		x.Op, x.Args = op, a[1:]
	case op >= OpConstantTrue && op <= OpSpecConstantOp && len(a) > 1 || op == OpVariable:
		x := m.id(a[1])
		x.Op, x.Type, x.Args = op, a[0], a[2:]
	}
}

// id returns what is known of an id, to add to it.
func (m *Module) id(id uint32) *ID {
	if m.IDs[id] == nil {
		m.IDs[id] = &ID{Decorations: map[uint32]uint32{}, MemberNames: map[uint32]string{}, MemberDecorations: map[[2]uint32]uint32{}}
	}
	return m.IDs[id]
}

func literal(words []uint32) uint32 {
	if len(words) == 0 {
		return 0
	}
	return words[0]
}
