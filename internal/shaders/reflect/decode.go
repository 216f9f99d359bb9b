package reflect

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Numbers of the SPIR-V specification, sections 3.7, 3.20 and 3.49.
const (
	magic = 0x07230203

	opName              = 5
	opMemberName        = 6
	opTypeVoid          = 19
	opTypeBool          = 20
	opTypeInt           = 21
	opTypeFloat         = 22
	opTypeVector        = 23
	opTypeArray         = 28
	opTypeRuntimeArray  = 29
	opTypeStruct        = 30
	opTypePointer       = 32
	opConstant          = 43
	opSpecConstantTrue  = 48
	opSpecConstantFalse = 49
	opSpecConstant      = 50
	opFunction          = 54
	opVariable          = 59
	opDecorate          = 71
	opMemberDecorate    = 72

	decorationSpecID        = 1
	decorationArrayStride   = 6
	decorationBinding       = 33
	decorationDescriptorSet = 34
	decorationOffset        = 35

	classPushConstant = 9
)

type member struct{ id, index uint32 }

type typ struct {
	op            uint32
	width, signed uint32   // numbers
	elem          uint32   // vector, array, pointer
	count         uint32   // vector: number of components; array: id of the constant
	members       []uint32 // struct
}

type specConstant struct {
	id, typ uint32
	value   uint64
}

type variable struct{ id, typ, class uint32 }

// A decoder holds what a module declares, by result id.
type decoder struct {
	names         map[uint32]string
	memberNames   map[member]string
	offsets       map[member]uint32
	specID        map[uint32]uint32
	binding, set  map[uint32]uint32
	strides       map[uint32]uint32
	types         map[uint32]typ
	constants     map[uint32]uint32
	specConstants []specConstant
	variables     []variable
}

// decode reads the declarations of a module.
func decode(code []byte) (*decoder, error) {
	if len(code)%4 != 0 || len(code) < 20 {
		return nil, fmt.Errorf("reflect: %d bytes are not a SPIR-V module", len(code))
	}
	words := make([]uint32, len(code)/4)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(code[4*i:])
	}
	if words[0] != magic {
		return nil, errors.New("reflect: not a little-endian SPIR-V module")
	}
	d := &decoder{
		names: map[uint32]string{}, memberNames: map[member]string{}, offsets: map[member]uint32{},
		specID: map[uint32]uint32{}, binding: map[uint32]uint32{}, set: map[uint32]uint32{},
		strides: map[uint32]uint32{}, types: map[uint32]typ{}, constants: map[uint32]uint32{},
	}
	for at := 5; at < len(words); {
		op, n := words[at]&0xffff, int(words[at]>>16)
		if n == 0 || at+n > len(words) {
			return nil, fmt.Errorf("reflect: instruction at word %d runs past the end", at)
		}
		if op == opFunction {
			return d, nil
		}
		if args := words[at+1 : at+n]; len(args) < minArgs[op] {
			return nil, fmt.Errorf("reflect: instruction at word %d (opcode %d) is too short", at, op)
		} else {
			d.instruction(op, args)
		}
		at += n
	}
	return nil, errors.New("reflect: the module ends before its first function")
}

// minArgs is the least number of words after the first of each instruction that
// is read.
var minArgs = map[uint32]int{
	opName: 2, opMemberName: 3, opTypeBool: 1, opTypeInt: 3, opTypeFloat: 2, opTypeVector: 3,
	opTypeArray: 3, opTypeRuntimeArray: 2, opTypeStruct: 1, opTypePointer: 3, opConstant: 3,
	opSpecConstantTrue: 2, opSpecConstantFalse: 2, opSpecConstant: 3, opVariable: 3,
	opDecorate: 2, opMemberDecorate: 3,
}

func (d *decoder) instruction(op uint32, a []uint32) {
	switch op {
	case opName:
		d.names[a[0]] = Text(a[1:])
	case opMemberName:
		d.memberNames[member{a[0], a[1]}] = Text(a[2:])
	case opTypeBool:
		d.types[a[0]] = typ{op: op}
	case opTypeInt:
		d.types[a[0]] = typ{op: op, width: a[1], signed: a[2]}
	case opTypeFloat:
		d.types[a[0]] = typ{op: op, width: a[1]}
	case opTypeVector, opTypeArray:
		d.types[a[0]] = typ{op: op, elem: a[1], count: a[2]}
	case opTypeRuntimeArray:
		d.types[a[0]] = typ{op: op, elem: a[1]}
	case opTypeStruct:
		d.types[a[0]] = typ{op: op, members: a[1:]}
	case opTypePointer:
		d.types[a[0]] = typ{op: op, elem: a[2]}
	case opConstant:
		d.constants[a[1]] = a[2]
	case opSpecConstantTrue:
		d.specConstants = append(d.specConstants, specConstant{id: a[1], typ: a[0], value: 1})
	case opSpecConstantFalse:
		d.specConstants = append(d.specConstants, specConstant{id: a[1], typ: a[0]})
	case opSpecConstant:
		c := specConstant{id: a[1], typ: a[0], value: uint64(a[2])}
		if len(a) > 3 {
			c.value |= uint64(a[3]) << 32
		}
		d.specConstants = append(d.specConstants, c)
	case opVariable:
		d.variables = append(d.variables, variable{id: a[1], typ: a[0], class: a[2]})
	case opDecorate:
		d.decorate(a)
	case opMemberDecorate:
		if a[2] == decorationOffset && len(a) > 3 {
			d.offsets[member{a[0], a[1]}] = a[3]
		}
	}
}

func (d *decoder) decorate(a []uint32) {
	if len(a) < 3 {
		return
	}
	switch a[1] {
	case decorationSpecID:
		d.specID[a[0]] = a[2]
	case decorationArrayStride:
		d.strides[a[0]] = a[2]
	case decorationBinding:
		d.binding[a[0]] = a[2]
	case decorationDescriptorSet:
		d.set[a[0]] = a[2]
	}
}

// Text reads a literal string: UTF-8 in words, lowest byte first, ended by a zero.
func Text(words []uint32) string {
	var b []byte
	for _, w := range words {
		for shift := 0; shift < 32; shift += 8 {
			c := byte(w >> shift)
			if c == 0 {
				return string(b)
			}
			b = append(b, c)
		}
	}
	return string(b)
}
