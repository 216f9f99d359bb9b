package seeds

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/pipelines/tnp/gp"
)

// Triton Attention Kernel Report: tests "cover GQA reshape round-trips".
func TestReshape(t *testing.T) {
	x := vktest.Tensor(t, vktest.Open(t), dtype.Float16, 2, 5, 6*8) // the output of a projection
	heads, err := attention.SplitHeads(x, 6)
	require.NoError(t, err)
	groups, err := attention.GroupHeads(heads, 2)
	require.NoError(t, err)
	require.Equal(t, []int{2, 2, 3, 5, 8}, groups.Shape)
	back, err := attention.UngroupHeads(groups)
	require.NoError(t, err)
	require.Equal(t, heads, back)
	back, err = attention.MergeHeads(back)
	require.NoError(t, err)
	require.Equal(t, x, back)
}

// Custom Triton Kernels, phase 4: one backward kernel "accumulates dQ/dK/dV", and "numerics match
// separate fwd+bwd kernels".
func TestOneBackwardKernel(t *testing.T) {
	p := attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 1, SeqQ: 40, SeqKV: 70, HeadDim: 16, DType: dtype.Float16}
	in := newInputs(p)
	one := &attention.BackwardConfig{Impl: attention.CoopMat, Splits: 2, Fused: attention.BackwardTile{Subgroups: 2, RowTiles: 1, Stream: 16}}
	vktest.Require(t, attention.CoopMat.String(), one.Feasible(vktest.Open(t).Caps(), p))
	want := inFloat64(t, in, p)
	for _, config := range []*attention.BackwardConfig{one, nil} {
		got := onDevice(t, in, p, attention.Options{BackwardConfig: config}, true, 1)
		for _, name := range []string{"dq", "dk", "dv"} {
			largest, _ := apart(t, got, want, name)
			require.Less(t, largest, 1e-2, "%v %s", config, name)
		}
	}
}

// perceptrons returns y of an mlp.
func perceptrons(t *testing.T, p mlp.Problem, o mlp.Options, x, w1, w2 []float32) []float32 {
	t.Helper()
	d := vktest.Open(t)
	y := vktest.Tensor(t, d, p.DType, p.YShape()...)
	c, err := d.NewCmd("mlp")
	require.NoError(t, err)
	t.Cleanup(c.Close)
	err = mlp.Forward(c, mlp.Tensors{
		X: vktest.Values(t, d, p.DType, x, p.XShape()...), W1: vktest.Values(t, d, p.DType, w1, p.W1Shape()...),
		W2: vktest.Values(t, d, p.DType, w2, p.W2Shape()...), Y: y,
	}, p, o)
	vktest.Require(t, attention.CoopMat.String(), err) // skips where there is no such kernel
	require.NoError(t, c.Submit(t.Context()))
	got := make([]float32, y.NumElements())
	require.NoError(t, y.Download(t.Context(), got))
	return got
}

// normals returns n normal numbers with a deviation.
func normals(rng *rand.Rand, n int, deviation float64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64() * deviation)
	}
	return x
}

// Custom Triton Kernels, phase 6: GEMM, SiLU and GEMM in one kernel, and "output matches unfused
// MLP".
func TestFusedMLP(t *testing.T) {
	p := mlp.Problem{Tokens: 37, In: 24, Hidden: 45, Out: 18, DType: dtype.Float16}
	rng := rand.New(rand.NewPCG(1, 6))
	x, w1, w2 := normals(rng, p.Tokens*p.In, 1), normals(rng, p.In*p.Hidden, 0.2), normals(rng, p.Hidden*p.Out, 0.2)
	want := perceptrons(t, p, mlp.Options{Fused: mlp.FusedOff}, x, w1, w2)
	require.InDeltaSlice(t, want, perceptrons(t, p, mlp.Options{Fused: mlp.FusedOn}, x, w1, w2), 1e-2)
}

// Custom Triton Kernels, phase 7: ten heads with a shared input in one call, and "output matches
// loop-based head MLPs".
func TestHeads(t *testing.T) {
	all := mlp.Problem{Tokens: 33, Heads: 10, In: 24, Hidden: 40, Out: 3, DType: dtype.BFloat16}
	one := all
	one.Heads = 0
	rng := rand.New(rand.NewPCG(1, 7))
	x, w1, w2 := normals(rng, all.Tokens*all.In, 1), normals(rng, all.Heads*all.In*all.Hidden, 0.2), normals(rng, all.Heads*all.Hidden*all.Out, 0.2)
	got := perceptrons(t, all, mlp.Options{}, x, w1, w2)
	n1, n2 := all.In*all.Hidden, all.Hidden*all.Out
	for k := range all.Heads {
		want := perceptrons(t, one, mlp.Options{}, x, w1[k*n1:(k+1)*n1], w2[k*n2:(k+1)*n2])
		for i, w := range want {
			token, column := i/all.Out, i%all.Out
			require.InDelta(t, w, got[(token*all.Heads+k)*all.Out+column], 0.03, "token %d, head %d", token, k)
		}
	}
}

// Custom Triton Kernels, phases 1 and 9: "model trains, loss decreases", with checkpointing as
// without, here to the same bits.
func TestTraining(t *testing.T) {
	d, ctx := vktest.Open(t), t.Context()
	c := tnp.Config{Layers: 1, Heads: 2, HeadDim: 8, DModel: 16, DFF: 24, Components: 2, InputDim: 3}
	s := tnp.Shape{Batch: 8, Context: 12, Targets: 12}
	const steps = 60
	weights, err := tnp.Init(c, 1)
	require.NoError(t, err)
	train := func(checkpoint tnp.Checkpoint) (losses []float64) {
		model, err := tnp.NewModel(ctx, d, c, tnp.ModelOptions{Pass: tnp.Train, Optim: optim.Default()})
		require.NoError(t, err)
		defer model.Close()
		require.NoError(t, model.SetWeights(ctx, weights))
		require.NoError(t, model.SetLR(ctx, 3e-3))
		plan, err := model.NewPlan(ctx, s, tnp.Train, tnp.PlanOptions{Checkpoint: checkpoint})
		require.NoError(t, err)
		defer plan.Close()
		for step := range steps {
			x, y := gp.Tokens(gp.Default().Batch(s, 1, uint64(step)))
			require.NoError(t, plan.SetInputs(ctx, x, y))
			require.NoError(t, plan.Run(ctx))
			loss, err := plan.Loss(ctx)
			require.NoError(t, err)
			losses = append(losses, loss)
		}
		return losses
	}
	losses := train(tnp.Off)
	require.Less(t, mean(losses[steps-10:]), mean(losses[:10])-0.1)
	require.Equal(t, losses, train(tnp.Blocks))
}

func mean(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v / float64(len(x))
	}
	return sum
}
