package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/bench"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// sweep holds the flags of sweep.
type sweep struct {
	set                            *pflag.FlagSet
	minLen, maxLen, step           int
	batch, heads, kvHeads, headDim int
	dtype                          dtype.DType
	mask                           maskFlags
	passes                         passFlags
	count                          int
	impls                          []attention.Impl
	csv, device                    string
	tuning                         tuningFlags
	peers                          peerFlags
}

func newSweep(a *app) *cobra.Command {
	s := sweep{impls: attention.Impls(), dtype: dtype.Float16}
	cmd := &cobra.Command{
		Use:   "sweep",
		Short: "Measure attention at many sequence lengths, into a CSV file",
		Long: `Measures softmax attention at one sequence length after the other, as bench
attention does, and appends a line for each length and path to a CSV file.

A sweep that was interrupted goes on where it stopped when it is started again
with the same file; what the file holds is not measured again. flashvk plot draws
it.`,
		Example: `  flashvk sweep --min-len 128 --max-len 2048 --step 128 --dtype float16 --csv results.csv
  flashvk sweep --min-len 512 --max-len 16384 --step 512 --batch 1 --heads 16 --headdim 128 --causal --impl coopmat2,coopmat --csv causal.csv`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd.Context(), a) },
	}
	s.add(cmd.Flags())
	return cmd
}

// add adds the flags to f.
func (s *sweep) add(f *pflag.FlagSet) {
	f.SortFlags = false
	s.set = f
	s.minLen, s.maxLen, s.step, s.batch, s.heads, s.headDim, s.count = 128, 2048, 128, 1, 8, 64, 10
	intVar(f, &s.minLen, "min-len", "first length (default 128)")
	intVar(f, &s.maxLen, "max-len", "last length, if a step hits it (default 2048)")
	intVar(f, &s.step, "step", "from one length to the next (default 128)")
	f.StringVar(&s.csv, "csv", "", "file for the results; one that is there is completed")
	intVar(f, &s.batch, "batch", "number of sequences (default 1)")
	intVar(f, &s.heads, "heads", "query heads (default 8)")
	intVar(f, &s.kvHeads, "kv-heads", "key and value heads, a divisor of heads (default: heads)")
	intVar(f, &s.headDim, "headdim", "elements of a head, a multiple of 8 up to 256 (default 64)")
	f.Var(value[dtype.DType]{&s.dtype, parseDType, "TYPE"}, "dtype", "float16 (default), bfloat16 or float32")
	s.mask.add(f)
	s.passes.add(f)
	f.Var(value[[]attention.Impl]{&s.impls, parseImpls, "PATHS"}, "impl", "paths, a comma list of "+implNames()+" (default all but auto)")
	intVar(f, &s.count, "count", "samples of each path (default 10)")
	deviceVar(f, &s.device)
	s.tuning.add(f)
	s.peers.add(f)
}

// maxLengths bounds the lengths of a sweep.
const maxLengths = 10_000

// problems returns the problem of each length. An error is a usage error.
func (s *sweep) problems() ([]attention.Problem, error) {
	switch {
	case s.csv == "":
		return nil, usagef("sweep needs --csv FILE")
	case s.minLen < 1:
		return nil, usagef("--min-len %d is less than 1", s.minLen)
	case s.maxLen < s.minLen:
		return nil, usagef("--max-len %d is less than --min-len %d", s.maxLen, s.minLen)
	case s.step < 1:
		return nil, usagef("--step %d is less than 1", s.step)
	case (s.maxLen-s.minLen)/s.step >= maxLengths:
		return nil, usagef("--step %d makes %d lengths, more than %d", s.step, (s.maxLen-s.minLen)/s.step+1, maxLengths)
	case s.count < 1 || s.count > maxCount:
		return nil, usagef("--count %d is not in 1..%d", s.count, maxCount)
	}
	p := attention.Problem{Batch: s.batch, NumHeads: s.heads, NumKVHeads: s.heads, HeadDim: s.headDim, DType: s.dtype}
	if s.set.Changed("kv-heads") {
		p.NumKVHeads = s.kvHeads
	}
	if err := s.mask.apply(&p); err != nil {
		return nil, err
	}
	if err := s.mask.checkAlign(&p); err != nil {
		return nil, err
	}
	var list []attention.Problem
	for p.SeqQ = s.minLen; p.SeqQ <= s.maxLen; p.SeqQ += s.step {
		p.SeqKV = p.SeqQ
		if err := p.Validate(); err != nil {
			return nil, usageError{err}
		}
		list = append(list, p)
	}
	return list, nil
}

func (s *sweep) run(ctx context.Context, a *app) (err error) {
	problems, err := s.problems()
	if err != nil {
		return err
	}
	if err := errors.Join(s.passes.check(s.peers.list), s.tuning.check(), s.peers.check()); err != nil {
		return err
	}
	d, err := openDevice(s.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	env := environment(d.Caps())
	announce(a.stderr, env)
	tuning, err := s.tuning.load(a.stderr, d.Caps())
	if err != nil {
		return err
	}
	file, err := bench.OpenSweep(s.csv, env, problems[0], s.passes.pass())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	report := bench.Report{Env: env}
	kept := 0
	pr := bench.DefaultProtocol(env.CPU)
	pr.Samples = s.count
	monitor, err := watch(ctx, d, &pr)
	if err != nil {
		return err
	}
	defer monitor.Close()
	bar := newProgress(a.stderr)
	defer bar.finish()
	for i, p := range problems {
		impls, peers := file.Missing(p, s.impls, s.peers.list)
		if len(impls)+len(peers) == 0 {
			kept++
			continue
		}
		c := bench.Case{Problem: p, Pass: s.passes.pass(), Impls: impls, Tuning: tuning, Protocol: pr, Peers: peers, PeerTime: s.peers.limit}
		results, err := measureOne(ctx, d, c, bar.part(i, len(problems), fmt.Sprintf("length %d", p.SeqQ)))
		if err != nil {
			return err
		}
		if err := file.Append(results); err != nil {
			return err
		}
		report.Results = append(report.Results, results...)
	}
	bar.finish()
	fmt.Fprintf(a.stderr, "flashvk: %s: measured %d lengths, kept %d of an earlier run\n", s.csv, len(problems)-kept, kept)
	if text := monitor.Drift().String(); text != "" {
		fmt.Fprintf(a.stderr, "flashvk: %s\n", text)
	}
	return verdict(report, s.set.Changed("impl"))
}

// measureOne measures a case of several. Where the device has not enough memory
// for it, its paths are unsupported.
func measureOne(ctx context.Context, d *vk.Device, c bench.Case, progress bench.Progress) ([]bench.Result, error) {
	results, err := bench.Attention(ctx, d, c, progress)
	if errors.Is(err, vk.ErrOutOfDeviceMemory) {
		return bench.Unsupported(c.Problem, c.Impls, err), nil
	}
	return results, err
}
