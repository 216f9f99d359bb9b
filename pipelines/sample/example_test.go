package sample_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/sample"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// ints returns the values of a tensor.
func ints(t vk.Tensor) []int32 {
	values := make([]int32, t.NumElements())
	vktest.Must(t.DownloadInts(context.Background(), values))
	return values
}

// Token 1 is the most probable one until it was chosen.
func ExampleForward() {
	e := vktest.NewExample()
	defer e.Close()
	p := sample.Problem{Rows: 1, Vocabulary: 4, Filters: sample.Filters{RepetitionPenalty: 2}}
	t := sample.Tensors{Logits: e.Float32([]int{1, 4}, -1, 3, 2, 1), Seen: e.Tensor(dtype.Int32, []int{1, 1}), Tokens: e.Tensor(dtype.Int32, []int{1})}
	seen := make([]int32, p.SeenWords())
	sample.Mark(seen, 3) // of a prompt
	vktest.Must(t.Seen.UploadInts(context.Background(), seen))
	for range 2 {
		e.Run(func(c *vk.Cmd) error { return sample.Forward(c, t, p, sample.Options{}) })
		fmt.Println(ints(t.Tokens), ints(t.Seen))
	}
	// Output:
	// [1] [10]
	// [2] [14]
}

// Rows with the same logits have streams of their own.
func ExampleStates() {
	e := vktest.NewExample()
	defer e.Close()
	p := sample.Problem{Rows: 2, Vocabulary: 3, Filters: sample.Filters{Temperature: 1, TopK: 2}}
	t := sample.Tensors{Logits: e.Float32([]int{2, 3}, 1, 0, 1, 1, 0, 1), State: e.Tensor(dtype.Int32, []int{2, 4}), Tokens: e.Tensor(dtype.Int32, []int{2})}
	vktest.Must(t.State.UploadInts(context.Background(), sample.States(7, 2)))
	for range 4 {
		e.Run(func(c *vk.Cmd) error { return sample.Forward(c, t, p, sample.Options{}) })
		fmt.Print(ints(t.Tokens), " ")
	}
	fmt.Println(ints(t.State))
	// Output: [2 0] [2 0] [2 2] [2 2] [7 0 0 4 7 0 1 4]
}

// A workgroup has a row.
func ExampleChoose() {
	caps := &vk.Caps{ // plain Vulkan 1.2
		MaxSharedMemoryBytes: 16384, MaxWorkgroupInvocations: 1024, MaxWorkgroupSize: [3]uint32{1024, 1024, 64},
		ScalarBlockLayout: true, Storage16: true, SubgroupOps: vk.SubgroupBasic | vk.SubgroupArithmetic,
	}
	p := sample.Problem{Rows: 16, Vocabulary: 151936, DType: dtype.BFloat16}
	plan, err := sample.Choose(caps, p, kit.Forward, sample.Options{})
	fmt.Println(plan, plan.Kernels(), err)
	fmt.Println(sample.Workspace(caps, p, kit.Forward, sample.Options{}))
	err = sample.Supports(caps, p, kit.Backward, sample.Options{})
	fmt.Println(err, errors.Is(err, vk.ErrUnsupported))
	// Output:
	// wg512 [sample] <nil>
	// 0 <nil>
	// sample: there is no backward pass: unsupported on this device true
}
