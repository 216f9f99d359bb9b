package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/bench"
	"github.com/flashvk/flashvk/dtype"
)

// tuneAttention holds the flags of tune attention.
type tuneAttention struct {
	tuneFlags
	set                          *pflag.FlagSet
	batch, heads, kvHeads, seqKV int
	seqs, headDims               []int
	dtypes                       []dtype.DType
	masks                        []bool
	out                          string
}

func newTuneAttention(a *app) *cobra.Command {
	t := tuneAttention{tuneFlags: newTuneFlags("attention/tuning.go")}
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
	t.addAll(cmd.Flags())
	return cmd
}

// addAll adds the flags to f.
func (t *tuneAttention) addAll(f *pflag.FlagSet) {
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
	t.impls = []string{"coopmat2", "coopmat", "scalar"}
	path := func(name string) (string, error) {
		_, err := parseImpl(name)
		return name, err
	}
	f.Var(value[[]string]{&t.impls, listOf(path), "PATHS"}, "impl", "paths, a comma list of "+implNames()+" but auto (default coopmat2,coopmat,scalar)")
	f.StringVar(&t.out, "out", "", "file to write or to complete (default: the one in the user's cache folder)")
	t.add(f)
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
	case slices.Contains(t.impls, attention.Auto.String()):
		return usagef("--impl auto is not a path to tune")
	case t.set.Changed("out") && t.out == "":
		return usagef("--out is empty")
	}
	if err := t.tuneFlags.check(); err != nil {
		return err
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

func (t *tuneAttention) run(ctx context.Context, a *app) error {
	if err := t.check(); err != nil {
		return err
	}
	return t.session(a, func(s *tuneSession) error {
		defaults, headDims := gpuDefault(), []int{64, 128}
		if s.env.CPU {
			defaults, headDims = cpuDefault(), []int{64}
		}
		problems, err := t.problems(defaults, headDims)
		if err != nil {
			return err
		}
		var list []bench.Tunable
		for _, p := range problems {
			list = append(list, bench.TuneAttention(p))
		}
		if t.dryRun {
			return s.list(list)
		}
		return t.tuneTo(ctx, s, problems, list)
	})
}

// tuneTo tunes into the file of t. Each problem's winners are saved at once, so that an
// interruption loses one problem at most.
func (t *tuneAttention) tuneTo(ctx context.Context, s *tuneSession, problems []attention.Problem, list []bench.Tunable) (err error) {
	caps, path := s.d.Caps(), t.out
	if path == "" {
		if path, err = tuningPath(caps); err != nil {
			return fmt.Errorf("there is no folder for the results, name a file with --out: %w", err)
		}
	}
	tuning, err := attention.LoadTuningFile(path, caps)
	if err != nil {
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case t.out != "": // which may be a file of any kind
			return fmt.Errorf("%s: %w: remove the file or name another", path, err)
		default:
			fmt.Fprintf(s.a.stderr, "flashvk: WARNING: %s is replaced: %v\n", path, err)
		}
		tuning = attention.NewTuning(caps)
	}
	if err := tuning.WriteFile(path); err != nil {
		return err // before the work, not after it
	}
	announce(s.a.stderr, s.env)
	s.keep = func(i int, winners []*bench.Trial) error {
		// Another process may have tuned into the file meanwhile.
		if now, err := attention.LoadTuningFile(path, caps); err == nil {
			tuning = now
		}
		for _, w := range winners {
			tuning.Add(problems[i], w.Configuration.(attention.Config), w.NS())
		}
		return tuning.WriteFile(path)
	}
	if err := s.tune(ctx, list); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.a.stderr, "flashvk: wrote %s\n", path)
	return err
}
