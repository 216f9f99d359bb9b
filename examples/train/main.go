// Command train trains a model that is written here, forward pass only, on sine waves: it sees points of
// a wave and predicts others. It writes weights and moments to the file of its argument.
// Without a GPU: tools/vkrun go run ./examples/train
package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/glu"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/vk"
)

const (
	tasks, shown, asked    = 16, 10, 10 // waves of a step; points of each that are shown, and asked for
	points                 = shown + asked
	width, heads, hidden   = 48, 6, 64
	features, distribution = 8, 3 // of a point: x, y, flag and zeros; logit, mu, log sigma
)

// forward is the model: two blocks in which all points see those that are shown.
func forward(t *train.Tape) {
	linear := func(name string, x *train.Value, out int, plus *train.Value) *train.Value {
		w := t.Weight(name, x.Shape()[len(x.Shape())-1], out)
		return t.Product(name, train.Product{X: x, W: w, Plus: plus})
	}
	norm := func(name string, x *train.Value) *train.Value {
		y, _ := t.Norm(name, x, t.Vector(name, width), train.Norm{Eps: 1e-5})
		return y
	}
	x := linear("embed", t.Input("points", t.DType(), tasks*points, features), width, nil)
	for _, b := range []string{"first.", "second."} {
		t.Block("", func() { // what a checkpoint computes again
			y := norm(b+"norm1", x)
			q := linear(b+"q", y, width, nil).Heads(tasks, heads)
			kv := linear(b+"kv", t.Rows(b+"shown", y, tasks, 0, shown), 2*width, nil)
			k, v := kv.Slice(1, 0, width).Heads(tasks, heads), kv.Slice(1, width, 2*width).Heads(tasks, heads)
			x = linear(b+"out", t.Attention(b+"attention", q, k, v, attention.Problem{}), width, x)
			up := linear(b+"up", norm(b+"norm2", x), 2*hidden, nil)
			gated := t.GLU(b+"gate", up.Slice(1, 0, hidden), up.Slice(1, hidden, 2*hidden), glu.SiLU)
			x = linear(b+"down", gated, width, x)
		})
	}
	z := norm("norm", t.Rows("asked", x, tasks, shown, points))
	head := train.Product{X: z, W: t.Weight("head", width, distribution), Out: dtype.Some(dtype.Float32)}
	outputs := t.Output(t.Product("outputs", head))
	loss, _ := t.Mixture("loss", outputs.Reshape(tasks*asked, 1, distribution), t.Input("y", dtype.Float32, tasks*asked))
	t.Loss(loss)
}

func main() {
	ctx := context.Background()
	d := must(vk.Open(vk.Options{})) // the best device there is
	defer d.Close()
	o := train.Options{Pass: train.Train, Optim: optim.Default()}
	params, rng := must(train.Params(d.Caps(), forward, o)), rand.New(rand.NewPCG(1, 2))
	model := must(train.NewModel(ctx, d, params, o))
	defer model.Close()
	check(model.SetWeights(ctx, first(params, rng)))
	plan := must(model.NewPlan(ctx, forward, train.Train, train.PlanOptions{})) // forward, backward and AdamW, recorded once
	defer plan.Close()
	fmt.Println(len(params), "parameters,", plan.Memory())
	for i := range 300 {
		upload(ctx, plan, rng)
		check(model.SetLR(ctx, 3e-3*math.Min(1, float64(i+1)/20)))
		check(plan.Run(ctx))
		if i%50 == 49 {
			fmt.Printf("step %d: loss %.3f\n", i+1, must(plan.Download(ctx, "loss"))[0]) // the mean of -log p
		}
	}
	predictor := must(model.NewPlan(ctx, forward, train.Forward, train.PlanOptions{}))
	defer predictor.Close()
	x, y := upload(ctx, predictor, rng) // a wave that it has not seen
	check(predictor.Run(ctx))
	p := must(predictor.Download(ctx, "outputs"))
	fmt.Printf("y is %.2f at %.2f, predicted %.2f ± %.2f\n", y, x, p[1], math.Exp(float64(p[2])))
	if len(os.Args) > 1 {
		check(model.SaveState(ctx, os.Args[1], nil))
	}
}
