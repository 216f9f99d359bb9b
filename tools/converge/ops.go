package main

import (
	"fmt"

	"github.com/flashvk/flashvk/internal/spirv"
)

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
