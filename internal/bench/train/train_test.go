package train

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/peer"
	"github.com/flashvk/flashvk/internal/safetensors/filetest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/lm"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/pipelines/tnp/gp"
	"github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

// options train tiny for some steps.
func options(t testing.TB, steps int) *Options {
	p := must(tnp.PresetOf("tiny"))
	return &Options{Config: p.Config, Shape: p.Shape, Schedule: Schedule{Steps: steps, Warmup: 2, LR: 1e-3, WeightDecay: 0.01, Seed: 5}}
}

func nothing(Row) {}

// must returns x, or panics with the error.
func must[T any](x T, err error) T {
	vktest.Must(err)
	return x
}

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

// TestEachItsBatch: batches uploaded beside the one before have the losses of those that are
// uploaded, run and waited for one after the other.
func TestEachItsBatch(t *testing.T) {
	d, ctx := vktest.Open(t), context.Background()
	o := options(t, 4)
	o.Accumulate = 3
	got := must(Run(ctx, d, o, nothing))
	require.Len(t, got.Rows, o.Steps)

	model := must(tnp.NewModel(ctx, d, o.Config, o.model()))
	defer model.Close()
	require.NoError(t, model.SetWeights(ctx, must(o.weights())))
	plan := must(tnp.NewPlan(ctx, model, o.Config, o.Shape, train.Train, tnp.PlanOptions{}))
	defer plan.Close()
	for step := range o.Steps {
		want := 0.0
		require.NoError(t, model.SetLR(ctx, o.LRAt(step)))
		for i := range o.perStep() {
			b := o.data(uint64(step*o.perStep() + i))
			require.NoError(t, plan.SetInputs(ctx, b.x, b.y))
			require.NoError(t, plan.Run(ctx))
			want += must(plan.Loss(ctx)) / float64(o.perStep())
		}
		require.Equal(t, want, got.Rows[step].Loss, "step %d of %d batches", step+1, o.perStep())
	}
}

// TestTasks wants a training from a file of tasks and a file of start weights to have the batches, the sizes and the weights of
// the training that draws the same tasks and weights itself.
func TestTasks(t *testing.T) {
	file, drawn := inFolder(t), options(t, 3)
	x, y := []float32{}, []float32{}
	for i := range 3 {
		b := drawn.data(uint64(i))
		x, y = append(x, b.x...), append(y, b.y...)
	}
	n, s := 3*drawn.Batch, drawn.Shape
	list := []safetensors.Tensor{filetest.F32("x", n, s.Context+s.Targets, 3), filetest.F32("y", n, s.Targets)}
	filetest.Write(t, file("tasks"), list, map[string][]float32{"x": x, "y": y})
	w := must(drawn.weights())
	require.NoError(t, tnp.Save(file("start"), w, drawn.Config))

	o := options(t, 3)
	o.Seed, o.Context, o.Targets, o.Config, o.Start = 77, 1, 1, tnp.Config{}, file("start")
	require.NoError(t, o.ReadTasks(file("tasks")))
	require.NoError(t, o.ReadFile(false, 0))
	require.Equal(t, [2]any{drawn.Shape, drawn.Config}, [2]any{o.Shape, o.Config})
	require.Equal(t, w, must(o.weights()))
	for i := range uint64(4) { // after the last task comes the first
		require.Equal(t, drawn.data(i%3), o.data(i))
	}
	o.Batch = 2 * o.Batch
	require.Equal(t, append(append([]float32{}, drawn.data(2).y...), drawn.data(0).y...), o.data(1).y)
}

// smallModel is small enough for a software driver.
const smallModel = `{"architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
	"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "eos_token_id": 0}`

// finetune trains an adapter on some lines, and evaluates others.
func finetune(t testing.TB, steps int) *Finetune {
	vktest.Sequential(t) // but for contexts
	file := inFolder(t)
	require.NoError(t, os.WriteFile(file("config.json"), []byte(smallModel), 0o600))
	require.NoError(t, must(lm.NewCheckpoint(file(""))).Copy(file("m"), lm.Random{Seed: 1}))
	var lines strings.Builder
	for i := range 30 {
		fmt.Fprintf(&lines, "{\"prompt\": %q, \"completion\": %q}\n", strings.Repeat("a", i%9), strings.Repeat("b", 1+i%7))
	}
	require.NoError(t, os.WriteFile(file("data.jsonl"), []byte(lines.String()), 0o600))
	o := &Finetune{LoRA: &lm.LoRA{Rank: 2, Alpha: 4, Dropout: 0.1}, Rows: 2, Out: file("out"), Schedule: Schedule{Steps: steps, Warmup: 2, LR: 0.01, Accumulate: 2, Clip: 1}}
	o.Checkpoint = must(lm.Open(file("m")))
	t.Cleanup(o.Checkpoint.Close)
	o.Weights = o.Checkpoint
	var err error
	o.Data, o.Held, err = lm.ReadData(file("m"), &o.Checkpoint.Config, file("data.jsonl"), lm.DataOptions{Seqlen: 32, HeldOut: 0.25})
	require.NoError(t, err)
	return o
}

