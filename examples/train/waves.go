package main

import (
	"context"
	"log"
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/pipelines/train"
)

// first draws the first weights: 1 for norms, a deviation of 1/√in for matrices.
func first(params []train.Param, rng *rand.Rand) map[string][]float32 {
	all := map[string][]float32{}
	for _, p := range params {
		x := make([]float32, p.Size())
		for i := range x {
			x[i] = 1
			if len(p.Shape) > 1 {
				x[i] = float32(rng.NormFloat64() / math.Sqrt(float64(p.Shape[0])))
			}
		}
		all[p.Name] = x
	}
	return all
}

// upload draws a batch of waves: points (x, y, 1) that are shown, (x, 0, -1) that are asked for. It
// returns the first that is asked for.
func upload(ctx context.Context, plan *train.Plan, rng *rand.Rand) (firstX, firstY float32) {
	var in, out []float32
	for range tasks {
		frequency, phase := 1+rng.Float64(), 2*math.Pi*rng.Float64()
		for i := range points {
			x := 4*rng.Float64() - 2
			y := float32(math.Sin(frequency*x+phase) + 0.05*rng.NormFloat64())
			point := [features]float32{float32(x), y, 1}
			if i >= shown {
				if out = append(out, y); len(out) == 1 {
					firstX = float32(x)
				}
				point[1], point[2] = 0, -1
			}
			in = append(in, point[:]...)
		}
	}
	check(plan.Upload(ctx, "points", in))
	check(plan.Upload(ctx, "y", out))
	return firstX, out[0]
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
