package decoder_test

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/decoder"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A plan says what would run. On an H200 half of the multiprocessors compute a small layer, while the others load the next.
func ExampleChoose() {
	caps := &vk.Caps{
		Name: "NVIDIA H200", VendorID: 0x10de, ComputeUnits: 132, ScalarBlockLayout: true, Storage16: true, ComputeFullSubgroups: true,
		MaxStorageBuffers: 32, MaxSharedMemoryBytes: 49152, MaxWorkgroupInvocations: 1024, MaxWorkgroupSize: [3]uint32{1024, 1024, 64},
		SubgroupSize: 32, MinSubgroupSize: 32, MaxSubgroupSize: 32, SubgroupOps: vk.SubgroupBasic | vk.SubgroupArithmetic | vk.SubgroupShuffle,
	}
	p := decoder.Problem{Width: 576, Hidden: 1536, Heads: 9, KVHeads: 3, HeadDim: 64, Keys: 1024, Eps: 1e-5, DType: dtype.BFloat16}
	plan, err := decoder.Choose(caps, p, kit.Forward, decoder.Options{})
	fmt.Println(plan, plan.Fast, plan.Kernels(), err)
	bytes, err := decoder.Workspace(caps, p, kit.Forward, decoder.Options{})
	fmt.Println(bytes == plan.Workspace(), err, decoder.Supports(caps, p, kit.Forward, decoder.Options{}))
	config, err := decoder.ParseConfig("g1 t64 splits2 team8 loads2 keys1 ahead1 copies1")
	fmt.Println(config.Splits, err, config.Feasible(caps, p))
	// Output:
	// g66 t512 splits16 team32 loads8 keys1 ahead2 copies4 beside true [decoder] <nil>
	// true <nil> <nil>
	// 2 <nil> <nil>
}

// Weights of 0 leave x as it is: a layer adds to it.
func ExampleForward() {
	e := vktest.NewExample()
	defer e.Close()
	p := decoder.Problem{Width: 8, Hidden: 8, Heads: 1, KVHeads: 1, HeadDim: 64, Keys: 2, Eps: 1e-5, DType: dtype.Float16}
	zeros := func(shape ...int) vk.Tensor { return e.Tensor(dtype.Float16, shape) }
	t := decoder.Tensors{
		X: e.Tensor(dtype.Float16, []int{1, 8}, 1, 2, 3, 4, 5, 6, 7, 8), Y: zeros(1, 8),
		Cos: e.Float32([]int{2, 32}), Sin: e.Float32([]int{2, 32}), SeqLens: e.Tensor(dtype.Int32, []int{1}),
		NormA: e.Float32([]int{8}), NormB: e.Float32([]int{8}), QKV: zeros(192, 8), Out: zeros(8, 64), GateUp: zeros(16, 8), Down: zeros(8, 8),
		K: zeros(1, 2, 64), V: zeros(1, 2, 64),
	}
	e.Run(func(c *vk.Cmd) error { return decoder.Forward(c, t, p, decoder.Options{}) })
	fmt.Println(e.Values(t.Y))
	last := t // behind another layer
	t.Y, last.X = vk.Tensor{}, vk.Tensor{}
	last.K, last.V = zeros(1, 2, 64), zeros(1, 2, 64)
	e.Run(func(c *vk.Cmd) error {
		return decoder.ForwardLayers(c, []decoder.Tensors{t, last}, p, decoder.Options{})
	})
	fmt.Println(e.Values(last.Y))
	// Output:
	// [1 2 3 4 5 6 7 8]
	// [1 2 3 4 5 6 7 8]
}
