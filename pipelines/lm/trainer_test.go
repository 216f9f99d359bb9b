package lm

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/vk"
)

// loss returns the mean of the cross entropy over the labels of texts that are counted.
func (r *reference) loss(texts, labels [][]int32) (loss float64) {
	n := 0
	r.row = 0
	for i, text := range texts {
		logits := r.logits(text)
		r.row += len(text)
		for t, row := range logits {
			label := labels[i][t]
			if label == Ignored {
				continue
			}
			sum := 0.0
			for _, x := range row {
				sum += math.Exp(x)
			}
			loss += math.Log(sum) - row[label]
			n++
		}
	}
	return loss / float64(n)
}

// normal are weights of an adapter whose B is not 0.
type normal struct{}

func (normal) Read(p Param, x []float32, first int) error {
	n := max(p.Shape[0], p.Shape[1])
	return Random{7}.Read(Param{Name: "normal " + p.Name[len(adapterPrefix):] + "s", Shape: []int{n, n}}, x, first)
}

// TestGradients compares logits, the loss, and the gradient by each parameter in directions of its own, with
// differences of the reference: of all weights and of adapters, of sequences in rows and packed into one row,
// with every checkpoint.
func TestGradients(t *testing.T) {
	d := open(t)
	ctx := context.Background()
	for i, name := range families {
		c := smallConfig(name)
		adapters := []*LoRA{nil, {Rank: 3, Alpha: 4, Dropout: float64(i%2) / 4, Weights: normal{}}}
		if targets := map[string]string{"smollm2-135m": "q_proj mlp.up_proj", "gpt2": "c_fc mlp.c_proj"}[name]; targets != "" {
			adapters = append(adapters, &LoRA{Rank: 2, Alpha: 1, Dropout: 0.5, Weights: normal{}, Targets: strings.Fields(targets)})
		}
		for j, lora := range adapters {
			t.Run(name, func(t *testing.T) {
				ref := must(newReference(c, Random{1}))
				if ref.lora = lora; lora != nil {
					require.NoError(t, ref.read(lora.Params(c), lora.Weights))
				}
				texts := [][]int32{{5, 17, 299, 0, 8, 9, 133}, {250, 4, 4, 90, 91, 92, 93}}
				labels := [][]int32{{17, 299, 0, 8, 9, 133, Ignored}, {Ignored, 4, 90, 91, 92, 93, 7}}
				b := Batch{IDs: slices.Concat(texts...), Labels: slices.Concat(labels...), Shape: [2]int{2, 7}}
				if (i+j)%2 == 0 {
					texts[1], labels[1] = texts[1][:4], labels[1][:4]
					b = Batch{IDs: b.IDs[:11], Labels: b.Labels[:11], Shape: [2]int{1, 11}, CuSeqlens: []int32{0, 7, 7, 11}}
				}
				if lora == nil {
					ref.compareLogits(t, d, b, texts)
				}
				o := TrainOptions{LoRA: lora, DType: dtype.Float32, Checkpoint: train.Checkpoint((i + j) % 3), Seed: dropoutSeed}
				loss, got, err := Gradients(ctx, d, c, Random{1}, b, true, o)
				require.NoError(t, err)
				require.InEpsilon(t, ref.loss(texts, labels), loss, 1e-6)
				if lora != nil && lora.Dropout > 0 { // which a loss alone has not
					r := *ref
					r.lora = &LoRA{Rank: lora.Rank, Alpha: lora.Alpha}
					loss = r.loss(texts, labels)
				}
				alone, _, err := Gradients(ctx, d, c, Random{1}, b, false, o)
				require.NoError(t, err)
				require.InEpsilon(t, loss, alone, 1e-6)
				params := c.Params()
				if lora != nil {
					params = lora.Params(c)
				}
				require.Len(t, got, len(params))
				rng := rand.New(rand.NewPCG(3, 4))
				for _, p := range params {
					ref.compare(t, p.Name, got[p.Name], rng, func() float64 { return ref.loss(texts, labels) })
				}
			})
		}
	}
}

