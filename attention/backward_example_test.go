package attention_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Both passes in one recording, with a barrier between them. Q is zero, so each of the two rows
// is the mean of the two values, and half of each row's gradient reaches each of them.
func ExampleBackward() {
	ctx := context.Background()
	d, err := vk.Open(vk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()

	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 2, SeqKV: 2, HeadDim: 8, DType: dtype.Float32}
	memory := map[string]vk.Tensor{}
	for _, x := range []struct {
		name  string
		shape []int
	}{
		{"q", p.QShape()}, {"k", p.KShape()}, {"v", p.VShape()}, {"o", p.OShape()}, {"lse", p.LSEShape()},
		{"do", p.OShape()}, {"dq", p.QShape()}, {"dk", p.KShape()}, {"dv", p.VShape()},
	} {
		t, err := d.NewTensor(x.name, dtype.Float32, x.shape...)
		if err != nil {
			log.Fatal(err)
		}
		defer t.Close()
		if err := t.Zero(ctx); err != nil {
			log.Fatal(err)
		}
		memory[x.name] = t
	}
	for name, data := range map[string][]float32{
		"v":  {1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3},
		"do": {1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2},
	} {
		if err := memory[name].Upload(ctx, data); err != nil {
			log.Fatal(err)
		}
	}

	t := attention.Tensors{Q: memory["q"], K: memory["k"], V: memory["v"], O: memory["o"], LSE: memory["lse"]}
	g := attention.Gradients{DO: memory["do"], DQ: memory["dq"], DK: memory["dk"], DV: memory["dv"]}
	c, err := d.NewCmd("training")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if err := attention.Forward(c, t, p, attention.Options{}); err != nil {
		log.Fatal(err)
	}
	if err := attention.Backward(c, t, g, p, attention.Options{}); err != nil {
		log.Fatal(err)
	}
	if err := c.Submit(ctx); err != nil {
		log.Fatal(err)
	}
	o, dv := make([]float32, 16), make([]float32, 16)
	if err := errors.Join(t.O.Download(ctx, o), g.DV.Download(ctx, dv)); err != nil {
		log.Fatal(err)
	}
	fmt.Println("o", o[0], o[8], "dv", dv[0], dv[8])
	// Output: o 2 2 dv 1.5 1.5
}

// What would run, before anything is recorded: the path, its tiles, its modules, its memory.
func ExampleChoose() {
	caps := &vk.Caps{ // of a device with plain Vulkan 1.2
		MaxSharedMemoryBytes: 16 << 10, MaxWorkgroupInvocations: 128, MaxWorkgroupSize: [3]uint32{128, 128, 64},
		MaxWorkgroupCount: [3]uint32{65535, 65535, 65535}, MaxStorageBuffers: 8, MaxPushConstantsBytes: 128,
		MaxStorageBufferRange: 1 << 27, MaxAllocationBytes: 1 << 30, ScalarBlockLayout: true,
	}
	p := attention.Problem{Batch: 1, NumHeads: 8, NumKVHeads: 2, SeqQ: 512, SeqKV: 512, HeadDim: 64, DType: dtype.Float32, Causal: true}
	for _, pass := range []kit.Pass{kit.Forward, kit.Backward} {
		plan, err := attention.Choose(caps, p, pass, attention.Options{})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(plan)
		fmt.Println(plan.Kernels(), plan.Workspace())
	}
	// Output:
	// scalar 32x32 t8x16 depth32 rows8
	// [attention_fwd_scalar.f32] 0
	// scalar dkv 32x32 t8x16 depth32 rows8 dq 32x32 t8x16 depth32 rows8
	// [attention_bwd_delta.f32 attention_bwd_dkv_scalar.f32 attention_bwd_dq_scalar.f32] 32768
}

// Why a device does not compute a problem on a path.
func ExampleSupports() {
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 1, HeadDim: 64, DType: dtype.Float16}
	err := attention.Supports(&vk.Caps{ScalarBlockLayout: true}, p, kit.Forward, attention.Options{Impl: attention.Scalar})
	fmt.Println(err)
	fmt.Println(errors.Is(err, vk.ErrUnsupported))
	// Output:
	// attention: scalar: float16 needs 16-bit storage: unsupported on this device
	// true
}
