package train

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/pipelines/tnp/gp"
	"github.com/flashvk/flashvk/safetensors"
)

// options train tiny for some steps.
func options(t testing.TB, steps int) *Options {
	p, err := tnp.PresetOf("tiny")
	require.NoError(t, err)
	return &Options{Config: p.Config, Shape: p.Shape, Data: gp.Default(), Schedule: Schedule{Steps: steps, Warmup: 2, LR: 1e-3, WeightDecay: 0.01, Seed: 5}}
}

func nothing(Row) {}

// TestSchedule: up along a line, down along a cosine, or level.
func TestSchedule(t *testing.T) {
	o := Schedule{Steps: 12, Warmup: 4, LR: 2}
	for step, want := range map[int]float64{0: 0.5, 1: 1, 3: 2, 4: 2, 6: 1 + math.Sqrt2/2, 8: 1, 12: 0} {
		require.InDelta(t, want, o.LRAt(step), 1e-12, step)
	}
	o.Constant = true
	require.Equal(t, 2.0, o.LRAt(11))
	o.Warmup = 0
	require.Equal(t, 2.0, o.LRAt(0))
}

// inFolder returns names in a folder of the test's.
func inFolder(t testing.TB) func(string) string {
	dir := t.TempDir()
	return func(name string) string { return filepath.Join(dir, name) }
}

func read(t testing.TB, path string) string {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

// columns returns some columns of a log, which do not depend on the machine.
func columns(t testing.TB, path string) (list []string) {
	for line := range strings.Lines(read(t, path)) {
		cells := strings.Split(line, ",")
		list = append(list, strings.Join(cells[:3], ","))
	}
	return list
}

// interrupted runs a training of 8 steps in parts, each of which ends at another moment of a step, until its state says
// that no step is left.
func interrupted(t testing.TB, csv, state string, step time.Duration, run func(ctx context.Context, i int, each func(Row)) error) {
	for i, n := 0, 0; ; i++ {
		ctx, cancel := context.WithCancel(context.Background())
		after := time.Duration(1+i%7) * step / 5 // after the first step of this part
		if i < 2 {                               // whatever the pace
			after = 0
		}
		err := run(ctx, i, func(Row) {
			if time.AfterFunc(after, cancel); after == 0 {
				<-ctx.Done()
			}
		})
		if cancel(); errors.Is(err, context.Canceled) {
			n++
			require.NoError(t, os.WriteFile(csv, []byte(read(t, csv)+"8,1,1,1,1\n9,1,"), 0o600)) // killed
		} else if err != nil {
			require.EqualError(t, err, state+": it has 8 steps, of steps=8 none is left")
			require.Greater(t, n, 1)
			return
		}
	}
}

// TestContinue: a training that is interrupted again and again, at any time of a step and between its
// batches, and continued, comes to the state and the log of an uninterrupted training; rows of the
// log beyond the state are dropped. Steps have more batches than are made ahead.
func TestContinue(t *testing.T) {
	d := vktest.Open(t)
	file := inFolder(t)
	training := func(name string) *Options {
		o := options(t, 8)
		o.Accumulate, o.Batches, o.Save, o.CSV = 6, 2, file(name), file(name+".csv")
		return o
	}
	whole := training("whole")
	whole.Weights, whole.Curve, whole.Picture = file("weights"), file("curve"), file("trained")
	all, err := Run(context.Background(), d, whole, nothing)
	require.NoError(t, err)
	require.Len(t, all.Rows, 8)
	require.Equal(t, 512/2, all.Evaluation.Targets)
	require.Greater(t, all.Evaluation.Loss, all.Evaluation.Own)
	step := time.Duration((all.Rows[7].Seconds - all.Rows[0].Seconds) / 7 * float64(time.Second))
	interrupted(t, file("part.csv"), file("part"), step, func(ctx context.Context, i int, each func(Row)) error {
		o := training("part")
		if i > 0 {
			o.Load, o.Seed, o.Config = o.Save, 0, tnp.Config{}
			require.NoError(t, o.ReadFile(true, 0))
		}
		result, err := Run(ctx, d, o, each)
		if err == nil {
			require.Positive(t, result.First)
			require.Len(t, result.Rows, 8)
		}
		return err
	})
	require.Equal(t, read(t, whole.Save), read(t, file("part")))
	require.Equal(t, columns(t, whole.CSV), columns(t, file("part.csv"))[:9])

	// The drawing is there, and weights and state hold the same weights.
	require.Contains(t, read(t, file("curve.svg")), "Loss of a neural process")
	for _, path := range []string{whole.Weights, whole.Save} {
		o := options(t, 1)
		o.Batches, o.Picture = 2, file("picture")
		e, err := Evaluate(context.Background(), d, path, 0, o)
		require.NoError(t, err)
		require.Equal(t, all.Evaluation.Loss, e.Loss)
	}
	require.Contains(t, read(t, file("picture.svg")), "2 deviations")
	require.Equal(t, read(t, file("picture.svg")), read(t, file("trained.svg")), "the training draws the same")
	require.NoError(t, os.Symlink(whole.Save, file("model.svg")))
	o := options(t, 1)
	o.Picture = file("model")
	_, err = Evaluate(context.Background(), d, whole.Save, 0, o)
	require.EqualError(t, err, "train: picture and evaluate are the same file, "+whole.Save)
}

// TestNotFinite: a loss that is none stops the training, with the step and the tensor.
func TestNotFinite(t *testing.T) {
	d := vktest.Open(t)
	o := options(t, 50)
	o.LR, o.Warmup, o.Constant = 1, 0, true
	o.WeightDecay = 1e30 // the weights grow beyond float32
	_, err := Run(context.Background(), d, o, nothing)
	require.ErrorContains(t, err, "the first tensor that is not finite: the gradient of ")
	require.Regexp(t, `^step [0-9]+: the loss is `, err.Error())

	// A state that nothing goes on from is not written over one of before.
	o.Save, o.SaveEvery = inFolder(t)("state"), 1
	_, err = Run(context.Background(), d, o, nothing)
	require.Regexp(t, `^step [0-9]+ is not saved: train: \S+ is (NaN|[+-]Inf): `, err.Error())
	f, err := safetensors.Open(o.Save)
	require.NoError(t, err)
	defer f.Close()
	_, _, err = tnp.Load(f, 0)
	require.NoError(t, err)
}

// TestBadBatch: the batch that is uploaded beside a step and refused fails its own step. The one
// before is logged and saved.
func TestBadBatch(t *testing.T) {
	d := vktest.Open(t)
	file := inFolder(t)
	o := options(t, 5)
	x, y := gp.Tokens(o.Data.Batch(o.Shape, 1, 0))
	o.tasks = &tasks{n: 3 * o.Batch}
	for range 3 {
		o.tasks.x, o.tasks.y = append(o.tasks.x, x...), append(o.tasks.y, y...)
	}
	o.tasks.y[2*len(y)+4] = float32(math.Inf(1))
	o.Save, o.SaveEvery, o.CSV = file("state"), 1, file("log")
	_, err := Run(context.Background(), d, o, func(r Row) {
		if r.Step == 2 {
			require.FileExists(t, o.Save, "of the step before")
		}
	})
	require.EqualError(t, err, "step 3: tnp: y[4] is +Inf: data must be finite")
	require.Len(t, columns(t, o.CSV), 3)
	f, err := safetensors.Open(o.Save)
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, "2", f.Metadata["batches"])
}

