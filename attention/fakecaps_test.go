package attention

import (
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/vk"
)

// A fakeDevice has the capabilities of a device that is not here: of the H200 from a dump, of the
// others from vendors' and Mesa's documentation.
type fakeDevice struct {
	caps   vk.Caps
	family string
	// The paths that float16, bfloat16 and float32 inputs should take, in the
	// order of Impls, Unfused left out.
	f16, bf16, f32 []Impl
}

var (
	everyPath  = []Impl{CoopMat2, CoopMat, Scalar}
	khrPaths   = []Impl{CoopMat, Scalar}
	scalarPath = []Impl{Scalar}
)

// leastDevice is the least that Vulkan 1.2 allows of a device with scalar
// block layout, which the kernels need.
func leastDevice() vk.Caps {
	return vk.Caps{
		Name: "Least", Type: vk.IntegratedGPU, APIVersion: vk.MakeVersion(1, 2, 0),
		SubgroupSize: 1, MinSubgroupSize: 1, MaxSubgroupSize: 1,
		MaxSharedMemoryBytes: 16 << 10, MaxWorkgroupInvocations: 128, MaxWorkgroupSize: [3]uint32{128, 128, 64},
		MaxWorkgroupCount: [3]uint32{65535, 65535, 65535}, MaxPushConstantsBytes: 128, MaxStorageBuffers: 4,
		MaxStorageBufferRange: 1 << 27, MaxAllocationBytes: 1 << 30, MaxBufferBytes: 1 << 30, ScalarBlockLayout: true,
	}
}

// gpu returns the capabilities that today's GPUs have in common, with the
// matrix shape m x n x n for float16 if m is not 0, and for bfloat16 too.
func gpu(name string, vendor, driver, subgroup, shared, invocations, units, m, n uint32, bf16 bool) vk.Caps {
	c := leastDevice()
	c.Name, c.Type, c.VendorID, c.DriverID, c.APIVersion = name, vk.DiscreteGPU, vendor, driver, vk.MakeVersion(1, 4, 0)
	c.SubgroupSize, c.MinSubgroupSize, c.MaxSubgroupSize = subgroup, subgroup, subgroup
	c.SubgroupSizeControl, c.ComputeFullSubgroups = true, true
	c.MaxSharedMemoryBytes, c.MaxWorkgroupInvocations, c.MaxWorkgroupSize = shared, invocations, [3]uint32{invocations, invocations, 64}
	c.ComputeUnits = units
	c.MaxPushConstantsBytes, c.MaxStorageBuffers = 256, 32
	c.Float16, c.Int8, c.Int16, c.Int64, c.Storage16, c.Storage8 = true, true, true, true, true, true
	c.VulkanMemoryModel = true
	c.SubgroupOps = vk.SubgroupBasic | vk.SubgroupVote | vk.SubgroupArithmetic | vk.SubgroupBallot | vk.SubgroupShuffle
	if m == 0 {
		return c
	}
	c.CoopMat = true
	shape := func(k uint32, a, r vk.ComponentType) {
		c.CoopMatShapes = append(c.CoopMatShapes, vk.CoopMatShape{M: m, N: n, K: k, A: a, B: a, C: r, Result: r, Scope: vk.ScopeSubgroup})
	}
	shape(n, vk.F16, vk.F16)
	shape(n, vk.F16, vk.F32)
	shape(2*n, vk.S8, vk.S32)
	if bf16 {
		c.BFloat16Type, c.BFloat16CoopMat = true, true
		shape(n, vk.BF16, vk.F32)
	}
	return c
}

// nvidia is gpu for NVIDIA's driver: every path, 48 KiB, smaller shapes beside
// the square one.
func nvidia(name string, units uint32, bf16 bool) vk.Caps {
	c := gpu(name, chips.VendorNVIDIA, 4, 32, 48<<10, 1024, units, 16, 16, bf16)
	for _, s := range [][2]uint32{{8, 16}, {8, 8}} {
		c.CoopMatShapes = append(c.CoopMatShapes,
			vk.CoopMatShape{M: 16, N: s[0], K: s[1], A: vk.F16, B: vk.F16, C: vk.F32, Result: vk.F32, Scope: vk.ScopeSubgroup})
	}
	c.CoopMat2 = vk.CoopMat2{
		WorkgroupScope: true, FlexibleDimensions: true, Reductions: true, Conversions: true, PerElement: true,
		TensorAddressing: true, BlockLoads: true, MaxWorkgroupSize: 256, FlexMaxDimension: 1024, ReservedSharedBytes: 8192,
	}
	return c
}

