package train

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/pipelines/lm"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

// A Finetune says what of a language model is trained, and on what.
type Finetune struct {
	Schedule
	Checkpoint *lm.Checkpoint
	Weights    lm.Weights // that it begins with
	LoRA       *lm.LoRA   // nil: all weights
	Data, Held *lm.Data   // Held is for evaluations; nil: there is none
	Rows       int        // of a batch
	Keep       train.Checkpoint
	DType      dtype.DType
	Out        string // folder of the adapter or the model, and of the state
	Resume     bool   // goes on with the state of Out, if there is one
	Progress   func(done, all int64)
}

// StateFile is the name of a state in the folder Out.
const StateFile = "training.safetensors"

// stepRows is how many rows a step has, if nobody says.
const stepRows = 8

// leastTokens is how many tokens a batch has at least for its products to keep a GPU busy (argued, not measured):
// checkpoints come before smaller batches.
const leastTokens = 2048

func (o *Finetune) state() string { return filepath.Join(o.Out, StateFile) }

// Validate returns an error that names the first option that breaks a rule, apart from steps and warm-up where
// Steps is 0.
func (o *Finetune) Validate() error {
	s := o.Schedule
	if s.Steps == 0 {
		s.Steps, s.Warmup = 1, 0
	}
	written := []file{{"csv", o.CSV}, {"curve", drawingFile(o.Curve)}, {"the state", o.state()}}
	return cmp.Or(s.validate(), o.LoRA.Check(&o.Checkpoint.Config), distinct(written, o.besides(), func(a, b file) bool { return false }))
}

// options returns the options of the trainer.
func (o *Finetune) options() lm.TrainOptions {
	x := lm.TrainOptions{
		LoRA: o.LoRA, DType: o.DType, Sizes: o.Data.Sizes(o.Rows), Accumulate: o.perStep(), Checkpoint: o.Keep,
		Optim: optim.Default(), Seed: o.Seed, Evaluate: o.Held != nil, Progress: o.Progress,
	}
	x.Optim.WeightDecay, x.Optim.MaxNorm = o.WeightDecay, o.Clip
	if o.Held != nil {
		held := o.Held.Sizes(o.Rows)
		x.Sequences, x.Longest = max(x.Sequences, held.Sequences), max(x.Longest, held.Longest)
	}
	return x
}

// Choose sets what is not given, so that the training takes at most `most` bytes of a device: the rows of a batch,
// a power of two; the batches of a step, so that it has 8 rows; and a checkpoint for Auto. It returns the memory.
func (o *Finetune) Choose(caps *vk.Caps, most int64) (m *train.Memory, err error) {
	rows, accumulate, keep := o.Rows, o.Accumulate, o.Keep
	checkpoints := []train.Checkpoint{train.Off, train.Selective, train.Blocks}
	if keep != train.Auto {
		checkpoints = []train.Checkpoint{keep}
	}
	for i, c := range checkpoints {
		for try := stepRows; try > 0; try /= 2 {
			if o.Rows, o.Keep = try, c; rows > 0 {
				o.Rows = rows
			}
			if o.Accumulate = accumulate; accumulate == 0 {
				o.Accumulate = max(stepRows/o.Rows, 1)
			}
			if m, err = lm.MeasureTraining(caps, &o.Checkpoint.Config, o.options()); err != nil || m.Bytes() <= most {
				return m, err
			}
			if rows > 0 || i < len(checkpoints)-1 && try/2*o.Data.Seqlen < leastTokens {
				break
			}
		}
	}
	return m, fmt.Errorf("train: batch=%d of seqlen=%d with checkpoint %v takes %s, more than the %s there are: lower seqlen, rank or batch",
		o.Rows, o.Data.Seqlen, o.Keep, text.Bytes(m.Bytes()), text.Bytes(most))
}

// Tokens returns the tokens of a batch.
func (o *Finetune) Tokens() int { return o.Rows * o.Data.Seqlen }

// EpochSteps returns the steps of a number of epochs.
func (o *Finetune) EpochSteps(epochs float64) int {
	return int(math.Ceil(epochs * float64(o.Data.Rows()) / float64(o.Rows*o.perStep())))
}

