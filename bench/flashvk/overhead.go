package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/vk"
)

// benchOverhead holds the flags of bench overhead.
type benchOverhead struct {
	kernelFlags
	starts bool
}

func newBenchOverhead(a *app) *cobra.Command {
	cmd := kernelCommands("", "", func(k kernels.Kernel) *cobra.Command {
		return newOverheadOf(a, k, &cobra.Command{Use: k.Name, Short: "Measure what a call of " + k.Title + " costs the host"})
	})
	cmd.Use, cmd.Short = "overhead [KERNEL]", "Measure what a call costs the host"
	cmd.Example = `  flashvk bench overhead
  flashvk bench overhead --impl coopmat2,scalar --count 20 --format benchfmt > overhead.txt
  flashvk bench overhead gemm`
	k, _ := kernels.Find("attention")
	return newOverheadOf(a, k, cmd)
}

func newOverheadOf(a *app, k kernels.Kernel, cmd *cobra.Command) *cobra.Command {
	o := &benchOverhead{kernelFlags: newKernelFlags(k)}
	o.unless = func(bool) []string { return k.Tiny }
	if o.impls = k.Impls[:1]; len(k.Impls) > 1 {
		o.impls = k.Impls[1:]
	}
	cmd.Long = fmt.Sprintf(`Measures what a call of %s costs the host: recording a call, recording and submitting it,
submitting a recorded call, waiting for it, and replaying a recording of many calls. The
problem is so small that the work of the device hardly counts.

--starts also measures starts, from opening the device to the end of the first call: cold,
with no pipeline compiled, and warm, with all of them in a cache as programs keep it. The
driver's own caches are turned off where the driver obeys MESA_SHADER_CACHE_DISABLE or
__GL_SHADER_DISK_CACHE.`, k.Name)
	cmd.Args = noArgs
	return a.command(cmd, func(f *pflag.FlagSet) {
		o.addSizes(f, false)
		o.addPasses(f)
		o.addImpls(f, k.Impls, strings.Join(o.impls, ","))
		o.addCount(f)
		kernels.BoolVar(f, &o.starts, "starts", "also a cold and a warm start, up to 3 of each (default on a GPU)")
		o.output.add(f, "markdown, or benchfmt, for bench compare", bench.Table, bench.Markdown, bench.Benchfmt)
		o.addTuning(f)
	}, func(ctx context.Context) error { return o.run(ctx, a) })
}

func (o *benchOverhead) run(ctx context.Context, a *app) error {
	if err := o.check(); err != nil {
		return err
	}
	return a.onDevice(o.device, func(d *vk.Device, env bench.Environment) error {
		if o.format == bench.Benchfmt {
			announce(a.stderr, env)
		}
		ops, err := o.problems(true) // small ones
		if err == nil {
			err = o.use(a.stderr, d.Caps(), ops)
		}
		if err == nil && len(ops) > 1 {
			err = usagef("bench overhead measures one problem, not %d", len(ops))
		}
		if err != nil {
			return err
		}
		c := bench.Case{Op: ops[0], Pass: o.pass(), Impls: o.impls, Protocol: bench.Protocol{Samples: o.count, WallTime: -1}}
		r := bench.Report{Env: env, Wide: o.wide}
		bar := newProgress(a.stderr)
		r.Results, err = bench.Overheads(ctx, d, c, bar.step)
		if err == nil && (o.starts || !o.set.Changed("starts") && !env.CPU) {
			open := func(dir string) (*vk.Device, error) {
				return vk.Open(vk.Options{Device: strconv.Itoa(d.Caps().Index), CacheDir: dir, Name: "flashvk start"})
			}
			err = bench.MeasureStarts(ctx, open, c, r.Results)
		}
		bar.finish()
		if err == nil {
			err = r.Write(a.stdout, o.format)
		}
		if err != nil {
			return err
		}
		return verdict(r.Results, o.set.Changed("impl"))
	})
}
