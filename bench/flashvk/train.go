package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/bench/train"
	"github.com/flashvk/flashvk/pipelines/tnp"
	pipeline "github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/vk"
)

// modelSizes are the flags that override the sizes of a shape: six of the model, three of the batch.
var modelSizes = [][2]string{
	{"layers", "blocks"},
	{"d-model", "elements of the residual stream, a multiple of 8"},
	{"heads", "heads of attention"},
	{"headdim", "elements of a head, a multiple of 8"},
	{"d-ff", "hidden units"},
	{"components", "of the mixture that is predicted"},
	{"batch", "tasks of a step"},
	{"context", "points of a task that are shown"},
	{"targets", "points of a task that are predicted"},
}

// sizesOf returns the sizes of modelSizes.
func sizesOf(p *tnp.Preset) []*int {
	return []*int{&p.Layers, &p.DModel, &p.Heads, &p.HeadDim, &p.DFF, &p.Components, &p.Batch, &p.Context, &p.Targets}
}

// modelFlags are the sizes of a model and a batch, and the format of activations.
type modelFlags struct {
	set   *pflag.FlagSet
	sizes tnp.Preset
	dtype dtype.DType
}

func (m *modelFlags) add(f *pflag.FlagSet) {
	m.set = f
	for i, p := range sizesOf(&m.sizes) {
		kernels.IntVar(f, p, modelSizes[i][0], modelSizes[i][1]+" (default the shape's)")
	}
	kernels.DTypeVar(f, &m.dtype, "dtype", "format of activations (default bfloat16 where the device multiplies matrices of it, else float16 on a GPU that does that, else float32)")
}

// of returns a preset with the sizes of the flags.
func (m *modelFlags) of(name string) (tnp.Preset, error) {
	p, err := tnp.PresetOf(name)
	for i, size := range sizesOf(&p) {
		if m.set.Changed(modelSizes[i][0]) {
			*size = *sizesOf(&m.sizes)[i]
		}
	}
	return p, err
}

// format returns the format of the flag, or else the format for a device.
func (m *modelFlags) format(caps *vk.Caps) dtype.DType {
	switch {
	case m.set.Changed("dtype"):
		return m.dtype
	case caps.Type == vk.CPU || !caps.CoopMat:
		return dtype.Float32
	case caps.BFloat16CoopMat:
		return dtype.BFloat16
	}
	return dtype.Float16
}

// scheduleFlags are what trainings have in common.
type scheduleFlags struct {
	to   *train.Schedule
	name string // of the schedule
}

// flags adds the flags of the optimizer.
func (s *scheduleFlags) flags(f *pflag.FlagSet, lr, accumulate string) {
	s.name = "cosine"
	f.Float64Var(&s.to.LR, "lr", 0, "learning rate (default "+lr+")")
	kernels.IntVar(f, &s.to.Warmup, "warmup", "steps in which the learning rate rises to --lr (default a twentieth of the steps)")
	f.Var(value[string]{Target: &s.name, Parse: kernels.OneOf([]string{"cosine", "constant"}), Kind: "NAME"}, "schedule", "the learning rate after the warm-up: cosine, which falls to 0, or constant (default cosine)")
	kernels.IntVar(f, &s.to.Accumulate, "accumulate", "batches of a step; their gradients are averaged (default "+accumulate+")")
	f.Float64Var(&s.to.Clip, "clip", s.to.Clip, "clip the gradients to this norm; 0 does not")
	f.Float64Var(&s.to.WeightDecay, "weight-decay", s.to.WeightDecay, "weight decay of AdamW; the weights of norms have none")
}

// logFlags adds the flags of what is written beside the model; goOn is the flag that continues a training.
func (s *scheduleFlags) logFlags(f *pflag.FlagSet, goOn string) {
	f.StringVar(&s.to.CSV, "csv", "", "file for a line per step; "+goOn+" continues it")
	f.StringVar(&s.to.Curve, "curve", "", "drawing of the losses, NAME.svg")
	f.Var(value[[]train.Beside]{Target: &s.to.Beside, Parse: kernels.ListOf(parseBeside), Kind: "NAME=FILE"}, "beside", "also draw the losses of another log of --csv, under this name; or of a comma list")
}

