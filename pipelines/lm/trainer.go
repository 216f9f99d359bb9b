package lm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/dropout"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/pipelines/record"
	"github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

// TrainOptions say what a Trainer trains, and how.
type TrainOptions struct {
	LoRA       *LoRA       // trains its parameters alone; nil trains all weights of the model
	DType      dtype.DType // of activations, and of the weights that products read
	Sizes                  // of a micro-batch
	Accumulate int         // micro-batches of a step; 0 is 1
	Checkpoint train.Checkpoint
	// Optim has the constants of AdamW. A MaxNorm of 0 is +Inf, which clips nothing.
	Optim optim.Problem
	// LossScale is that of train.Options. With float16 it follows the gradients, and 0 is 2^16; else 0 is 1.
	LossScale float64
	Seed      uint64 // of the adapter's first weights, and of dropout
	// Evaluate says that Trainer.Evaluate is called: its memory is allocated with the rest.
	Evaluate bool
	// Progress is called with the bytes of weights that are loaded; nil is not.
	Progress func(done, all int64)
}

// check returns an error if an option breaks a rule that package train does not know.
func (o *TrainOptions) check(c *Config) error {
	switch {
	case o.Batch < 1:
		return fmt.Errorf("lm: batch=%d is not positive", o.Batch)
	case o.Seq < 1:
		return fmt.Errorf("lm: seq=%d is not positive", o.Seq)
	case o.Batch > math.MaxInt32/o.Seq:
		return fmt.Errorf("lm: batch=%d of seq=%d are more than %d tokens", o.Batch, o.Seq, math.MaxInt32)
	case o.Sequences < 0:
		return fmt.Errorf("lm: sequences=%d is negative", o.Sequences)
	case o.Sequences > 0 && o.Batch != 1:
		return fmt.Errorf("lm: batch=%d, but sequences are packed into one row", o.Batch)
	case o.Sequences > 0 && (o.Longest < 1 || o.Longest > o.Seq):
		return fmt.Errorf("lm: longest=%d is not from 1 to seq=%d", o.Longest, o.Seq)
	}
	return cmp.Or(o.checkPositions(c), o.LoRA.Check(c))
}

func (o *TrainOptions) forward(c *Config) *Forward {
	return &Forward{Config: c, Sizes: o.Sizes, Loss: true, LoRA: o.LoRA}
}

// model returns the options of package train.
func (o *TrainOptions) model(pass train.Pass) train.Options {
	x := train.Options{DType: o.DType, Pass: pass, Optim: o.Optim}
	if o.LoRA != nil {
		x.Trained = func(name string) bool { return strings.HasPrefix(name, adapterPrefix) }
	}
	if pass == train.Train {
		x.Accumulate, x.LossScale = o.Accumulate, o.LossScale
		x.Optim.MaxNorm = cmp.Or(o.Optim.MaxNorm, math.Inf(1))
		if o.DType == dtype.Float16 {
			x.LossScale, x.GoodSteps = cmp.Or(o.LossScale, 1<<16), 2000
		}
	}
	return x
}

// MeasureTraining returns the memory that a Trainer takes, without allocating it; train.Measure says how
// checkpoint Auto is chosen. With Evaluate, the activations of evaluations are a part of the model's.
func MeasureTraining(caps *vk.Caps, c *Config, o TrainOptions) (*train.Memory, error) {
	if err := o.check(c); err != nil {
		return nil, err
	}
	m, err := train.Measure(caps, o.forward(c).Tape, o.model(train.Train), train.PlanOptions{Checkpoint: o.Checkpoint})
	if err != nil || !o.Evaluate {
		return m, err
	}
	eval, err := train.Measure(caps, o.forward(c).Tape, o.model(train.Forward), train.PlanOptions{})
	if err != nil {
		return nil, err
	}
	m.Model += eval.Plan.Bytes
	m.Parts = append(m.Parts, record.Holder{Name: "evaluation", Bytes: eval.Plan.Bytes})
	return m, nil
}