// TestSaved: whatever ends a training, the state of its steps and the weights are written first. A log
// that fails is on a full disk.
func TestSaved(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip(err)
	}
	d := vktest.Open(t)
	file := inFolder(t)
	o := options(t, 5)
	o.Save, o.Weights, o.CSV = file("state"), file("weights"), "/dev/full"
	_, err := Run(context.Background(), d, o, nothing)
	require.EqualError(t, err, "write /dev/full: no space left on device")
	for _, path := range []string{o.Save, o.Weights} {
		f, err := safetensors.Open(path)
		require.NoError(t, err)
		defer f.Close()
		require.Equal(t, map[string]string{o.Save: "1"}[path], f.Metadata["batches"])
	}

	// A state that cannot be written keeps weights from nothing.
	o.Save, o.Weights, o.CSV = file("folder/state"), file("others"), ""
	require.NoError(t, os.Mkdir(file("folder"), 0o700))
	_, err = Run(context.Background(), d, o, func(r Row) {
		if r.Step == 2 {
			require.NoError(t, os.RemoveAll(file("folder")))
		}
	})
	require.ErrorContains(t, err, file("folder/state")+": no such file or directory")
	require.FileExists(t, o.Weights)
}

// TestEachItsBatch: batches uploaded beside the one before have the losses of those that are
// uploaded, run and waited for one after the other.
func TestEachItsBatch(t *testing.T) {
	d, ctx := vktest.Open(t), context.Background()
	o := options(t, 4)
	o.Accumulate = 3
	got, err := Run(ctx, d, o, nothing)
	require.NoError(t, err)
	require.Len(t, got.Rows, o.Steps)

	model, err := tnp.NewModel(ctx, d, o.Config, o.model())
	require.NoError(t, err)
	defer model.Close()
	w, err := o.weights()
	require.NoError(t, err)
	require.NoError(t, model.SetWeights(ctx, w))
	plan, err := model.NewPlan(ctx, o.Shape, tnp.Train, tnp.PlanOptions{})
	require.NoError(t, err)
	defer plan.Close()
	for step := range o.Steps {
		want := 0.0
		require.NoError(t, model.SetLR(ctx, o.LRAt(step)))
		for i := range o.perStep() {
			b := o.data(uint64(step*o.perStep() + i))
			require.NoError(t, plan.SetInputs(ctx, b.x, b.y))
			require.NoError(t, plan.Run(ctx))
			loss, err := plan.Loss(ctx)
			require.NoError(t, err)
			want += loss / float64(o.perStep())
		}
		require.Equal(t, want, got.Rows[step].Loss, "step %d of %d batches", step+1, o.perStep())
	}
}

