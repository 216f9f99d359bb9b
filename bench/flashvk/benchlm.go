package main

import (
	"cmp"
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/bench/peer"
	"github.com/flashvk/flashvk/pipelines/lm"
	"github.com/flashvk/flashvk/vk"
)

// benchLM holds the flags of bench lm.
type benchLM struct {
	models             []string
	decode, prefill    bool
	batch, keys, count int
	peers              []peer.Peer
	peerTime           time.Duration
	output             output
	checkpointFlags
}

func newBenchLM(a *app) *cobra.Command {
	b := &benchLM{models: []string{"smollm2-135m"}, batch: 1, keys: 1024, count: 30}
	return a.command(&cobra.Command{Use: "lm"}, func(f *pflag.FlagSet) {
		f.Var(value[[]string]{Target: &b.models, Parse: kernels.ListOf(kernels.OneOf(lm.Models())), Kind: "MODELS"}, "model", "a comma list of "+strings.Join(lm.Models(), ", ")+" (default smollm2-135m)")
		f.BoolVar(&b.decode, "decode", false, "time a token of each sequence (default where --prefill is not given)")
		f.BoolVar(&b.prefill, "prefill", false, "time a prompt of --keys tokens")
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
		checkRange(b.set, "count", b.count, 1, maxCount), checkPeers(b.peers, b.peerTime)); err != nil {
		return err
	}
	b.decode = b.decode || !b.prefill
	return a.onDevice(b.output.device, func(d *vk.Device, env bench.Environment) (err error) {
		r := bench.Report{Env: env, Made: time.Now(), Wide: b.output.wide}
		for _, name := range b.models {
			if err = b.measure(ctx, d, name, &r); err != nil {
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
	if err != nil {
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
		of := bench.NewTimed("lm_"+x.pass, []bench.Key{
			{Name: "pass", Value: x.pass}, {Name: "model", Value: name}, {Name: "dtype", Value: format.String()},
			{Name: "batch", Value: b.batch}, {Name: "keys", Value: b.keys},
		}, 2*float64(c.NumParams())*float64(x.tokens), float64(c.StepBytes(b.batch, b.keys, format)),
			bench.Amount{Name: "tokens", Key: "token", Unit: "token", N: float64(x.tokens)})
		timing := bench.Timing{Iters: 1, Sets: 1}
		for _, t := range list {
			timing.DeviceNS = append(timing.DeviceNS, float64(t))
		}
		r.Results = append(r.Results, of.Result("flashvk", timing))
		peers, err := bench.AskPeers(ctx, b.peers, b.peerTime, peer.Request{
			Op: "lm", Pass: x.pass, DType: format.String(), Samples: b.count, WarmupNS: 3e8, Warmup: 3, MaxIters: 1, Sets: 1,
			Params: map[string]any{"model": name, "batch": b.batch, "keys": b.keys},
		}, of)
		if r.Results = append(r.Results, peers...); err != nil {
			return err
		}
	}
	return nil
}
