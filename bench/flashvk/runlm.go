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
	backward               bool
	checkpointFlags
}

func newRunLM(a *app) *cobra.Command {
	r := &runLM{}
	return a.command(&cobra.Command{Use: "lm --model DIR --in FILE --out FILE"}, func(f *pflag.FlagSet) {
		fileVar(f, &r.model, "model", "folder of the checkpoint")
		fileVar(f, &r.in, "in", "safetensors file to read")
		fileVar(f, &r.out, "out", "safetensors file to write, another one")
		f.BoolVar(&r.backward, "backward", false, "compute the gradients of the loss, for which the input has labels")
		r.checkpointFlags.add(f)
		deviceVar(f, &r.device)
	}, func(ctx context.Context) error { return r.run(ctx, a) })
}

func (r *runLM) run(ctx context.Context, a *app) error {
	if err := checkReplaced(r.in, r.out); err != nil {
		return err
	}
	flags := r.checkpointFlags
	if r.backward {
		flags.adapter = "" // has gradients of its own
	}
	checkpoint, w, err := flags.open(r.model)
	if err != nil {
		return err
	}
	defer checkpoint.Close()
	c := &checkpoint.Config
	whole, params, o := w, c.Params(), lm.TrainOptions{}
	if r.backward && r.adapter != "" {
		if o.LoRA, err = lm.ReadAdapter(r.adapter, c); err != nil {
			return err
		}
		if whole, err = o.LoRA.Merge(c, w); err != nil {
			return err
		}
		params = o.LoRA.Params(c)
	}
	var b lm.Batch
	if err := b.Read(r.in); err != nil {
		return err
	}
	if err := b.Check(c); err != nil {
		return fmt.Errorf("%s: %w", r.in, err)
	}
	if r.backward && b.Labels == nil {
		return usagef("--backward needs labels in %s", r.in)
	}
	if err := safetensors.CanCreate(r.out); err != nil {
		return err // before the work, not after it
	}
	return a.onDevice(r.device, func(d *vk.Device, env bench.Environment) error {
		announce(a.stderr, env)
		o.DType = r.format(d.Caps(), checkpoint.DType)
		model, err := lm.NewModel(ctx, d, c, whole, o.DType, nil)
		if err != nil {
			return err
		}
		logits, err := lm.Logits(ctx, c, model, b)
		model.Close()
		if err != nil {
			return err
		}
		list := []safetensors.Tensor{{Name: "logits", DType: safetensors.F32, Shape: []int{b.Shape[0], b.Shape[1], c.Vocabulary}}}
		values := map[string][]float32{"logits": logits}
		if b.Labels != nil {
			loss, gradients, err := lm.Gradients(ctx, d, c, w, b, r.backward, o)
			if err != nil {
				return err
			}
			list, values["loss"] = append(list, safetensors.Tensor{Name: "loss", DType: safetensors.F32, Shape: []int{1}}), []float32{float32(loss)}
			for _, p := range params {
				if g, ok := gradients[p.Name]; ok {
					list = append(list, safetensors.Tensor{Name: "grad." + p.Name, DType: safetensors.F32, Shape: p.Shape})
					values["grad."+p.Name] = g
				}
			}
		}
		return train.WriteTensors(r.out, list, values)
	})
}
