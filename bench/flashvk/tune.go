package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/bench"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

func newTune(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:                   "tune KERNEL",
		Short:                 "Find the fastest configurations of a kernel on this device",
		DisableFlagsInUseLine: true,
		Args:                  subcommandOnly,
		RunE:                  subcommandMissing,
	}
	cmd.AddCommand(newTuneAttention(a))
	return cmd
}

// tuneAttention holds the flags of tune attention.
type tuneAttention struct {
	set                          *pflag.FlagSet
	batch, heads, kvHeads, seqKV int
	seqs, headDims               []int
	dtypes                       []dtype.DType
	masks                        []bool
	impls                        []attention.Impl
	budget                       time.Duration
	out, device                  string
	dryRun                       bool
	format                       bench.Format
}

func newTuneAttention(a *app) *cobra.Command {
	t := tuneAttention{format: bench.Table}
	cmd := &cobra.Command{
		Use:   "attention",
		Short: "Find the fastest configurations of softmax attention",
		Long: `Tries tile sizes and arrangements of softmax attention, forward, on this device:
each is compiled, checked against a float64 reference and only then timed; the
best few are timed again, taking turns. What does not compile, is wrong or does
not come back is reported and dropped.

The winner of each path goes to a file in the user's cache folder, for this
device and driver, which the other commands use, and is printed as a row of the
built-in table. Lists are separated by commas; every combination of seqlen,
headdim, dtype and mask is a problem of its own.`,
		Example: `  flashvk tune attention
  flashvk tune attention --headdim 64,128 --dtype float16,bfloat16 --seqlen 512,4096 --budget 2m
  flashvk tune attention --batch 1 --heads 8 --seqlen 512 --headdim 64 --causal=false --out tuning.json
  flashvk tune attention --dry-run --impl scalar`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return t.run(cmd.Context(), a) },
	}
	t.add(cmd.Flags())
	return cmd
}

// tuneFormats are those that tune writes.
var tuneFormats = []bench.Format{bench.Table, bench.Markdown, bench.Benchfmt}

// add adds the flags to f.
func (t *tuneAttention) add(f *pflag.FlagSet) {
	f.SortFlags = false
	t.set = f
	intVar(f, &t.batch, "batch", "number of sequences (default 4; 1 on a CPU device)")
	intVar(f, &t.heads, "heads", "query heads (default 16; 4 on a CPU device)")
	intVar(f, &t.kvHeads, "kv-heads", "key and value heads, a divisor of heads (default: heads)")
	f.Var(value[[]int]{&t.seqs, listOf(parseInt), "LIST"}, "seqlen", "queries per sequence (default 4096; 256 on a CPU device)")
	intVar(f, &t.seqKV, "seqlen-kv", "keys per sequence (default: seqlen)")
	f.Var(value[[]int]{&t.headDims, listOf(parseInt), "LIST"}, "headdim", "elements of a head, multiples of 8 up to 256 (default 64,128; 64 on a CPU device)")
	f.Var(value[[]dtype.DType]{&t.dtypes, listOf(parseDType), "TYPES"}, "dtype", "float16 (default), bfloat16, float32")
	f.Var(value[[]bool]{&t.masks, parseMasks, "MASK"}, "causal", "true, false or both (default both)")
	f.Lookup("causal").NoOptDefVal = "true"
	f.Var(value[[]attention.Impl]{&t.impls, parseImpls, "PATHS"}, "impl", "paths, a comma list of "+implNames()+" but auto (default coopmat2,coopmat,scalar)")
	f.DurationVar(&t.budget, "budget", time.Minute, "time for trying candidates, for each problem; timing them comes on top")
	f.StringVar(&t.out, "out", "", "file to write or to complete (default: the one in the user's cache folder)")
	f.BoolVar(&t.dryRun, "dry-run", false, "list the candidates, in the order in which they would be tried, and stop")
	f.Var(value[bench.Format]{&t.format, parseFormat, "FORMAT"}, "format", "table (default), markdown, or benchfmt, which has the samples of the finalists")
	deviceVar(f, &t.device)
}

