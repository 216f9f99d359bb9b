package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/bench/peer"
	"github.com/flashvk/flashvk/internal/bench/train"
	"github.com/flashvk/flashvk/pipelines/tnp"
	pipeline "github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/vk"
)

// benchTrain holds the flags of bench train.
type benchTrain struct {
	shapes      []string
	checkpoints []pipeline.Checkpoint
	variants    []tnp.PlanOptions
	model       modelFlags
	recordings  []bool // fresh
	count       int
	stages      bool
	peers       []peer.Peer
	peerTime    time.Duration
	out         outDir
	output
}

func newBenchTrain(a *app) *cobra.Command {
	b := &benchTrain{checkpoints: []pipeline.Checkpoint{pipeline.Auto}, variants: []tnp.PlanOptions{{}}, recordings: []bool{false}, count: 10}
	return a.command(&cobra.Command{Use: "train"}, func(f *pflag.FlagSet) {
		f.Var(value[[]string]{Target: &b.shapes, Parse: kernels.ListOf(kernels.OneOf(presetNames())), Kind: "SHAPES"}, "shape", "a comma list of tiny, small, mid, large (default small,mid; tiny on a CPU device)")
		b.model.add(f)
		f.Var(value[[]pipeline.Checkpoint]{Target: &b.checkpoints, Parse: kernels.ListOf(parseCheckpoint), Kind: "LIST"}, "checkpoint", "a comma list of off, selective, blocks, auto (default auto)")
		f.Var(value[[]tnp.PlanOptions]{Target: &b.variants, Parse: kernels.ListOf(oneOf(train.ParseVariant, "auto", "unfused", "separate", "fused", "auto-int8", "fused-int8", "auto-e4m3", "fused-e4m3")), Kind: "LIST"}, "variant", "kernels: a comma list of auto, unfused, separate, fused; with Q and K of attention in 8 bits auto-int8, fused-int8, auto-e4m3, fused-e4m3 (default auto)")
		f.Var(value[[]bool]{Target: &b.recordings, Parse: kernels.ListOf(parseRecording), Kind: "LIST"}, "recording", "a comma list of once, a step that is recorded before all, and fresh, recorded anew each time (default once)")
		kernels.IntVar(f, &b.count, "count", "steps that are timed (default 10)")
		f.BoolVar(&b.stages, "stages", false, "also time each stage")
		b.output.add(f, "markdown, benchfmt, csv or json", bench.Formats()...)
		addPeers(f, &b.peers, &b.peerTime)
		b.out.add(f)
	}, func(ctx context.Context) error { return b.run(ctx, a) })
}

func (b *benchTrain) run(ctx context.Context, a *app) error {
	_, err := b.cases(false) // finds sizes that are wrong on every device
	if err := cmp.Or(checkRange(b.model.set, "count", b.count, 1, maxCount), checkPeers(b.peers, b.peerTime), err, b.out.prepare()); err != nil {
		return err
	}
	return a.onDevice(b.device, func(d *vk.Device, env bench.Environment) error {
		r := bench.Report{Env: env, Made: time.Now(), Wide: b.wide}
		if b.format != bench.Table && b.format != bench.Markdown {
			announce(a.stderr, env)
		}
		cases, err := b.cases(env.CPU)
		if err != nil {
			return err
		}
		err = b.measure(ctx, a, d, cases, b.model.format(d.Caps()), &r)
		if len(r.Results) > 0 { // the results so far
			err = errors.Join(err, b.out.write(a, "a training step", r, d.Caps()), r.Write(a.stdout, b.format))
		}
		return cmp.Or(err, verdict(r.Results, false))
	})
}

// measure measures the cases one after the other. Peers are asked once for each shape, with the
// first case that the device can run.
func (b *benchTrain) measure(ctx context.Context, a *app, d *vk.Device, cases []train.Case, format dtype.DType, r *bench.Report) error {
	bar := newProgress(a.stderr)
	defer bar.finish()
	asked := map[tnp.Preset]bool{}
	said := ""
	for i, c := range cases {
		c.DType = format
		if !asked[c.Preset] {
			c.Peers = b.peers
		}
		planned := func(m *pipeline.Memory) {
			asked[c.Preset] = true
			if words := c.MemoryWords(m); words != said {
				bar.finish()
				fmt.Fprintf(a.stderr, "flashvk: %s\n", words)
				said = words
			}
		}
		results, stages, err := train.Bench(ctx, d, c, planned, func(what string) {
			bar.step(i, len(cases), fmt.Sprintf("%s, variant %v, checkpoint %v: %s", c.Name, train.VariantName(c.PlanOptions), c.Checkpoint, what))
		})
		if err != nil {
			return err
		}
		r.Results = append(r.Results, results...)
		if stages != nil {
			r.More = append(r.More, *stages)
		}
	}
	return nil
}

// parseRecording reports whether steps are recorded anew.
func parseRecording(text string) (fresh bool, err error) {
	name, err := kernels.OneOf([]string{"once", "fresh"})(text)
	return name == "fresh", err
}

// cases returns the cases to measure.
func (b *benchTrain) cases(cpu bool) (list []train.Case, err error) {
	shapes := b.shapes
	switch {
	case shapes == nil && cpu:
		shapes = []string{"tiny"}
	case shapes == nil:
		shapes = []string{"small", "mid"}
	}
	for _, name := range shapes {
		p, err := b.model.of(name)
		if err := errors.Join(err, p.Config.Validate(), p.Shape.Validate()); err != nil {
			return nil, usageError{err}
		}
		for _, o := range b.variants {
			for _, o.Checkpoint = range b.checkpoints {
				for i, fresh := range b.recordings { // whose stages are the same
					list = append(list, train.Case{Preset: p, PlanOptions: o, Fresh: fresh, Samples: b.count, Stages: b.stages && i == 0, PeerLimit: b.peerTime})
				}
			}
		}
	}
	return list, nil
}