// TestOrder: each step has the batches that come next, the learning rate of the schedule, and the mean of both losses.
func TestOrder(t *testing.T) {
	d, ctx := vktest.Open(t), context.Background()
	o := finetune(t, 5)
	got := must(o.Run(ctx, d, nothing))
	trainer := must(lm.NewTrainer(ctx, d, &o.Checkpoint.Config, o.Weights, o.options()))
	defer trainer.Close()
	for step := range 5 {
		require.NoError(t, trainer.SetLR(ctx, o.LRAt(step)))
		r := must(trainer.Step(ctx, must(o.Data.Batch(2*step, 2)), must(o.Data.Batch(2*step+1, 2))))
		require.Equal(t, r.Loss, got.Rows[step].Loss, step)
	}
	sum, n, err := trainer.Evaluate(ctx, must(o.Held.Evaluation(0, 2)))
	require.NoError(t, err)
	require.Equal(t, 1, (o.Held.Rows()+1)/2)
	require.Equal(t, [2]float64{sum / float64(n), float64(n)}, [2]float64{got.Evaluation.Loss, float64(got.Evaluation.Targets)})
}

// TestChoose: with less memory come checkpoints, then smaller batches, then an error.
func TestChoose(t *testing.T) {
	d := vktest.Open(t)
	o := finetune(t, 1)
	choose := func(most int64, rows int, keep train.Checkpoint) (*train.Memory, error) {
		o.Rows, o.Accumulate, o.Keep = rows, 0, keep
		return o.Choose(d.Caps(), most)
	}
	m, err := choose(math.MaxInt64, 0, train.Auto)
	require.NoError(t, err)
	require.Equal(t, [3]any{8, 1, train.Off}, [3]any{o.Rows, o.Accumulate, m.Checkpoint})
	var seen [][2]any
	for most := m.Bytes() - 1; ; most = m.Bytes() - 1 {
		if m, err = choose(most, 0, train.Auto); err != nil {
			break
		}
		require.LessOrEqual(t, m.Bytes(), most)
		require.Equal(t, 8, o.Rows*o.Accumulate)
		seen = append(seen, [2]any{o.Rows, m.Checkpoint})
	}
	require.Equal(t, [][2]any{{8, train.Selective}, {8, train.Blocks}, {4, train.Blocks}, {2, train.Blocks}, {1, train.Blocks}}, seen)
	require.ErrorContains(t, err, "train: batch=1 of seqlen=32 with checkpoint blocks takes ")
	_, err = choose(1, 3, train.Off)
	require.ErrorContains(t, err, "train: batch=3 of seqlen=32 with checkpoint off takes ")
	require.Equal(t, 2, o.Accumulate)
}

// benchCase is a case that takes little time.
func benchCase(t testing.TB) Case {
	return Case{Preset: must(tnp.PresetOf("tiny")), PlanOptions: tnp.PlanOptions{Checkpoint: train.Auto}, Samples: 3, Stages: true, PeerLimit: time.Hour}
}

// answerFile writes what a peer would that computes what we do, and leaves out a tensor.
func answerFile(t testing.TB, d *vk.Device, c Case, path, without string, factor float32) {
	b := &benchmark{d: d, c: &c, w: must(tnp.Init(c.Config, 1))}
	b.x, b.y = gp.Tokens(gp.Batch(c.Shape, 1, 0))
	_, err := b.check(t.Context())
	require.NoError(t, err)
	values := map[string][]float32{"loss": {float32(b.loss)}, "last": {1.25}, "memory": {17}}
	var tensors []safetensors.Tensor
	for _, p := range c.Params(dtype.Float32) {
		g := b.grads[p.Name]
		for i := range g {
			g[i] *= factor
		}
		values["grad."+p.Name] = g
		tensors = append(tensors, safetensors.Tensor{Name: "grad." + p.Name, DType: safetensors.F32, Shape: p.Shape})
	}
	for _, name := range []string{"loss", "last", "memory"} {
		if name != without {
			tensors = append(tensors, safetensors.Tensor{Name: name, DType: safetensors.F32, Shape: []int{1}})
		}
	}
	filetest.Write(t, path, tensors, values)
}