// CheckFits returns an error if a device is known to have too little memory for a Trainer, or kernels that see
// too little of a tensor. The error has the bytes, and says what to lower. CheckFits allocates nothing.
func CheckFits(d *vk.Device, c *Config, o TrainOptions) error {
	if err := o.check(c); err != nil {
		return err
	}
	var smaller []train.Smaller
	for x := o; ; {
		switch {
		case x.Batch > 1:
			x.Batch /= 2
		case x.Seq > 1:
			x.Seq /= 2
			x.Longest = min(x.Longest, x.Seq)
		default:
			_, err := train.CheckFits(d, o.forward(c).Tape, o.model(train.Train), train.PlanOptions{Checkpoint: o.Checkpoint}, smaller)
			return err
		}
		smaller = append(smaller, train.Smaller{Name: fmt.Sprintf("batch=%d of seq=%d", x.Batch, x.Seq), Func: x.forward(c).Tape})
	}
}

// A Trainer trains a language model, or an adapter of one. Micro-batches of one shape are the input:
//
//	o := lm.TrainOptions{LoRA: &lm.LoRA{Rank: 8, Alpha: 16}, DType: dtype.BFloat16, Sizes: lm.Sizes{Batch: 8, Seq: 512}, Optim: optim.Default()}
//	t, err := lm.NewTrainer(ctx, d, config, checkpoint, o)
//	for {
//		r, err := t.Step(ctx, batch)       // forward, backward, AdamW; r.Loss, r.Norm
//	}
//
// The loss is the mean of the cross entropy over the labels of a step that are counted, of all its
// micro-batches. A Trainer is Weights, too: those that it has now. It is for one goroutine at a time.
type Trainer struct {
	Config *Config

	o          TrainOptions
	model      *train.Model
	plan, eval *train.Plan
	drawn      uint32 // micro-batches so far, which dropout tells apart
}

// NewTrainer loads a model, and records a step. W has the weights of the model, in the format of the file or
// another: a number that o.DType cannot hold is an error. An error says before anything is allocated which
// option breaks a rule, and how many bytes are missing; see CheckFits.
func NewTrainer(ctx context.Context, d *vk.Device, c *Config, w Weights, o TrainOptions) (*Trainer, error) {
	return newTrainer(ctx, d, c, w, o, train.Train)
}

func newTrainer(ctx context.Context, d *vk.Device, c *Config, w Weights, o TrainOptions, pass train.Pass) (_ *Trainer, err error) {
	if err := o.check(c); err != nil {
		return nil, err
	}
	if o.LoRA != nil && o.LoRA.Weights == nil {
		begin := *o.LoRA
		begin.Weights, o.LoRA = Random{o.Seed}, &begin
	}
	f, t := o.forward(c), &Trainer{Config: c, o: o}
	defer undo(&err, t.Close)
	if t.model, err = newModel(ctx, d, f, w, o.model(pass), o.Progress); err != nil {
		return nil, err
	}
	if o.Evaluate {
		if t.eval, err = t.model.NewPlan(ctx, f.Tape, train.Forward, train.PlanOptions{}); err != nil {
			return nil, err
		}
	}
	if pass > train.Forward {
		t.plan, err = t.model.NewPlan(ctx, f.Tape, pass, train.PlanOptions{Checkpoint: o.Checkpoint})
	}
	return t, err
}

// Close frees the memory. It may be called on nil.
func (t *Trainer) Close() {
	if t == nil {
		return
	}
	t.eval.Close()
	t.plan.Close()
	t.model.Close()
}

// Memory returns how much memory the training takes.
func (t *Trainer) Memory() *train.Memory { return t.plan.Memory() }

// A StepResult is what a step tells.
type StepResult struct {
	Loss    float64 // the mean over the labels that are counted, before the step
	Norm    float64 // of the gradients, before clipping
	Tokens  int     // labels that are counted
	Skipped bool    // a gradient was not finite: no weight has changed, and with float16 the loss scale halves
}

