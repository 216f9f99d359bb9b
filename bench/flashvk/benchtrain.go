package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/bench/train"
	"github.com/flashvk/flashvk/pipelines/tnp"
)

// benchTrain holds the flags of bench train.
type benchTrain struct {
	shapes      []string
	checkpoints []tnp.Checkpoint
	variants    []tnp.Variant
	config      tnp.Config
	shape       tnp.Shape
	dtype       dtype.DType
	count       int
	stages      bool
	format      bench.Format
	wide        bool
	device      string
	peers       peerFlags
}

func newBenchTrain(a *app) *cobra.Command {
	b := &benchTrain{checkpoints: []tnp.Checkpoint{tnp.Auto}, variants: []tnp.Variant{tnp.Fastest}, count: 10, format: bench.Table}
	cmd := &cobra.Command{
		Use:   "train",
		Short: "Measure a whole training step",
		Long: `Measures a training step of a transformer neural process, forward, backward and AdamW,
in one recording: the wall clock from submitting it to its end. --shape names models
and batches, as those of flashvk train; sizes that are given beside it count instead.

The gradients are checked first: the loss must change along them as they say. A peer
gets the same weights and data, and its gradients are compared with ours.

--stages has a table of what the step consists of, from timestamps around each
dispatch.`,
		Example: `  flashvk bench train --shape small,mid --stages
  flashvk bench train --shape large --checkpoint off,selective,blocks --count 3
  flashvk bench train --shape small --variant unfused,separate,fused,auto
  flashvk bench train --shape small --peer torch="python3 tools/peers/torch_step.py"`,
		Args: noArgs,
	}
	f := cmd.Flags()
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context(), a, cmd) }
	f.SortFlags = false
	f.Var(value[[]string]{Target: &b.shapes, Parse: kernels.ListOf(kernels.OneOf(presetNames())), Kind: "SHAPES"}, "shape", "a comma list of tiny, small, mid, large (default small,mid; tiny on a CPU device)")
	addModelSizes(f, &b.config, &b.shape)
	kernels.DTypeVar(f, &b.dtype, "dtype", trainDTypeUsage)
	f.Var(value[[]tnp.Checkpoint]{Target: &b.checkpoints, Parse: kernels.ListOf(parseCheckpoint), Kind: "LIST"}, "checkpoint", "a comma list of off, selective, blocks, auto (default auto)")
	f.Var(value[[]tnp.Variant]{Target: &b.variants, Parse: kernels.ListOf(parseVariant), Kind: "LIST"}, "variant", "kernels: a comma list of auto, unfused, separate, fused (default auto)")
	intVar(f, &b.count, "count", "steps that are timed (default 10)")
	f.BoolVar(&b.stages, "stages", false, "also time each stage")
	f.Var(value[bench.Format]{Target: &b.format, Parse: parseFormat, Kind: "FORMAT"}, "format", "table (default), markdown, benchfmt, csv or json")
	wideVar(f, &b.wide)
	b.peers.add(f)
	deviceVar(f, &b.device)
	return cmd
}

func (b *benchTrain) run(ctx context.Context, a *app, cmd *cobra.Command) (err error) {
	if b.count < 1 || b.count > maxCount {
		return usagef("--count %d is not in 1..%d", b.count, maxCount)
	}
	if err := b.peers.check(); err != nil {
		return err
	}
	if _, err := b.cases(cmd, false); err != nil { // sizes that are wrong on every device
		return err
	}
	d, err := a.openDevice(b.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	r := train.Report{Env: environment(d.Caps()), Made: time.Now(), Wide: b.wide}
	if b.format != bench.Table && b.format != bench.Markdown {
		announce(a.stderr, r.Env)
	}
	cases, err := b.cases(cmd, r.Env.CPU)
	if err != nil {
		return err
	}
	format := trainDType(cmd.Flags(), b.dtype, d.Caps())
	bar := newProgress(a.stderr)
	for i, c := range cases {
		c.DType = format
		x, err := train.Bench(ctx, d, c, func(what string) {
			bar.step(i, len(cases), fmt.Sprintf("%s, variant %v, checkpoint %v: %s", c.Name, c.Variant, c.Checkpoint, what))
		})
		if err != nil {
			bar.finish()
			return errors.Join(err, b.write(a, &r))
		}
		r.Results = append(r.Results, x)
	}
	bar.finish()
	if err := b.write(a, &r); err != nil {
		return err
	}
	if text := r.Failed(); text != "" {
		return errors.New(text)
	}
	return nil
}

// write writes the results that there are.
func (b *benchTrain) write(a *app, r *train.Report) error {
	if len(r.Results) == 0 {
		return nil
	}
	return r.Write(a.stdout, b.format)
}

// cases returns what is to be measured.
func (b *benchTrain) cases(cmd *cobra.Command, cpu bool) (list []train.Case, err error) {
	shapes := b.shapes
	switch {
	case shapes == nil && cpu:
		shapes = []string{"tiny"}
	case shapes == nil:
		shapes = []string{"small", "mid"}
	}
	for _, name := range shapes {
		p, err := tnp.PresetOf(name)
		if err != nil {
			return nil, usageError{err}
		}
		takeModelSizes(cmd.Flags(), &b.config, &b.shape, p)
		p.Config, p.Shape = b.config, b.shape
		if err := errors.Join(p.Config.Validate(), p.Shape.Validate()); err != nil {
			return nil, usageError{err}
		}
		for i := range len(b.variants) * len(b.checkpoints) {
			v, c := b.variants[i/len(b.checkpoints)], b.checkpoints[i%len(b.checkpoints)]
			list = append(list, train.Case{Preset: p, Checkpoint: c, Variant: v, Samples: b.count, Stages: b.stages, Peers: b.peers.list, PeerLimit: b.peers.limit})
		}
	}
	return list, nil
}