// TestValidate has what no flag of the program asks for, and files that may be others. The rest is in
// tests/cli/testdata/nodevice.
func TestValidate(t *testing.T) {
	for want, change := range map[string]func(o *Options){
		"train: input_dim=4 is not 3: tasks are of one x":             func(o *Options) { o.InputDim = 4 },
		"train: batches=-1 is negative":                               func(o *Options) { o.Batches = -1 },
		"train: held_out=-8 is not a multiple of batch=8":             func(o *Options) { o.HeldOut = -8 },
		"train: save_every=-1 is negative":                            func(o *Options) { o.SaveEvery = -1 },
		"train: dtype=int32 is not one of float32, float16, bfloat16": func(o *Options) { o.DType = dtype.Int32 },
		"gp: exact=-1 is not from 0 to 8192":                          func(o *Options) { o.Data.Exact = -1 },
		"train: csv and load are the same file, a":                    func(o *Options) { o.CSV, o.Load = "a", "a" },
		"train: csv and start are the same file, a":                   func(o *Options) { o.CSV, o.Start = "a", "a" },
		"":  func(o *Options) { o.Save, o.Load, o.Weights, o.CSV, o.Curve = "a", "a", "b", os.DevNull, "a" },
		" ": func(o *Options) { o.Save, o.Start, o.Weights = "a", "b", "b" },
	} {
		o := options(t, 10)
		change(o)
		if err := o.Validate(); len(want) > 1 {
			require.EqualError(t, err, want)
		} else {
			require.NoError(t, err)
		}
	}
}

// TestLog: what is no log is refused, and left as it is. A training that is continued replaces its
// log whole, so that a kill loses no row.
func TestLog(t *testing.T) {
	file := inFolder(t)
	const head = "step,loss,lr,tokens_per_s,seconds\n"
	for text, want := range map[string]string{
		"a,b\n1,2\n":         "it is no log of a training",
		"\x00\x01":           "it is no log of a training",
		head + "x,1,1,1,1\n": `line 2 is no row of a log: "x,1,1,1,1\n"`,
		head + "1,1,y,1,1\n": `line 2 is no row of a log: "1,1,y,1,1\n"`,
		head + "1,1\n":       `line 2 is no row of a log: "1,1\n"`,
	} {
		require.NoError(t, os.WriteFile(file("log"), []byte(text), 0o600))
		_, err := (&Schedule{CSV: file("log")}).openLog(true, &Result{})
		require.EqualError(t, err, file("log")+": "+want)
		require.Equal(t, text, read(t, file("log")))
	}
	_, err := readLog("/dev/zero")
	require.EqualError(t, err, "/dev/zero: is a device, not a regular file")
	rows, err := readLog(file("none"))
	require.NoError(t, err)
	require.Empty(t, rows)

	require.NoError(t, os.WriteFile(file("log"), []byte(head+"1,1,1,1,1\n2,2,2,2,2\n3,3,3,3,3\n"), 0o600))
	before, err := os.Open(file("log"))
	require.NoError(t, err)
	defer before.Close()
	r := &Result{First: 2}
	l, err := (&Schedule{CSV: file("log")}).openLog(true, r)
	require.NoError(t, err)
	require.NoError(t, l.write(Row{Step: 3, Loss: 4, LR: 4, TokensRate: 4, Seconds: 4}))
	for _, goOn := range []bool{false, true} {
		_, err := (&Schedule{CSV: file("log")}).openLog(goOn, &Result{})
		require.EqualError(t, err, file("log")+": another process is writing it: name another file, or wait")
	}
	require.NoError(t, l.close())
	require.Len(t, r.Rows, 2)
	require.Equal(t, head+"1,1,1,1,1\n2,2,2,2,2\n3,4,4,4,4\n", read(t, file("log")))
	text, err := io.ReadAll(before)
	require.NoError(t, err)
	require.Equal(t, head+"1,1,1,1,1\n2,2,2,2,2\n3,3,3,3,3\n", string(text), "the file of before is not written to")
}
