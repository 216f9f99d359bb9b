package train

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flashvk/flashvk/internal/bench/chart"
	"github.com/flashvk/flashvk/internal/files"
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

// evaluationSteps returns the steps between two evaluations, each of a number of batches: some lines of progress, and at
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

	end int64 // of the row in a log that was read
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
	// step makes a step with the context work, and returns its loss. If ctx ends before, it may return the error of ctx
	// instead: no step is made then.
	step(ctx, work context.Context, lr float64) (loss float64, err error)
	// heldOut returns the loss of the evaluation after done steps, NaN if none comes there.
	heldOut(ctx context.Context, done int) (float64, error)
	// save writes the state with metadata, and what belongs to it.
	save(ctx context.Context, path string, metadata map[string]string) error
	// restore reads a state.
	restore(ctx context.Context, f *safetensors.File) error
}

// A course is a training on its way.
type course struct {
	*Schedule
	stepper
	state  string // file to write; "": none
	result *Result
	log    *log
	saved  int // steps that the file has
	goesOn bool
}

// resume goes on with a state.
func (c *course) resume(ctx context.Context, path string) error {
	f, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := c.restore(ctx, f); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	n, err := strconv.Atoi(f.Metadata["batches"])
	switch {
	case err != nil || n < 0:
		return fmt.Errorf("%s: metadata batches=%q is not a number of batches", path, f.Metadata["batches"])
	case n > c.Steps: // with as many, what a killed program has not written after the state is written
		return fmt.Errorf("%s: it has %d steps, more than steps=%d", path, n, c.Steps)
	}
	c.result.First, c.goesOn = n, true
	return nil
}

// save writes the state, unless the file has it.
func (c *course) save(ctx context.Context, done int) error {
	if c.state == "" || c.saved == done {
		return nil
	}
	c.saved = done // also where that fails: a second try would fail, too
	if err := c.stepper.save(ctx, c.state, map[string]string{"batches": strconv.Itoa(done)}); err != nil {
		return fmt.Errorf("step %d is not saved: %w", done, err)
	}
	return nil
}

// run makes the steps, whose batches have `tokens` tokens, until all are done, or ctx ends, and calls each after each step. Then
// run writes what there is: the state, what end writes after done steps, and the curve. What cannot be written keeps
// nothing else from being written.
func (c *course) run(ctx, work context.Context, tokens int, each func(Row), end func(done int) error, title, of string) (err error) {
	c.saved = -1
	if c.log, err = c.openLog(c.goesOn, c.result); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.log.Close()) }()
	done, err := c.steps(ctx, work, tokens, each)
	err = errors.Join(err, c.save(work, done), end(done))
	if c.Curve != "" && len(c.result.Rows) > 0 {
		err = errors.Join(err, c.drawLosses(title, of, c.result.Rows))
	}
	return err
}

// steps makes the steps, and returns how many there are then.
func (c *course) steps(ctx, work context.Context, tokens int, each func(Row)) (done int, err error) {
	begin, r := time.Now(), c.result
	last := begin
	done = r.First
	for done < c.Steps && ctx.Err() == nil {
		lr := c.LRAt(done)
		loss, err := c.step(ctx, work, lr)
		switch {
		case ctx.Err() != nil && errors.Is(err, ctx.Err()):
			return done, nil
		case err != nil:
			return done, fmt.Errorf("step %d: %w", done+1, err)
		}
		done++
		now := time.Now()
		row := Row{Step: done, Loss: loss, LR: lr, TokensRate: float64(c.perStep()*tokens) / now.Sub(last).Seconds(), Seconds: now.Sub(begin).Seconds()}
		r.Rows = append(r.Rows, row)
		if err := c.log.write(row); err != nil {
			return done, err
		}
		if row.HeldOut, err = c.heldOut(work, done); err != nil {
			return done, err
		}
		last = time.Now()
		each(row)
		if c.SaveEvery > 0 && done%c.SaveEvery == 0 {
			if err := c.save(work, done); err != nil {
				return done, err
			}
		}
	}
	return done, nil
}

// logHead is the first line of a log.
const logHead = "step,loss,lr,tokens_per_s,seconds\n"

// A log is the CSV file of a training.
type log struct {
	io.WriteCloser
	head string // that is not written yet
}

