package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/bench/peer"
	"github.com/flashvk/flashvk/internal/bench/train"
	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/pipelines/lm"
	"github.com/flashvk/flashvk/pipelines/optim"
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

// benchLM holds the flags of bench lm.
type benchLM struct {
	models                 []string
	decode, prefill, train bool
	batch, keys, count     int
	rank, accumulate       int
	checkpoint             pipeline.Checkpoint
	peers                  []peer.Peer
	peerTime               time.Duration
	output                 output
	checkpointFlags
}

func newBenchLM(a *app) *cobra.Command {
	b := &benchLM{models: []string{"smollm2-135m"}, batch: 1, keys: 1024, count: 30, rank: 8, accumulate: 1, checkpoint: pipeline.Auto}
	return a.command(&cobra.Command{Use: "lm"}, func(f *pflag.FlagSet) {
		f.Var(value[[]string]{Target: &b.models, Parse: kernels.ListOf(kernels.OneOf(lm.Models())), Kind: "MODELS"}, "model", "a comma list of "+strings.Join(lm.Models(), ", ")+" (default smollm2-135m)")
		f.BoolVar(&b.decode, "decode", false, "time a token of each sequence, of up to 32 in one submission while they take little time (default where neither --prefill nor --train is given)")
		f.BoolVar(&b.prefill, "prefill", false, "time a prompt of --keys tokens")
		f.BoolVar(&b.train, "train", false, "time a step of a training with sequences of --keys tokens")
		kernels.IntVar(f, &b.rank, "rank", "rank of the LoRA adapter of all products that is trained; 0 trains all weights (default 8)")
		kernels.IntVar(f, &b.accumulate, "accumulate", "micro-batches of --batch sequences in a step of --train (default 1)")
		f.Var(value[pipeline.Checkpoint]{Target: &b.checkpoint, Parse: parseCheckpoint, Kind: "WHAT"}, "checkpoint", "what is computed again in the backward pass: off, selective, blocks, auto (default auto)")
		kernels.IntVar(f, &b.batch, "batch", "sequences (default 1)")
		kernels.IntVar(f, &b.keys, "keys", "tokens in the cache with the new one, and of a prompt (default 1024)")
		kernels.IntVar(f, &b.count, "count", "runs that are timed (default 30)")
		b.add(f)
		b.output.add(f, "markdown, benchfmt, csv or json", bench.Formats()...)
		addPeers(f, &b.peers, &b.peerTime)
	}, func(ctx context.Context) error { return b.run(ctx, a) })
}

func (b *benchLM) run(ctx context.Context, a *app) error {
	if err := cmp.Or(checkRange(b.set, "batch", b.batch, 1, 1<<16), checkRange(b.set, "keys", b.keys, 2, math.MaxInt32),
		checkRange(b.set, "count", b.count, 1, maxCount), checkRange(b.set, "rank", b.rank, 0, 1<<16), checkRange(b.set, "accumulate", b.accumulate, 1, 1<<16), checkPeers(b.peers, b.peerTime)); err != nil {
		return err
	}
	b.decode = b.decode || !b.prefill && !b.train
	return a.onDevice(b.output.device, func(d *vk.Device, env bench.Environment) (err error) {
		r := bench.Report{Env: env, Made: time.Now(), Wide: b.output.wide}
		for _, name := range b.models {
			if err = b.measure(ctx, d, name, &r); err == nil && b.train {
				err = b.measureTraining(ctx, d, name, &r)
			}
			if err != nil {
				break
			}
		}
		if len(r.Results) > 0 { // the results so far
			err = errors.Join(err, r.Write(a.stdout, b.output.format))
		}
		return err
	})
}

// measure measures a model with random weights, and asks the peers for the same.
func (b *benchLM) measure(ctx context.Context, d *vk.Device, name string, r *bench.Report) error {
	c, err := lm.Named(name)
	if err != nil || !b.decode && !b.prefill {
		return err
	}
	format := b.format(d.Caps(), dtype.BFloat16)
	g, err := lm.NewGenerator(ctx, d, &c, lm.Random{Seed: b.random}, lm.Options{DType: format, Batch: b.batch, Context: b.keys})
	if err != nil {
		return err
	}
	defer g.Close()
	for _, x := range []struct {
		on     bool
		pass   string
		tokens int
		time   func(ctx context.Context, keys, n int) ([]time.Duration, error)
	}{{b.decode, "decode", b.batch, g.TimeSteps}, {b.prefill, "prefill", b.batch * b.keys, g.TimePrefill}} {
		if !x.on {
			continue
		}
		list, err := x.time(ctx, b.keys, b.count)
		if err != nil {
			return err
		}
		err = b.report(ctx, timedLM{name, x.pass, format, x.tokens, 2, float64(c.StepBytes(b.batch, b.keys, format)), "", nil}, &c, list, r)
		if err != nil {
			return err
		}
	}
	return nil
}

