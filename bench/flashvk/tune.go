package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/bench/sheet"
	"github.com/flashvk/flashvk/internal/bench/trial"
	"github.com/flashvk/flashvk/internal/files"
	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// tuneKernel holds the flags of tune NAME.
type tuneKernel struct {
	kernelFlags
	budget       time.Duration
	dryRun       bool
	out, outName string // file for the winners, if it is not the user's, and the flag for that

	d      *vk.Device
	caps   *vk.Caps // of d, also after it was lost
	search bench.Search
	path   string // of the file for the winners
}

func newTune(a *app) *cobra.Command {
	cmd := kernelCommands("tune KERNEL", func(k kernels.Kernel) *cobra.Command {
		if k.Tune == nil {
			why := k.Parts["fixed"]
			return &cobra.Command{
				Use: k.Name, Args: noArgs, FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true}, // flags of the kernel
				Short: "Say why there are no configurations of " + k.Title, Long: strings.ToUpper(why[:1]) + why[1:] + ".",
				RunE: func(*cobra.Command, []string) error {
					return usagef("tune %s: there is nothing to choose from: %s", k.Name, why)
				},
			}
		}
		t := &tuneKernel{kernelFlags: newKernelFlags(k)}
		t.impls, t.unless = k.Tune.Impls, k.Tune.Unless
		return a.command(&cobra.Command{Use: k.Name}, t.add, func(ctx context.Context) error { return t.run(ctx, a) })
	})
	cmd.AddCommand(newTuneShow(a))
	return cmd
}

func (t *tuneKernel) add(f *pflag.FlagSet) {
	t.addSizes(f, true)
	t.addSuite(f)
	if t.kernel.Backward {
		f.BoolVar(&t.backward, "backward", false, "tune the backward pass: the gradients")
	}
	if paths := t.kernel.Impls[1:]; len(paths) > 0 {
		t.addImpls(f, paths, strings.Join(t.impls, ","))
	}
	if t.outName = "out"; f.Lookup(t.outName) != nil {
		t.outName = "tuning" // --out is a size of the kernel
	}
	f.StringVar(&t.out, t.outName, "", "file to write or to complete (default: the one in the user's cache folder)")
	f.DurationVar(&t.budget, "budget", time.Minute, "time for trying candidates, for each problem; timing them comes on top")
	f.BoolVar(&t.dryRun, "dry-run", false, "list the candidates, in the order in which they would be tried, and stop")
	t.output.add(f, "markdown, or benchfmt (the samples of the finalists)", bench.Table, bench.Markdown, bench.Benchfmt)
}

// check returns a usage error if the flags are wrong.
func (t *tuneKernel) check() error {
	switch {
	case t.set.Changed(t.outName) && t.out == "":
		return usagef("--%s is empty", t.outName)
	case t.budget <= 0:
		return usagef("--budget %v is not positive", t.budget)
	}
	_, err := t.tunables(nil)
	return err
}

