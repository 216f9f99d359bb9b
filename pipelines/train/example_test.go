package train_test

import (
	"context"
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/vk"
)

func must[T any](x T, err error) T {
	vktest.Must(err)
	return x
}

// One function is a model. The same function says which parameters there are, what memory a plan
// takes, and what a plan computes: here x * w.
func ExampleParams() {
	ctx := context.Background()
	forward := func(t *train.Tape) {
		x := t.Input("x", t.DType(), 2, 8)
		t.Output(t.Product("y", train.Product{X: x, W: t.Weight("w", 8, 8)}))
	}
	d := must(vk.Open(vk.Options{}))
	defer d.Close()
	o := train.Options{DType: dtype.Float32, Pass: train.Forward}
	plans := train.PlanOptions{Checkpoint: must(train.ParseCheckpoint("off"))}
	must(train.CheckFits(d, forward, o, plans, nil)) // says how many bytes are missing
	memory := must(train.Measure(d.Caps(), forward, o, plans))
	params := must(train.Params(d.Caps(), forward, o))
	model := must(train.NewModel(ctx, d, params, o))
	defer model.Close()
	w := make([]float32, 64)
	for i := range 8 {
		w[9*i] = 2
	}
	vktest.Must(model.SetWeights(ctx, map[string][]float32{"w": w}))
	plan := must(model.NewPlan(ctx, forward, train.Forward, plans))
	defer plan.Close()
	vktest.Must(plan.Upload(ctx, "x", []float32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}))
	vktest.Must(plan.Run(ctx))
	y := must(plan.Download(ctx, "y"))
	fmt.Println(params[0].Name, y[0], y[15], memory != nil, train.NotFinite(y))
	// Output: w 2 32 true -1
}

// What a device has left is in the heap of its own that has most.
func ExampleFree() {
	fmt.Println(train.Free([]vk.Heap{{SizeBytes: 8e9, DeviceLocal: true, BudgetBytes: 7e9, UsageBytes: 2e9}, {SizeBytes: 64e9}}))
	// Output: 5000000000
}
