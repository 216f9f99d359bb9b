package main

import "fmt"

// An op is an opcode of the SPIR-V specification.
type op uint32

const (
	opNop                   op = 0
	opUndef                 op = 1
	opName                  op = 5
	opString                op = 7
	opLine                  op = 8
	opExtInst               op = 12
	opEntryPoint            op = 15
	opExecutionMode         op = 16
	opConstantTrue          op = 41
	opSpecConstantTrue      op = 48
	opSpecConstantFalse     op = 49
	opLogicalOr             op = 166
	opLogicalAnd            op = 167
	opLogicalNot            op = 168
	opConstant              op = 43
	opSpecConstantOp        op = 52
	opFunction              op = 54
	opFunctionParameter     op = 55
	opFunctionEnd           op = 56
	opFunctionCall          op = 57
	opVariable              op = 59
	opLoad                  op = 61
	opStore                 op = 62
	opAccessChain           op = 65
	opInBoundsAccess        op = 66
	opArrayLength           op = 68
	opDecorate              op = 71
	opVectorExtract         op = 77
	opVectorInsert          op = 78
	opVectorShuffle         op = 79
	opCompositeConstruct    op = 80
	opCompositeExtract      op = 81
	opCompositeInsert       op = 82
	opCopyObject            op = 83
	opTranspose             op = 84
	opConvertFToU           op = 109
	opBitcast               op = 124
	opSNegate               op = 126
	opSMulExtended          op = 152
	opAny                   op = 154
	opSelect                op = 169
	opIEqual                op = 170
	opFUnordGreaterEqual    op = 191
	opShiftRightLogical     op = 194
	opBitCount              op = 205
	opControlBarrier        op = 224
	opMemoryBarrier         op = 225
	opAtomicLoad            op = 227
	opAtomicStore           op = 228
	opAtomicXor             op = 242
	opPhi                   op = 245
	opLoopMerge             op = 246
	opSelectionMerge        op = 247
	opLabel                 op = 248
	opBranch                op = 249
	opBranchConditional     op = 250
	opSwitch                op = 251
	opReturn                op = 253
	opReturnValue           op = 254
	opUnreachable           op = 255
	opGroupAsyncCopy        op = 259
	opGroupSMax             op = 271
	opNoLine                op = 317
	opElect                 op = 333
	opSubgroupAll           op = 334
	opSubgroupAny           op = 335
	opSubgroupAllEqual      op = 336
	opBroadcast             op = 337
	opBroadcastFirst        op = 338
	opBallot                op = 339
	opInverseBallot         op = 340
	opBallotBitExtract      op = 341
	opBallotBitCount        op = 342
	opBallotFindMSB         op = 344
	opShuffle               op = 345
	opShuffleXor            op = 346
	opShuffleUp             op = 347
	opShuffleDown           op = 348
	opGroupIAdd             op = 349
	opGroupLogicalXor       op = 364
	opQuadBroadcast         op = 365
	opQuadSwap              op = 366
	opCopyLogical           op = 400
	opGroupRotate           op = 4431
	opTypeCooperativeMatrix op = 4456
	opMatrixLoad            op = 4457
	opMatrixStore           op = 4458
	opMatrixMulAdd          op = 4459
	opMatrixLength          op = 4460
	opMatrixConvert         op = 5293
	opMatrixReduce          op = 5366
	opMatrixLoadTensor      op = 5367
	opMatrixStoreTensor     op = 5368
	opMatrixPerElement      op = 5369
	opTensorLayoutFirst     op = 5372 // OpCreateTensorLayoutNV; then tensor views, all of them values
	opTensorLayoutLast      op = 5381
	opMatrixTranspose       op = 5390
)

