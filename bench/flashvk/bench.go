package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/bench/sheet"
	"github.com/flashvk/flashvk/internal/files"
	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/vk"
)

// benchKernel holds the flags of bench NAME, and of sweep, which is bench with a file that it
// completes.
type benchKernel struct {
	kernelFlags
	quiet          bool
	out            outDir
	csv            string // of sweep
	min, max, step int    // of sweep without a kernel, which varies the length of attention
}

func newBench(a *app) *cobra.Command {
	cmd := kernelCommands("bench KERNEL", func(k kernels.Kernel) *cobra.Command {
		b := &benchKernel{kernelFlags: newKernelFlags(k)}
		return a.command(&cobra.Command{Use: k.Name}, b.add, func(ctx context.Context) error { return b.run(ctx, a) })
	})
	cmd.AddCommand(newBenchTrain(a), newBenchLM(a), newBenchOverhead(a), newBenchCompare(a))
	return cmd
}

// add adds the flags of bench.
func (b *benchKernel) add(f *pflag.FlagSet) {
	b.addSizes(f, true)
	b.addSuite(f)
	otherwise := "auto"
	if b.kernel.AllPaths {
		otherwise = "all; auto chooses one of them"
	}
	b.addImpls(f, b.kernel.Impls, otherwise)
	b.addProtocol(f)
	b.output.add(f, "markdown, benchfmt, csv or json", bench.Formats()...)
	kernels.BoolVar(f, &b.quiet, "quiet", "tables and warnings alone, without what the run and the columns are")
	b.addTuning(f)
	b.addClose(f)
	b.out.add(f)
	b.addPasses(f)
}

func newSweep(a *app) *cobra.Command {
	cmd := kernelCommands("sweep [KERNEL]", func(k kernels.Kernel) *cobra.Command {
		s := &benchKernel{kernelFlags: newKernelFlags(k)}
		return a.command(&cobra.Command{Use: k.Name}, s.addSweep, func(ctx context.Context) error { return s.run(ctx, a) })
	})
	k, _ := kernels.Find("attention")
	s := &benchKernel{kernelFlags: newKernelFlags(k)}
	cmd.Args = noArgs
	s.unless = func(bool) []string {
		return []string{"batch=1", "heads=8", "headdim=64", "dtype=float16", fmt.Sprintf("seqlen=%d..%d+%d", s.min, s.max, s.step)}
	}
	return a.command(cmd, func(f *pflag.FlagSet) {
		s.min, s.max, s.step = 128, 2048, 128
		kernels.IntVar(f, &s.min, "min-len", "first length (default 128)")
		kernels.IntVar(f, &s.max, "max-len", "last length, if a step hits it (default 2048)")
		kernels.IntVar(f, &s.step, "step", "from one length to the next (default 128)")
		s.addSweep(f)
	}, func(ctx context.Context) error { return s.run(ctx, a) })
}

// addSweep adds the flags of sweep.
func (b *benchKernel) addSweep(f *pflag.FlagSet) {
	fileVar(f, &b.csv, "csv", "file for the results; one that is there is completed")
	b.addSizes(f, true)
	b.addPasses(f)
	otherwise := "auto"
	if b.kernel.AllPaths {
		otherwise = "all but auto"
	}
	b.addImpls(f, b.kernel.Impls, otherwise)
	b.addProtocol(f)
	deviceVar(f, &b.device)
	b.addTuning(f)
	b.addClose(f)
}

// checkSweep returns a usage error.
func (b *benchKernel) checkSweep() error {
	switch lengths := b.unless != nil; {
	case lengths && b.min < 1:
		return usagef("--min-len %d is less than 1", b.min)
	case lengths && b.max < b.min:
		return usagef("--max-len %d is less than --min-len %d", b.max, b.min)
	case lengths && (b.step < 1 || (b.max-b.min)/b.step >= maxProblems):
		return usagef("--step %d is less than 1, or makes more than %d lengths", b.step, maxProblems)
	case b.both && len(b.peers) > 0:
		return usagef("--both and --peer contradict each other: a sweep has one kernel, and a peer measures one pass")
	}
	for _, name := range []string{"min-len", "max-len", "step"} {
		if b.set.Changed("seqlen") && b.set.Changed(name) && b.unless != nil {
			return usagef("--seqlen and --%s contradict each other", name)
		}
	}
	return nil
}