// trainCommand holds the flags of train.
type trainCommand struct {
	train.Options
	scheduleFlags
	shape, device  string
	evaluate, data string
	model          modelFlags
}

func newTrain(a *app) *cobra.Command {
	t := &trainCommand{shape: "tiny"}
	t.to = &t.Schedule
	t.Checkpoint = pipeline.Auto
	t.Steps, t.WeightDecay, t.Batches = 1000, 0.01, 20
	return a.command(&cobra.Command{Use: "train"}, t.add, func(ctx context.Context) error { return t.run(ctx, a) })
}

func (t *trainCommand) add(f *pflag.FlagSet) {
	f.Var(value[string]{Target: &t.shape, Parse: kernels.OneOf(presetNames()), Kind: "SHAPE"}, "shape", "model and batch: tiny, small, mid, large (default tiny)")
	t.model.add(f)
	kernels.IntVar(f, &t.Steps, "steps", "steps in all, with the steps of a loaded file (default 1000)")
	t.flags(f, "0.002 for tiny, 0.0001 for the others", "1")
	f.Float64Var(&t.LossScale, "loss-scale", 0, "power of two that scales the gradients while they are computed (default for float16 the targets of a batch, rounded to a power of two, else 1)")
	f.Var(value[pipeline.Checkpoint]{Target: &t.Checkpoint, Parse: parseCheckpoint, Kind: "WHAT"}, "checkpoint", "what is computed again in the backward pass, for less memory: off, selective, blocks, or auto, the first that fits (default auto)")
	f.Var(value[tnp.Variant]{Target: &t.Variant, Parse: parseVariant, Kind: "NAME"}, "variant", "how much is fused, for comparisons: unfused, separate, fused, or auto, the fastest (default auto)")
	f.Var(value[dtype.Quant]{Target: &t.Quant, Parse: train.ParseQuant, Kind: "FORMAT"}, "quant", "multiply Q and K of attention in 8 bits in the forward pass: int8, or e4m3, which no path has on matrices (default none)")
	f.Uint64Var(&t.Seed, "seed", 0, "seed of the first weights and of the data (default 0, or the seed of a loaded file)")
	f.StringVar(&t.data, "data", "", "file of tasks; it determines the sizes of a task")
	kernels.IntVar(f, &t.HeldOut, "held-out", "tasks at the end of --data that are evaluated, and not trained on; a multiple of --batch")
	f.StringVar(&t.Start, "start", "", "file of weights to start from; it determines the sizes of the model")
	f.StringVar(&t.Load, "load", "", "file of --save to continue; it determines the sizes of the model")
	f.StringVar(&t.Save, "save", "", "file to write at the end and at an interrupt, for --load and --evaluate")
	kernels.IntVar(f, &t.SaveEvery, "save-every", "also write the file of --save every N steps")
	f.StringVar(&t.Weights, "weights", "", "file for the weights alone; PyTorch loads it as a state dict")
	f.StringVar(&t.Best, "best", "", "file for the weights with the lowest held-out loss, written while training")
	t.logFlags(f, "--load")
	f.StringVar(&t.evaluate, "evaluate", "", "evaluate the model in this file; train nothing")
	kernels.IntVar(f, &t.Batches, "batches", "batches of an evaluation (default 20; with --held-out its tasks)")
	f.StringVar(&t.Picture, "picture", "", "drawing of a task and its prediction, NAME.svg")
	deviceVar(f, &t.device)
}

var (
	parseCheckpoint = oneOf(pipeline.ParseCheckpoint, "off", "selective", "blocks", "auto")
	parseVariant    = oneOf(tnp.ParseVariant, "auto", "unfused", "separate", "fused")
)

// oneOf returns a parser of names.
func oneOf[T any](parse func(string) (T, error), names ...string) func(string) (T, error) {
	return func(text string) (x T, err error) {
		if _, err = kernels.OneOf(names)(text); err == nil {
			x, err = parse(text)
		}
		return x, err
	}
}

func parseBeside(text string) (train.Beside, error) {
	name, path, ok := strings.Cut(text, "=")
	if !ok || name == "" || path == "" {
		return train.Beside{}, errors.New("not NAME=FILE")
	}
	return train.Beside{Name: name, Path: path}, nil
}