// compareLogits compares the logits of a batch of texts, whose sequences see no other, with the reference.
func (r *reference) compareLogits(t *testing.T, d *vk.Device, b Batch, texts [][]int32) {
	m := must(NewModel(context.Background(), d, r.c, Random{1}, dtype.Float32, nil))
	defer m.Close()
	got := must(Logits(context.Background(), r.c, m, b))
	for _, text := range texts {
		for _, want := range r.logits(text) {
			compare(t, want, got[:r.c.Vocabulary])
			got = got[r.c.Vocabulary:]
		}
	}
}

// compare wants the gradient in a random direction within 2^-16 of its norm, a bound for sums of float32 as
// in the test of logits, whose errors pass the layers twice. The difference of f, of fourth order, is off by
// less than 1e-8.
func (r *reference) compare(t *testing.T, name string, got []float32, rng *rand.Rand, f func() float64) {
	w := r.w[name]
	require.Len(t, got, len(w), name)
	direction, start := make([]float64, len(w)), slices.Clone(w)
	sum, norm := 0.0, 0.0
	for i := range direction {
		direction[i] = rng.NormFloat64()
		sum += direction[i] * float64(got[i])
		norm += float64(got[i]) * float64(got[i])
	}
	at := func(h float64) float64 {
		for i := range w {
			w[i] = start[i] + h*direction[i]
		}
		return f()
	}
	const h = 1e-4
	want := (8*(at(h)-at(-h)) - (at(2*h) - at(-2*h))) / (12 * h)
	copy(w, start)
	allowed := 0x1p-16*math.Sqrt(norm) + 1e-8
	require.InDelta(t, want, sum, allowed, "%s, norm %g", name, math.Sqrt(norm))
	require.Greater(t, norm, 1e-8, name)
}

// newTrainerOf returns a trainer of a small model.
func newTrainerOf(t *testing.T, c *Config, o TrainOptions) *Trainer {
	tr := must(NewTrainer(context.Background(), open(t), c, Random{1}, o))
	t.Cleanup(tr.Close)
	return tr
}

// weightsOf returns all weights of a trainer, by their names.
func weightsOf(tr *Trainer) map[string][]float32 { return must(tr.model.Weights(context.Background())) }

// page returns a batch of one text in rows.
func page(rows, seq int) Batch {
	rng := rand.New(rand.NewPCG(5, 6))
	b := Batch{Shape: [2]int{rows, seq}}
	for i := range rows * seq {
		b.IDs = append(b.IDs, int32(rng.IntN(299)))
		if i > 0 {
			b.Labels = append(b.Labels, b.IDs[i])
		}
	}
	b.Labels = append(b.Labels, Ignored)
	return b
}

// adam are constants for a few steps.
func adam(lr float64) optim.Problem {
	p := optim.Default()
	p.LR, p.MaxNorm = lr, 1
	return p
}

// TestFrozen: an adapter begins with the loss of the model, an evaluation has the loss of the next step, and what is
// frozen keeps its bits. TestScripts of tests/cli has models that learn a page by heart.
func TestFrozen(t *testing.T) {
	for name, lora := range map[string]*LoRA{"smollm2-135m": {Rank: 8, Alpha: 32}, "gpt2": nil} {
		c, b := smallConfig(name), page(1, 32)
		tr := newTrainerOf(t, c, TrainOptions{LoRA: lora, DType: dtype.Float32, Sizes: b.sizes(), Optim: adam(1e-2), Evaluate: true})
		before := weightsOf(tr)
		base, _, err := Gradients(t.Context(), open(t), c, Random{1}, b, false, TrainOptions{DType: dtype.Float32})
		require.NoError(t, err)
		for i := range 3 { // B is 0 in the first
			sum, n, err := tr.Evaluate(t.Context(), b)
			require.NoError(t, err)
			r := must(tr.Step(t.Context(), b))
			require.Equal(t, [2]float64{float64(n), sum / float64(n)}, [2]float64{31, r.Loss})
			require.Equal(t, i == 0, float32(base) == float32(r.Loss))
			base = min(base, r.Loss)
		}
		for _, p := range tr.model.Params() {
			require.Equal(t, lora == nil || strings.Contains(p.Name, "lora_"), !p.Frozen, p.Name)
			require.Equal(t, p.Frozen, slices.Equal(before[p.Name], weightsOf(tr)[p.Name]), p.Name)
		}
	}
}

