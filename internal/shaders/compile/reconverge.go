package compile

import "encoding/binary"

// Numbers of the SPIR-V specification and of SPV_KHR_maximal_reconvergence.
const (
	opExtension              = 10
	opEntryPoint             = 15
	opExecutionMode          = 16
	opCapability             = 17
	modeMaximallyReconverges = 6023

	capabilityGroupNonUniform     = 61 // 61 to 68: subgroup operations of all kinds
	capabilityGroupNonUniformQuad = 68
	capabilityCooperativeMatrix   = 6022
)

const reconvergenceExtension = "SPV_KHR_maximal_reconvergence"

// reconverge makes a module whose invocations work together in subgroups, by operations
// of subgroups or on matrices, reconverge maximally: after a branch that invocations
// decide each for itself, they are together again where the source says so. Without it
// Vulkan leaves open which of them meet in an operation behind such a branch. It is done
// here and not in the sources so that no kernel can forget it. vk.NewKernel takes it out again for devices
// that lack VK_KHR_shader_maximal_reconvergence.
func reconverge(code []byte) []byte {
	var entry, extensions, modes int // where an instruction begins or goes, in bytes
	together := false
	for at := spirvHeaderWords * 4; at+8 <= len(code); {
		first := binary.LittleEndian.Uint32(code[at:])
		op, end := first&0xffff, at+int(first>>16)*4
		if end <= at || end > len(code) {
			return code // not SPIR-V: the validator says so better
		}
		switch op {
		case opCapability:
			c := binary.LittleEndian.Uint32(code[at+4:])
			together = together || capabilityGroupNonUniform <= c && c <= capabilityGroupNonUniformQuad || c == capabilityCooperativeMatrix
			extensions = end
		case opEntryPoint:
			entry, modes = at, end
		}
		at = end
	}
	if !together || entry == 0 {
		return code
	}
	var name []uint32
	for text := append([]byte(reconvergenceExtension), make([]byte, 4-len(reconvergenceExtension)%4)...); len(text) > 0; text = text[4:] {
		name = append(name, binary.LittleEndian.Uint32(text))
	}
	function := binary.LittleEndian.Uint32(code[entry+8:])
	out := append([]byte(nil), code[:extensions]...)
	out = appendInstruction(out, opExtension, name...)
	out = append(out, code[extensions:modes]...)
	out = appendInstruction(out, opExecutionMode, function, modeMaximallyReconverges)
	return append(out, code[modes:]...)
}

func appendInstruction(code []byte, op uint32, operands ...uint32) []byte {
	code = binary.LittleEndian.AppendUint32(code, uint32(len(operands)+1)<<16|op)
	for _, x := range operands {
		code = binary.LittleEndian.AppendUint32(code, x)
	}
	return code
}
