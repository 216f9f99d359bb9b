package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/pipelines/tnp"
)

// trainArgs train the least model for some steps.
func trainArgs(dev string, more ...string) []string {
	return append([]string{"train", dev, "--layers=1", "--d-model=16", "--heads=1", "--headdim=8", "--d-ff=8", "--components=2", "--batch=2", "--context=4", "--targets=3"}, more...)
}

// TestTrain trains, continues, and evaluates: what is printed, and what is written.
func TestTrain(t *testing.T) {
	_, dev := device(t) // package train is concurrent, and has -race itself
	dir := t.TempDir()
	model, log, curve, picture := filepath.Join(dir, "m"), filepath.Join(dir, "log.csv"), filepath.Join(dir, "curve"), filepath.Join(dir, "picture")
	code, stdout, stderr := flashvk(trainArgs(dev, "--steps=4", "--seed=3", "--dtype=float32", "--save", model, "--csv", log, "--curve", curve)...)
	require.Zero(t, code, stderr)
	require.Contains(t, stderr, "flashvk: 1 layers of 16, 1 heads of 8, d_ff 8, 2 components, ")
	require.Contains(t, stderr, "flashvk: memory ")
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	require.Len(t, lines, 1+4+1, stdout)
	require.Equal(t, []string{"step", "loss", "held-out", "lr", "tokens/s", "seconds", "left"}, strings.Fields(lines[0]))
	last := strings.Fields(lines[4])
	require.Equal(t, "4", last[0])
	require.Equal(t, "-", strings.Fields(lines[3])[2])
	require.Equal(t, "0.0", last[6])
	require.NotContains(t, stderr, "the model is not kept")
	evaluation := lines[5]
	require.Contains(t, evaluation, ": loss "+last[2]+", ")
	require.Regexp(t, regexp.MustCompile(`^120 targets that were not trained on: loss \S+, of one who knows the process \S+; within one deviation \S+ %, within two \S+ %$`), evaluation)
	for _, name := range []string{model, log, curve + ".svg"} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.Positive(t, info.Size())
	}

	// The seed is that of the file, so that the data are; the shape of a batch is not in it.
	code, stdout, stderr = flashvk("train", dev, "--load", model, "--steps=6", "--dtype=float32", "--batch=2", "--context=4", "--targets=3", "--csv", log, "--batches=1")
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "\n       5 ")
	require.NotContains(t, stdout, "\n       4 ")
	require.Contains(t, stderr, "flashvk: the model is not kept: with --save FILE it is, and train --evaluate FILE --picture NAME draws ")
	text, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Equal(t, 1+6, strings.Count(string(text), "\n"))

	code, stdout, stderr = flashvk("train", dev, "--evaluate", model, "--dtype=float32", "--batch=2", "--context=4", "--targets=3", "--seed=3", "--picture", picture)
	require.Zero(t, code, stderr)
	require.Equal(t, evaluation+"\n", stdout)
	_, err = os.Stat(picture + ".svg")
	require.NoError(t, err)
}

// TestRunningMean: the mean goes over from the losses of a line to those of the next.
func TestRunningMean(t *testing.T) {
	m := runningMean{every: 2}
	for _, c := range []struct {
		loss, want float64
		line       bool
	}{{1, 1, false}, {3, 2, true}, {5, 3.5, false}, {7, 6, true}, {0, 3, false}} {
		m.add(c.loss)
		require.Equal(t, c.want, m.value)
		if c.line {
			m.line()
		}
	}
}

