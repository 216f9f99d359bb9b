package tnp_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

// A model gets its first weights, predicts, and is saved as a file that PyTorch can load.
func ExampleNewModel() {
	ctx := context.Background()
	d, err := vk.Open(vk.Options{})
	vktest.Must(err)
	defer d.Close()
	c := tnp.Config{Layers: 1, Heads: 1, HeadDim: 8, DModel: 8, DFF: 8, Components: 2, InputDim: 3}
	model, err := tnp.NewModel(ctx, d, c, tnp.ModelOptions{Pass: tnp.Loss})
	vktest.Must(err)
	defer model.Close()
	weights, err := tnp.Init(c, 1)
	vktest.Must(err)
	vktest.Must(model.SetWeights(ctx, weights))
	s := tnp.Shape{Batch: 1, Context: 2, Targets: 1}
	vktest.Must(tnp.CheckFits(d, c, s, tnp.ModelOptions{Pass: tnp.Loss}, tnp.PlanOptions{})) // says how many bytes are missing
	plan, err := model.NewPlan(ctx, s, tnp.Loss, tnp.PlanOptions{})
	vktest.Must(err)
	defer plan.Close()
	x := []float32{0, 0.5, 1 /* y = 0.5 at 0 */, 1, 0.25, 1, 0.5, 0, -1 /* and at 0.5? */}
	vktest.Must(plan.SetInputs(ctx, x, []float32{0.375}))
	vktest.Must(plan.Run(ctx))
	loss, err := plan.Loss(ctx)
	vktest.Must(err)
	fmt.Printf("%.1f\n", loss)
	// Output: 1.2
}

// Weights are in a file with the names of a PyTorch state dict. Their shapes tell all sizes but
// the number of heads.
func ExampleSave() {
	dir, err := os.MkdirTemp("", "tnp")
	vktest.Must(err)
	defer os.RemoveAll(dir)
	preset, err := tnp.PresetOf("tiny")
	vktest.Must(err)
	c := preset.Config
	weights, err := tnp.Init(c, 1)
	vktest.Must(err)
	path := filepath.Join(dir, "tiny.safetensors")
	vktest.Must(tnp.Save(path, weights, c))
	f, err := safetensors.Open(path)
	vktest.Must(err)
	defer f.Close()
	found, err := tnp.ReadConfig(f, 0)
	vktest.Must(err)
	loaded, _, err := tnp.Load(f, 0)
	vktest.Must(err)
	fmt.Println(found == c, len(loaded) == len(weights), len(tnp.Presets()))
	fmt.Println(len(loaded[tnp.BlockName(0, "norm1.weight")]) == c.DModel)
	// Output:
	// true true 4
	// true
}

// The memory of a training step is known before anything is allocated.
func ExampleMeasure() {
	caps := &vk.Caps{ // plain Vulkan 1.2
		SubgroupSize: 32, MinSubgroupSize: 32, MaxSubgroupSize: 32, MaxSharedMemoryBytes: 32768, MaxWorkgroupInvocations: 256,
		MaxWorkgroupSize: [3]uint32{256, 256, 64}, MaxWorkgroupCount: [3]uint32{65535, 65535, 65535}, MaxStorageBufferRange: 4 << 30,
		MaxAllocationBytes: 4 << 30, MaxBufferBytes: 4 << 30, MaxStorageBuffers: 32, MaxPushConstantsBytes: 256, ScalarBlockLayout: true, Storage16: true,
		ComputeFullSubgroups: true, SubgroupOps: vk.SubgroupBasic | vk.SubgroupArithmetic | vk.SubgroupShuffle,
	}
	c, s := tnp.Default(), tnp.Shape{Batch: 32, Context: 64, Targets: 500}
	fmt.Println(c.NumParams(), tnp.DefaultLossScale(dtype.Float16, s), tnp.DefaultLossScale(dtype.BFloat16, s))
	var sizes []int64
	for _, name := range []string{"off", "blocks"} {
		checkpoint, err := tnp.ParseCheckpoint(name)
		vktest.Must(err)
		variant, err := tnp.ParseVariant("auto")
		vktest.Must(err)
		m, err := tnp.Measure(caps, c, s, tnp.ModelOptions{DType: dtype.Float32, Pass: tnp.Train, Optim: optim.Default()}, tnp.PlanOptions{Checkpoint: checkpoint, Variant: variant})
		vktest.Must(err)
		sizes = append(sizes, m.Bytes())
	}
	fmt.Println("checkpoints of blocks save gigabytes:", sizes[0]-sizes[1] > 1<<30)
	// Output:
	// 36400118 16384 1
	// checkpoints of blocks save gigabytes: true
}
