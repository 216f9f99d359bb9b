package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/train"
	"github.com/flashvk/flashvk/pipelines/lm"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

// runLM holds the flags of run lm.
type runLM struct {
	model, in, out, device string
	checkpointFlags
}

func newRunLM(a *app) *cobra.Command {
	r := &runLM{}
	return a.command(&cobra.Command{Use: "lm --model DIR --in FILE --out FILE"}, func(f *pflag.FlagSet) {
		fileVar(f, &r.model, "model", "folder of the checkpoint")
		fileVar(f, &r.in, "in", "safetensors file to read")
		fileVar(f, &r.out, "out", "safetensors file to write, another one")
		r.checkpointFlags.add(f)
		deviceVar(f, &r.device)
	}, func(ctx context.Context) error { return r.run(ctx, a) })
}

func (r *runLM) run(ctx context.Context, a *app) error {
	if err := checkReplaced(r.in, r.out); err != nil {
		return err
	}
	c, w, stored, closed, err := r.open(r.model)
	if err != nil {
		return err
	}
	defer closed()
	b, err := lm.ReadBatch(r.in)
	if err != nil {
		return err
	}
	if err := b.Check(c); err != nil {
		return fmt.Errorf("%s: %w", r.in, err)
	}
	if err := safetensors.CanCreate(r.out); err != nil {
		return err // before the work, not after it
	}
	return a.onDevice(r.device, func(d *vk.Device, env bench.Environment) error {
		announce(a.stderr, env)
		model, err := lm.NewModel(ctx, d, c, w, r.format(d.Caps(), stored), nil)
		if err != nil {
			return err
		}
		defer model.Close()
		logits, err := lm.Logits(ctx, c, model, b)
		if err != nil {
			return err
		}
		t := safetensors.Tensor{Name: "logits", DType: safetensors.F32, Shape: []int{b.Shape[0], b.Shape[1], c.Vocabulary}}
		return train.WriteTensors(r.out, []safetensors.Tensor{t}, map[string][]float32{"logits": logits})
	})
}