// listOf returns a parser of comma lists in which nothing occurs twice.
func listOf[T comparable](parse func(string) (T, error)) func(string) ([]T, error) {
	return func(text string) ([]T, error) {
		var list []T
		for word := range strings.SplitSeq(text, ",") {
			x, err := parse(word)
			if err != nil {
				return nil, fmt.Errorf("%q is %w", word, err)
			}
			if slices.Contains(list, x) {
				return nil, fmt.Errorf("%q occurs twice", word)
			}
			list = append(list, x)
		}
		return list, nil
	}
}

func parseMasks(text string) ([]bool, error) {
	switch text {
	case "true":
		return []bool{true}, nil
	case "false":
		return []bool{false}, nil
	case "both":
		return []bool{false, true}, nil
	}
	return nil, errors.New("not one of true, false, both")
}

// check returns a usage error if the flags that need no device are wrong.
func (t *tuneAttention) check() error {
	switch {
	case slices.Contains(t.impls, attention.Auto):
		return usagef("--impl auto is not a path to tune")
	case !slices.Contains(tuneFormats, t.format):
		return usagef("--format %s is not one of %s", t.format, bench.FormatNames(tuneFormats))
	case t.budget <= 0:
		return usagef("--budget %v is not positive", t.budget)
	case t.set.Changed("out") && t.out == "":
		return usagef("--out is empty")
	}
	_, err := t.problems(gpuDefault(), []int{64, 128})
	return err
}

// problems returns every combination of the lists, p and headDims standing for
// what is not given. An error is a usage error.
func (t *tuneAttention) problems(p attention.Problem, headDims []int) ([]attention.Problem, error) {
	p.NumKVHeads = p.NumHeads
	if t.set.Changed("batch") {
		p.Batch = t.batch
	}
	if t.set.Changed("heads") {
		p.NumHeads, p.NumKVHeads = t.heads, t.heads
	}
	if t.set.Changed("kv-heads") {
		p.NumKVHeads = t.kvHeads
	}
	seqs, dtypes, masks := []int{p.SeqQ}, []dtype.DType{p.DType}, []bool{false, true}
	for _, x := range []struct {
		name string
		use  func()
	}{
		{"seqlen", func() { seqs = t.seqs }}, {"headdim", func() { headDims = t.headDims }},
		{"dtype", func() { dtypes = t.dtypes }}, {"causal", func() { masks = t.masks }},
	} {
		if t.set.Changed(x.name) {
			x.use()
		}
	}
	var list []attention.Problem
	for _, p.DType = range dtypes {
		for _, p.HeadDim = range headDims {
			for _, p.Causal = range masks {
				for _, seq := range seqs {
					p.SeqQ, p.SeqKV = seq, seq
					if t.set.Changed("seqlen-kv") {
						p.SeqKV = t.seqKV
					}
					if err := p.Validate(); err != nil {
						return nil, usageError{err}
					}
					list = append(list, p)
				}
			}
		}
	}
	return list, nil
}

// openTuned opens the device without a cache of pipelines on disk: most of
// what is compiled here is never needed again.
func openTuned(name string) (*vk.Device, error) {
	return vk.Open(vk.Options{Device: name, Name: "flashvk"})
}

func (t *tuneAttention) run(ctx context.Context, a *app) (err error) {
	if err := t.check(); err != nil {
		return err
	}
	s := tuneSession{tuneAttention: t, a: a}
	if s.d, err = openTuned(t.device); err != nil {
		return err
	}
	defer func() {
		if !errors.Is(err, bench.ErrHung) { // closing would wait for it
			err = errors.Join(err, s.d.Close())
		}
	}()
	caps := s.d.Caps()
	s.env = environment(caps)
	defaults, headDims := gpuDefault(), []int{64, 128}
	if s.env.CPU {
		defaults, headDims = cpuDefault(), []int{64}
	}
	problems, err := t.problems(defaults, headDims)
	if err != nil {
		return err
	}
	s.search = bench.DefaultSearch(s.env.CPU, t.budget)
	if t.set.Changed("impl") {
		s.search.Impls = t.impls
	}
	if t.dryRun {
		return s.list(problems)
	}
	if s.path = t.out; s.path == "" {
		if s.path, err = tuningPath(caps); err != nil {
			return fmt.Errorf("there is no folder for the results, name a file with --out: %w", err)
		}
	}
	s.tuning, err = attention.LoadTuningFile(s.path, caps)
	if err != nil {
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case t.out != "": // which may be a file of any kind
			return fmt.Errorf("%s: %w: remove the file or name another", s.path, err)
		default:
			fmt.Fprintf(a.stderr, "flashvk: WARNING: %s is replaced: %v\n", s.path, err)
		}
		s.tuning = attention.NewTuning(caps)
	}
	if err := s.tuning.WriteFile(s.path); err != nil {
		return err // before the work, not after it
	}
	announce(a.stderr, s.env)
	return s.tune(ctx, problems)
}