// Run trains, and calls each after each step and its evaluation. If ctx ends, or anything fails, it writes the
// state and the adapter after the last whole step, and returns the error. The state is written first. All weights
// of a model are written at the end of the training alone; until then the state has them.
func (o *Finetune) Run(ctx context.Context, d *vk.Device, each func(Row)) (_ *Result, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	goesOn, err := o.prepare()
	if err != nil {
		return nil, err
	}
	if err := lm.CheckFits(d, &o.Checkpoint.Config, o.options()); err != nil {
		return nil, err
	}
	work := context.WithoutCancel(ctx)
	t := &tuner{o: o, result: &Result{}}
	if t.trainer, err = lm.NewTrainer(ctx, d, &o.Checkpoint.Config, o.Weights, o.options()); err != nil {
		return nil, err
	}
	defer t.trainer.Close()
	c := &course{Schedule: &o.Schedule, stepper: t, state: o.state(), result: t.result}
	if goesOn {
		if err := c.resume(work, o.state()); err != nil {
			return nil, err
		}
	}
	t.done = t.result.First
	end := func(done int) error {
		if o.LoRA != nil || done < o.Steps {
			return nil
		}
		return o.Checkpoint.Copy(o.Out, t.trainer)
	}
	of := fmt.Sprintf("%s; batch %d of %d tokens, %d a step; %v", filepath.Base(o.Checkpoint.Dir), o.Rows, o.Data.Seqlen, o.perStep(), o.DType)
	err = c.run(ctx, work, o.Tokens(), each, end, "Loss of a language model", of)
	return t.result, cmp.Or(err, ctx.Err())
}

// prepare makes the folder, and reports whether a state in it is to be continued.
func (o *Finetune) prepare() (goesOn bool, err error) {
	if err := os.MkdirAll(o.Out, 0o777); err != nil {
		return false, err
	}
	_, missing := os.Stat(o.state())
	for _, name := range []string{StateFile, "config.json", "adapter_config.json"} {
		if _, err := os.Stat(filepath.Join(o.Out, name)); err == nil && (!o.Resume || missing != nil) {
			return false, fmt.Errorf("train: %s has a %s: resume goes on with a training that has a %s, another folder begins one", o.Out, name, StateFile)
		}
	}
	return missing == nil, o.canWrite(o.state())
}

// settings are what the data of a step depend on, and what the state does not say of an adapter.
func (o *Finetune) settings() string {
	s := fmt.Sprintf("%v; batch %d, %d a step; seed %d", o.Data, o.Rows, o.perStep(), o.Seed)
	if o.LoRA != nil {
		s += fmt.Sprintf("; rank %d, alpha %g, dropout %g", o.LoRA.Rank, o.LoRA.Alpha, o.LoRA.Dropout)
	}
	return s
}

// A tuner is the training of a language model on its way.
type tuner struct {
	o       *Finetune
	trainer *lm.Trainer
	result  *Result
	done    int // steps, and those that were skipped
}

// restore is of stepper.
func (t *tuner) restore(ctx context.Context, f *safetensors.File) error {
	if is, want := f.Metadata["settings"], t.o.settings(); is != want {
		return fmt.Errorf("train: the state is of %q, not of %q", is, want)
	}
	return t.trainer.Restore(ctx, f)
}

// step is of stepper.
func (t *tuner) step(_, ctx context.Context, lr float64) (loss float64, err error) {
	if err := t.trainer.SetLR(ctx, lr); err != nil {
		return 0, err
	}
	batches := make([]lm.Batch, t.o.perStep())
	for i := range batches {
		if batches[i], err = t.o.Data.Batch(t.done*len(batches)+i, t.o.Rows); err != nil {
			return 0, err
		}
	}
	r, err := t.trainer.Step(ctx, batches...)
	if err == nil && (math.IsNaN(r.Loss) || math.IsInf(r.Loss, 0)) {
		err = fmt.Errorf("the loss is %g", r.Loss)
	}
	if err != nil {
		return 0, err
	}
	t.done++
	if r.Skipped {
		t.result.Skipped++
	}
	return r.Loss, nil
}

// heldOut is of stepper.
func (t *tuner) heldOut(ctx context.Context, done int) (float64, error) {
	held := t.o.Held
	if held == nil {
		return math.NaN(), nil
	}
	batches := (held.Rows() + t.o.Rows - 1) / t.o.Rows
	if done%t.o.evaluationSteps(batches) != 0 && done < t.o.Steps {
		return math.NaN(), nil
	}
	e := &Evaluation{Own: math.NaN()}
	for i := range batches {
		b, err := held.Evaluation(i, t.o.Rows)
		if err != nil {
			return 0, err
		}
		sum, n, err := t.trainer.Evaluate(ctx, b)
		if err != nil {
			return 0, err
		}
		e.Loss, e.Targets = e.Loss+sum, e.Targets+n
	}
	e.Loss /= float64(e.Targets)
	t.result.Evaluation = e
	return e.Loss, nil
}

// save is of stepper. The adapter comes after the state.
func (t *tuner) save(ctx context.Context, path string, metadata map[string]string) error {
	metadata["settings"] = t.o.settings()
	if err := t.trainer.Save(ctx, path, metadata); err != nil || t.o.LoRA == nil {
		return err
	}
	return t.o.LoRA.WriteAdapter(t.o.Out, t.o.Checkpoint.Dir, &t.o.Checkpoint.Config, t.trainer)
}
