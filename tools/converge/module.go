package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/internal/spirv"
)

// An id is a result id of a module.
type id uint32

// An instruction of a function.
type instruction struct {
	op     op
	typ    id       // 0 if it has no result
	result id       // 0 if it has none
	args   []uint32 // the words after
	number int      // which of its kind in the function, from 1; 0 if it has no kind
	line   string   // of the source, in a module compiled with -g
}

// A basicBlock ends with a branch, a return or OpUnreachable.
type basicBlock struct {
	label id
	code  []instruction
}

type function struct {
	id     id
	name   string
	params []id
	blocks []basicBlock
}

type variable struct {
	class   uint32
	builtin int // -1 if it is none
	binding int // set and binding in one number; -1 if it has none
}

// A choice is a boolean constant that specialization gives a value.
type choice struct {
	id id
	op op // spirv.OpNop: a specialization constant; else what is made of others
	of []id
}

// A module is what the analysis needs to know of a SPIR-V module.
type module struct {
	*spirv.Module
	functions map[id]*function
	main      id
	variables map[id]variable // of the module; a function's are instructions
	globals   map[id]level    // of constants, and of what is undefined
	choices   []choice        // specialization constants of type bool, and what is made of them
	modes     map[uint32]bool // execution modes of the entry point
	strings   map[id]string
}

func (m *module) name(i id) string { return m.At(uint32(i)).Name }

// is reports whether an id is the plain constant of a number.
func (m *module) is(constant, number uint32) bool {
	c := m.At(constant)
	return c.Op == spirv.OpConstant && c.Args[0] == number
}

func parse(code []byte) (*module, error) {
	parsed, err := spirv.Parse(code)
	if err != nil {
		return nil, err
	}
	m := &module{
		Module: parsed, functions: map[id]*function{}, variables: map[id]variable{}, globals: map[id]level{},
		modes: map[uint32]bool{}, strings: map[id]string{},
	}
	p := parser{m: m}
	for i, in := range m.Instructions {
		if err := p.instruction(in.Op, in.Args); err != nil {
			return nil, fmt.Errorf("instruction %d: %w", i, err)
		}
	}
	if m.functions[m.main] == nil {
		return nil, errors.New("no entry point")
	}
	for _, f := range m.functions {
		m.nameAndNumber(f)
	}
	return m, nil
}

// A parser is between two instructions of a module.
type parser struct {
	m    *module
	f    *function // nil between functions
	line string
}

func (p *parser) instruction(o op, a []uint32) error {
	switch {
	case o == spirv.OpLine:
		p.line = fmt.Sprintf("%s:%d", p.m.strings[id(a[0])], a[1])
	case o == spirv.OpNoLine:
		p.line = ""
	case o == spirv.OpFunction:
		p.f = &function{id: id(a[1])}
		p.m.functions[p.f.id] = p.f
	case o == spirv.OpFunctionEnd:
		p.f = nil
	case p.f == nil:
		p.declaration(o, a)
	case o == spirv.OpFunctionParameter:
		p.f.params = append(p.f.params, id(a[1]))
	case o == spirv.OpLabel:
		p.f.blocks = append(p.f.blocks, basicBlock{label: id(a[0])})
	default:
		form, ok := forms[o]
		if !ok {
			return fmt.Errorf("instruction %d is not known to tools/converge: say in module.go what it does", o)
		}
		i := instruction{op: o, args: a, line: p.line}
		if form.result {
			i.typ, i.result, i.args = id(a[0]), id(a[1]), a[2:]
		}
		b := &p.f.blocks[len(p.f.blocks)-1]
		b.code = append(b.code, i)
	}
	return nil
}

// declaration reads what stands in front of the functions.
func (p *parser) declaration(o op, a []uint32) {
	m := p.m
	switch o {
	case spirv.OpString:
		m.strings[id(a[0])] = spirv.Text(a[1:])
	case spirv.OpEntryPoint:
		m.main = id(a[1])
	case spirv.OpExecutionMode:
		m.modes[a[1]] = true
	case spirv.OpVariable:
		v := variable{class: a[2], builtin: -1, binding: -1}
		decorations := m.At(a[1]).Decorations
		if b, ok := decorations[spirv.BuiltIn]; ok {
			v.builtin = int(b)
		}
		if b, ok := decorations[spirv.BindingPoint]; ok {
			v.binding = int(b | decorations[spirv.DescriptorSet]<<16)
		}
		m.variables[id(a[1])] = v
	}
	switch {
	case o == spirv.OpSpecConstantTrue || o == spirv.OpSpecConstantFalse:
		m.choices = append(m.choices, choice{id: id(a[1])})
	case o == spirv.OpSpecConstantOp && (op(a[2]) == spirv.OpLogicalNot || op(a[2]) == spirv.OpLogicalAnd || op(a[2]) == spirv.OpLogicalOr):
		c := choice{id: id(a[1]), op: op(a[2])}
		for _, w := range a[3:] {
			c.of = append(c.of, id(w))
		}
		m.choices = append(m.choices, c)
	}
	if o == spirv.OpUndef {
		m.globals[id(a[1])] = divergent
	}
	if o >= spirv.OpConstantTrue && o <= spirv.OpSpecConstantOp {
		m.globals[id(a[1])] = sameInWorkgroup
	}
}