// tuneSession is one run of tune attention.
type tuneSession struct {
	*tuneAttention
	a      *app
	d      *vk.Device
	env    bench.Environment
	search bench.Search
	path   string
	tuning *attention.Tuning
}

// list writes the candidates of each problem.
func (s *tuneSession) list(problems []attention.Problem) error {
	for _, p := range problems {
		total := 0
		fmt.Fprintf(s.a.stdout, "%s\n", bench.Describe(p))
		for _, impl := range s.search.Impls {
			for _, c := range attention.Candidates(s.d.Caps(), p, impl) {
				total++
				if _, err := fmt.Fprintf(s.a.stdout, "   %v\n", c); err != nil {
					return err
				}
			}
		}
		if total == 0 {
			return s.none(p)
		}
	}
	return nil
}

// none says why no path takes p.
func (s *tuneSession) none(p attention.Problem) error {
	for _, impl := range s.search.Impls {
		if err := attention.Supports(s.d.Caps(), impl, p); err != nil {
			return err
		}
	}
	return nil
}

// tune works through the problems. Each one's winners are saved at once, so
// that an interruption loses one problem at most.
func (s *tuneSession) tune(ctx context.Context, problems []attention.Problem) error {
	var done []bench.Tuned
	report := bench.Report{Env: s.env}
	tuner := bench.NewTuner(s.d)
	for i, p := range problems {
		fmt.Fprintf(s.a.stderr, "flashvk: problem %d of %d: %s\n", i+1, len(problems), bench.Describe(p))
		tuned, err := s.one(ctx, &tuner, p)
		if len(tuned.Trials) > 0 && s.format != bench.Benchfmt {
			if i > 0 {
				fmt.Fprintln(s.a.stdout)
			}
			if err := bench.WriteSheet(s.a.stdout, tuned.Sheet(), s.format); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
		winners := tuned.Winners()
		if len(winners) == 0 {
			return fmt.Errorf("no candidate of %s is right: the first failed with: %s", bench.Describe(p), tuned.Trials[0].Reason)
		}
		for _, w := range winners {
			s.tuning.Add(p, w.Configuration, w.NS())
		}
		if err := s.tuning.WriteFile(s.path); err != nil {
			return err
		}
		done = append(done, tuned)
		report.Results = append(report.Results, tuned.Results()...)
	}
	fmt.Fprintf(s.a.stderr, "flashvk: wrote %s\n", s.path)
	if s.format == bench.Benchfmt {
		return report.Write(s.a.stdout, s.format)
	}
	rows := strings.Join(bench.TableRows(s.d.Caps(), done), "\n")
	if s.format == bench.Markdown {
		rows = "\n```go\n" + rows + "\n```"
	}
	_, err := fmt.Fprintf(s.a.stdout, "\nrows for attention/tuning.go, measured on %v\n%s\n", s.env, rows)
	return err
}

// maxLost bounds how often a search starts again without the candidate that
// the device was lost in.
const maxLost = 5

// one searches for the best configurations of p. If the device is lost, it is
// opened again, and the candidate left out.
func (s *tuneSession) one(ctx context.Context, tuner **bench.Tuner, p attention.Problem) (bench.Tuned, error) {
	for lost := 0; ; lost++ {
		bar := newProgress(s.a.stderr)
		tuned, err := (*tuner).Tune(ctx, p, s.search, bar.step)
		bar.finish()
		var fault *bench.LostError
		if !errors.As(err, &fault) || !errors.Is(err, vk.ErrDeviceLost) || lost == maxLost {
			return tuned, err
		}
		fmt.Fprintf(s.a.stderr, "flashvk: WARNING: %v is left out: %v\n", fault.Config, fault.Err)
		s.search.Skip = append(s.search.Skip, fault.Config)
		s.d.Close() // its errors follow from the loss
		if s.d, err = openTuned(s.device); err != nil {
			s.d = nil
			return tuned, err
		}
		*tuner = bench.NewTuner(s.d)
	}
}
