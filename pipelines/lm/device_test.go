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
	"github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/vk"
)

func newGenerator(t *testing.T, d *vk.Device, c *Config, batch int, f sample.Filters) *Generator {
	t.Helper()
	g, err := NewGenerator(context.Background(), d, c, Random{1}, Options{DType: dtype.Float32, Batch: batch, Context: 32, Filters: f, Seed: 5})
	require.NoError(t, err)
	t.Cleanup(g.Close)
	return g
}

// TestLogits compares the logits of prompts and of tokens behind them with the reference, for sequences
// of different lengths in one batch.
func TestLogits(t *testing.T) {
	d := open(t)
	ctx := context.Background()
	for _, name := range families {
		t.Run(name, func(t *testing.T) {
			c := smallConfig(t, name)
			g := newGenerator(t, d, c, 2, sample.Filters{})
			ref, err := newReference(c, Random{1})
			require.NoError(t, err)
			texts := [][]int32{{5, 17, 299, 0, 8, 9, 133}, {250, 4, 4}}
			prompt, err := g.plan(ctx, 7)
			require.NoError(t, err)
			defer prompt.Close()
			require.NoError(t, g.fill(ctx, prompt, 7, texts))
			logits, next := make([]float32, 2*c.Vocabulary), make([]int32, 2)
			for _, plan := range []*train.Plan{prompt, g.step, g.step, g.step} {
				if plan == g.step {
					require.NoError(t, plan.Start(ctx))
				}
				require.NoError(t, plan.Tensor("logits").Download(ctx, logits))
				require.NoError(t, g.step.Tensor("ids").DownloadInts(ctx, next))
				for b := range texts {
					want, got := ref.logits(texts[b]), logits[b*c.Vocabulary:][:c.Vocabulary]
					compare(t, want[len(want)-1], got)
					require.Equal(t, slices.Max(got), got[next[b]])
					texts[b] = append(texts[b], next[b])
				}
			}
		})
	}
}

// TestFused has batches up to the most rows of normlinear, whose steps run a kernel for each norm with its product, and one
// row more. Each sequence has the logits of the reference, whatever is beside it.
func TestFused(t *testing.T) {
	d := open(t)
	ctx := context.Background()
	for _, name := range []string{"llama-3.2-1b", "qwen2.5-0.5b"} {
		c := smallConfig(t, name)
		ref, err := newReference(c, Random{1})
		require.NoError(t, err)
		for _, batch := range []int{normlinear.MaxRows, normlinear.MaxRows + 1} {
			g := newGenerator(t, d, c, batch, sample.Filters{})
			texts := make([][]int32, batch)
			for i := range texts {
				texts[i] = []int32{int32(i), 17, int32(3 * i)}
			}
			prompt, err := g.plan(ctx, 3)
			require.NoError(t, err)
			require.NoError(t, g.fill(ctx, prompt, 3, texts))
			prompt.Close()
			next, logits := make([]int32, batch), make([]float32, batch*c.Vocabulary)
			require.NoError(t, g.step.Tensor("ids").DownloadInts(ctx, next))
			require.NoError(t, g.step.Start(ctx))
			require.NoError(t, g.step.Tensor("logits").Download(ctx, logits))
			for i, text := range texts {
				want := ref.logits(append(text, next[i]))
				compare(t, want[len(want)-1], logits[i*c.Vocabulary:][:c.Vocabulary])
			}
			kernels := map[string]int{}
			for _, m := range g.step.Modules() {
				kernels[strings.Split(m.Name, ".")[0]]++
			}
			fused := batch <= normlinear.MaxRows
			require.Equal(t, fused, kernels["normlinear"] > 0, kernels)
			require.Equal(t, fused, kernels["norm_fwd"]+kernels["glu_fwd"] == 0, kernels)
		}
	}
}