// nameAndNumber gives a function its name, and numbers the instructions that findings
// may name. The mangled name is missing where it would hold an address of the
// compiler's memory (internal/shaders/compile/compile.go): the names of the parameters
// stand in for it.
func (m *module) nameAndNumber(f *function) {
	f.name = m.name(f.id)
	if f.name == "" {
		var params []string
		for _, p := range f.params {
			params = append(params, m.name(p))
		}
		f.name = "?(" + strings.Join(params, ",") + ")"
	}
	f.name = strings.ReplaceAll(f.name, " ", "_")
	count := map[string]int{}
	for b := range f.blocks {
		for i := range f.blocks[b].code {
			in := &f.blocks[b].code[i]
			if kind := m.kind(in); kind != "" {
				count[kind]++
				in.number = count[kind]
			}
		}
	}
}

// decide returns the values of the choices that follow from the values of named
// specialization constants.
func (m *module) decide(named map[string]bool) map[id]bool {
	known := map[id]bool{}
	for _, c := range m.choices { // in the module's order: operands first
		if c.op == spirv.OpNop {
			if v, ok := named[m.name(c.id)]; ok {
				known[c.id] = v
			}
			continue
		}
		first, ok := known[c.of[0]]
		switch c.op {
		case spirv.OpLogicalNot:
			if ok {
				known[c.id] = !first
			}
		default:
			second, ok2 := known[c.of[1]]
			settles := c.op == spirv.OpLogicalOr // the value that settles it alone
			if ok && first == settles || ok2 && second == settles {
				known[c.id] = settles
			} else if ok && ok2 {
				known[c.id] = !settles
			}
		}
	}
	return known
}

// chooses reports whether the module has a boolean specialization constant of a name.
func (m *module) chooses(name string) bool {
	return slices.ContainsFunc(m.choices, func(c choice) bool { return c.op == spirv.OpNop && m.name(c.id) == name })
}

// An op is an opcode.
type op = spirv.Op

const (
	scopeWorkgroup = 2
	scopeSubgroup  = 3

	groupReduce = 0 // a GroupOperation: one result for all
)

// Built-in variables that the whole workgroup, or the subgroup, sees alike.
var builtinLevels = map[int]level{
	24: sameInWorkgroup, // NumWorkgroups
	25: sameInWorkgroup, // WorkgroupSize
	26: sameInWorkgroup, // WorkgroupId
	36: sameInWorkgroup, // SubgroupSize
	38: sameInWorkgroup, // NumSubgroups
	40: sameInSubgroup,  // SubgroupId
}

// A form is how an instruction's words are read.
type form struct {
	result bool // a result type and a result id stand in front of the operands
	// How many of the operands, from first on, are values that a pure result is made
	// of; -1 for all.
	first, values int
}

