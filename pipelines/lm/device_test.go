package lm

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/decoder"
	"github.com/flashvk/flashvk/pipelines/normlinear"
	"github.com/flashvk/flashvk/pipelines/sample"
	"github.com/flashvk/flashvk/vk"
)

func newGenerator(t *testing.T, d *vk.Device, c *Config, batch int, f sample.Filters) *Generator {
	g := must(NewGenerator(context.Background(), d, c, Random{1}, Options{DType: dtype.Float32, Batch: batch, Context: 32, Filters: f, Seed: 5}))
	t.Cleanup(g.Close)
	return g
}

// follow compares the logits of prompts, and of n tokens behind them, with the reference.
func follow(t *testing.T, g *Generator, n int, texts ...[]int32) {
	t.Helper()
	ctx, c, seq := context.Background(), g.Config, 0
	for _, text := range texts {
		seq = max(seq, len(text))
	}
	ref := must(newReference(c, Random{1}))
	plan := must(g.plan(ctx, seq))
	defer plan.Close()
	require.NoError(t, g.fill(ctx, plan, seq, texts))
	logits, next := make([]float32, len(texts)*c.Vocabulary), make([]int32, len(texts))
	for i, of := 0, plan; i <= n; i, of = i+1, g.step {
		if i > 0 {
			require.NoError(t, of.Start(ctx))
		}
		require.NoError(t, of.Tensor("logits").Download(ctx, logits))
		require.NoError(t, g.step.Tensor("ids").DownloadInts(ctx, next))
		for b := range texts {
			want, got := ref.logits(texts[b]), logits[b*c.Vocabulary:][:c.Vocabulary]
			compare(t, want[len(want)-1], got)
			require.Equal(t, slices.Max(got), got[next[b]])
			texts[b] = append(texts[b], next[b])
		}
	}
}

// TestLogits has sequences of different lengths in one batch. Steps of up to the most rows of normlinear run a kernel for
// each norm with its product, but not those of GPT-2.
func TestLogits(t *testing.T) {
	d := vktest.Open(t)
	for _, name := range families {
		for _, batch := range []int{2, normlinear.MaxRows, normlinear.MaxRows + 1} {
			if batch > 2 && name != "llama-3.2-1b" && name != "qwen2.5-0.5b" {
				continue
			}
			g := newGenerator(t, d, smallConfig(name), batch, sample.Filters{})
			texts := make([][]int32, batch)
			for i := range texts {
				texts[i] = []int32{int32(i), 17, 299, 0, int32(3 * i), 9, 133}[:7-i%2*4]
			}
			follow(t, g, 3, texts...)
			kernels := map[string]int{}
			for _, m := range g.step.Modules() {
				kernels[strings.Split(m.Name, ".")[0]]++
			}
			fused := batch <= normlinear.MaxRows && name != "gpt2"
			require.Equal(t, fused, kernels["normlinear"] > 0, kernels)
			if fused && name != "qwen3-0.6b" { // which has norms of heads
				require.Zero(t, kernels["norm_fwd"]+kernels["glu_fwd"], kernels)
			}
		}
	}
}

// TestOneKernel has steps whose layers are one kernel each, and others. Both have the same logits, but for the rounding to
// 16 bits between kernels, at every length of the cache.
func TestOneKernel(t *testing.T) {
	d := vktest.Open(t)
	ctx := context.Background()
	for _, name := range []string{"llama-3.2-1b", "qwen2.5-0.5b"} {
		c := smallConfig(name)
		c.HeadDim, c.RoPE.Dims = 64, 64
		var logits [2][]float32
		for i := range logits {
			o := Options{DType: dtype.Float16, Batch: 1, Context: 20}
			if i == 1 {
				o.Decoder = &decoder.Config{Groups: 1, Threads: 64, Splits: 2, Team: 8, Loads: 2, Keys: 1, Ahead: 1, Copies: 1}
			}
			g := must(NewGenerator(ctx, d, c, Random{1}, o))
			t.Cleanup(g.Close)
			require.NoError(t, g.prefill(ctx, [][]int32{{5, 17, 299, 0}}))
			for token := range int32(16) {
				require.NoError(t, g.step.Tensor("ids").UploadInts(ctx, []int32{7 * token}))
				require.NoError(t, g.step.Start(ctx))
				step := make([]float32, c.Vocabulary)
				require.NoError(t, g.step.Tensor("logits").Download(ctx, step))
				logits[i] = append(logits[i], step...)
			}
			require.Equal(t, i == 1, (i == 1 || d.Caps().Type == vk.CPU) && slices.ContainsFunc(g.step.Modules(), func(m vk.ModuleInfo) bool { return m.Name == "decoder.f16" }))
		}
		largest := slices.Max(logits[0])
		for i, x := range logits[0] {
			require.InDelta(t, x, logits[1][i], float64(largest)/128, "logit %d of step %d", i%c.Vocabulary, i/c.Vocabulary)
		}
	}
}

// TestSeveral compares tokens of single steps with those of several steps in one submission.
func TestSeveral(t *testing.T) {
	d := open(t)
	for _, family := range []string{"llama-3.2-1b", "gpt2"} {
		var tokens [2][]int32
		for i := range tokens {
			g := newGenerator(t, d, smallConfig(family), 2, sample.Filters{Temperature: 1, TopK: 20, RepetitionPenalty: 1.1})
			g.quick = 0 // no time for several
			g.atOnce = 8 * i
			require.NoError(t, g.Generate(context.Background(), [][]int32{{5, 17}, {9}}, 21, func(_ int, id int32) bool {
				tokens[i] = append(tokens[i], id)
				return len(tokens[i]) == 39 // of the first sequence
			}))
			require.Equal(t, i == 1, g.several != nil)
		}
		require.Equal(t, tokens[0], tokens[1])
		require.Len(t, tokens[0], 41)
	}
}

// compare wants logits within 2^-18 of the largest, a bound for these sizes: sums of at most 96 products in
// float32, each off by 2^-24 of its terms, through eleven sums and norms one behind the other.
func compare(t *testing.T, want []float64, got []float32) {
	t.Helper()
	largest := 0.0
	for _, x := range want {
		largest = max(largest, math.Abs(x))
	}
	for i, x := range want {
		if e := math.Abs(float64(got[i]) - x); !(e <= largest*0x1p-18) {
			t.Fatalf("logit %d is %v, want %v: off by %.3g, allowed %.3g", i, got[i], x, e, largest*0x1p-18)
		}
	}
}

func TestMain(m *testing.M) { vktest.Main(m) }

// must returns x, or panics with the error.
func must[T any](x T, err error) T {
	vktest.Must(err)
	return x
}

// open opens the device for a test without goroutines.
func open(t *testing.T) *vk.Device {
	vktest.Sequential(t)
	return vktest.Open(t)
}
