package vk

import (
	"fmt"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/internal/enum"
)

// Caps has the capabilities of a device, read once by Open or List. It holds no handles and
// survives a round trip through JSON, so that decisions based on it can be tested without a GPU.
// Open enables every feature that is true.
type Caps struct {
	Index         int // position in List
	Name          string
	Type          DeviceType
	DriverID      uint32 // VkDriverId: 4 NVIDIA, 3 RADV, 13 llvmpipe, ...
	DriverName    string
	DriverInfo    string // human-readable version, such as 580.159.04
	DriverVersion uint32 // vendor's encoding
	VendorID      uint32 // PCI
	DeviceID      uint32
	APIVersion    Version
	Unusable      string   `json:",omitempty"` // why Open refuses the device; "" if it does not
	Extensions    []string // device extensions that Open enables

	SubgroupSize                        uint32
	MinSubgroupSize, MaxSubgroupSize    uint32
	SubgroupOps                         SubgroupOps // in compute shaders
	SubgroupSizeControl                 bool        // KernelOptions.SubgroupSize may choose
	ComputeFullSubgroups                bool
	MaxWorkgroupSubgroups               uint32 // of a kernel with KernelOptions.SubgroupSize; 0: no limit of its own
	SubgroupExtendedTypes               bool   // subgroup operations on 8-, 16- and 64-bit types
	ComputeUnits                        uint32 // that work at once: NVIDIA's multiprocessors, AMD's compute units; 0: the driver does not say
	MaxSharedMemoryBytes                uint32
	MaxWorkgroupInvocations             uint32
	MaxWorkgroupSize                    [3]uint32
	MaxWorkgroupCount                   [3]uint32
	MaxPushConstantsBytes               uint32
	MaxStorageBuffers                   uint32 // bindings of one kernel
	MaxStorageBufferRange               uint64 // bytes that a kernel sees of a buffer
	MaxAllocationBytes                  uint64 // one vkAllocateMemory
	MaxBufferBytes                      uint64
	MaxAllocations                      uint32
	MinStorageBufferOffsetAlignment     uint64
	TimestampPeriod                     float64 // ns per tick; 0: no timestamps
	TimestampBits                       uint32
	Heaps                               []Heap
	MemoryBudget                        bool // Heap budget and usage are known
	Float16, Int8, Int16, Int64         bool // arithmetic in shaders
	Float64                             bool
	Storage16, Storage8                 bool // types in storage buffers
	BFloat16Type, BFloat16Dot           bool
	BFloat16CoopMat                     bool
	Float8Type, Float8CoopMat           bool
	ScalarBlockLayout                   bool
	VulkanMemoryModel                   bool
	VulkanMemoryModelDeviceScope        bool
	AtomicFloat32AddBuffer              bool
	AtomicFloat32AddShared              bool
	AtomicInt64Buffer                   bool
	BufferDeviceAddress                 bool
	IntegerDotProduct                   bool
	Maintenance4                        bool
	MaximalReconvergence                bool // invocations are together again after each branch; see NewKernel
	WorkgroupMemoryExplicitLayout       bool // shared memory as several block views
	WorkgroupMemoryExplicitLayoutScalar bool
	WorkgroupMemoryExplicitLayout16Bit  bool
	ExecutableStats                     bool // Kernel.Stats has numbers

	CoopMat       bool // VK_KHR_cooperative_matrix, in compute shaders
	CoopMatShapes []CoopMatShape
	CoopMat2      CoopMat2
}

// lack names the first capability of a module that the device lacks, "" if it has them all. A driver
// need not check: SwiftShader dies of a module with 16-bit storage.
func (c *Caps) lack(needs []uint32) string {
	for _, x := range []struct {
		capability uint32
		has        bool
		name       string
	}{
		{9, c.Float16, "float16"}, {10, c.Float64, "float64"}, {11, c.Int64, "int64"}, {22, c.Int16, "int16"}, {39, c.Int8, "int8"},
		{4433, c.Storage16, "16-bit storage"}, {4448, c.Storage8, "8-bit storage"}, {5345, c.VulkanMemoryModel, "the Vulkan memory model"},
		{5116, c.BFloat16Type, "bfloat16"}, {5118, c.BFloat16CoopMat, "matrices of bfloat16"}, {5347, c.BufferDeviceAddress, "buffer addresses"},
		{6022, c.CoopMat, "cooperative matrices"}, {6033, c.AtomicFloat32AddBuffer || c.AtomicFloat32AddShared, "float32 atomic add"},
	} {
		if !x.has && slices.Contains(needs, x.capability) {
			return x.name
		}
	}
	return ""
}

// CoopMatShape is one supported multiplication Result = A*B + C with A (M, K),
// B (K, N), C and Result (M, N).
type CoopMatShape struct {
	M, N, K         uint32
	A, B, C, Result ComponentType
	Scope           Scope
	Saturating      bool
}

// CoopMat2 has the features of VK_NV_cooperative_matrix2; it is zero without it.
type CoopMat2 struct {
	WorkgroupScope, FlexibleDimensions, Reductions, Conversions bool
	PerElement, TensorAddressing, BlockLoads                    bool

	MaxWorkgroupSize    uint32 // invocations, at workgroup scope
	FlexMaxDimension    uint32
	ReservedSharedBytes uint32 // taken from shared memory at workgroup scope
	Flexible            []FlexShape
}

// FlexShape is one row of flexible dimensions: M, N and K may be any multiple
// of the granularities.
type FlexShape struct {
	MGranularity, NGranularity, KGranularity uint32
	A, B, C, Result                          ComponentType
	Scope                                    Scope
	Saturating                               bool
	WorkgroupInvocations                     uint32 // at workgroup scope; else 0
}