// openLog begins the file anew, or, for a training that is continued, cuts off its rows behind where that begins, and
// adds the others to the result. No other training writes the file until the log is closed.
func (o *Schedule) openLog(goOn bool, r *Result) (_ *log, err error) {
	if info, err := os.Stat(o.CSV); o.CSV == "" || !goOn && err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(cmp.Or(o.CSV, os.DevNull), os.O_WRONLY, 0)
		return &log{f, logHead}, err
	}
	f, err := files.OpenLocked(o.CSV)
	if err != nil {
		return nil, err
	}
	l, end := &log{f, logHead}, int64(0)
	if goOn {
		r.Rows, err = readLog(o.CSV)
		r.Rows = slices.DeleteFunc(r.Rows, func(row Row) bool { return row.Step > r.First })
	}
	if n := len(r.Rows); n > 0 {
		l.head, end = "", r.Rows[n-1].end
	}
	if err == nil {
		err = f.Truncate(end)
	}
	if err == nil {
		_, err = f.Seek(end, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return l, nil
}

// readLog reads the rows of a file, none if there is no file. A line that was not finished when
// the program was killed ends it.
func readLog(path string) (rows []Row, err error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular(): // it may have no end
		return nil, fmt.Errorf("%s: is %s, not a regular file", path, files.Kind(info.Mode()))
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	lines := strings.SplitAfter(string(text), "\n")
	if !strings.HasPrefix(logHead, lines[0]) {
		return nil, fmt.Errorf("%s: it is no log of a training", path)
	}
	end := len(lines[0])
	for i, line := range lines[1:max(len(lines)-1, 1)] {
		end += len(line)
		row := Row{end: int64(end)}
		if _, err := fmt.Sscanf(line, "%d,%g,%g,%g,%g\n", &row.Step, &row.Loss, &row.LR, &row.TokensRate, &row.Seconds); err != nil {
			return nil, fmt.Errorf("%s: line %d is no row of a log: %q", path, i+2, line)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// write appends a row, which is in the file when it returns.
func (l *log) write(row Row) error {
	if l == nil {
		return nil
	}
	_, err := fmt.Fprintf(l, "%s%d,%g,%g,%.6g,%.6g\n", l.head, row.Step, row.Loss, row.LR, row.TokensRate, row.Seconds)
	l.head = ""
	return err
}

// means returns the means of the losses over n steps each, with the least and the largest of them.
func means(rows []Row, n int) chart.Series {
	s := chart.Series{Name: "loss"}
	if n > 1 {
		s.Name = fmt.Sprintf("mean of %d, least to most", n)
	}
	for part := range slices.Chunk(rows[:len(rows)/n*n], n) {
		mean, low, high := 0.0, part[0].Loss, part[0].Loss
		for _, row := range part {
			mean += row.Loss / float64(n)
			low, high = min(low, row.Loss), max(high, row.Loss)
		}
		s.X, s.Y = append(s.X, float64(part[n-1].Step)), append(s.Y, mean)
		s.Low, s.High = append(s.Low, low), append(s.High, high)
	}
	return s
}

// drawLosses draws means of the losses, each over a hundredth of the steps, and the means of the
// logs beside.
func (o *Schedule) drawLosses(title, of string, rows []Row) error {
	n := max(len(rows)/100, 1)
	c := chart.Chart{
		Title: title, Subtitle: fmt.Sprintf("%s, lr %g, seed %d", of, o.LR, o.Seed),
		X: "step", Y: "loss", Plain: true, Series: []chart.Series{means(rows, n)},
	}
	for _, b := range o.Beside {
		beside, err := readLog(b.Path)
		if err != nil {
			return err
		}
		other := means(beside, n)
		other.Name, other.Peer, other.Low, other.High = b.Name, true, nil, nil
		c.Series = append(c.Series, other)
	}
	return write(&c, o.Curve)
}

// canDraw returns the error that write would have, before work that would be lost. "" is no
// drawing.
func canDraw(name string) error {
	if name == "" {
		return nil
	}
	probe, err := files.Create(drawingFile(name))
	if err != nil {
		return err
	}
	return probe.Close()
}

// drawingFile returns the file of a drawing, which may be named without its ending; "" of none.
func drawingFile(name string) string {
	if name == "" {
		return ""
	}
	return strings.TrimSuffix(name, ".svg") + ".svg"
}

// write writes a drawing.
func write(c *chart.Chart, name string) error {
	var b bytes.Buffer
	if err := c.SVG(&b); err != nil {
		return err
	}
	return files.Write(drawingFile(name), b.Bytes())
}