// fakeDevices returns the devices of the tests. The path sets leave float32 on
// matrices out: Feasible answers for them.
func fakeDevices() []fakeDevice {
	withStorage := leastDevice()
	withStorage.Name, withStorage.Storage16 = "Least with 16-bit storage", true
	xe2 := func(name string, driver, shared uint32) vk.Caps {
		c := gpu(name, chips.VendorIntel, driver, 32, shared, 1024, 0, 8, 16, true)
		c.MinSubgroupSize = 16
		return c
	}
	radv := func(name string, units uint32) vk.Caps {
		c := gpu(name, chips.VendorAMD, 3, 64, 64<<10, 1024, units, 16, 16, true)
		c.MinSubgroupSize = 32
		return c
	}
	alchemist := gpu("Intel(R) Arc(tm) A770 Graphics (DG2)", chips.VendorIntel, 6, 32, 64<<10, 1024, 0, 0, 0, false)
	alchemist.MinSubgroupSize = 8
	// Its only shape has K twice N.
	alchemist.CoopMat = true
	alchemist.CoopMatShapes = []vk.CoopMatShape{{M: 8, N: 8, K: 16, A: vk.F16, B: vk.F16, C: vk.F32, Result: vk.F32, Scope: vk.ScopeSubgroup}}
	lavapipe := gpu("llvmpipe (LLVM 20.1.2, 256 bits)", 0x10005, 13, 8, 32<<10, 1024, 0, 8, 8, false)
	lavapipe.Type = vk.CPU
	lavapipe.CoopMat2 = vk.CoopMat2{FlexibleDimensions: true, Reductions: true, Conversions: true, PerElement: true}

	unknown := nvidia("A GPU to come", 0, true)
	unknown.VendorID, unknown.DriverID, unknown.MaxSharedMemoryBytes = 0, 0, 32<<10

	every := func(c vk.Caps, family string) fakeDevice {
		return fakeDevice{c, family, everyPath, everyPath, scalarPath}
	}
	khr := func(c vk.Caps, family string) fakeDevice {
		return fakeDevice{c, family, khrPaths, khrPaths, scalarPath}
	}
	return []fakeDevice{
		{leastDevice(), "", nil, nil, scalarPath},
		{withStorage, "", scalarPath, scalarPath, scalarPath},
		every(nvidia("NVIDIA H200", 132, true), "hopper"),
		every(nvidia("NVIDIA H100 PCIe", 114, true), "hopper"),
		every(nvidia("NVIDIA A100-SXM4-80GB", 108, true), "ampere"),
		every(nvidia("NVIDIA GeForce RTX 3060", 28, true), "ampere-rtx"),
		every(nvidia("NVIDIA GeForce RTX 4090", 128, true), "ada"),
		every(nvidia("NVIDIA L4", 58, true), "ada"),
		every(nvidia("NVIDIA GeForce RTX 5090", 170, true), "blackwell-rtx"),
		{nvidia("NVIDIA GeForce RTX 2080 Ti", 68, false), "", everyPath, scalarPath, scalarPath},
		{gpu("NVIDIA GeForce GTX 1080", chips.VendorNVIDIA, 4, 32, 48<<10, 1536, 20, 0, 0, false), "", scalarPath, scalarPath, scalarPath},
		khr(radv("AMD Radeon RX 7900 XTX (RADV NAVI31)", 96), "rdna3"),
		khr(radv("AMD Radeon 890M Graphics (RADV STRIX1)", 16), "rdna3"),
		khr(gpu("AMD Radeon RX 7600", chips.VendorAMD, 1, 64, 32<<10, 1024, 32, 16, 16, true), "rdna3"),
		khr(radv("AMD Radeon RX 9070 XT (RADV GFX1201)", 64), "rdna4"),
		{gpu("AMD Radeon RX 6800 (RADV NAVI21)", chips.VendorAMD, 3, 64, 64<<10, 1024, 60, 0, 0, false), "", scalarPath, scalarPath, scalarPath},
		khr(xe2("Intel(R) Arc(tm) B580 Graphics (BMG G21)", 6, 128<<10), "xe2"),
		khr(xe2("Intel(R) Arc(TM) 140V GPU (16GB)", 5, 32<<10), "xe2"),
		{alchemist, "", scalarPath, scalarPath, scalarPath},
		{gpu("Mali-G715", 0x13b5, 9, 16, 32<<10, 512, 0, 0, 0, false), "", scalarPath, scalarPath, scalarPath},
		every(unknown, ""),
		{lavapipe, "lavapipe", everyPath, scalarPath, scalarPath},
	}
}

// chooseForward returns the configuration of Forward's own kernels.
func chooseForward(caps *vk.Caps, p Problem, opt Options) (Config, error) {
	c, _, err := forwardConfig(caps, &p, &opt)
	return c, err
}