// measureTraining measures steps of a training with random weights and tokens.
func (b *benchLM) measureTraining(ctx context.Context, d *vk.Device, name string, r *bench.Report) error {
	c, err := lm.Named(name)
	if err != nil {
		return err
	}
	o := lm.TrainOptions{DType: b.format(d.Caps(), dtype.BFloat16), Sizes: lm.Sizes{Batch: b.batch, Seq: b.keys}, Accumulate: b.accumulate, Checkpoint: b.checkpoint, Optim: optim.Default()}
	o.Optim.MaxNorm = 1
	flops := 6.0 // of a weight and a token: forward, and two gradients
	if b.rank > 0 {
		o.LoRA, flops = &lm.LoRA{Rank: b.rank, Alpha: 2 * float64(b.rank)}, 4
	}
	t, err := lm.NewTrainer(ctx, d, &c, lm.Random{Seed: b.random}, o)
	if err != nil {
		return err
	}
	defer t.Close()
	rng, tokens := rand.New(rand.NewPCG(b.random, 1)), b.batch*b.keys
	batches := make([]lm.Batch, b.accumulate)
	for i := range batches {
		batches[i] = lm.Batch{Shape: [2]int{b.batch, b.keys}}
		for range tokens {
			batches[i].IDs = append(batches[i].IDs, int32(rng.IntN(c.Vocabulary)))
		}
		batches[i].Labels = append(batches[i].IDs[1:tokens:tokens], batches[i].IDs[0])
	}
	list, err := t.TimeSteps(ctx, b.count, batches...)
	if err != nil {
		return err
	}
	choice := fmt.Sprintf("checkpoint %v, %s", t.Memory().Checkpoint, text.Bytes(t.Memory().Bytes()))
	return b.report(ctx, timedLM{name, "train", o.DType, b.accumulate * tokens, flops, 2 * float64(c.NumParams()) * float64(o.DType.Size()), choice,
		[]bench.Key{{Name: "rank", Value: b.rank}, {Name: "accumulate", Value: b.accumulate}}}, &c, list, r)
}

// A timedLM is a pass of a model that was timed.
type timedLM struct {
	model, pass string
	dtype       dtype.DType
	tokens      int
	flops       float64 // of a weight and a token
	bytes       float64
	choice      string
	keys        []bench.Key // more than others have
}

// report adds the times of a pass to the results, and those of peers.
func (b *benchLM) report(ctx context.Context, x timedLM, c *lm.Config, list []time.Duration, r *bench.Report) error {
	of := bench.NewTimed("lm_"+x.pass, append([]bench.Key{
		{Name: "pass", Value: x.pass}, {Name: "model", Value: x.model}, {Name: "dtype", Value: x.dtype.String()},
		{Name: "batch", Value: b.batch}, {Name: "keys", Value: b.keys},
	}, x.keys...), x.flops*float64(c.NumParams())*float64(x.tokens), x.bytes,
		bench.Amount{Name: "tokens", Key: "token", Unit: "token", N: float64(x.tokens)})
	timing := bench.Timing{Iters: 1, Sets: 1}
	for _, t := range list {
		timing.DeviceNS = append(timing.DeviceNS, float64(t))
	}
	result := of.Result("flashvk", timing)
	result.Choice = x.choice
	params := map[string]any{"model": x.model, "batch": b.batch, "keys": b.keys}
	for _, k := range x.keys {
		params[k.Name] = k.Value
	}
	ask := bench.PeerCall{Peers: b.peers, Limit: b.peerTime, Of: of, Request: peer.Request{
		Op: "lm", Pass: x.pass, DType: x.dtype.String(), Samples: b.count, WarmupNS: 3e8, Warmup: 3, MaxIters: 1, Sets: 1, Params: params,
	}}
	peers, err := ask.Run(ctx)
	r.Results = append(append(r.Results, result), peers...)
	return err
}