// TestBench measures a step beside peers: one that is as we are, one whose gradients are off by a
// quarter, one that says too little, and one that fails.
func TestBench(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	file := inFolder(t)
	c := benchCase(t)
	answerFile(t, d, c, file("same"), "", 1)
	answerFile(t, d, c, file("off"), "", 1.25)
	answerFile(t, d, c, file("less"), "memory", 1)
	for _, name := range []string{"same", "off", "less"} {
		c.Peers = append(c.Peers, peer.Peer{Name: name, Command: fmt.Sprintf(`cat > %s.request; echo '{"about": "a peer"}'; echo '{"name": "x", "samples_ns": [1e9], "output": "%s"}'`, file(name), file(name))})
	}
	c.Peers = append(c.Peers, peer.Peer{Name: "broken", Command: "exit 3"})
	var planned *train.Memory
	list, stages, err := Bench(context.Background(), d, c, func(m *train.Memory) { planned = m }, func(string) { require.NotNil(t, planned) })
	require.NoError(t, err)
	require.Len(t, list, 5)
	ours, same, off := list[0], list[1], list[2]
	require.Equal(t, bench.StatusOK, ours.Status, ours.Reason)
	require.Len(t, ours.Timing.DeviceNS, 3)
	require.Less(t, ours.Check.MaxAbs, slopeBound(c.DType))
	memory, first, last, host := ours.Facts[0].N, ours.Facts[1].N, ours.Facts[2].N, ours.Facts[3].N
	require.GreaterOrEqual(t, memory, float64(planned.Bytes()))
	require.Less(t, last, first, "steps on one batch")
	require.Positive(t, host)
	require.Less(t, host, ours.NS())
	require.Equal(t, "same:x", same.Impl)
	require.Equal(t, "a peer", same.Choice)
	require.Zero(t, same.Check.MaxAbs)
	require.Equal(t, facts(17e6, first, 1.25), same.Facts)
	require.Empty(t, same.Reason)
	require.InDelta(t, 0.25, off.Check.MaxAbs, 1e-6)
	require.Equal(t, "its gradients are 0.25 of their norm from ours, more than 0.001", off.Reason)
	require.Equal(t, `its output: train: tensor "memory" is missing`, list[3].Reason)
	require.Contains(t, list[4].Reason, "exit status 3")

	var request peer.Request
	require.NoError(t, json.Unmarshal(must(os.ReadFile(file("same.request"))), &request))
	require.Equal(t, "train", request.Op)
	require.EqualValues(t, 16, request.Params["context"])

	dispatches := map[string]int{}
	for _, row := range stages.Rows {
		require.NotContains(t, row[2:], "0 s", row[0])
		dispatches[row[0]] = must(strconv.Atoi(row[1]))
	}
	for name, least := range map[string]int{"embed": 1, "attention": 2, "attention, backward": 4, "loss, backward": 1, "heads, backward": 2, "optimizer": 2, "norm1": 2} {
		require.GreaterOrEqual(t, dispatches[name], least, name)
	}
}

// TestFresh: a step that is recorded anew is the same. A recording allocates on the host for each of
// its commands, a replay hardly does; their times are for the benchmark.
func TestFresh(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	var first, allocated [2]float64
	for i := range first {
		c := benchCase(t)
		c.Fresh, c.Stages, c.Samples = i == 1, false, 40
		allocated[i] = testing.AllocsPerRun(1, func() {
			list, _, err := Bench(context.Background(), d, c, func(*train.Memory) {}, func(string) {})
			require.NoError(t, err)
			first[i] = list[0].Facts[1].N
		})
	}
	require.Equal(t, first[0], first[1])
	require.Greater(t, allocated[1], allocated[0]+40*500, "a step has more commands than that")
}

// TestJudge: a peer whose loss or gradients are not ours is wrong, NaN above all.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		format      dtype.DType
		loss, slope float64
		want        string
	}{
		{dtype.Float32, 1.2, 9e-4, "<nil>"},
		{dtype.Float32, 1.2001, 0, "<nil>"},
		{dtype.Float32, 1.2002, 0, "its first loss is 1.2002, ours 1.2"},
		{dtype.BFloat16, 1.22, 0.04, "<nil>"},
		{dtype.BFloat16, 1.23, 0, "its first loss is 1.23, ours 1.2"},
		{dtype.Float16, 1.2, 0.06, "its gradients are 0.06 of their norm from ours, more than 0.05"},
		{dtype.Float16, 1.2, math.NaN(), "its gradients are NaN of their norm from ours, more than 0.05"},
		{dtype.Float16, math.NaN(), 0, "its first loss is NaN, ours 1.2"},
	} {
		require.Equal(t, c.want, fmt.Sprint(judge(&bench.Result{}, c.format, c.loss, 1.2, c.slope)))
	}
}
