package attention_test

import (
	"fmt"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/vk"
)

// plainDevice is one with plain Vulkan 1.2.
var plainDevice = vk.Caps{
	Name: "plain", SubgroupSize: 32, ComputeUnits: 10,
	MaxSharedMemoryBytes: 32 << 10, MaxWorkgroupInvocations: 256, MaxWorkgroupSize: [3]uint32{256, 256, 64},
	MaxWorkgroupCount: [3]uint32{65535, 65535, 65535}, MaxStorageBuffers: 32, MaxPushConstantsBytes: 256,
	MaxStorageBufferRange: 1 << 27, MaxAllocationBytes: 1 << 30, ScalarBlockLayout: true, ComputeFullSubgroups: true,
	Storage16: true, Int8: true, Storage8: true, Int16: true,
	SubgroupOps: vk.SubgroupBasic | vk.SubgroupVote | vk.SubgroupArithmetic | vk.SubgroupBallot | vk.SubgroupShuffle,
}

// Configurations and words are read as they are written.
func ExampleParseBackwardConfig() {
	backward, err := attention.ParseBackwardConfig("scalar dkv 32x32 t8x16 depth32 rows8 dq 32x32 t8x16 depth32 rows8")
	fmt.Println(backward.DQ.Depth, backward, err)
	decode, err := attention.ParseDecodeConfig("scalar,rows=2,subgroups=8,groups=64")
	fmt.Println(decode.Groups, decode, err)
	impl, err := attention.ParseImpl("coopmat2")
	fmt.Println(impl, err, attention.Impls())
	align, err := attention.ParseAlign("top-left")
	fmt.Println(align, err)
	format, err := attention.ParseCacheFormat("e4m3")
	fmt.Println(format, err)
	// Output:
	// 32 scalar dkv 32x32 t8x16 depth32 rows8 dq 32x32 t8x16 depth32 rows8 <nil>
	// 64 scalar,rows=2,subgroups=8,groups=64 <nil>
	// coopmat2 <nil> [coopmat2 coopmat scalar unfused]
	// top-left <nil>
	// e4m3 <nil>
}
