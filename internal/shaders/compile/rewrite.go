package compile

import (
	"slices"
	"strings"

	"github.com/flashvk/flashvk/internal/spirv"
)

// dropAddressNames removes the debug names that hold an address of the
// compiler's memory: glslang writes one into the mangled name of a function
// whose argument has an array sized by a specialization constant
// ("product_nt(struct-TileNT-f1[s0x5555573]1;"), and so makes other bytes in
// every run. Nothing reads the names of functions.
func dropAddressNames(list []spirv.Instruction) []spirv.Instruction {
	return slices.DeleteFunc(list, func(in spirv.Instruction) bool {
		return in.Op == spirv.OpName && strings.Contains(spirv.Text(in.Args[1:]), "[s0x")
	})
}

// reconverge makes a module whose invocations work together in subgroups, by operations
// of subgroups or on matrices, reconverge maximally: after a branch that invocations
// decide each for itself, they are together again where the source says so. Without it
// Vulkan leaves open which of them meet in an operation behind such a branch. It is done
// here and not in the sources so that no kernel can forget it. vk.NewKernel takes it out again for devices
// that lack VK_KHR_shader_maximal_reconvergence.
func reconverge(list []spirv.Instruction) []spirv.Instruction {
	const firstGroup, lastGroup, cooperativeMatrix = 61, 68, 6022 // capabilities; the groups are subgroup operations
	extensions, modes, together := 0, 0, false
	var function uint32
	for i, in := range list {
		switch in.Op {
		case spirv.OpCapability:
			c := in.Args[0]
			together = together || firstGroup <= c && c <= lastGroup || c == cooperativeMatrix
			extensions = i + 1
		case spirv.OpEntryPoint:
			function, modes = in.Args[1], i+1
		}
	}
	if !together || modes == 0 {
		return list
	}
	return slices.Concat(list[:extensions],
		[]spirv.Instruction{{Op: spirv.OpExtension, Args: spirv.Literal(spirv.Reconvergence)}}, list[extensions:modes],
		[]spirv.Instruction{{Op: spirv.OpExecutionMode, Args: []uint32{function, spirv.ModeMaximallyReconverges}}}, list[modes:])
}