// TestTrainFiles trains on a file of tasks from a file of weights, as another program writes them.
func TestTrainFiles(t *testing.T) {
	_, dev := concurrent(t)
	dir := t.TempDir()
	in, model := filepath.Join(dir, "in"), filepath.Join(dir, "m")
	c, s := tnp.Config{Layers: 1, Heads: 2, HeadDim: 8, DModel: 16, DFF: 11, Components: 2, InputDim: 4}, tnp.Shape{Batch: 5, Context: 3, Targets: 4}
	writeModel(t, in, c, s) // tokens of 4 elements
	code, stdout, stderr := flashvk("train", dev, "--data", in, "--start", in, "--heads=2", "--batch=2", "--steps=3", "--dtype=float32", "--save", model)
	require.Zero(t, code, stderr)
	require.Contains(t, stderr, "2 components, ")
	require.Contains(t, stderr, "batch 2 of context 3, targets 4")
	require.Equal(t, 1+3, strings.Count(stdout, "\n"), stdout)
	best := filepath.Join(dir, "best")
	code, stdout, stderr = flashvk("train", dev, "--data", in, "--held-out=2", "--load", model, "--batch=2", "--steps=4", "--dtype=float32", "--best", best)
	require.Zero(t, code, stderr)
	require.Regexp(t, `\n8 targets that were not trained on: loss (\S+); `, stdout)
	require.Contains(t, stderr, "flashvk: "+best+" has the weights of the lowest held-out loss, ")
	for _, args := range [][]string{{model}, {in, "--heads=2"}} { // a state, and weights that do not say how many heads there are
		code, stdout, stderr = flashvk(append([]string{"train", dev, "--data", in, "--batch=5", "--batches=1", "--dtype=float32", "--evaluate"}, args...)...)
		require.Zero(t, code, stderr)
		require.Regexp(t, "^20 targets of "+regexp.QuoteMeta(in)+`: loss \S+; within one deviation`, stdout)
	}
}

// TestTrainErrors: mistakes are found before a device is opened.
func TestTrainErrors(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	here, err := os.Getwd()
	require.NoError(t, err)
	for args, want := range map[string]string{
		"train --shape huge":                       "not one of tiny, small, mid, large",
		"train --d-model 20":                       "tnp: d_model=20 is not a multiple of 8",
		"train --batch 0":                          "tnp: batch=0 is not from 1 to 16777216",
		"train --steps 0":                          "train: steps=0 is not from 1 to 16777216",
		"train --lr 2":                             "train: lr=2 is not positive and at most 1",
		"train --checkpoint on":                    "not one of off, selective, blocks, auto",
		"train --schedule linear":                  "not one of cosine, constant",
		"train --save-every 3":                     "train: save_every is given, but no file to save to",
		"train --batches 0":                        "train: --batches 0 is not positive",
		"train --held-out 8":                       "train: --held-out is a number of tasks of --data FILE",
		"train --data x --held-out 0":              "train: --held-out is a number of tasks of --data FILE",
		"train --data x --best y":                  "train: --best is the lowest loss of tasks that are held out: --data needs --held-out",
		"train --data x --held-out 9":              "train: held_out=9 is not a multiple of batch=8",
		"train --data x --held-out 8 --batches 3":  "train: --batches is given, but --held-out says what is evaluated",
		"train --evaluate x --best y":              "train: --best is of a training, and --evaluate trains nothing",
		"train --evaluate x --steps 3":             "train: --steps is of a training, and --evaluate trains nothing",
		"train --load " + none + " --layers 3":     "train: --layers is given, but the sizes of the model are those of the file",
		"train --curve x --beside y":               "not NAME=FILE",
		"train --data x --context 3":               "train: --context is given, but the sizes of a task are those of the file",
		"train --start x --layers 3":               "train: --layers is given, but the sizes of the model are those of the file",
		"train --start x --load x":                 "train: load continues a training, start begins one: there may be one of them",
		"train --save x --weights x":               "train: save and weights are the same file, x",
		"train --save x --weights " + here + "/x":  "train: save and weights are the same file, x",
		"run model --in x --out ./x --context 1":   "--out ./x is the input, whose other tensors would be lost",
		"profile attention --trace x --tuning ./x": "--trace and --tuning are the same file, x",
		"train x": `train: argument "x" is not expected`,
	} {
		code, stdout, stderr := flashvk(strings.Fields(args)...)
		require.Equal(t, 2, code, args)
		require.Empty(t, stdout, args)
		require.Contains(t, stderr, want, args)
	}
	in := filepath.Join(t.TempDir(), "in")
	writeModel(t, in, tnp.Config{Layers: 1, Heads: 2, HeadDim: 8, DModel: 16, DFF: 11, Components: 2, InputDim: 4}, tnp.Shape{Batch: 5, Context: 3, Targets: 4})
	code, _, stderr := flashvk("train", "--data", in, "--picture", none)
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "train: a picture is of tasks of one x, whose tokens have 3 elements, not 4")
	code, _, stderr = flashvk("train", "--load", none)
	require.Equal(t, 1, code)
	require.Contains(t, stderr, none+": no such file or directory")
}