// TestOneKernel has steps whose layers are one kernel each, and others. Both have the same logits, but for the rounding to
// 16 bits between kernels, at every length of the cache.
func TestOneKernel(t *testing.T) {
	d := vktest.Open(t)
	ctx := context.Background()
	for _, name := range []string{"llama-3.2-1b", "qwen2.5-0.5b"} {
		c := smallConfig(t, name)
		c.HeadDim, c.RoPE.Dims = 64, 64
		var logits [2][]float32
		for i := range logits {
			o := Options{DType: dtype.Float16, Batch: 1, Context: 20}
			if i == 1 {
				o.Decoder = &decoder.Config{Groups: 1, Threads: 64, Splits: 2, Team: 8, Loads: 2, Keys: 1, Ahead: 1, Copies: 1}
			}
			g, err := NewGenerator(ctx, d, c, Random{1}, o)
			require.NoError(t, err)
			t.Cleanup(g.Close)
			require.NoError(t, g.prefill(ctx, [][]int32{{5, 17, 299, 0}}))
			for token := range int32(16) {
				require.NoError(t, g.step.Tensor("ids").UploadInts(ctx, []int32{7 * token}))
				require.NoError(t, g.step.Start(ctx))
				step := make([]float32, c.Vocabulary)
				require.NoError(t, g.step.Tensor("logits").Download(ctx, step))
				logits[i] = append(logits[i], step...)
			}
			require.Equal(t, i == 1, slices.ContainsFunc(g.step.Modules(), func(m vk.ModuleInfo) bool { return m.Name == "decoder.f16" }))
		}
		largest := slices.Max(logits[0])
		for i, x := range logits[0] {
			require.InDelta(t, x, logits[1][i], float64(largest)/128, "logit %d of step %d", i%c.Vocabulary, i/c.Vocabulary)
		}
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

// TestSampled draws tokens: the same again, those of a sequence whatever sequences are beside it, and others of
// another stream. With a penalty no token comes again.
func TestSampled(t *testing.T) {
	d := open(t)
	f := sample.Filters{Temperature: 1, TopK: 100, TopP: 0.95, MinP: 0.01, RepetitionPenalty: 1e6}
	generate := func(g *Generator, prompts ...[]int32) [][]int32 {
		texts := make([][]int32, len(prompts))
		require.NoError(t, g.Generate(context.Background(), prompts, 12, func(b int, id int32) bool {
			texts[b] = append(texts[b], id)
			return false
		}))
		return texts
	}
	for _, name := range []string{"smollm2-135m", "gpt2"} {
		c := smallConfig(t, name)
		one, three := newGenerator(t, d, c, 1, f), newGenerator(t, d, c, 3, f)
		prompt := []int32{7, 3, 200}
		texts := generate(three, prompt, prompt, []int32{4})
		require.Equal(t, texts, generate(three, prompt, prompt, []int32{4}))
		require.Equal(t, texts[:1], generate(one, prompt))
		require.NotEqual(t, texts[0], texts[1])
		for _, text := range texts[:2] {
			all := slices.Concat(prompt, text)
			slices.Sort(all)
			require.Len(t, slices.Compact(all), 3+12)
		}
	}
}

// TestNoToken has weights that are NaN.
func TestNoToken(t *testing.T) {
	g := newGenerator(t, open(t), smallConfig(t, "smollm2-135m"), 1, sample.Filters{})
	norm := g.model.Tensor("model.norm.weight")
	require.NoError(t, norm.Upload(context.Background(), slices.Repeat([]float32{float32(math.NaN())}, norm.NumElements())))
	err := g.Generate(context.Background(), [][]int32{{1, 2}}, 3, func(int, int32) bool { return false })
	require.EqualError(t, err, "lm: the logits of sequence 0 are all NaN or -Inf after 2 tokens")
}

func TestMain(m *testing.M) { vktest.Main(m) }

// open opens the device for a test without goroutines.
func open(t *testing.T) *vk.Device {
	vktest.Sequential(t)
	return vktest.Open(t)
}

// TestWhole compares the logits of whole sequences, and of the same sequences packed into one row, with
// the reference.
func TestWhole(t *testing.T) {
	d := open(t)
	texts := [][]int32{{5, 17, 299, 0, 8, 9, 133}, {250, 4, 4, 90, 91, 92, 93}}
	for _, name := range families {
		t.Run(name, func(t *testing.T) {
			c := smallConfig(t, name)
			m, err := NewModel(context.Background(), d, c, Random{1}, dtype.Float32, nil)
			require.NoError(t, err)
			defer m.Close()
			ref, err := newReference(c, Random{1})
			require.NoError(t, err)
			batch := Batch{IDs: slices.Concat(texts...), Shape: [2]int{2, 7}}
			packed := Batch{IDs: batch.IDs[:11], Shape: [2]int{1, 11}, CuSeqlens: []int32{0, 7, 11}}
			for _, b := range []Batch{batch, packed} {
				logits, err := Logits(context.Background(), c, m, b)
				require.NoError(t, err)
				row := 0
				for i := range texts {
					text := texts[i][:min(7, len(b.IDs)-7*i)]
					for _, want := range ref.logits(text) {
						compare(t, want, logits[row*c.Vocabulary:][:c.Vocabulary])
						row++
					}
				}
			}
		})
	}
}
