package mixture_test

import (
	"fmt"
	"log"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// On a device without matrices the outputs of heads are in memory in both passes.
func ExampleChoose() {
	caps := &vk.Caps{ // plain Vulkan 1.2
		SubgroupSize: 32, MaxSharedMemoryBytes: 32768, MaxWorkgroupInvocations: 256, MaxWorkgroupSize: [3]uint32{256, 256, 64},
		MaxWorkgroupCount: [3]uint32{65535, 65535, 65535}, MaxStorageBufferRange: 1 << 30, MaxStorageBuffers: 16, MaxPushConstantsBytes: 256,
		ScalarBlockLayout: true,
	}
	p := mixture.Problem{Tokens: 100, Heads: 2, In: 16, Hidden: 60, DType: dtype.Float32}
	for _, pass := range []kit.Pass{kit.Forward, kit.Backward} {
		fmt.Println(mixture.Supports(caps, p, pass, mixture.Options{}))
		plan, err := mixture.Choose(caps, p, pass, mixture.Options{})
		if err != nil {
			log.Fatal(err)
		}
		bytes, err := mixture.Workspace(caps, p, pass, mixture.Options{})
		fmt.Println(plan.Kernels(), bytes, err)
	}
	// Output:
	// <nil>
	// [gemm_scalar gemm_scalar gmm_fwd] 50688 <nil>
	// <nil>
	// [gemm_pack gemm_scalar gemm_scalar gmm_bwd gemm_scalar gemm_scalar gemm_scalar gemm_scalar] 112896 <nil>
}
