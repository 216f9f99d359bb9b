package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/pipelines/lm"
	"github.com/flashvk/flashvk/vk"
)

// benchLM holds the flags of bench lm.
type benchLM struct {
	models             []string
	decode, prefill    bool
	batch, keys, count int
	peer, device       string
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
		f.StringVar(&b.peer, "peer", "", "command that measures the same beside it: it gets decode:MODEL:BATCH:KEYS or prefill:MODEL:BATCH:KEYS, and its lines are printed")
		b.add(f)
		deviceVar(f, &b.device)
	}, func(ctx context.Context) error { return b.run(ctx, a) })
}

func (b *benchLM) run(ctx context.Context, a *app) error {
	if err := cmp.Or(checkRange(b.set, "batch", b.batch, 1, 1<<16), checkRange(b.set, "keys", b.keys, 2, math.MaxInt32), checkRange(b.set, "count", b.count, 1, maxCount)); err != nil {
		return err
	}
	b.decode = b.decode || !b.prefill
	return a.onDevice(b.device, func(d *vk.Device, env bench.Environment) error {
		announce(a.stderr, env)
		fmt.Fprintf(a.stdout, "%-36s %-10s %10s %12s %10s\n", "case", "format", "ms", "tokens/s", "B/s")
		for _, name := range b.models {
			if err := b.measure(ctx, a, d, name); err != nil {
				return err
			}
		}
		return nil
	})
}

// measure measures a model with random weights.
func (b *benchLM) measure(ctx context.Context, a *app, d *vk.Device, name string) error {
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
		name   string
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
		slices.Sort(list)
		seconds, text := list[len(list)/2].Seconds(), fmt.Sprintf("%s:%s:%d:%d", x.name, name, b.batch, b.keys)
		rate := "-"
		if x.name == "decode" {
			rate = bench.FormatSI(float64(c.StepBytes(b.batch, b.keys, format))/seconds, "")
		}
		fmt.Fprintf(a.stdout, "%-36s %-10v %10.4g %12.5g %10s\n", text, format, 1e3*seconds, float64(x.tokens)/seconds, rate)
		if err := b.ask(ctx, a, text); err != nil {
			return err
		}
	}
	return nil
}

// ask runs the peer for a case.
func (b *benchLM) ask(ctx context.Context, a *app, text string) error {
	words := strings.Fields(b.peer)
	if len(words) == 0 {
		return nil
	}
	cmd := exec.CommandContext(ctx, words[0], append(words[1:], text)...)
	cmd.Stdout, cmd.Stderr = a.stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return errors.Join(fmt.Errorf("peer %s: %w", words[0], err), ctx.Err())
	}
	return nil
}