// TestBenchTrain measures a step with each checkpoint.
func TestBenchTrain(t *testing.T) {
	_, dev := device(t) // package train is concurrent, and has -race itself
	out := filepath.Join(t.TempDir(), "out")
	args := append([]string{"bench"}, trainArgs(dev, "--shape=tiny", "--dtype=float32", "--count=2", "--checkpoint=off,blocks", "--recording=once,fresh", "--stages", "--format=csv", "--out", out,
		"--peer=none=cat > "+filepath.Join(filepath.Dir(out), "asked")+"; exit 3")...)
	code, stdout, stderr := flashvk(args...)
	require.Zero(t, code, stderr)
	require.Equal(t, 1+4+1, strings.Count(stdout, "\n"), "a peer is asked once:\n%s", stdout)
	require.Contains(t, stdout, ",tiny,float32,auto,blocks,2,4,3,1,16,8,1,8,2,flashvk,")
	require.Regexp(t, `\nflashvk: tiny, variant auto, checkpoint off: \S+ kB: model .*\nflashvk: tiny, variant auto, checkpoint blocks: `, "\n"+stderr)
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(out, name))
		require.NoError(t, err)
		return string(text)
	}
	require.Equal(t, stdout, read("results.csv"))
	html := read("report.html")
	for _, want := range []string{"<h1>A training step on ", "--recording=once,fresh", "flashvk auto, blocks, fresh", "attention, backward", "none: exit status 3", `href="results.json"`} {
		require.Contains(t, html, want)
	}
	require.Equal(t, 4, strings.Count(html, "<svg "), "time, tokens a second, stages and memory")
	for _, name := range []string{"step.svg", "tokens.svg", "stages.svg", "memory.svg", "report.md", "results.benchfmt"} {
		require.NotEmpty(t, read(name))
	}

	// What no device does in float32 is a row without times.
	code, stdout, stderr = flashvk(append([]string{"bench"}, trainArgs(dev, "--shape=tiny", "--dtype=float32", "--count=2", "--variant=fused,auto")...)...)
	require.Zero(t, code, stderr)
	require.Regexp(t, `\nflashvk fused, auto, once +– .*\nflashvk auto, auto, once +[0-9]`, stdout)
	require.Contains(t, stdout, "\nflashvk fused, auto, once: tnp: blocks.0.perceptron: mlp: fused: ")
	for args, want := range map[string]string{
		"bench train --count 0":                   "--count 0 is not in 1..100000",
		"bench train --shape tiny,tiny":           `"tiny" occurs twice`,
		"bench train --d-model 20":                "tnp: d_model=20 is not a multiple of 8",
		"bench train --variant all":               "not one of auto, unfused, separate, fused",
		"bench train --checkpoint on":             "not one of off, selective, blocks, auto",
		"bench train --recording twice":           "not one of once, fresh",
		"bench train --recording once,fresh,once": `"once" occurs twice`,
		"bench train --format xml":                "not one of table, markdown, benchfmt, csv, json",
		"bench train --dtype int8":                "not one of float16, bfloat16, float32",
		"bench train --batch 0":                   "tnp: batch=0 is not from 1 to 16777216",
		"bench train --context x":                 `invalid argument "x" for "--context" flag: not an integer`,
		"bench train --peer x":                    `"x" is not NAME=COMMAND`,
		"bench train --batches 0":                 "unknown flag: --batches",
		"bench train tiny":                        `argument "tiny" is not expected`,
		"bench train --peer-time 0s":              "--peer-time 0s is not positive",
	} {
		code, stdout, stderr := flashvk(strings.Fields(args)...)
		require.Equal(t, 2, code, args)
		require.Empty(t, stdout, args)
		require.Contains(t, stderr, want, args)
		require.Equal(t, 1, strings.Count(stderr, "\n"), "%s: %s", args, stderr)
	}
}