// tunables returns what the flags tune on a device. With nil it returns usage errors only.
func (t *tuneKernel) tunables(caps *vk.Caps) ([]bench.Tunable, error) {
	ops, _, err := t.ops(caps != nil && caps.Type == vk.CPU)
	if err != nil {
		return nil, err
	}
	var all []bench.Tunable
	for _, op := range ops {
		list, err := op.Tunables(caps, t.pass())
		if err != nil && caps == nil {
			err = usagef("tune %w", err)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

// open opens the device without a cache of pipelines on disk: most of
// what is compiled here is never needed again.
func (t *tuneKernel) open() (err error) {
	t.d, err = vk.Open(vk.Options{Device: t.device, Name: "flashvk"})
	return err
}

func (t *tuneKernel) run(ctx context.Context, a *app) (err error) {
	if err := t.check(); err != nil {
		return err
	}
	if err := t.open(); err != nil {
		return err
	}
	defer func() {
		if !errors.Is(err, trial.ErrHung) { // closing would wait for it
			err = errors.Join(err, t.d.Close())
		}
	}()
	t.caps = t.d.Caps()
	t.search = bench.DefaultSearch(t.caps.Type == vk.CPU, t.impls, t.budget)
	list, err := t.tunables(t.caps)
	switch {
	case err != nil:
		return err
	case t.dryRun:
		return t.list(a.stdout, list)
	}
	if err := t.winners(a.stderr, nil); err != nil {
		return err
	}
	announce(a.stderr, environment(t.caps))
	if err := t.tune(ctx, a, list); err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.stderr, "flashvk: wrote %s\n", t.path)
	return err
}

// list writes the candidates of each problem.
func (t *tuneKernel) list(w io.Writer, problems []bench.Tunable) error {
	for _, p := range problems {
		var reason error
		var all []string
		for _, impl := range t.search.Impls {
			list, err := p.Candidates(t.caps, impl)
			reason = cmp.Or(reason, err)
			for _, c := range list {
				all = append(all, fmt.Sprintf("   %v\n", c))
			}
		}
		if _, err := fmt.Fprintf(w, "%s\n%s", bench.Title(p.Op, p.Pass), strings.Join(all, "")); err != nil || all == nil {
			return cmp.Or(err, reason)
		}
	}
	return nil
}

// tune works through the problems. What is known is written even if it is cut short.
func (t *tuneKernel) tune(ctx context.Context, a *app, problems []bench.Tunable) error {
	var done []bench.Tuned
	var err error
	for i, p := range problems {
		fmt.Fprintf(a.stderr, "flashvk: problem %d of %d: %s\n", i+1, len(problems), bench.Title(p.Op, p.Pass))
		var tuned bench.Tuned
		if tuned, err = t.one(ctx, a, p); err == nil {
			err = t.accept(a.stderr, tuned)
		}
		if len(tuned.Trials) > 0 && t.format != bench.Benchfmt {
			if i > 0 {
				fmt.Fprintln(a.stdout)
			}
			err = errors.Join(err, bench.WriteSheet(a.stdout, tuned.Sheet(), t.format, t.wide))
		}
		if err != nil {
			break
		}
		done = append(done, tuned)
	}
	if len(done) == 0 || t.format != bench.Benchfmt {
		return err
	}
	report := bench.Report{Env: environment(t.caps)}
	for _, tuned := range done {
		report.Results = append(report.Results, tuned.Results()...)
	}
	return errors.Join(err, report.Write(a.stdout, t.format))
}

// accept keeps the winners of a problem, at once, so that an interruption loses one problem at
// most.
func (t *tuneKernel) accept(w io.Writer, tuned bench.Tuned) error {
	winners := tuned.Winners()
	if len(winners) == 0 {
		return fmt.Errorf("no candidate of %s is right: the first failed with: %s", bench.Title(tuned.Of.Op, tuned.Of.Pass), tuned.Trials[0].Reason)
	}
	return t.winners(w, func(to *kit.Tuning) (err error) {
		for _, x := range winners {
			err = errors.Join(err, tuned.Of.Keep(to, x.Configuration, x.NS()))
		}
		return err
	})
}

// maxLost bounds how often a search starts again without the candidate that
// the device was lost in.
const maxLost = 5

// one searches for the best configurations of p. If the device is lost, it is
// opened again, and the candidate left out.
func (t *tuneKernel) one(ctx context.Context, a *app, p bench.Tunable) (bench.Tuned, error) {
	for lost := 0; ; lost++ {
		bar := newProgress(a.stderr)
		tuned, err := bench.Tune(ctx, t.d, p, t.search, bar.step)
		bar.finish()
		var fault *bench.LostError
		if !errors.As(err, &fault) || !errors.Is(err, vk.ErrDeviceLost) || lost == maxLost {
			return tuned, err
		}
		fmt.Fprintf(a.stderr, "flashvk: WARNING: %v is left out: %v\n", fault.Config, fault.Err)
		t.search.Skip = append(t.search.Skip, fault.Config)
		t.d.Close() // its errors follow from the loss
		if err := t.open(); err != nil {
			t.d = nil
			return tuned, err
		}
	}
}

func newTuneShow(a *app) *cobra.Command {
	var set *pflag.FlagSet
	var o output
	path, share := "", false
	return a.command(&cobra.Command{Use: "show"}, func(f *pflag.FlagSet) {
		set = f
		f.StringVar(&path, "tuning", "", "file to list (default: the one in the user's cache folder)")
		f.BoolVar(&share, "share", false, "print the rows as Markdown for an issue")
		o.add(f, "or markdown", bench.Table, bench.Markdown)
	}, func(context.Context) error {
		if err := exclusive(set, "share", "format"); err != nil {
			return err
		}
		return a.onDevice(o.device, func(d *vk.Device, _ bench.Environment) (err error) {
			caps := d.Caps()
			if path == "" {
				if path, err = kit.UserTuningPath(caps); err != nil {
					return err
				}
			}
			tuning, err := kit.LoadTuningFile(path, caps)
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			if !share {
				return bench.WriteSheet(a.stdout, tuningSheet(path, tuning, caps), o.format, o.wide)
			}
			var file, rows bytes.Buffer
			if err := cmp.Or(tuning.Write(&file), json.Compact(&rows, file.Bytes())); err != nil {
				return err
			}
			table := func(w io.Writer) error {
				return bench.WriteSheet(w, tuningSheet("", tuning, caps), bench.Markdown, true)
			}
			return a.writeIssue(caps, table, text.FoldRows, append(rows.Bytes(), '\n'))
		})
	})
}

// tuningSheet has a row for each of tuning, and the file, unless it is "".
func tuningSheet(path string, tuning *kit.Tuning, caps *vk.Caps) sheet.Sheet {
	s := sheet.Section{Keys: 2}
	if path != "" {
		s.Add("file", "%s", path)
	}
	s.Columns = sheet.Columns([]string{"kernel", "pass", "problem", "configuration", "time"}, "kernel", "pass", "problem", "configuration")
	for i, row := range tuning.Rows(caps) {
		s.Rows = append(s.Rows, []string{row.Kernel, row.Pass, row.Problem, row.Config, bench.FormatTime(row.NS)})
		if row.Err != nil {
			s.Note("row %d has no effect: %v", i+1, row.Err)
		}
	}
	return sheet.Sheet{Sections: []sheet.Section{s}}
}

// loadTuning returns the device's rows in a file, or with "" in the user's file; nil if there are
// none. The user's file is ignored with a warning if it cannot be used; a named file is then an
// error.
func loadTuning(stderr io.Writer, file string, caps *vk.Caps) (*kit.Tuning, error) {
	path := file
	if path == "" {
		var err error
		if path, err = kit.UserTuningPath(caps); err != nil {
			return nil, nil // no cache folder, so nothing was tuned
		}
	}
	tuning, err := kit.LoadTuningFile(path, caps)
	switch {
	case err != nil && file != "":
		return nil, fmt.Errorf("%s: %w", path, err)
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		fmt.Fprintf(stderr, "flashvk: WARNING: %s is ignored: %v\n", path, err)
		return nil, nil
	}
	for _, row := range tuning.Rows(caps) {
		if errors.Is(row.Err, vk.ErrUnsupported) {
			fmt.Fprintf(stderr, "flashvk: WARNING: a row of %s is ignored: %s %s, %s: %v\n", path, row.Kernel, row.Pass, row.Problem, row.Err)
		}
	}
	if n := tuning.Stale(); n > 0 {
		fmt.Fprintf(stderr, "flashvk: WARNING: %d rows of %s are ignored: their kernels have changed; run flashvk tune\n", n, path)
	}
	if n := tuning.Len(); n > 0 {
		fmt.Fprintf(stderr, "flashvk: tuned: %d rows of %s\n", n, path)
	}
	return tuning, nil
}

// winners writes the file for the winners with what more adds to it. Another process may have tuned
// into the file meanwhile: its rows stay. Without more, winners only finds errors, before the work.
// The first winners replace the user's file if it is damaged. A named file is not replaced, for it
// may be a file of any kind, and no file of a newer version is.
func (t *tuneKernel) winners(w io.Writer, more func(to *kit.Tuning) error) (err error) {
	if t.path = t.out; t.out == "" {
		if t.path, err = kit.UserTuningPath(t.caps); err != nil {
			return fmt.Errorf("there is no folder for the results, name a file with --%s: %w", t.outName, err)
		}
	}
	return files.Exclusively(t.path, func() error {
		known, err := kit.LoadTuningFile(t.path, t.caps)
		switch missing := errors.Is(err, fs.ErrNotExist); {
		case err != nil && !missing && (t.out != "" || errors.Is(err, kit.ErrNewerTuning)):
			return fmt.Errorf("%s: %w: remove the file or name another with --%s", t.path, err, t.outName)
		case err != nil && !missing && more == nil:
			fmt.Fprintf(w, "flashvk: WARNING: %s is replaced: %v\n", t.path, err)
		}
		if more == nil {
			return safetensors.CanCreate(t.path)
		}
		if err != nil {
			known = kit.NewTuning(t.caps)
		}
		if err := more(known); err != nil {
			return err
		}
		return known.WriteFile(t.path)
	})
}
