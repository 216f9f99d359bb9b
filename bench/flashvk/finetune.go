package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/bench/train"
	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/pipelines/lm"
	"github.com/flashvk/flashvk/pipelines/record"
	pipeline "github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/vk"
)

// finetuneCommand holds the flags of finetune, and of pretrain.
type finetuneCommand struct {
	train.Finetune
	scheduleFlags
	checkpointFlags
	scratch    bool // pretrain
	dir        string
	data, eval string
	o          lm.DataOptions
	lora       lm.LoRA
	full       bool
	epochs     float64
	memory     int64
	device     string
}

func newFinetune(a *app) *cobra.Command { return a.finetune(&finetuneCommand{}, "finetune") }

func newPretrain(a *app) *cobra.Command {
	return a.finetune(&finetuneCommand{scratch: true, full: true}, "pretrain")
}

func (a *app) finetune(t *finetuneCommand, name string) *cobra.Command {
	t.to, t.Keep, t.epochs, t.Clip, t.lora.Rank, t.o.Seqlen = &t.Schedule, pipeline.Auto, 1, 1, 8, 512
	return a.command(folder(&cobra.Command{Use: name}, &t.dir), t.add, func(ctx context.Context) error { return t.run(ctx, a) })
}

func (t *finetuneCommand) add(f *pflag.FlagSet) {
	fileVar(f, &t.data, "data", "what to train on: FILE.jsonl of text, prompt and completion, or messages; FILE.txt; FILE.u16 or FILE.u32 of tokens")
	fileVar(f, &t.Out, "out", "folder to write, with the state of the training")
	f.BoolVar(&t.Resume, "resume", false, "go on with the training in the folder of --out, if there is one, whose flags are repeated")
	lr := "0.0006"
	if !t.scratch {
		lr = "0.0002, with --full 0.00002"
		kernels.IntVar(f, &t.lora.Rank, "rank", "rank of the adapter (default 8)")
		f.Float64Var(&t.lora.Alpha, "alpha", 0, "scale of the adapter, divided by the rank (default twice the rank)")
		f.Float64Var(&t.lora.Dropout, "dropout", 0, "probability that an input of the adapter is dropped in training")
		f.StringSliceVar(&t.lora.Targets, "targets", nil, "products that are adapted, a comma list such as q_proj,v_proj (default all of the layers)")
		f.BoolVar(&t.full, "full", false, "train all weights instead of an adapter, and write a checkpoint")
	}
	kernels.IntVar(f, &t.o.Seqlen, "seqlen", "tokens of a row, which has several samples (default 512)")
	f.BoolVar(&t.o.Truncate, "truncate", false, "cut samples that are longer than a row, which are an error without")
	kernels.IntVar(f, &t.Rows, "batch", "rows of a batch (default 8, or less where memory has no room)")
	t.flags(f, lr, "as many as make 8 rows")
	kernels.IntVar(f, &t.Steps, "steps", "steps in all (default the steps of --epochs)")
	f.Float64Var(&t.epochs, "epochs", t.epochs, "how often the data are seen")
	f.Var(value[pipeline.Checkpoint]{Target: &t.Keep, Parse: parseCheckpoint, Kind: "WHAT"}, "checkpoint", "what is computed again in the backward pass, for less memory: off, selective, blocks, or auto, the first that fits (default auto)")
	f.StringVar(&t.eval, "eval", "", "file like --data, whose loss and perplexity are computed at times and at the end")
	f.Float64Var(&t.o.HeldOut, "eval-split", 0, "the part of --data that is evaluated instead, and not trained on")
	kernels.IntVar(f, &t.SaveEvery, "save-every", "save every N steps, not only at the end and at an interrupt")
	t.logFlags(f, "--resume")
	f.Uint64Var(&t.Schedule.Seed, "seed", 0, "seed of the first weights and of the order of the data")
	f.Var(value[int64]{Target: &t.memory, Parse: parseBytes, Kind: "SIZE"}, "memory", "the memory that the training may take, such as 8GB (default what the device has left)")
	t.dtypeFlag(f, "weights and activations (default bfloat16 where the device multiplies matrices of it, float16 for a GPU without, and float32 on a CPU device); what is trained is kept in float32")
	deviceVar(f, &t.device)
}

