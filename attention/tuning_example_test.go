package attention_test

import (
	"fmt"
	"log"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
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

// What a tuner measures: first what the table takes, then its neighbours, and of the fastest what
// Candidates leaves as it is. The row is what goes into the table.
func ExampleCandidates() {
	p := attention.Problem{Batch: 1, NumHeads: 8, NumKVHeads: 8, SeqQ: 512, SeqKV: 512, HeadDim: 64, DType: dtype.Float32, Causal: true}
	list := attention.Candidates(&plainDevice, p, attention.Scalar)
	fmt.Println(list[0])
	fmt.Println(list[1])
	fmt.Println(attention.Variants(&plainDevice, p, list[1])[0])
	fmt.Println(attention.TableRow(&plainDevice, p, list[1], 0))
	// Output:
	// scalar 32x32 t8x16 depth32 rows8
	// scalar 32x32 t4x16 depth32 rows8
	// scalar 32x32 t4x16 depth8 rows8
	// {Shape: shape{headDim: 64, causal: true}, Config: Config{Impl: Scalar, Threads: 64, ThreadsX: 16, BlockM: 32, Depth: 32, ValueRows: 8, BlockN: 32}},
}

// The same of the backward pass, which has a tile for each of its kernels.
func ExampleBackwardCandidates() {
	p := attention.Problem{Batch: 1, NumHeads: 8, NumKVHeads: 8, SeqQ: 512, SeqKV: 512, HeadDim: 64, DType: dtype.Float32, Causal: true}
	list := attention.BackwardCandidates(&plainDevice, p, attention.Scalar)
	fmt.Println(list[0])
	fmt.Println(list[1])
	fmt.Println(attention.BackwardVariants(&plainDevice, p, list[1])[0])
	fmt.Println(attention.BackwardTableRow(&plainDevice, p, list[1], 0))
	// Output:
	// scalar dkv 32x32 t8x16 depth32 rows8 dq 32x32 t8x16 depth32 rows8
	// scalar dkv 32x32 t4x16 depth32 rows8 dq 32x32 t8x16 depth32 rows8
	// scalar dkv 32x32 t4x16 depth8 rows8 dq 32x32 t8x16 depth32 rows8
	// {Shape: shape{headDim: 64, causal: true}, Config: BackwardConfig{Impl: Scalar, DKV: BackwardTile{Stream: 32, Threads: 64, ThreadsX: 16, Own: 32, Depth: 32, Slice: 8}, DQ: BackwardTile{Stream: 32, Threads: 128, ThreadsX: 16, Own: 32, Depth: 32, Slice: 8}}},
}

// The same of decoding.
func ExampleDecodeCandidates() {
	p := attention.DecodeProblem{Problem: attention.Problem{Batch: 4, NumHeads: 8, NumKVHeads: 2, SeqQ: 1, SeqKV: 4096, HeadDim: 64, DType: dtype.Float16}}
	list, err := attention.DecodeCandidates(&plainDevice, p, attention.Scalar)
	if err != nil {
		log.Fatal(err)
	}
	first, err := attention.ParseDecodeConfig(list[0].String())
	fmt.Println(first.Impl, first == list[0], err)
	fmt.Println(attention.DecodeVariants(&plainDevice, p, first)[0].Groups > first.Groups)
	// Output:
	// scalar true <nil>
	// true
}

// Configurations and words are read as they are written.
func ExampleParseBackwardConfig() {
	backward, err := attention.ParseBackwardConfig("scalar dkv 32x32 t8x16 depth32 rows8 dq 32x32 t8x16 depth32 rows8")
	fmt.Println(backward.DQ.Depth, backward, err)
	impl, err := attention.ParseImpl("coopmat2")
	fmt.Println(impl, err, attention.Impls())
	align, err := attention.ParseAlign("top-left")
	fmt.Println(align, err)
	format, err := attention.ParseCacheFormat("e4m3")
	fmt.Println(format, err)
	// Output:
	// 32 scalar dkv 32x32 t8x16 depth32 rows8 dq 32x32 t8x16 depth32 rows8 <nil>
	// coopmat2 <nil> [coopmat2 coopmat scalar unfused]
	// top-left <nil>
	// e4m3 <nil>
}