// TestAccumulate: a step of several micro-batches with different numbers of labels is the step of all in one, and
// the second step has the gradients that its weights have by themselves.
func TestAccumulate(t *testing.T) {
	for n, lora := range map[int]*LoRA{3: nil, 4: {Rank: 4, Alpha: 8, Weights: normal{}}} {
		c, whole, parts := smallConfig("smollm2-135m"), page(n, 8), []Batch(nil)
		for i := range 5 {
			whole.Labels[i] = Ignored
		}
		for i := range n {
			parts = append(parts, Batch{IDs: whole.IDs[8*i:][:8], Labels: whole.Labels[8*i:][:8], Shape: [2]int{1, 8}})
		}
		o := TrainOptions{LoRA: lora, DType: dtype.Float32, Sizes: Sizes{Batch: n, Seq: 8}, Optim: adam(1e-3)}
		a, one := newTrainerOf(t, c, o), TrainOptions{DType: dtype.Float32}
		if lora != nil {
			one.LoRA = &LoRA{Rank: lora.Rank, Alpha: lora.Alpha, Weights: a}
		}
		o.Batch, o.Accumulate = 1, n
		b := newTrainerOf(t, c, o)
		var alone map[string][]float32
		for range 2 {
			var err error
			_, alone, err = Gradients(context.Background(), open(t), c, a, whole, true, one)
			require.NoError(t, err)
			x, y := must(a.Step(t.Context(), whole)), must(b.Step(t.Context(), parts...))
			require.InEpsilon(t, x.Loss, y.Loss, 1e-6)
			require.InEpsilon(t, x.Norm, y.Norm, 1e-5)
			require.Equal(t, x.Tokens, y.Tokens)
		}
		want := must(a.model.Gradients(context.Background()))
		got := must(b.model.Gradients(context.Background()))
		for name, x := range want {
			require.InDeltaSlice(t, x, got[name], 1e-4, name) // of a norm of about 1
			require.InDeltaSlice(t, x, alone[name], 1e-5, name)
		}
	}
}

// TestPieces reads and writes pieces of parameters, which are those of the whole.
func TestPieces(t *testing.T) {
	c := smallConfig("qwen3-0.6b")
	tr := newTrainerOf(t, c, TrainOptions{LoRA: &LoRA{Rank: 4, Alpha: 8}, DType: dtype.Float32, Sizes: Sizes{Batch: 2, Seq: 8}, Optim: adam(1e-2)})
	must(tr.Step(t.Context(), page(2, 8)))
	for name, want := range weightsOf(tr) {
		p := Param{Name: name, Shape: []int{len(want)}}
		values := make([]float32, 3)
		require.NoError(t, tr.Read(p, values, 2))
		require.Equal(t, want[2:5], values)
		require.NoError(t, tr.model.Set(context.Background(), name, 3, values))
		values = must(read(tr, p))
		require.Equal(t, slices.Replace(slices.Clone(want), 3, 6, want[2:5]...), values)
	}
}

// TestOverflow: float16 with too large a loss scale skips steps, which change nothing, and then learns.
func TestOverflow(t *testing.T) {
	o := TrainOptions{LoRA: &LoRA{Rank: 4, Alpha: 8}, DType: dtype.Float16, Sizes: Sizes{Batch: 1, Seq: 16}, Optim: adam(1e-2), LossScale: 1 << 26}
	tr := newTrainerOf(t, smallConfig("tinyllama-1.1b"), o)
	b, before := page(1, 16), weightsOf(tr)
	first := must(tr.Step(t.Context(), b))
	require.True(t, first.Skipped)
	require.Equal(t, before, weightsOf(tr))
	for must(tr.Step(t.Context(), b)).Skipped {
		require.Greater(t, tr.model.LossScale(), 1.0)
	}
	require.Less(t, must(tr.Step(t.Context(), b)).Loss, first.Loss)
	require.Less(t, tr.model.LossScale(), 0x1p26)
}

