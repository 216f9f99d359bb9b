package norm_test

import (
	"fmt"
	"log"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A plan says what would run.
func ExampleChoose() {
	caps := &vk.Caps{ // plain Vulkan 1.2
		SubgroupSize: 32, MinSubgroupSize: 32, MaxSubgroupSize: 32, MaxSharedMemoryBytes: 32768, MaxWorkgroupInvocations: 256,
		MaxWorkgroupSize: [3]uint32{256, 256, 64}, MaxWorkgroupCount: [3]uint32{65535, 65535, 65535}, MaxStorageBufferRange: 1 << 30,
		MaxStorageBuffers: 16, MaxPushConstantsBytes: 128, ScalarBlockLayout: true, ComputeFullSubgroups: true,
		SubgroupOps: vk.SubgroupBasic | vk.SubgroupArithmetic | vk.SubgroupShuffle,
	}
	p := norm.Problem{Rows: 1000, Cols: 512, DType: dtype.Float32}
	fmt.Println(norm.Supports(caps, p, kit.Backward, norm.Options{}))
	plan, err := norm.Choose(caps, p, kit.Backward, norm.Options{})
	if err != nil {
		log.Fatal(err)
	}
	bytes, err := norm.Workspace(caps, p, kit.Backward, norm.Options{})
	fmt.Println(plan.Kernels(), bytes, err)
	fmt.Println(plan)
	// Output:
	// <nil>
	// [norm_bwd sum_rows] 256000 <nil>
	// wg256 subgroup loads4 rows1 groups4 ahead
}