// forms has every instruction that may stand in a function. What is missing is an
// error, so that no effect is overlooked.
var forms = func() map[op]form {
	f := map[op]form{
		spirv.OpNop: {}, spirv.OpStore: {}, spirv.OpMemoryBarrier: {}, spirv.OpControlBarrier: {}, spirv.OpAtomicStore: {},
		spirv.OpLoopMerge: {}, spirv.OpSelectionMerge: {}, spirv.OpBranch: {}, spirv.OpBranchConditional: {}, spirv.OpSwitch: {},
		spirv.OpReturn: {}, spirv.OpReturnValue: {}, spirv.OpUnreachable: {}, spirv.OpMatrixStore: {}, spirv.OpMatrixStoreTensor: {},

		spirv.OpExtInst:          {true, 2, -1},
		spirv.OpCompositeExtract: {true, 0, 1},
		spirv.OpCompositeInsert:  {true, 0, 2},
		spirv.OpVectorShuffle:    {true, 0, 2},
	}
	pure := func(from, to op) {
		for o := from; o <= to; o++ {
			if _, ok := f[o]; !ok {
				f[o] = form{true, 0, -1}
			}
		}
	}
	for _, o := range []op{spirv.OpUndef, spirv.OpFunctionCall, spirv.OpVariable, spirv.OpLoad, spirv.OpAccessChain, spirv.OpInBoundsAccess, spirv.OpArrayLength,
		spirv.OpCopyLogical, spirv.OpPhi, spirv.OpGroupRotate, spirv.OpMatrixLoad, spirv.OpMatrixMulAdd, spirv.OpMatrixLength, spirv.OpMatrixConvert, spirv.OpMatrixReduce,
		spirv.OpMatrixLoadTensor, spirv.OpMatrixPerElement, spirv.OpMatrixTranspose} {
		pure(o, o)
	}
	pure(spirv.OpVectorExtract, spirv.OpTranspose)
	pure(spirv.OpConvertFToU, spirv.OpBitcast)
	pure(spirv.OpSNegate, spirv.OpSMulExtended)
	pure(spirv.OpAny, spirv.OpSelect)
	pure(spirv.OpIEqual, spirv.OpFUnordGreaterEqual)
	pure(spirv.OpShiftRightLogical, spirv.OpBitCount)
	pure(spirv.OpAtomicLoad, spirv.OpAtomicXor)
	pure(spirv.OpElect, spirv.OpQuadSwap)
	pure(spirv.OpTensorLayoutFirst, spirv.OpTensorLayoutLast)
	return f
}()

var kinds = map[op]string{
	spirv.OpElect: "subgroupElect", spirv.OpSubgroupAll: "subgroupAll", spirv.OpSubgroupAny: "subgroupAny", spirv.OpSubgroupAllEqual: "subgroupAllEqual",
	spirv.OpBroadcast: "subgroupBroadcast", spirv.OpBroadcastFirst: "subgroupBroadcastFirst", spirv.OpBallot: "subgroupBallot",
	spirv.OpShuffle: "subgroupShuffle", spirv.OpShuffleXor: "subgroupShuffleXor", spirv.OpShuffleUp: "subgroupShuffleUp", spirv.OpShuffleDown: "subgroupShuffleDown",
	spirv.OpQuadBroadcast: "subgroupQuadBroadcast", spirv.OpQuadSwap: "subgroupQuadSwap", spirv.OpGroupRotate: "subgroupRotate",
	spirv.OpMatrixLoad: "coopMatLoad", spirv.OpMatrixStore: "coopMatStore", spirv.OpMatrixMulAdd: "coopMatMulAdd", spirv.OpMatrixConvert: "coopMatConvert",
	spirv.OpMatrixReduce: "coopMatReduce", spirv.OpMatrixLoadTensor: "coopMatLoadTensor", spirv.OpMatrixStoreTensor: "coopMatStoreTensor",
	spirv.OpMatrixPerElement: "coopMatPerElement", spirv.OpMatrixTranspose: "coopMatTranspose",
	spirv.OpBranchConditional: "branch", spirv.OpSwitch: "switch",
}

var arithmetic = []string{"Add", "Add", "Mul", "Mul", "Min", "Min", "Min", "Max", "Max", "Max", "And", "Or", "Xor", "And", "Or", "Xor"}

// kind returns what findings call an instruction: a convergent one, or a branch. It
// is GLSL's word for it. Other instructions have no kind.
//
// A conversion of a matrix to another component type is convergent here: SPIR-V
// does not say so, but a driver may keep the two types in different orders and move
// elements between invocations.
func (m *module) kind(i *instruction) string {
	switch {
	case i.op == spirv.OpControlBarrier:
		if m.is(i.args[0], scopeSubgroup) {
			return "subgroupBarrier"
		}
		return "barrier"
	case i.op >= spirv.OpGroupIAdd && i.op <= spirv.OpGroupLogicalXor:
		name := "subgroup"
		if i.args[1] != groupReduce {
			name += fmt.Sprintf("Operation%d", i.args[1])
		}
		return name + arithmetic[i.op-spirv.OpGroupIAdd]
	case i.op >= spirv.OpConvertFToU && i.op < spirv.OpBitcast && m.At(uint32(i.typ)).Op == spirv.OpTypeCooperativeMatrix:
		return "matrixConvert"
	}
	return kinds[i.op]
}

// convergent reports whether the invocations of a subgroup, or of the workgroup, must
// execute an instruction together.
func (m *module) convergent(i *instruction) bool {
	return i.op != spirv.OpBranchConditional && i.op != spirv.OpSwitch && m.kind(i) != ""
}
