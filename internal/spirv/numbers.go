package spirv

// An Op is an opcode.
type Op uint32

// The opcodes that our readers know, by their names in the specification. Matrix is CooperativeMatrix,
// Group is GroupNonUniform, and of ranges the first and the last are there.
const (
	OpNop                   Op = 0
	OpUndef                 Op = 1
	OpName                  Op = 5
	OpMemberName            Op = 6
	OpString                Op = 7
	OpLine                  Op = 8
	OpExtension             Op = 10
	OpExtInst               Op = 12
	OpEntryPoint            Op = 15
	OpExecutionMode         Op = 16
	OpCapability            Op = 17
	OpTypeBool              Op = 20
	OpTypeInt               Op = 21
	OpTypeFloat             Op = 22
	OpTypeVector            Op = 23
	OpTypeArray             Op = 28
	OpTypeRuntimeArray      Op = 29
	OpTypeStruct            Op = 30
	OpTypePointer           Op = 32
	OpConstantTrue          Op = 41
	OpConstantFalse         Op = 42
	OpConstant              Op = 43
	OpConstantComposite     Op = 44
	OpSpecConstantTrue      Op = 48
	OpSpecConstantFalse     Op = 49
	OpSpecConstant          Op = 50
	OpSpecConstantComposite Op = 51
	OpSpecConstantOp        Op = 52
	OpFunction              Op = 54
	OpFunctionParameter     Op = 55
	OpFunctionEnd           Op = 56
	OpFunctionCall          Op = 57
	OpVariable              Op = 59
	OpLoad                  Op = 61
	OpStore                 Op = 62
	OpCopyMemory            Op = 63
	OpCopyMemorySized       Op = 64
	OpAccessChain           Op = 65
	OpInBoundsAccess        Op = 66
	OpArrayLength           Op = 68
	OpInBoundsPtrChain      Op = 70
	OpDecorate              Op = 71
	OpMemberDecorate        Op = 72
	OpVectorExtract         Op = 77
	OpVectorShuffle         Op = 79
	OpCompositeExtract      Op = 81
	OpCompositeInsert       Op = 82
	OpCopyObject            Op = 83
	OpTranspose             Op = 84
	OpConvertFToU           Op = 109
	OpUConvert              Op = 113
	OpBitcast               Op = 124
	OpSNegate               Op = 126
	OpIAdd                  Op = 128
	OpISub                  Op = 130
	OpIMul                  Op = 132
	OpUDiv                  Op = 134
	OpUMod                  Op = 137
	OpSMulExtended          Op = 152
	OpAny                   Op = 154
	OpLogicalEqual          Op = 164
	OpLogicalNotEqual       Op = 165
	OpLogicalOr             Op = 166
	OpLogicalAnd            Op = 167
	OpLogicalNot            Op = 168
	OpSelect                Op = 169
	OpIEqual                Op = 170
	OpINotEqual             Op = 171
	OpUGreaterThan          Op = 172
	OpUGreaterThanEqual     Op = 174
	OpULessThan             Op = 176
	OpULessThanEqual        Op = 178
	OpFUnordGreaterEqual    Op = 191
	OpShiftRightLogical     Op = 194
	OpShiftLeftLogical      Op = 196
	OpBitwiseOr             Op = 197
	OpBitwiseXor            Op = 198
	OpBitwiseAnd            Op = 199
	OpBitCount              Op = 205
	OpControlBarrier        Op = 224
	OpMemoryBarrier         Op = 225
	OpAtomicLoad            Op = 227
	OpAtomicStore           Op = 228
	OpAtomicXor             Op = 242
	OpPhi                   Op = 245
	OpLoopMerge             Op = 246
	OpSelectionMerge        Op = 247
	OpLabel                 Op = 248
	OpBranch                Op = 249
	OpBranchConditional     Op = 250
	OpSwitch                Op = 251
	OpReturn                Op = 253
	OpReturnValue           Op = 254
	OpUnreachable           Op = 255
	OpNoLine                Op = 317
	OpExecutionModeID       Op = 331
	OpElect                 Op = 333
	OpSubgroupAll           Op = 334
	OpSubgroupAny           Op = 335
	OpSubgroupAllEqual      Op = 336
	OpBroadcast             Op = 337
	OpBroadcastFirst        Op = 338
	OpBallot                Op = 339
	OpShuffle               Op = 345
	OpShuffleXor            Op = 346
	OpShuffleUp             Op = 347
	OpShuffleDown           Op = 348
	OpGroupIAdd             Op = 349
	OpGroupLogicalXor       Op = 364
	OpQuadBroadcast         Op = 365
	OpQuadSwap              Op = 366
	OpCopyLogical           Op = 400
	OpGroupRotate           Op = 4431
	OpTypeCooperativeMatrix Op = 4456
	OpMatrixLoad            Op = 4457
	OpMatrixStore           Op = 4458
	OpMatrixMulAdd          Op = 4459
	OpMatrixLength          Op = 4460
	OpMatrixConvert         Op = 5293
	OpMatrixReduce          Op = 5366
	OpMatrixLoadTensor      Op = 5367
	OpMatrixStoreTensor     Op = 5368
	OpMatrixPerElement      Op = 5369
	OpTensorLayoutFirst     Op = 5372
	OpTensorLayoutLast      Op = 5381
	OpMatrixTranspose       Op = 5390
)

// Decorations, storage classes and execution modes.
const (
	SpecID        = 1
	ArrayStride   = 6
	BuiltIn       = 11
	NonWritable   = 24
	NonReadable   = 25
	BindingPoint  = 33
	DescriptorSet = 34
	Offset        = 35
	WorkgroupSize = 25 // of BuiltIn

	ClassUniformConstant = 0
	ClassInput           = 1
	ClassUniform         = 2
	ClassWorkgroup       = 4
	ClassPrivate         = 6
	ClassFunction        = 7
	ClassPushConstant    = 9
	ClassStorageBuffer   = 12

	ModeLocalSize            = 17
	ModeLocalSizeID          = 38
	ModeSubgroupUniform      = 4421 // SubgroupUniformControlFlowKHR
	ModeMaximallyReconverges = 6023
)

// Reconvergence is the extension of ModeMaximallyReconverges.
const Reconvergence = "SPV_KHR_maximal_reconvergence"