// Step makes a step of AdamW with the mean of as many micro-batches as TrainOptions.Accumulate says. Their
// shape is that of the options, and each has labels. An error names the number that breaks a rule before
// anything runs.
func (t *Trainer) Step(ctx context.Context, batches ...Batch) (r StepResult, err error) {
	if want := max(t.o.Accumulate, 1); len(batches) != want {
		return r, fmt.Errorf("lm: a step has %d micro-batches, not %d", want, len(batches))
	}
	sum, tokens, err := t.run(ctx, t.plan, 1, batches...)
	if err != nil {
		return r, err
	}
	if r.Norm, err = t.model.Norm(ctx); err != nil {
		return r, err
	}
	t.drawn += uint32(len(batches))
	r.Tokens, r.Loss, r.Skipped = tokens, sum/float64(tokens), math.IsNaN(r.Norm) || math.IsInf(r.Norm, 0)
	return r, nil
}

// TimeSteps makes steps with the same micro-batches until n were timed, from the upload to the loss, and returns how
// long each took. Steps of the first half second are not timed: clocks and caches settle.
func (t *Trainer) TimeSteps(ctx context.Context, n int, batches ...Batch) ([]time.Duration, error) {
	return timed(n, func() error { return nil }, func() error {
		_, err := t.Step(ctx, batches...)
		return err
	})
}

var errNoLoss = errors.New("lm: all labels are -100: there is no loss")

// run runs a plan on micro-batches, and returns the sum of their losses and the number of labels that are counted. Gradients
// are those of the mean, multiplied by scale. The next micro-batch is uploaded while the device works.
func (t *Trainer) run(ctx context.Context, p *train.Plan, scale float64, batches ...Batch) (sum float64, tokens int, err error) {
	for i := range batches {
		if err := t.check(&batches[i]); err != nil {
			return 0, 0, err
		}
		for _, id := range batches[i].Labels {
			if id != Ignored {
				tokens++
			}
		}
	}
	if p == t.plan {
		if tokens == 0 {
			return 0, 0, errNoLoss
		}
		if err := p.Weigh(ctx, scale/float64(tokens)); err != nil {
			return 0, 0, err
		}
	}
	next := func(i int) error {
		if i == len(batches) {
			return nil
		}
		return t.upload(ctx, p, &batches[i], t.drawn+uint32(i))
	}
	if err := next(0); err != nil {
		return 0, 0, err
	}
	for i := range batches {
		if err := p.Start(ctx); err != nil {
			return 0, 0, err
		}
		if err := next(i + 1); err != nil {
			return 0, 0, err
		}
		loss, err := p.Download(ctx, "loss")
		if err != nil {
			return 0, 0, err
		}
		sum += float64(loss[0])
	}
	return sum, tokens, nil
}

// upload uploads a micro-batch and its number. Sequences that a row does not have are empty ones at its end.
func (t *Trainer) upload(ctx context.Context, p *train.Plan, b *Batch, number uint32) error {
	inputs := b.inputs(t.Config)
	inputs["dropout"] = dropout.States(t.o.Seed, number)
	for cu := inputs["cu_seqlens"]; t.o.Sequences > 0 && len(cu) <= t.o.Sequences; {
		cu = append(cu[:len(cu):len(cu)], int32(t.o.Seq))
		inputs["cu_seqlens"] = cu
	}
	return upload(ctx, p, inputs)
}

// check returns an error if a micro-batch does not fit the options.
func (t *Trainer) check(b *Batch) error {
	if err := b.Check(t.Config); err != nil {
		return err
	}
	switch s, o := b.sizes(), &t.o; {
	case s.Batch != o.Batch || s.Seq != o.Seq:
		return fmt.Errorf("lm: ids are %d by %d, the training has batch=%d of seq=%d", s.Batch, s.Seq, o.Batch, o.Seq)
	case b.Labels == nil:
		return errors.New("lm: labels are missing")
	case (b.CuSeqlens != nil) != (o.Sequences > 0):
		return fmt.Errorf("lm: cu_seqlens has %d numbers, the training has sequences=%d", len(b.CuSeqlens), o.Sequences)
	case s.Sequences > o.Sequences:
		return fmt.Errorf("lm: cu_seqlens has %d sequences, more than sequences=%d", s.Sequences, o.Sequences)
	case s.Longest > o.Longest:
		return fmt.Errorf("lm: cu_seqlens has a sequence of %d tokens, more than longest=%d", s.Longest, o.Longest)
	}
	return nil
}