func (b *benchKernel) run(ctx context.Context, a *app) error {
	sweep := b.set.Lookup("csv") != nil
	if sweep {
		if err := b.checkSweep(); err != nil {
			return err
		}
	}
	if err := b.check(); err != nil {
		return err
	}
	if err := b.out.prepare(); err != nil {
		return err
	}
	return a.onDevice(b.device, func(d *vk.Device, env bench.Environment) error {
		report := bench.Report{Env: env, Made: time.Now(), Wide: b.wide, Quiet: b.quiet}
		if sweep || b.format != bench.Table && b.format != bench.Markdown {
			announce(a.stderr, env)
		}
		ops, suite, err := b.on(a.stderr, d.Caps())
		if err != nil {
			return err
		}
		report.Suite = suite
		pr := b.protocol(env.CPU)
		monitor, err := watch(ctx, d, &pr)
		if err != nil {
			return err
		}
		defer monitor.Close()
		if sweep {
			report.Results, err = b.sweep(ctx, a, d, ops, pr)
			if text := monitor.Drift().String(); err == nil && text != "" {
				fmt.Fprintf(a.stderr, "flashvk: %s\n", text)
			}
		} else {
			report.Results, _, err = b.measure(ctx, a, d, ops, pr, nil)
			if len(report.Results) > 0 {
				err = b.write(ctx, a, d, ops, &report, monitor, err)
			}
		}
		if err != nil {
			return err
		}
		return verdict(report.Results, b.set.Changed("impl"))
	})
}

// write writes the results so far, also if the run was cut short by err, and to each place even if
// the other is full.
func (b *benchKernel) write(ctx context.Context, a *app, d *vk.Device, ops []bench.Op, report *bench.Report, monitor *bench.Monitor, err error) error {
	if counted, ok := bench.As[interface{ Amounts() []bench.Amount }](ops[0]); ok && err == nil && len(counted.Amounts()) > 0 {
		report.Copy, err = bench.CopyRate(ctx, d, b.protocol(report.Env.CPU))
	}
	report.Drift, report.Memory = monitor.Drift(), d.Memory()
	return errors.Join(err, b.out.write(a, b.kernel.Title, *report, d.Caps()), report.Write(a.stdout, b.format))
}

// sweep measures the problems that the file lacks.
func (b *benchKernel) sweep(ctx context.Context, a *app, d *vk.Device, ops []bench.Op, pr bench.Protocol) (_ []bench.Result, err error) {
	var subjects []*bench.Subject
	for _, op := range ops {
		subjects = append(subjects, bench.NewSubject(op, b.pass()))
	}
	file, err := bench.OpenSweep(b.csv, environment(d.Caps()), subjects)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	results, kept, err := b.measure(ctx, a, d, ops, pr, file)
	if err == nil {
		fmt.Fprintf(a.stderr, "flashvk: %s: measured %d problems, kept %d of an earlier run\n", b.csv, len(ops)-kept, kept)
	}
	return results, err
}

// measure measures the problems one after the other, into the file, if there is one; kept are those
// that it has. With an error it returns the results of the problems before.
func (b *benchKernel) measure(ctx context.Context, a *app, d *vk.Device, ops []bench.Op, pr bench.Protocol, file *bench.SweepFile) (all []bench.Result, kept int, err error) {
	bar := newProgress(a.stderr)
	defer bar.finish()
	for i, op := range ops {
		c := bench.Case{Op: op, Pass: b.pass(), Impls: b.paths(file == nil && (b.suite != "" || len(ops) > 1)), Protocol: pr, Peers: b.peers, PeerTime: b.peerTime}
		if b.set.Changed("atol") || b.set.Changed("rtol") {
			c.Close = &b.close
		}
		if file != nil {
			if c.Impls, c.Peers = file.Missing(bench.NewSubject(op, c.Pass), c.Impls, c.Peers); len(c.Impls)+len(c.Peers) == 0 {
				kept++
				continue
			}
		}
		run, step := bench.Run, bench.Progress(bar.step)
		if len(ops) > 1 {
			step = step.Part(i, len(ops), fmt.Sprintf("case %d of %d: ", i+1, len(ops)))
		}
		if c.Pass == bench.Both && len(c.Peers) > 0 {
			run = bench.RunBoth
		}
		results, err := run(ctx, d, c, step)
		if errors.Is(err, vk.ErrOutOfDeviceMemory) && len(ops) > 1 {
			results, err = bench.Unsupported(c, err), nil
		}
		if err == nil && file != nil {
			err = file.Append(results)
		}
		if err != nil {
			return all, kept, err
		}
		all = append(all, results...)
	}
	return all, kept, nil
}

