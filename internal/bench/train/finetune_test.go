package train

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/lm"
	"github.com/flashvk/flashvk/pipelines/train"
)

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
