package tnp_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/pipelines/train"
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
	model, err := tnp.NewModel(ctx, d, c, train.Options{Pass: train.Forward})
	vktest.Must(err)
	defer model.Close()
	weights, err := tnp.Init(c, 1)
	vktest.Must(err)
	vktest.Must(model.SetWeights(ctx, weights))
	s := tnp.Shape{Batch: 1, Context: 2, Targets: 1}
	variant, err := tnp.ParseVariant("separate")
	vktest.Must(err)
	o := tnp.PlanOptions{Variant: variant}
	_, err = tnp.CheckFits(d, c, s, train.Options{Pass: train.Forward}, o) // says how many bytes are missing
	vktest.Must(err)
	memory, err := tnp.Measure(d.Caps(), c, s, train.Options{Pass: train.Forward}, o)
	vktest.Must(err)
	plan, err := tnp.NewPlan(ctx, model, c, s, train.Forward, o)
	vktest.Must(err)
	defer plan.Close()
	x := []float32{0, 0.5, 1 /* y = 0.5 at 0 */, 1, 0.25, 1, 0.5, 0, -1 /* and at 0.5? */}
	vktest.Must(plan.SetInputs(ctx, x, []float32{0.375}))
	vktest.Must(plan.Run(ctx))
	loss, err := plan.Loss(ctx)
	vktest.Must(err)
	fmt.Printf("%.1f %v\n", loss, memory.Bytes() == plan.Memory().Bytes())
	// Output: 1.2 true
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
	fmt.Println(c.NumParams() < tnp.Default().NumParams(), tnp.DefaultLossScale(dtype.Float16, preset.Shape))
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
	// true 128
	// true true 4
	// true
}
