// Package chips knows what kernels need of a device beyond its capabilities: the family that
// tuning tables name, and the shapes and layouts of its matrices.
package chips

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// Families are groups of devices that the rows of tuning tables speak of.
//
//	hopper                H100, H200, H800, GH200
//	ampere                NVIDIA's large Ampere chip: A100, A800, A30
//	ampere-rtx            its small ones: RTX 30, RTX A…, A2, A10, A16, A40
//	ada                   RTX 40, RTX … Ada, L4, L40
//	blackwell-rtx         RTX 50, RTX PRO … Blackwell
//	rdna3, rdna4          AMD's Radeon RX 7000 and 9000 and what is built like them
//	xe2                   Intel's Arc B, Lunar Lake and what follows
//	lavapipe              Mesa's software driver
//
// Any other device has no family and gets the rows for all.

// PCI vendors.
const (
	VendorAMD    = 0x1002
	VendorNVIDIA = 0x10de
	VendorIntel  = 0x8086
)

// familyNames has the words in a device's name that say its family. The first match counts:
// "RTX A1000" comes before "A100", and that before "A10".
var familyNames = []struct {
	vendor uint32
	family string
	names  []string
}{
	{VendorNVIDIA, "hopper", []string{"H100", "H200", "H800"}}, // and GH200
	{VendorNVIDIA, "blackwell-rtx", []string{"GeForce RTX 50", "Blackwell"}},
	{VendorNVIDIA, "ada", []string{"GeForce RTX 40", " Ada", "NVIDIA L4"}}, // RTX 4000 SFF Ada; a plain Quadro RTX 4000 is older
	{VendorNVIDIA, "ampere-rtx", []string{"GeForce RTX 30", "RTX A"}},
	{VendorNVIDIA, "ampere", []string{"A100", "A800", "NVIDIA A30"}},
	{VendorNVIDIA, "ampere-rtx", []string{"NVIDIA A10", "NVIDIA A16", "NVIDIA A2", "NVIDIA A40"}},
	// RADV adds the chip's name in brackets, the other drivers do not. GFX11 is 3.5, too: Strix. Radeon 7 and 8
	// are integrated, 740M to 780M and what follows.
	{VendorAMD, "rdna4", []string{"NAVI4", "GFX12", "Radeon RX 90"}},
	{VendorAMD, "rdna3", []string{"NAVI3", "GFX11", "STRIX", "PHOENIX", "Radeon RX 7", "Radeon PRO W7", "Radeon 7", "Radeon 8"}},
}

// A FamilyName is a family with the name of its vendor.
type FamilyName struct{ Vendor, Family string }

// Families lists the families of GPUs, by vendor, to compare with the devices that have records.
func Families() []FamilyName {
	list := []FamilyName{{"Intel", "xe2"}}
	for _, f := range familyNames {
		list = append(list, FamilyName{map[uint32]string{VendorAMD: "AMD", VendorNVIDIA: "NVIDIA"}[f.vendor], f.family})
	}
	slices.SortFunc(list, func(a, b FamilyName) int {
		return cmp.Or(cmp.Compare(a.Vendor, b.Vendor), cmp.Compare(a.Family, b.Family))
	})
	return slices.Compact(list)
}

// Lavapipe reports whether the device is Mesa's software driver.
func Lavapipe(caps *vk.Caps) bool {
	const driverMesaLLVMPipe = 13 // VK_DRIVER_ID_MESA_LLVMPIPE
	return caps.DriverID == driverMesaLLVMPipe
}

// Family names the group of devices for the rows of tuning tables, or returns "". It is a guess
// from the driver's description of the device.
func Family(caps *vk.Caps) string {
	if Lavapipe(caps) {
		return "lavapipe"
	}
	// Intel's names are marketing. The least subgroup tells the generations apart: 16 since Xe2,
	// 8 before. llama.cpp uses it, too.
	if caps.VendorID == VendorIntel && caps.MinSubgroupSize == 16 {
		return "xe2"
	}
	for _, f := range familyNames {
		if f.vendor == caps.VendorID && slices.ContainsFunc(f.names, func(name string) bool { return strings.Contains(caps.Name, name) }) {
			return f.family
		}
	}
	return ""
}

// Drivers, by VkDriverId.
const driverNVIDIA = 4 // VK_DRIVER_ID_NVIDIA_PROPRIETARY

// LosesLoneIndex reports whether workgroups of one subgroup are wrong on the device in kernels
// that find out through shared memory which element of a matrix an invocation holds
// (shaders/lib/rows_coopmat.glsl). With NVIDIA's driver 580 masks fall on the wrong elements
// then, whatever the tile sizes. The same kernel is right with two subgroups, without a mask, and
// where more than the index goes through that memory. A guess: the driver drops barriers of such
// a workgroup, and the matrix is loaded before the stores that it reads.
func LosesLoneIndex(caps *vk.Caps) bool { return caps.DriverID == driverNVIDIA }

// Quads reports whether a driver is known to keep 16x16 matrices as AsksQuads says. AsksQuads
// asks the device.
func Quads(caps *vk.Caps) bool { return caps.DriverID == driverNVIDIA }

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
	case !caps.Storage16:
		return best, "the device has no 16-bit storage"
	case Lavapipe(caps) && caps.SubgroupSize > 8: // Mesa 26.1 with LP_NATIVE_VECTOR_WIDTH=512, and a CPU with AVX-512
		return best, fmt.Sprintf("lavapipe's compiler dies of matrices in subgroups of %d", caps.SubgroupSize)
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

// Int8Shape returns the largest shape of the cooperative matrices with which a subgroup multiplies 8-bit
// integers into sums of 32 bits, of those whose sums are as large as like's, the zero value: of all. If
// there is none, lack says so.
func Int8Shape(caps *vk.Caps, like vk.CoopMatShape) (best vk.CoopMatShape, lack string) {
	if _, lack = MatrixShape(caps, dtype.Float16); lack != "" {
		return best, lack
	}
	for _, s := range caps.CoopMatShapes {
		usable := s.Scope == vk.ScopeSubgroup && s.A == vk.S8 && s.B == vk.S8 && s.C == vk.S32 && s.Result == vk.S32 &&
			(like.M == 0 || s.M == like.M && s.N == like.N)
		if usable && s.M*s.N*s.K > best.M*best.N*best.K {
			best = s
		}
	}
	if best.M == 0 || !caps.Int8 {
		return best, "the device has no matrices of 8-bit integers"
	}
	return best, ""
}

// MatrixOptions asks for full subgroups of the size that the matrix shapes are given for.
func MatrixOptions(caps *vk.Caps) vk.KernelOptions {
	return vk.KernelOptions{SubgroupSize: caps.SubgroupSize, FullSubgroups: true}
}