// parseBytes reads a number of bytes.
func parseBytes(s string) (int64, error) {
	for unit, size := range map[string]float64{"GB": 1e9, "GiB": 1 << 30, "MB": 1e6, "MiB": 1 << 20} {
		if number, ok := strings.CutSuffix(s, unit); ok {
			if x, err := strconv.ParseFloat(strings.TrimSpace(number), 64); err == nil && x > 0 && x*size < 1<<62 {
				return int64(x * size), nil
			}
		}
	}
	return 0, fmt.Errorf("%q is not a size such as 8GB, 7.5GiB, 900MB", s)
}

// check finds what is wrong without a file, and sets what is not given.
func (t *finetuneCommand) check() error {
	f := t.set
	t.Constant = t.name == "constant"
	if t.LR == 0 && !f.Changed("lr") {
		switch {
		case t.scratch:
			t.LR = 6e-4
		case t.full:
			t.LR = 2e-5
		default:
			t.LR = 2e-4
		}
	}
	if t.lora.Alpha == 0 && !f.Changed("alpha") {
		t.lora.Alpha = 2 * float64(t.lora.Rank)
	}
	if !t.full {
		t.LoRA = &t.lora
	}
	err := cmp.Or(checkRange(f, "batch", t.Rows, 1, 1<<16), checkRange(f, "accumulate", t.Accumulate, 1, 1<<16), checkRange(f, "steps", t.Steps, 1, math.MaxInt32),
		checkRange(f, "save-every", t.SaveEvery, 1, math.MaxInt32), exclusive(f, "steps", "epochs"), exclusive(f, "eval", "eval-split"))
	for _, name := range []string{"rank", "alpha", "dropout", "targets"} {
		if !t.scratch {
			err = cmp.Or(err, exclusive(f, "full", name))
		}
	}
	if err == nil && !(t.epochs > 0 && t.epochs <= 1e6) {
		return usagef("--epochs %v is not from more than 0 to 1000000", t.epochs)
	}
	return err
}

// open opens model and data.
func (t *finetuneCommand) open() (err error) {
	if t.scratch {
		t.Checkpoint, err = lm.NewCheckpoint(t.dir)
	} else {
		t.Checkpoint, err = lm.Open(t.dir)
	}
	if err != nil {
		return err
	}
	c := &t.Checkpoint.Config
	t.Weights = t.Checkpoint
	if t.scratch {
		t.Weights = lm.Initial{Seed: t.Schedule.Seed, Layers: c.Layers}
	}
	if err := t.Validate(); err != nil {
		return usageError{err}
	}
	t.o.Seed = t.Schedule.Seed
	if t.Data, t.Held, err = lm.ReadData(t.dir, c, t.data, t.o); err == nil && t.eval != "" {
		t.Held, _, err = lm.ReadData(t.dir, c, t.eval, t.o)
	}
	return err
}

func (t *finetuneCommand) run(ctx context.Context, a *app) error {
	if err := t.check(); err != nil {
		return err
	}
	defer func() { t.Checkpoint.Close(); t.Data.Close(); t.Held.Close() }()
	if err := t.open(); err != nil {
		return err
	}
	return a.onDevice(t.device, func(d *vk.Device, env bench.Environment) error {
		announce(a.stderr, env)
		if t.DType = t.Checkpoint.DType; d.Caps().CoopMat {
			t.DType = dtype.BFloat16
		}
		t.DType = t.format(d.Caps(), t.DType)
		heaps, err := d.Heaps()
		if err != nil {
			return err
		}
		most := cmp.Or(t.memory, math.MaxInt64)
		if free := pipeline.Free(heaps); free > 0 {
			most = min(most, int64(free))
		}
		memory, err := t.Choose(d.Caps(), most)
		if memory != nil {
			t.announce(a.stderr, memory, most)
		}
		if err != nil {
			return err
		}
		if t.Steps == 0 {
			t.Steps = t.EpochSteps(t.epochs)
		}
		if !t.set.Changed("warmup") {
			t.Warmup = t.Steps / 20
		}
		if err := t.Validate(); err != nil {
			return err
		}
		return t.train(ctx, a, d)
	})
}