func presetNames() (names []string) {
	for _, p := range tnp.Presets() {
		names = append(names, p.Name)
	}
	return names
}

// resolve fills in the values of flags that the command line does not have, except for the
// format, and takes sizes without a flag from the files that have them.
func (t *trainCommand) resolve() error {
	f := t.model.set
	given := f.Changed
	p, err := t.model.of(t.shape)
	if err != nil {
		return usageError{err}
	}
	t.Config, t.Shape = p.Config, p.Shape
	weights := t.Load != "" || t.Start != "" || t.evaluate != ""
	for i, size := range modelSizes {
		switch name := size[0]; {
		case !given(name):
		case i < 6 && weights && (t.Load != "" || name != "heads"):
			return usagef("train: --%s is given, but the sizes of the model come from the file", name)
		case t.data != "" && (name == "context" || name == "targets"):
			return usagef("train: --%s is given, but the sizes of a task come from the file", name)
		}
	}
	if !given("lr") {
		t.LR = 1e-4
		if t.shape == "tiny" {
			t.LR = 2e-3
		}
	}
	if !given("warmup") {
		t.Warmup = t.Steps / 20
	}
	t.Constant = t.name == "constant"
	switch {
	case given("loss-scale") && t.LossScale == 0:
		return usagef("train: --loss-scale 0 is not a power of two")
	case given("held-out") && t.data == "":
		return usagef("train: --held-out needs --data")
	case t.Best != "" && t.data != "" && t.HeldOut == 0:
		return usagef("train: --best is the lowest loss of tasks that are held out: --data needs --held-out")
	}
	// Of numbers, 0 is the default where a flag is not given.
	err = cmp.Or(
		checkRange(f, "batches", t.Batches, 1, math.MaxInt32), checkRange(f, "accumulate", t.Accumulate, 1, 65536),
		checkRange(f, "save-every", t.SaveEvery, 1, math.MaxInt32), checkRange(f, "held-out", t.HeldOut, 1, math.MaxInt32),
		exclusive(f, "held-out", "batches"),
	)
	for _, name := range strings.Fields("load start save save-every weights best csv curve beside steps lr warmup schedule clip weight-decay loss-scale checkpoint accumulate variant quant") {
		err = cmp.Or(err, exclusive(f, "evaluate", name))
	}
	if err != nil {
		return err
	}
	if err := t.Validate(); err != nil { // finds what is wrong with any file and any device
		return usageError{err}
	}
	if t.data != "" {
		if err := t.ReadTasks(t.data); err != nil {
			return err
		}
		if t.evaluate == "" || t.HeldOut > 0 {
			t.Batches = t.HeldOut / t.Batch // there are no new tasks to evaluate on
		}
	}
	if t.Load != "" || t.Start != "" {
		if err := t.ReadFile(t.Load != "" && !given("seed"), t.givenHeads()); err != nil {
			return err
		}
	}
	return t.Validate()
}

// givenHeads returns the heads of the flag, 0 without it: those that a file has.
func (t *trainCommand) givenHeads() int {
	if t.model.set.Changed("heads") {
		return t.Heads
	}
	return 0
}

func (t *trainCommand) run(ctx context.Context, a *app) error {
	if err := t.resolve(); err != nil {
		return err
	}
	return a.onDevice(t.device, func(d *vk.Device, env bench.Environment) error {
		announce(a.stderr, env)
		t.DType = t.model.format(d.Caps())
		if t.evaluate != "" {
			e, err := train.Evaluate(ctx, d, t.evaluate, t.givenHeads(), &t.Options)
			if err == nil {
				of := "that were not trained on"
				if t.data != "" {
					of = "of " + t.data // which may have been trained on
				}
				report(a.stdout, e, of)
			}
			return err
		}
		memory, err := t.CheckFits(d)
		if memory == nil || errors.Is(err, vk.ErrUnsupported) {
			return err // a plan that no kernel runs is none
		}
		t.Checkpoint = memory.Checkpoint
		announceModel(a.stderr, t.Config, t.Shape, t.DType, memory)
		each, finish := a.trainProgress(&t.Schedule, t.Tokens(), d)
		result, err := train.Run(ctx, d, &t.Options, each)
		finish()
		if err != nil {
			return err
		}
		if result.Skipped > 0 {
			fmt.Fprintf(a.stderr, "flashvk: %d steps were skipped, whose gradients were beyond %v: a smaller --loss-scale may help\n", result.Skipped, t.DType)
		}
		if result.Evaluation != nil {
			report(a.stdout, result.Evaluation, "that were not trained on")
		}
		switch {
		case t.Best != "":
			fmt.Fprintf(a.stderr, "flashvk: %s has the weights of the lowest held-out loss, %.4f\n", t.Best, result.Best)
		case t.Save == "" && t.Weights == "":
			fmt.Fprintln(a.stderr, "flashvk: the model is not kept: with --save FILE it is, and train --evaluate FILE --picture NAME draws what it predicts")
		}
		return nil
	})
}