// Heap is a memory heap. Budget and usage count this process at the time of the call, and are 0
// if the device does not report them (Caps.MemoryBudget).
type Heap struct {
	SizeBytes, BudgetBytes, UsageBytes uint64
	DeviceLocal                        bool
}

// DeviceType is the kind of a device.
type DeviceType uint8

// The device types, in Vulkan's numbering.
const (
	OtherDevice DeviceType = iota
	IntegratedGPU
	DiscreteGPU
	VirtualGPU
	CPU
)

var deviceTypeNames = enum.Names[DeviceType]{"other", "integrated GPU", "discrete GPU", "virtual GPU", "CPU"}

// String returns the name, such as "discrete GPU".
func (t DeviceType) String() string { return deviceTypeNames.Of(t) }

// MarshalText returns the name.
func (t DeviceType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText parses the name.
func (t *DeviceType) UnmarshalText(text []byte) (err error) {
	*t, err = deviceTypeNames.Parse("vk: device type", string(text))
	return err
}

// rank orders the types for the choice of the best device.
func (t DeviceType) rank() int {
	return [...]int{OtherDevice: 1, IntegratedGPU: 3, DiscreteGPU: 4, VirtualGPU: 2, CPU: 0}[min(t, CPU)]
}

// ComponentType is the element type of a cooperative matrix.
type ComponentType uint8

// The component types. UnknownComponent stands for one that is newer than this
// package.
const (
	UnknownComponent ComponentType = iota
	F16
	F32
	F64
	S8
	S16
	S32
	S64
	U8
	U16
	U32
	U64
	BF16
	F8E4M3
	F8E5M2
)

var componentNames = enum.Names[ComponentType]{"unknown", "f16", "f32", "f64", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "bf16", "f8e4m3", "f8e5m2"}

// componentType maps a VkComponentTypeKHR.
func componentType(v uint32) ComponentType {
	switch {
	case v <= 10: // f16 ... u64 are numbered alike
		return F16 + ComponentType(v)
	case v == 1000141000:
		return BF16
	case v == 1000491002:
		return F8E4M3
	case v == 1000491003:
		return F8E5M2
	}
	return UnknownComponent
}

// String returns the short name, such as "f16".
func (t ComponentType) String() string { return componentNames.Of(t) }

// MarshalText returns the short name.
func (t ComponentType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText parses the short name.
func (t *ComponentType) UnmarshalText(text []byte) (err error) {
	*t, err = componentNames.Parse("vk: component type", string(text))
	return err
}

// Scope is the group of invocations that share a cooperative matrix.
type Scope uint8

// The scopes, in Vulkan's numbering.
const (
	ScopeDevice      Scope = 1
	ScopeWorkgroup   Scope = 2
	ScopeSubgroup    Scope = 3
	ScopeQueueFamily Scope = 5
)

var scopeNames = enum.Names[Scope]{"unknown", "device", "workgroup", "subgroup", "invocation", "queue family"}

// String returns the name, such as "subgroup".
func (s Scope) String() string { return scopeNames.Of(s) }

// MarshalText returns the name.
func (s Scope) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses the name.
func (s *Scope) UnmarshalText(text []byte) (err error) {
	*s, err = scopeNames.Parse("vk: scope", string(text))
	return err
}

// SubgroupOps is a set of VkSubgroupFeatureFlagBits.
type SubgroupOps uint32

// The subgroup operations.
const (
	SubgroupBasic SubgroupOps = 1 << iota
	SubgroupVote
	SubgroupArithmetic
	SubgroupBallot
	SubgroupShuffle
	SubgroupShuffleRelative
	SubgroupClustered
	SubgroupQuad
)

var subgroupOpNames = enum.Names[int]{"basic", "vote", "arithmetic", "ballot", "shuffle", "shuffle_relative", "clustered", "quad"}

// Has reports whether every operation of want is in s.
func (s SubgroupOps) Has(want SubgroupOps) bool { return s&want == want }

// String returns the names with "|" between them.
func (s SubgroupOps) String() string {
	var names []string
	for i, name := range subgroupOpNames {
		if s.Has(1 << i) {
			names = append(names, name)
		}
	}
	return strings.Join(names, "|")
}

// MarshalText returns the names with "|" between them.
func (s SubgroupOps) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses what MarshalText wrote.
func (s *SubgroupOps) UnmarshalText(text []byte) error {
	*s = 0
	for _, name := range strings.FieldsFunc(string(text), func(r rune) bool { return r == '|' }) {
		i, err := subgroupOpNames.Parse("vk: subgroup operation", name)
		if err != nil {
			return err
		}
		*s |= 1 << i
	}
	return nil
}

// Version is a Vulkan version number.
type Version uint32

// MakeVersion returns major.minor.patch.
func MakeVersion(major, minor, patch uint32) Version {
	return Version(major<<22 | minor<<12 | patch)
}

// String returns the usual form, such as 1.4.312.
func (v Version) String() string {
	return fmt.Sprintf("%d.%d.%d", v>>22&0x7f, v>>12&0x3ff, v&0xfff)
}

// MarshalText returns the usual form.
func (v Version) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText parses the usual form.
func (v *Version) UnmarshalText(text []byte) error {
	var major, minor, patch uint32
	if _, err := fmt.Sscanf(string(text), "%d.%d.%d", &major, &minor, &patch); err != nil {
		return fmt.Errorf("vk: version %q is not of the form 1.2.3", text)
	}
	*v = MakeVersion(major, minor, patch)
	return nil
}