// announce tells what is trained on what, and the table of its memory.
func (t *finetuneCommand) announce(w io.Writer, m *pipeline.Memory, most int64) {
	c := &t.Checkpoint.Config
	what := fmt.Sprintf("%d parameters", c.NumParams())
	if t.LoRA != nil {
		n := 0
		for _, p := range t.LoRA.Params(c) {
			n += p.Shape[0] * p.Shape[1]
		}
		what += fmt.Sprintf(", and %d of an adapter of rank %d, alpha %g, which are trained", n, t.LoRA.Rank, t.LoRA.Alpha)
	}
	fmt.Fprintf(w, "flashvk: %s, %s; %v\nflashvk: data: %v\n", c.Architecture, what, t.DType, t.Data)
	if t.Held != nil {
		fmt.Fprintf(w, "flashvk: evaluated: %v\n", t.Held)
	}
	fmt.Fprintf(w, "flashvk: memory %s of %s: %d rows of %d tokens, %d batches a step, checkpoint %v\n",
		text.Bytes(m.Bytes()), text.Bytes(most), t.Rows, t.Data.Seqlen, t.Accumulate, m.Checkpoint)
	for _, h := range holders(m) {
		fmt.Fprintf(w, "flashvk: %11s  %s\n", text.Bytes(h.Bytes), h.Name)
	}
}

// holders returns who holds the memory: the parts of the model, and the most of the rest.
func holders(m *pipeline.Memory) []record.Holder {
	const most = 12
	list := m.ByName()
	for last := len(list) - 1; last >= most; last-- {
		list[most-1].Name, list[most-1].Bytes = "others", list[most-1].Bytes+list[last].Bytes
	}
	return list[:min(len(list), most)]
}

// train trains, and says what came of it.
func (t *finetuneCommand) train(ctx context.Context, a *app, d *vk.Device) error {
	bar := newProgress(a.stderr)
	t.Progress = func(done, all int64) { bar.step(int(done>>10), int(all>>10), "loading") }
	each, finish := a.trainProgress(&t.Schedule, t.Tokens(), d)
	first := true
	result, err := t.Run(ctx, d, func(r train.Row) {
		if first {
			bar.finish()
		}
		first = false
		each(r)
	})
	finish()
	if err != nil {
		return err
	}
	if result.Skipped > 0 {
		fmt.Fprintf(a.stderr, "flashvk: %d steps were skipped, whose gradients were beyond %v\n", result.Skipped, t.DType)
	}
	if e := result.Evaluation; e != nil {
		fmt.Fprintf(a.stdout, "%d tokens that were not trained on: loss %.4f, perplexity %.4g\n", e.Targets, e.Loss, math.Exp(e.Loss))
	}
	return nil
}

// folder completes a command of the folder of a checkpoint, its argument.
func folder(cmd *cobra.Command, dir *string) *cobra.Command {
	cmd.Use += " DIR"
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		*dir = strings.Join(args, " ") // one, or an error
		return exactly(1, "one folder of a checkpoint")(cmd, args)
	}
	return cmd
}

func newMerge(a *app) *cobra.Command {
	var dir, adapter, out string
	return a.command(folder(&cobra.Command{Use: "merge"}, &dir), func(f *pflag.FlagSet) {
		fileVar(f, &adapter, "adapter", "folder of the adapter")
		fileVar(f, &out, "out", "folder to write, without a checkpoint")
	}, func(context.Context) error {
		if _, err := os.Stat(filepath.Join(out, "config.json")); err == nil {
			return fmt.Errorf("merge: %s has a config.json: its checkpoint would be lost", out)
		}
		c, err := lm.Open(dir)
		if err != nil {
			return err
		}
		defer c.Close()
		w, err := withAdapter(adapter, &c.Config, c)
		if err != nil {
			return err
		}
		return c.Copy(out, w)
	})
}