// announceModel tells what is computed, and in what memory.
func announceModel(w io.Writer, c tnp.Config, s tnp.Shape, format dtype.DType, m *pipeline.Memory) {
	fmt.Fprintf(w, "flashvk: %v, %d parameters; %v; %v; checkpoint %v\nflashvk: memory %v\n", c, c.NumParams(), s, format, m.Checkpoint, m)
}

// trainProgress shows the progress of a training whose batches have `tokens` tokens: a line on standard output for
// each twentieth of the steps, and on a terminal a bar. Both have the mean of the losses since the last line. Finish
// ends it.
func (a *app) trainProgress(s *train.Schedule, tokens int, d *vk.Device) (each func(train.Row), finish func()) {
	bar := newProgress(a.stderr)
	var row, last train.Row // of now, and of the last line
	var done int            // steps since the program began
	sum := 0.0
	line := func() {
		bar.finish()
		trainLine(a.stdout, s, tokens, row, last, sum/float64(row.Step-max(last.Step, row.Step-done)), done)
		last, sum = row, 0
	}
	each = func(r train.Row) {
		row, done, sum = r, done+1, sum+r.Loss
		mean := sum / float64(r.Step-max(last.Step, r.Step-done))
		bar.step(done, done+s.Steps-r.Step, trainLabel(mean, r.TokensRate, d.Memory().Bytes))
		if r.Step%s.LineSteps() == 0 || r.Step == s.Steps {
			line()
		}
	}
	return each, func() {
		bar.finish()
		if row.Step > last.Step {
			line()
		}
	}
}

// trainLabel describes a training in progress, for the label of a bar.
func trainLabel(loss, rate float64, bytes int64) string {
	return fmt.Sprintf("loss %.4f, %s tokens/s, %s", loss, bench.FormatSI(rate, ""), bench.FormatSI(float64(bytes), "B"))
}

// trainLine prints a line of the progress after done steps of this program. The first line has a head.
func trainLine(w io.Writer, s *train.Schedule, tokens int, r, last train.Row, loss float64, done int) {
	first, heldOut := r.Step-done, "-"
	if last.Step == 0 {
		last.Step = first
		fmt.Fprintf(w, "%8s %10s %10s %10s %12s %9s %9s\n", "step", "loss", "held-out", "lr", "tokens/s", "seconds", "left")
	}
	if !math.IsNaN(r.HeldOut) {
		heldOut = fmt.Sprintf("%.4f", r.HeldOut)
	}
	rate := float64((r.Step-last.Step)*max(s.Accumulate, 1)*tokens) / (r.Seconds - last.Seconds)
	left := r.Seconds / float64(done) * float64(s.Steps-r.Step)
	fmt.Fprintf(w, "%8d %10.4f %10s %10.3g %12.0f %9.1f %9.1f\n", r.Step, loss, heldOut, r.LR, rate, r.Seconds, left)
}

// report prints the result of an evaluation, and what its targets are.
func report(w io.Writer, e *train.Evaluation, of string) {
	fmt.Fprintf(w, "%d targets %s: loss %.4f", e.Targets, of, e.Loss)
	if !math.IsNaN(e.Own) {
		fmt.Fprintf(w, ", of one who knows the process %.4f", e.Own)
	}
	fmt.Fprintf(w, "; within one deviation %.1f %%, within two %.1f %%\n", 100*e.Within1, 100*e.Within2)
}