func TestTrainerErrors(t *testing.T) {
	d, ctx, c := open(t), context.Background(), smallConfig("smollm2-135m")
	good := TrainOptions{DType: dtype.Float32, Sizes: Sizes{Batch: 2, Seq: 8}, Optim: adam(1e-2)}
	for want, change := range map[string]func(*TrainOptions){
		"lm: batch=0 is not positive":                                           func(o *TrainOptions) { o.Batch = 0 },
		"lm: seq=0 is not positive":                                             func(o *TrainOptions) { o.Seq = 0 },
		"lm: batch=536870912 of seq=8 are more than 2147483647 tokens":          func(o *TrainOptions) { o.Batch = 1 << 29 },
		"lm: batch=2, but sequences are packed into one row":                    func(o *TrainOptions) { o.Sequences = 1 },
		"lm: longest=9 is not from 1 to seq=8":                                  func(o *TrainOptions) { o.Batch, o.Sequences, o.Longest = 1, 1, 9 },
		"lm: a sequence of 65 tokens is longer than max_position_embeddings=64": func(o *TrainOptions) { o.Seq = 65 },
		"train: accumulate=-1 is not from 0 to 65536":                           func(o *TrainOptions) { o.Accumulate = -1 },
	} {
		o := good
		change(&o)
		_, err := NewTrainer(ctx, d, c, Random{1}, o)
		require.EqualError(t, err, want)
	}
	tr := newTrainerOf(t, c, good)
	b := page(2, 8)
	for want, change := range map[string]func(*Batch){
		"lm: ids are 1 by 16, the training has batch=2 of seq=8":                     func(b *Batch) { b.Shape = [2]int{1, 16} },
		"lm: labels are missing":                                                     func(b *Batch) { b.Labels = nil },
		"lm: labels[3] is 300, which is neither -100 nor from 0 to vocab_size-1=299": func(b *Batch) { b.Labels[3] = 300 },
		"lm: all labels are -100: there is no loss":                                  func(b *Batch) { b.Labels = slices.Repeat([]int32{Ignored}, 16) },
	} {
		x := b
		x.Labels = slices.Clone(b.Labels)
		change(&x)
		_, err := tr.Step(ctx, x)
		require.EqualError(t, err, want)
	}
	_, err := tr.Step(ctx, b, b)
	require.EqualError(t, err, "lm: a step has 1 micro-batches, not 2")
	_, _, err = tr.Evaluate(ctx, b)
	require.EqualError(t, err, "lm: the trainer was made without Evaluate")
}

// TestTrainingMemory: the plan of Llama-3.2-1B with an adapter of rank 8 and 2048 tokens fits 6 GB, all weights do
// not, and what does not fit says what would.
func TestTrainingMemory(t *testing.T) {
	d := open(t)
	c := must(Named("llama-3.2-1b"))
	caps := *d.Caps()
	caps.MaxStorageBufferRange, caps.MaxBufferBytes, caps.MaxAllocationBytes = 1<<32-1, 1<<32-1, 1<<32-1
	o := TrainOptions{LoRA: &LoRA{Rank: 8, Alpha: 16}, DType: dtype.Float16, Checkpoint: train.Blocks, Sizes: Sizes{Batch: 1, Seq: 2048}, Optim: adam(1e-4)}
	measure := func() *train.Memory {
		return must(MeasureTraining(&caps, &c, o))
	}
	m := measure()
	require.Less(t, m.Bytes(), int64(6e9))
	o.Evaluate = true
	require.Greater(t, measure().Bytes(), m.Bytes())
	require.Less(t, measure().Bytes(), m.Bytes()+m.Plan.Bytes, "an evaluation takes less than a step")
	o.LoRA = nil
	require.Greater(t, measure().Bytes(), int64(16e9))

	heaps := must(d.Heaps())
	deep, batches := smallConfig("gpt2"), TrainOptions{DType: dtype.Float32, Sizes: Sizes{Batch: 2048, Seq: 64}, Optim: adam(1)}
	if deep.Layers = int(heaps[0].SizeBytes / 400e6); deep.Layers > 100 {
		t.Skip("a model that fills the memory takes long to plan")
	}
	require.Regexp(t, `^train: model and activations take \d+ bytes, \d+ more than the device has left: .*; with batch=\d+ of seq=64 it would fit$`,
		CheckFits(d, deep, batches).Error())
}