// Evaluate returns the sum of the cross entropy over the labels that are counted, and their number: the mean of
// several batches is the quotient of sums. It needs TrainOptions.Evaluate.
func (t *Trainer) Evaluate(ctx context.Context, b Batch) (sum float64, tokens int, err error) {
	if t.eval == nil {
		return 0, 0, errors.New("lm: the trainer was made without Evaluate")
	}
	return t.run(ctx, t.eval, 0, b)
}

// SetLR sets the learning rate of the steps from now on.
func (t *Trainer) SetLR(ctx context.Context, lr float64) error { return t.model.SetLR(ctx, lr) }

// drawnKey names Trainer.drawn in the metadata of a state.
const drawnKey = "micro_batches"

// Save writes what the training needs to go on into a safetensors file: what is trained, moments, steps and the
// loss scale, how many micro-batches there were, and metadata of the caller. The file appears whole or not at all.
func (t *Trainer) Save(ctx context.Context, path string, metadata map[string]string) error {
	all := map[string]string{drawnKey: strconv.FormatUint(uint64(t.drawn), 10)}
	maps.Copy(all, metadata)
	return t.model.SaveState(ctx, path, all)
}

// Restore reads what Save wrote of a training with the same options: the next steps have the bits that they
// would have had. An error changes nothing.
func (t *Trainer) Restore(ctx context.Context, f *safetensors.File) error {
	drawn, err := strconv.ParseUint(f.Metadata[drawnKey], 10, 32)
	if err != nil {
		return fmt.Errorf("lm: metadata %s=%q is not a number of micro-batches", drawnKey, f.Metadata[drawnKey])
	}
	if err := t.model.LoadState(ctx, f); err != nil {
		return err
	}
	t.drawn = uint32(drawn)
	return nil
}

// Read is of Weights: it downloads elements of a parameter, after the steps so far.
func (t *Trainer) Read(p Param, x []float32, first int) error {
	return t.model.Get(context.Background(), p.Name, first, x)
}

// Gradients returns the mean loss of a batch over the labels that are counted, and with backward the gradients
// by the parameters that o trains, by their names. Of o it takes LoRA, DType, Checkpoint and Progress. Gradients
// of float16 are computed with the largest scale of a few for which they are finite.
func Gradients(ctx context.Context, d *vk.Device, c *Config, w Weights, b Batch, backward bool, o TrainOptions) (loss float64, gradients map[string][]float32, err error) {
	o.Sizes, o.Evaluate = b.sizes(), !backward
	pass := train.Forward
	if backward {
		pass = train.Gradients
	}
	t, err := newTrainer(ctx, d, c, w, o, pass)
	if err != nil {
		return 0, nil, err
	}
	defer t.Close()
	if !backward {
		sum, n, err := t.Evaluate(ctx, b)
		if err == nil && n == 0 {
			err = errNoLoss
		}
		return sum / float64(n), nil, err
	}
	scales := []float64{1 << 16, 1 << 12, 1 << 8, 1 << 4, 1}
	if o.DType != dtype.Float16 {
		scales = scales[4:]
	}
	for _, scale := range scales {
		sum, n, err := t.run(ctx, t.plan, scale, b)
		if err != nil {
			return 0, nil, err
		}
		loss = sum / float64(n)
		if gradients, err = t.model.Gradients(ctx); err != nil {
			return 0, nil, err
		}
		finite := true
		for _, x := range gradients {
			finite = finite && train.NotFinite(x) < 0
			for i := range x {
				x[i] /= float32(scale)
			}
		}
		if finite {
			break
		}
	}
	return loss, gradients, nil
}
