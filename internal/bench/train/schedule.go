package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/safetensors"
)

// A Schedule says how long a training is, and what it writes beside its model.
type Schedule struct {
	Steps       int // with the steps of a loaded file
	Warmup      int // steps until LR is reached
	LR          float64
	Constant    bool    // LR stays; else it falls along a cosine to 0
	Clip        float64 // largest norm of gradients; 0 is any
	WeightDecay float64
	Accumulate  int // batches of a step; 0 is 1
	Seed        uint64

	SaveEvery int      // steps; 0: at the end alone
	CSV       string   // log
	Curve     string   // beginning of the names of a drawing of the losses
	Beside    []Beside // drawn there, too
}

// A Beside is the log of another training, and what it is called.
type Beside struct{ Name, Path string }

// validate returns an error that names the first option that breaks a rule.
func (o *Schedule) validate() error {
	switch {
	case o.Steps < 1 || o.Steps > optim.MaxStep:
		return fmt.Errorf("train: steps=%d is not from 1 to %d", o.Steps, optim.MaxStep)
	case o.Warmup < 0 || o.Warmup > o.Steps:
		return fmt.Errorf("train: warmup=%d is not from 0 to steps=%d", o.Warmup, o.Steps)
	case !(o.LR > 0 && o.LR <= 1):
		return fmt.Errorf("train: lr=%g is not positive and at most 1", o.LR)
	case !(o.Clip >= 0) || math.IsInf(o.Clip, 1):
		return fmt.Errorf("train: clip=%g is negative or not finite", o.Clip)
	case o.SaveEvery < 0:
		return fmt.Errorf("train: save_every=%d is negative", o.SaveEvery)
	case o.Beside != nil && o.Curve == "":
		return errors.New("train: another log is to be drawn beside, but there is no curve")
	}
	return nil
}

// LRAt returns the learning rate of a step, counted from 0: a line to LR in Warmup steps, then
// half a period of a cosine, to 0 after Steps.
func (o *Schedule) LRAt(step int) float64 {
	if step < o.Warmup {
		return o.LR * float64(step+1) / float64(o.Warmup)
	}
	if o.Constant {
		return o.LR
	}
	return o.LR * (1 + math.Cos(math.Pi*float64(step-o.Warmup)/float64(max(o.Steps-o.Warmup, 1)))) / 2
}

// LineSteps returns the steps between two lines of progress, a twentieth of all.
func (o *Schedule) LineSteps() int { return max(o.Steps/20, 1) }

// evaluationSteps returns the steps between two evaluations of so many batches: some lines of progress, and at
// least four steps for each batch of an evaluation, which thereby takes less than a tenth of the time.
func (o *Schedule) evaluationSteps(batches int) int {
	line := o.LineSteps()
	return line * max((4*batches+line-1)/line, 1)
}

// besides returns the files that are drawn beside.
func (o *Schedule) besides() (list []file) {
	for _, b := range o.Beside {
		list = append(list, file{"beside", b.Path})
	}
	return list
}

// perStep returns the batches of a step.
func (o *Schedule) perStep() int { return max(o.Accumulate, 1) }

// canWrite returns the error that writing safetensors, or the curve, would have after the training.
func (o *Schedule) canWrite(paths ...string) error {
	for _, b := range o.Beside {
		_, missing := os.Stat(b.Path)
		_, wrong := readLog(b.Path)
		if err := errors.Join(missing, wrong); err != nil {
			return err
		}
	}
	for _, path := range paths {
		if path != "" {
			if err := safetensors.CanCreate(path); err != nil {
				return err
			}
		}
	}
	return canDraw(o.Curve)
}

// A Row is a step of the log.
type Row struct {
	Step       int // from 1
	Loss, LR   float64
	TokensRate float64 // tokens of a second, since the row before
	Seconds    float64 // since the program began
	HeldOut    float64 // loss of the evaluation after the step; NaN: there is none, nor in a log
}

// A Result is what a training came to.
type Result struct {
	Rows    []Row // also the rows of a log that was continued
	First   int   // the steps that the file had
	Skipped int   // steps whose gradients were not finite

	Evaluation *Evaluation // the last; nil if none is asked for
	Best       float64     // lowest loss of evaluations, of the weights that o.Best has
}

// A stepper makes the steps of a training.
type stepper interface {
	// step makes a step, and returns its loss. Whole is false if the data end before.
	step(ctx context.Context, lr float64) (loss float64, whole bool, err error)
	// heldOut returns the loss of the evaluation after done steps, NaN if none comes there.
	heldOut(ctx context.Context, done int) (float64, error)
	// save writes the state after done steps.
	save(ctx context.Context, done int) error
}

// loop makes steps of batches of so many tokens until all are done, or ctx ends, and returns how many there are
// then. It calls each after each step.
func (o *Schedule) loop(ctx, work context.Context, x stepper, r *Result, l *log, tokens int, each func(Row)) (done int, err error) {
	begin := time.Now()
	last := begin
	done = r.First
	for done < o.Steps && ctx.Err() == nil {
		lr := o.LRAt(done)
		loss, whole, err := x.step(work, lr)
		if err != nil {
			return done, fmt.Errorf("step %d: %w", done+1, err)
		}
		if !whole {
			break
		}
		done++
		now := time.Now()
		row := Row{Step: done, Loss: loss, LR: lr, TokensRate: float64(o.perStep()*tokens) / now.Sub(last).Seconds(), Seconds: now.Sub(begin).Seconds()}
		r.Rows = append(r.Rows, row)
		if err := l.write(row); err != nil {
			return done, err
		}
		if row.HeldOut, err = x.heldOut(work, done); err != nil {
			return done, err
		}
		last = time.Now()
		each(row)
		if o.SaveEvery > 0 && done%o.SaveEvery == 0 {
			if err := x.save(work, done); err != nil {
				return done, err
			}
		}
	}
	return done, nil
}