const (
	decorationBuiltIn       = 11
	decorationBinding       = 33
	decorationDescriptorSet = 34

	classInput         = 1
	classUniform       = 2
	classWorkgroup     = 4
	classPrivate       = 6
	classFunction      = 7
	classPushConstant  = 9
	classStorageBuffer = 12

	scopeWorkgroup = 2
	scopeSubgroup  = 3

	groupReduce = 0 // a GroupOperation: one result for all

	modeSubgroupUniform = 4421 // SubgroupUniformControlFlowKHR
	modeMaximal         = 6023 // MaximallyReconvergesKHR
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
		opNop: {}, opStore: {}, opMemoryBarrier: {}, opControlBarrier: {}, opAtomicStore: {},
		opLoopMerge: {}, opSelectionMerge: {}, opBranch: {}, opBranchConditional: {}, opSwitch: {},
		opReturn: {}, opReturnValue: {}, opUnreachable: {}, opMatrixStore: {}, opMatrixStoreTensor: {},

		opExtInst:          {true, 2, -1},
		opCompositeExtract: {true, 0, 1},
		opCompositeInsert:  {true, 0, 2},
		opVectorShuffle:    {true, 0, 2},
	}
	pure := func(from, to op) {
		for o := from; o <= to; o++ {
			if _, ok := f[o]; !ok {
				f[o] = form{true, 0, -1}
			}
		}
	}
	for _, o := range []op{opUndef, opFunctionCall, opVariable, opLoad, opAccessChain, opInBoundsAccess, opArrayLength,
		opCopyLogical, opPhi, opGroupRotate, opMatrixLoad, opMatrixMulAdd, opMatrixLength, opMatrixConvert, opMatrixReduce,
		opMatrixLoadTensor, opMatrixPerElement, opMatrixTranspose} {
		pure(o, o)
	}
	pure(opVectorExtract, opTranspose)
	pure(opConvertFToU, opBitcast)
	pure(opSNegate, opSMulExtended)
	pure(opAny, opSelect)
	pure(opIEqual, opFUnordGreaterEqual)
	pure(opShiftRightLogical, opBitCount)
	pure(opAtomicLoad, opAtomicXor)
	pure(opElect, opQuadSwap)
	pure(opTensorLayoutFirst, opTensorLayoutLast)
	return f
}()

var kinds = map[op]string{
	opElect: "subgroupElect", opSubgroupAll: "subgroupAll", opSubgroupAny: "subgroupAny", opSubgroupAllEqual: "subgroupAllEqual",
	opBroadcast: "subgroupBroadcast", opBroadcastFirst: "subgroupBroadcastFirst", opBallot: "subgroupBallot",
	opShuffle: "subgroupShuffle", opShuffleXor: "subgroupShuffleXor", opShuffleUp: "subgroupShuffleUp", opShuffleDown: "subgroupShuffleDown",
	opQuadBroadcast: "subgroupQuadBroadcast", opQuadSwap: "subgroupQuadSwap", opGroupRotate: "subgroupRotate",
	opMatrixLoad: "coopMatLoad", opMatrixStore: "coopMatStore", opMatrixMulAdd: "coopMatMulAdd", opMatrixConvert: "coopMatConvert",
	opMatrixReduce: "coopMatReduce", opMatrixLoadTensor: "coopMatLoadTensor", opMatrixStoreTensor: "coopMatStoreTensor",
	opMatrixPerElement: "coopMatPerElement", opMatrixTranspose: "coopMatTranspose",
	opBranchConditional: "branch", opSwitch: "switch",
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
	case i.op == opControlBarrier:
		if m.numbers[id(i.args[0])] == scopeSubgroup {
			return "subgroupBarrier"
		}
		return "barrier"
	case i.op >= opGroupIAdd && i.op <= opGroupLogicalXor:
		name := "subgroup"
		if i.args[1] != groupReduce {
			name += fmt.Sprintf("Operation%d", i.args[1])
		}
		return name + arithmetic[i.op-opGroupIAdd]
	case i.op >= opConvertFToU && i.op < opBitcast && m.matrices[i.typ]:
		return "matrixConvert"
	}
	return kinds[i.op]
}

// convergent reports whether the invocations of a subgroup, or of the workgroup, must
// execute an instruction together.
func (m *module) convergent(i *instruction) bool {
	return i.op != opBranchConditional && i.op != opSwitch && m.kind(i) != ""
}
