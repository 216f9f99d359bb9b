package chips

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// MatrixShape returns the shape of the cooperative matrices, M x N x N, with which a subgroup
// multiplies elements of type t into float32 sums: the largest of the device. Float32 stands for
// pairs of float16 (shaders/lib/f32x2.glsl). If there is none, lack says what the device lacks.
func MatrixShape(caps *vk.Caps, t dtype.DType) (best vk.CoopMatShape, lack string) {
	component := vk.F16
	switch {
	case t == dtype.BFloat16 && !caps.BFloat16CoopMat:
		return best, "the device has no bfloat16 cooperative matrices"
	case t == dtype.BFloat16:
		component = vk.BF16
	case !caps.Float16:
		return best, "the device has no float16 arithmetic"
	}
	switch {
	case !caps.CoopMat:
		return best, "the device has no VK_KHR_cooperative_matrix"
	case caps.APIVersion < vk.MakeVersion(1, 3, 0): // the modules are SPIR-V 1.6
		return best, fmt.Sprintf("the device has Vulkan %v, matrices need 1.3", caps.APIVersion)
	case !caps.VulkanMemoryModel:
		return best, "the device has no Vulkan memory model"
	case !caps.Int16:
		return best, "the device has no 16-bit integers"
	case !caps.SubgroupSizeControl || !caps.ComputeFullSubgroups:
		return best, "the device cannot promise full subgroups"
	case !caps.SubgroupOps.Has(vk.SubgroupVote):
		return best, "the device has no votes of subgroups"
	}
	for _, s := range caps.CoopMatShapes {
		usable := s.Scope == vk.ScopeSubgroup && s.A == component && s.B == component &&
			s.C == vk.F32 && s.Result == vk.F32 &&
			s.N == s.K && s.N%8 == 0 && s.M*s.N <= 256
		if usable && s.M*s.N > best.M*best.N {
			best = s
		}
	}
	if best.M == 0 {
		return best, fmt.Sprintf("no %v cooperative-matrix shape of the device has float32 sums and N = K", t)
	}
	return best, ""
}

// MatrixOptions asks for full subgroups of the size that the matrix shapes are given for.
func MatrixOptions(caps *vk.Caps) vk.KernelOptions {
	return vk.KernelOptions{SubgroupSize: caps.SubgroupSize, FullSubgroups: true}
}
