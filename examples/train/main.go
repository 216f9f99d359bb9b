// Command train trains a transformer neural process of its own size on its own data: sine waves of
// random frequency and phase.
package main

import (
	"context"
	"fmt"
	"log"
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/vk"
)

func main() {
	ctx := context.Background()
	d, err := vk.Open(vk.Options{}) // the best device there is
	check(err)
	defer d.Close()
	c := tnp.Config{Layers: 2, Heads: 4, HeadDim: 8, DModel: 48, DFF: 96, Components: 2, InputDim: 3}
	s := tnp.Shape{Batch: 16, Context: 10, Targets: 10}
	model, err := tnp.NewModel(ctx, d, c, tnp.ModelOptions{Pass: tnp.Train, Optim: optim.Default()})
	check(err)
	defer model.Close()
	weights, err := tnp.Init(c, 1)
	check(err)
	check(model.SetWeights(ctx, weights))
	plan, err := model.NewPlan(ctx, s, tnp.Train, tnp.PlanOptions{}) // a step, recorded once
	check(err)
	defer plan.Close()
	fmt.Println(c.NumParams(), "parameters,", plan.Memory())
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 300 {
		var x, y []float32
		for range s.Batch {
			tokens, targets := wave(s, rng)
			x, y = append(x, tokens...), append(y, targets...)
		}
		check(plan.SetInputs(ctx, x, y))
		check(model.SetLR(ctx, 3e-3*math.Min(1, float64(i+1)/20)))
		check(plan.Run(ctx))
		if i%50 == 49 {
			loss, err := plan.Loss(ctx)
			check(err)
			fmt.Printf("step %d: loss %.3f\n", i+1, loss)
		}
	}
	trained, err := model.Weights(ctx)
	check(err)
	check(tnp.Save("waves.safetensors", trained, c)) // PyTorch loads it
}

// wave draws a task: (x, y, 1) of the points that are shown, (x, 0, -1) of those to predict, and
// the y of these.
func wave(s tnp.Shape, rng *rand.Rand) (tokens, y []float32) {
	frequency, phase := 1+rng.Float64(), 2*math.Pi*rng.Float64()
	for i := range s.Context + s.Targets {
		x := 4*rng.Float64() - 2
		v := float32(math.Sin(frequency*x+phase) + 0.05*rng.NormFloat64())
		if i < s.Context {
			tokens = append(tokens, float32(x), v, 1)
		} else {
			tokens, y = append(tokens, float32(x), 0, -1), append(y, v)
		}
	}
	return tokens, y
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
