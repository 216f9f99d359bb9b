package gmm_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A plan says what would run and the memory that it takes beside the tensors. An error says why a
// device lacks a format.
func ExampleChoose() {
	caps := &vk.Caps{ // of a device with plain Vulkan 1.2
		SubgroupSize: 32, MaxSharedMemoryBytes: 32768, MaxWorkgroupInvocations: 256, MaxWorkgroupSize: [3]uint32{256, 256, 64},
		MaxWorkgroupCount: [3]uint32{65535, 65535, 65535}, MaxStorageBufferRange: 1 << 30, MaxStorageBuffers: 16, MaxPushConstantsBytes: 128,
		ScalarBlockLayout: true,
	}
	p := gmm.Problem{Tokens: 16000, Components: 10}
	for _, pass := range []kit.Pass{kit.Forward, kit.Backward} {
		plan, err := gmm.Choose(caps, p, pass, gmm.Options{})
		if err != nil {
			log.Fatal(err)
		}
		bytes, err := gmm.Workspace(caps, p, pass, gmm.Options{})
		fmt.Println(plan.Kernels(), bytes, err)
	}
	p.DType = dtype.Float16
	err := gmm.Supports(caps, p, kit.Forward, gmm.Options{})
	fmt.Println(err, errors.Is(err, vk.ErrUnsupported))
	// Output:
	// [gmm_fwd] 4000 <nil>
	// [gmm_bwd] 0 <nil>
	// gmm: the device has no 16-bit storage: unsupported on this device true
}

// What one product made of all heads is taken apart without a copy.
func ExampleInterleaved() {
	x := vk.Tensor{DType: dtype.Float32, Shape: []int{100, 10, 3}, Strides: []int{30, 3, 1}}
	logit, mu, logSigma := gmm.Interleaved(x)
	fmt.Println(logit.Shape, logit.Strides, logit.Offset, mu.Offset, logSigma.Offset)
	// Output: [100 10] [30 3] 0 1 2
}