// paths returns the paths to measure, of one problem or of many. For many, auto is the first.
func (b *benchKernel) paths(many bool) []string {
	switch k := b.kernel; {
	case b.impls != nil:
		return b.impls
	case k.AllPaths && many:
		return k.Impls
	case k.AllPaths:
		return k.Impls[1:]
	}
	return b.kernel.Impls[:1]
}

// outDir is the folder for reports.
type outDir struct{ path string }

// add adds the flag to f. It is --report where --out is a size of the kernel.
func (o *outDir) add(f *pflag.FlagSet) {
	name := "out"
	if f.Lookup(name) != nil {
		name = "report"
	}
	f.StringVar(&o.path, name, "", "folder for everything: benchmark lines, CSV, plots, and a report to open in a browser")
}

// prepare makes the folder and checks that it can be written, before the work starts.
func (o *outDir) prepare() error {
	if o.path == "" {
		return nil
	}
	if err := os.MkdirAll(o.path, 0o777); err != nil {
		return err
	}
	probe, err := files.Create(filepath.Join(o.path, contents))
	if err != nil {
		return err
	}
	return probe.Close()
}

// contents is a file in the folder that lists the files of reports, a name per line.
const contents = ".flashvk-report"

// write writes the files of a report under a title, and removes the files of an earlier report.
// Each file is whole at any moment.
func (o *outDir) write(a *app, title string, r bench.Report, caps *vk.Caps) error {
	if o.path == "" {
		return nil
	}
	list, err := reportFiles(a, title, r, caps)
	if err != nil {
		return err
	}
	err = files.Exclusively(filepath.Join(o.path, contents), func() error { return replaceReport(o.path, list) })
	if err != nil {
		return err
	}
	fmt.Fprintf(a.stderr, "flashvk: wrote %s\n", filepath.Join(o.path, "report.html"))
	return nil
}

// An outFile is a file of a report.
type outFile struct {
	name string
	data []byte
}

// reportFiles returns the files of a report. The last one is the one to open.
func reportFiles(a *app, title string, r bench.Report, caps *vk.Caps) (list []outFile, err error) {
	add := func(name string, write func(io.Writer) error) {
		var b bytes.Buffer
		err = errors.Join(err, write(&b))
		list = append(list, outFile{name, b.Bytes()})
	}
	p := sheet.Page{
		Title: strings.ToUpper(title[:1]) + title[1:] + " on " + text.Line(caps.Name), Made: time.Now(), Program: bench.ReadBuildInfo().String(),
		Command: commandLine(a.args), Sheet: r.Sheet(),
		Files: []string{"results.csv", "results.json", "results.benchfmt", "report.md"},
	}
	var device strings.Builder
	describeDevice(&device, caps)
	p.Device = device.String()
	for i, f := range []bench.Format{bench.CSV, bench.JSON, bench.Benchfmt, bench.Markdown} {
		add(p.Files[i], func(w io.Writer) error { return r.Write(w, f) })
	}
	for _, d := range r.Charts() {
		add(d.Name+".svg", d.SVG)
		p.Drawings = append(p.Drawings, template.HTML(list[len(list)-1].data))
	}
	add("report.html", p.Write)
	return list, err
}

// replaceReport writes files into a folder and removes the files of earlier reports. The folder
// lists its files at any moment, also after an interrupt.
func replaceReport(dir string, list []outFile) error {
	old, err := os.ReadFile(filepath.Join(dir, contents))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var names, stale []string
	for _, f := range list {
		names = append(names, f.name)
	}
	for _, name := range strings.Fields(string(old)) {
		if filepath.Base(name) == name && !slices.Contains(names, name) {
			stale = append(stale, name)
		}
	}
	note := func(names []string) outFile { return outFile{contents, []byte(strings.Join(names, "\n") + "\n")} }
	for _, f := range append([]outFile{note(append(names, stale...))}, list...) {
		if err := files.Write(filepath.Join(dir, f.name), f.data); err != nil {
			return err
		}
	}
	if len(stale) == 0 {
		return nil // the report is the last file that takes room
	}
	for _, name := range stale {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return files.Write(filepath.Join(dir, contents), note(names).data)
}

// plainWord matches words that a shell needs no quotes for.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// commandLine returns the command as it would be typed in a shell.
func commandLine(args []string) string {
	words := []string{"flashvk"}
	for _, a := range args {
		if !plainWord.MatchString(a) {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}
