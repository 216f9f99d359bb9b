// Command train trains a transformer neural process of its own size on sine waves, and predicts one.
// It writes the weights to the file of its argument. Without a GPU: tools/vkrun go run ./examples/train
package main

import (
	"context"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"os"

	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/vk"
)

func main() {
	ctx := context.Background()
	d := must(vk.Open(vk.Options{})) // the best device there is
	defer d.Close()
	c := tnp.Config{Layers: 2, Heads: 4, HeadDim: 8, DModel: 48, DFF: 96, Components: 2, InputDim: 3}
	s := tnp.Shape{Batch: 16, Context: 10, Targets: 10} // waves of a step; points of each that are shown, and predicted
	model := must(tnp.NewModel(ctx, d, c, tnp.ModelOptions{Pass: tnp.Train, Optim: optim.Default()}))
	defer model.Close()
	check(model.SetWeights(ctx, must(tnp.Init(c, 1))))
	plan := must(model.NewPlan(ctx, s, tnp.Train, tnp.PlanOptions{})) // forward, backward and AdamW, recorded once
	defer plan.Close()
	fmt.Println(c.NumParams(), "parameters,", plan.Memory())
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 300 {
		x, y := waves(s, rng)
		check(plan.SetInputs(ctx, x, y))
		check(model.SetLR(ctx, 3e-3*math.Min(1, float64(i+1)/20)))
		check(plan.Run(ctx))
		if i%50 == 49 {
			loss := must(plan.Loss(ctx)) // the mean of -log p of the targets
			fmt.Printf("step %d: loss %.3f\n", i+1, loss)
		}
	}
	x, y := waves(s, rng) // which it has not seen
	predictor := must(model.NewPlan(ctx, s, tnp.Loss, tnp.PlanOptions{}))
	defer predictor.Close()
	check(predictor.SetInputs(ctx, x, y))
	check(predictor.Run(ctx))
	mean, deviation, err := predictor.Predict(ctx)
	check(err)
	fmt.Printf("y is %.2f at %.2f, predicted %.2f ± %.2f\n", y[0], x[3*s.Context], mean[0], deviation[0])
	if len(os.Args) > 1 {
		check(tnp.Save(os.Args[1], must(model.Weights(ctx)), c))
	}
}

// waves draws a batch: tokens (x, y, 1) of the points that are shown, (x, 0, -1) of the others; their y.
func waves(s tnp.Shape, rng *rand.Rand) (tokens, y []float32) {
	for range s.Batch {
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
	}
	return tokens, y
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}
