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
	d := must(vk.Open(vk.Options{}))
	defer d.Close()
	c := tnp.Config{Layers: 1, Heads: 1, HeadDim: 8, DModel: 8, DFF: 8, Components: 2, InputDim: 3}
	model := must(tnp.NewModel(ctx, d, c, train.Options{Pass: train.Forward}))
	defer model.Close()
	vktest.Must(model.SetWeights(ctx, must(tnp.Init(c, 1))))
	s := tnp.Shape{Batch: 1, Context: 2, Targets: 1}
	o := tnp.PlanOptions{Variant: must(tnp.ParseVariant("separate"))}
	must(tnp.CheckFits(d, c, s, train.Options{Pass: train.Forward}, o)) // says how many bytes are missing
	memory := must(tnp.Measure(d.Caps(), c, s, train.Options{Pass: train.Forward}, o))
	plan := must(tnp.NewPlan(ctx, model, c, s, train.Forward, o))
	defer plan.Close()
	x := []float32{0, 0.5, 1 /* y = 0.5 at 0 */, 1, 0.25, 1, 0.5, 0, -1 /* and at 0.5? */}
	vktest.Must(plan.SetInputs(ctx, x, []float32{0.375}))
	vktest.Must(plan.Run(ctx))
	loss := must(plan.Loss(ctx))
	fmt.Printf("%.1f %v\n", loss, memory.Bytes() == plan.Memory().Bytes())
	// Output: 1.2 true
}

// Weights are in a file with the names of a PyTorch state dict. Their shapes tell all sizes but
// the number of heads.
func ExampleSave() {
	dir := must(os.MkdirTemp("", "tnp"))
	defer os.RemoveAll(dir)
	preset := must(tnp.PresetOf("tiny"))
	c := preset.Config
	fmt.Println(c.NumParams() < tnp.Default().NumParams(), tnp.DefaultLossScale(dtype.Float16, preset.Shape))
	weights := must(tnp.Init(c, 1))
	path := filepath.Join(dir, "tiny.safetensors")
	vktest.Must(tnp.Save(path, weights, c))
	f := must(safetensors.Open(path))
	defer f.Close()
	loaded, _, err := tnp.Load(f, 0)
	vktest.Must(err)
	fmt.Println(must(tnp.ReadConfig(f, 0)) == c, len(loaded) == len(weights), len(tnp.Presets()))
	fmt.Println(len(loaded[tnp.BlockName(0, "norm1.weight")]) == c.DModel)
	// Output:
	// true 128
	// true true 4
	// true
}
