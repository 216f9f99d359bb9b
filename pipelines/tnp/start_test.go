package tnp_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/pipelines/tnp/gp"
	"github.com/flashvk/flashvk/vk"
)

// A stepped training has the results of a loop of steps.
type stepped struct {
	losses []float64
	logP   [][]float32
	states []string // files, after every third batch
	grads  tnp.Weights
	steps  int
}

// stepping trains tiny for some batches: one after the other, or each uploaded beside the batch
// before. Fresh says which batches are recorded anew.
func stepping(t *testing.T, d *vk.Device, o tnp.ModelOptions, p tnp.PlanOptions, batches int, beside bool, fresh func(batch int) bool) (r stepped) {
	ctx, preset := context.Background(), tiny(t)
	o.Optim = optim.Default()
	model := trainingOf(t, d, preset, o, 1).model
	plan, err := model.NewPlan(ctx, preset.Shape, tnp.Train, p)
	require.NoError(t, err)
	defer plan.Close()
	var x, y []float32 // of all batches, one after the other: SetInputs must have taken the one before
	upload := func(i int) {
		in, out := gp.Tokens(gp.Default().Batch(preset.Shape, 2, uint64(i)))
		x, y = append(x[:0], in...), append(y[:0], out...)
		require.NoError(t, plan.SetInputs(ctx, x, y))
	}
	upload(0)
	for i := range batches {
		if !beside {
			upload(i)
		}
		require.NoError(t, model.SetLR(ctx, 1e-3*float64(1+i%4)))
		run := plan.Run
		switch {
		case fresh(i):
			run = plan.RunFresh
		case beside:
			run = plan.Start
		}
		require.NoError(t, run(ctx))
		if i%3 == 2 { // at once: it waits for the batch
			path := filepath.Join(t.TempDir(), "state")
			require.NoError(t, model.SaveState(ctx, path, nil))
			state, err := os.ReadFile(path)
			require.NoError(t, err)
			r.states = append(r.states, string(state))
		}
		if beside {
			upload(i + 1)
		}
		loss, err := plan.Loss(ctx)
		require.NoError(t, err)
		logP, err := plan.LogP(ctx)
		require.NoError(t, err)
		r.losses, r.logP = append(r.losses, loss), append(r.logP, logP)
	}
	r.grads, err = model.Gradients(ctx)
	require.NoError(t, err)
	r.steps, err = model.Steps(ctx)
	require.NoError(t, err)
	return r
}

// TestStart wants batches that are started, and uploaded beside the one before, to give the bits of
// batches that are waited for: losses, log p, gradients, and states saved while they run.
func TestStart(t *testing.T) {
	d := vktest.Open(t)
	never := func(int) bool { return false }
	for _, format := range formats(d) {
		for _, o := range []tnp.ModelOptions{{DType: format}, {DType: format, Accumulate: 3}} {
			for _, checkpoint := range []tnp.Checkpoint{tnp.Off, tnp.Blocks} {
				t.Run(fmt.Sprint(format, o.Accumulate, checkpoint), func(t *testing.T) {
					const batches = 7
					p := tnp.PlanOptions{Checkpoint: checkpoint}
					want := stepping(t, d, o, p, batches, false, never)
					require.Equal(t, want, stepping(t, d, o, p, batches, true, never))
					require.Equal(t, want, stepping(t, d, o, p, batches, true, func(i int) bool { return i%2 == 1 }))
					require.Equal(t, batches/max(o.Accumulate, 1), want.steps)
					require.NotEqual(t, want.losses[0], want.losses[1])
				})
			}
		}
	}
}

// TestStartAgain: a batch that is not waited for is followed by the next; a context that has ended
// submits nothing, and data that are refused leave those that there are.
func TestStartAgain(t *testing.T) {
	d := vktest.Open(t)
	ctx := context.Background()
	waits, goes := newTraining(t, d, tiny(t), dtype.Float32, 1), newTraining(t, d, tiny(t), dtype.Float32, 1)
	waits.steps(0, 4, 2, 1e-3)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	require.NoError(t, goes.model.SetLR(ctx, 1e-3))
	for i := range 4 {
		x, y := gp.Tokens(gp.Default().Batch(goes.p.Shape, 2, uint64(i)))
		require.NoError(t, goes.plan.SetInputs(ctx, x, y))
		require.ErrorIs(t, goes.plan.Start(ended), context.Canceled)
		x[0], y[0] = 7, float32(math.NaN())
		require.ErrorContains(t, goes.plan.SetInputs(ctx, x, y), "tnp: y[0] is NaN")
		require.NoError(t, goes.plan.Start(ctx))
	}
	require.Equal(t, waits.weights(), goes.weights())
}
