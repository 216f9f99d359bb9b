package train

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/safetensors/filetest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/glu"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// must returns x, or panics with the error.
func must[T any](x T, err error) T {
	vktest.Must(err)
	return x
}

// A sample is a model that has every op of a tape, and its inputs.
type sample struct {
	tasks, rows, ids int
	f                Func
	weights          float64 // the deviation of weights, for one input; 0 is 0.5
}

const dim, heads, hidden, components, vocabulary = 16, 2, 24, 2, 7

// model returns a model of two blocks: tasks of rows tokens, of which the first half are keys and
// values of all. Tied is read twice.
func model(tasks, rows int) sample {
	half := rows / 2
	block := func(t *Tape, stream, branch *Value) (*Value, *Value) {
		y, x := t.Norm("norm1", stream, t.Vector("N.norm1", dim), Norm{RMS: branch == nil, Eps: 1e-5})
		if branch != nil {
			y, x = t.Norm("norm1", branch, t.Vector("N.norm1", dim), Norm{Eps: 1e-5, Residual: stream})
		}
		t.Keep(x, Blocks)
		w := t.Weight("N.qkv", dim, 3*dim)
		qkv := t.Products(
			Named{"project q", "q", Product{X: y, W: w.Slice(1, 0, dim)}},
			Named{"project kv", "kv", Product{X: y.Split(tasks).Slice(1, 0, half), W: w.Slice(1, dim, 3*dim)}})
		k, v := qkv[1].Slice(1, 0, dim).Heads(tasks, heads), qkv[1].Slice(1, dim, 2*dim).Heads(tasks, heads)
		o := t.Attention("attention", qkv[0].Heads(tasks, heads), k, v, attention.Problem{Causal: true})
		out := t.Product("out", Product{X: o, W: t.Weight("N.out", dim, dim), TransW: true, Bias: t.Vector("N.bias", dim)})
		t.Keep(out, Selective) // the next product but one writes over it
		low := t.Product("low", Product{X: o, W: t.Weight("N.a", 8, dim), TransW: true})
		out = t.Product("lora", Product{X: low, W: t.Weight("N.b", 8, dim), Alpha: 0.5, Into: out})
		y, x = t.Norm("norm2", out, t.Vector("N.norm2", dim), Norm{RMS: true, Eps: 1e-5, Residual: x, Bias: t.Vector("N.bias2", dim)})
		up := t.Product("up", Product{X: y, W: t.Weight("N.up", 2*hidden, dim), TransW: true})
		g := t.GLU("glu", up.Slice(1, 0, hidden), up.Slice(1, hidden, 2*hidden), glu.SiLU)
		return x, t.Product("down", Product{X: g, W: t.Weight("N.down", dim, hidden), TransW: true})
	}
	return sample{tasks: tasks, rows: rows, ids: vocabulary, f: func(t *Tape) {
		table := t.Weight("tied", vocabulary, dim)
		ids := t.Input("ids", dtype.Int32, tasks*rows)
		x := t.Embed("embedding", ids, table)
		var branch *Value
		for i := range 2 {
			t.Block(fmt.Sprintf("blocks.%d.", i), func() { x, branch = block(t, x, branch) })
		}
		x = t.Add("sum", x, branch)
		targets := t.Rows("targets", x, tasks, half, rows)
		x = t.Product("whole", Product{X: x, W: t.Weight("whole", dim, dim)})
		x = t.Add("both", targets, t.Rows("more targets", x, tasks, half, rows))
		z, _ := t.Norm("norm", x, t.Vector("norm", dim), Norm{Eps: 1e-5, Bias: t.Vector("bias", dim)})
		z = t.Product("head", Product{X: z, W: t.Weight("head", dim, dim), Plus: z, Bias: t.Vector("head.bias", dim)})
		z = t.Add("twice", z, t.Product("same", Product{X: z, W: t.Weight("same", dim, dim)}))
		z = t.GLU("square", z, z, glu.GELU)
		logits := t.Product("logits", Product{X: z, W: table, TransW: true}) // tied
		z = t.Product("outputs", Product{X: logits, W: t.Weight("outputs", vocabulary, 3*components), Out: dtype.Some(dtype.Float32)})
		y := t.Input("y", dtype.Float32, tasks*(rows-half))
		loss, _ := t.Mixture("loss", z.Reshape(tasks*(rows-half), components, 3), y)
		t.Loss(loss)
	}}
}

// A run is a model on a device with its inputs.
type run struct {
	t   *testing.T
	m   *Model
	w   map[string][]float32
	ids []int32
	y   []float32
	s   sample
}

func newRun(t *testing.T, d *vk.Device, s sample, o Options) *run {
	params := must(Params(d.Caps(), s.f, o))
	m := must(NewModel(t.Context(), d, params, o))
	t.Cleanup(m.Close)
	r := &run{t: t, m: m, w: map[string][]float32{}, s: s}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, p := range params {
		x := make([]float32, p.Size())
		for i := range x {
			x[i] = float32(cmp.Or(s.weights, 0.5) * rng.NormFloat64() / math.Sqrt(float64(p.Shape[len(p.Shape)-1])))
			if len(p.Shape) == 1 {
				x[i]++
			}
		}
		r.w[p.Name] = x
	}
	require.NoError(t, m.SetWeights(t.Context(), r.w))
	for range s.tasks * s.rows {
		r.ids = append(r.ids, int32(rng.IntN(s.ids)))
	}
	for range s.tasks * (s.rows - s.rows/2) {
		r.y = append(r.y, float32(rng.NormFloat64()))
	}
	return r
}

// with runs a plan of a pass and returns it.
func (r *run) with(pass Pass, o PlanOptions) *Plan {
	ctx := context.Background()
	plan := must(r.m.NewPlan(ctx, r.s.f, pass, o))
	r.t.Cleanup(plan.Close)
	require.NoError(r.t, plan.Tensor("ids").UploadInts(ctx, r.ids))
	require.NoError(r.t, plan.Upload(ctx, "y", r.y))
	require.NoError(r.t, plan.Run(ctx))
	return plan
}

func (r *run) gradients() map[string][]float32 { return must(r.m.Gradients(context.Background())) }

func loss(p *Plan) float64 { return float64(must(p.Download(context.Background(), "loss"))[0]) }

// TestDifferences compares the gradient by each parameter with differences of the loss, in a random
// direction and for single elements.
func TestDifferences(t *testing.T) {
	d := vktest.Open(t)
	for _, s := range []sample{model(2, 6), model(1, 6), model(2, 66)} {
		s.weights = 0.3 // the loss is nearly straight over a step, and small, so that float32 has its differences
		r := newRun(t, d, s, Options{Pass: Gradients})
		r.with(Gradients, PlanOptions{})
		grads, plan := r.gradients(), r.with(Forward, PlanOptions{})
		rng := rand.New(rand.NewPCG(3, 4))
		for _, p := range r.m.Params() {
			for try := range 3 {
				direction, want, size := make([]float32, p.Size()), 0.0, 0.0
				for i := range direction {
					direction[i] = float32(rng.NormFloat64())
					if try == 0 { // of the gradient itself: nothing cancels
						direction[i] = grads[p.Name][i]
					}
					size += float64(direction[i]) * float64(direction[i])
				}
				step := 0.003 / math.Sqrt(size)
				at := func(sign float64) float64 {
					x := make([]float32, p.Size())
					for i := range x {
						x[i] = r.w[p.Name][i] + float32(sign*step)*direction[i]
					}
					w := maps.Clone(r.w)
					w[p.Name] = x
					require.NoError(t, r.m.SetWeights(t.Context(), w))
					require.NoError(t, plan.Run(t.Context()))
					return loss(plan)
				}
				scale := 0.0
				for i, g := range grads[p.Name] {
					want += float64(g) * float64(direction[i])
					scale += float64(g) * float64(g)
				}
				got := (at(1) - at(-1)) / (2 * step)
				require.InDelta(t, want, got, 0.02*math.Sqrt(scale*size)+1e-4*math.Sqrt(size), "%s of %dx%d", p.Name, s.tasks, s.rows)
				require.Positive(t, scale, p.Name)
			}
		}
	}
}

// TestRepeat compares sets of numbers with loops: parts of n tasks, apart, side by side, and on top of
// one another.
func TestRepeat(t *testing.T) {
	for n := 1; n < 20; n++ {
		for stride := range 12 {
			want := new(big.Int)
			for i := range n {
				for j := 3; j < 8; j++ {
					want.SetBit(want, i*stride+j, 1)
				}
			}
			got := repeat(span(3, 8), n, stride)
			require.Zero(t, want.Cmp(got), "%d times, %d apart: %b", n, stride, got)
			require.Equal(t, n == 1 || stride >= 5, count(got) == 5*n)
		}
	}
}

// stepping runs batches one after the other, or each uploaded beside the batch before. Every fresh-th
// batch is recorded anew, none if fresh is 0. It returns losses, states, gradients and weights.
func stepping(r *run, o PlanOptions, beside bool, fresh int) (bits []any) {
	t, ctx := r.t, r.t.Context()
	ended, cancel := context.WithCancel(ctx)
	cancel()
	plan := must(r.m.NewPlan(ctx, r.s.f, Train, o))
	defer plan.Close()
	upload := func(i int) { // from memory that the upload before must have taken
		rng := rand.New(rand.NewPCG(5, uint64(i)))
		for j := range r.ids {
			r.ids[j] = int32(rng.IntN(r.s.ids))
		}
		for j := range r.y {
			r.y[j] = float32(rng.NormFloat64())
		}
		require.NoError(t, plan.Tensor("ids").UploadInts(ctx, r.ids))
		require.NoError(t, plan.Upload(ctx, "y", r.y))
	}
	upload(0)
	for i := range 7 {
		if !beside {
			upload(i)
		}
		require.NoError(t, r.m.SetLR(ctx, 1e-3*float64(1+i%4)))
		run := plan.Run
		switch {
		case fresh > 0 && i%fresh == 1:
			run = plan.RunFresh
		case beside:
			require.ErrorIs(t, plan.Start(ended), context.Canceled, "nothing is submitted")
			run = plan.Start
		}
		require.NoError(t, run(ctx))
		if i%3 == 2 { // at once: it waits for the batch
			path := filepath.Join(t.TempDir(), "state")
			require.NoError(t, r.m.SaveState(ctx, path, nil))
			bits = append(bits, sha256.Sum256(must(os.ReadFile(path))))
		}
		if beside {
			upload(i + 1)
		}
		bits = append(bits, loss(plan))
	}
	return append(bits, r.gradients(), r.weights())
}

// TestStart wants batches that are started, and uploaded beside the one before, to give the bits of
// batches that are waited for, states saved while they run among them.
func TestStart(t *testing.T) {
	d := vktest.Open(t)
	for _, format := range []dtype.DType{dtype.Float32, dtype.Float16} {
		for _, accumulate := range []int{1, 3} {
			for _, checkpoint := range []Checkpoint{Off, Blocks} {
				start := func(beside bool, fresh int) []any {
					o := trainOptions()
					o.DType, o.Accumulate = format, accumulate
					return stepping(newRun(t, d, model(2, 6), o), PlanOptions{Checkpoint: checkpoint}, beside, fresh)
				}
				want := start(false, 0)
				require.NotEqual(t, want[0], want[1])
				require.Equal(t, want, start(true, 0), "%v, %d batches, %v", format, accumulate, checkpoint)
				require.Equal(t, want, start(true, 2), "%v, %d batches, %v, recorded anew", format, accumulate, checkpoint)
			}
		}
	}
}

// TestState: a state goes on with another loss scale as without one, where nothing is subnormal. A file
// that no training has left is refused with the name of its tensor, and changes nothing. No file is
// written that would be refused.
func TestState(t *testing.T) {
	d, ctx := vktest.Open(t), t.Context()
	path := filepath.Join(t.TempDir(), "state")
	start := func(scale float64) (*run, *Plan) {
		o := trainOptions()
		o.LossScale = scale
		r := newRun(t, d, model(2, 6), o)
		return r, r.with(Train, PlanOptions{})
	}
	opened := func(path string) *safetensors.File {
		f := must(safetensors.Open(path))
		t.Cleanup(func() { f.Close() })
		return f
	}
	r, plan := start(16)
	require.NoError(t, r.m.SaveState(ctx, path, nil))
	require.NoError(t, plan.Run(ctx))
	before := r.weights()
	for _, scale := range []float64{1, 16, 4096} {
		other, plan := start(scale)
		require.NoError(t, other.m.LoadState(ctx, opened(path)))
		require.NoError(t, plan.Run(ctx))
		for name, x := range other.weights() {
			require.InDeltaSlice(t, before[name], x, 1e-6, "loss scale %g, %s", scale, name)
		}
	}
	f := opened(path)
	changed := func(name string, change func(x []float32)) *safetensors.File {
		values, file := map[string][]float32{}, filepath.Join(t.TempDir(), "changed")
		var tensors []safetensors.Tensor
		for _, x := range f.Tensors() {
			v := must(f.Float32s(x))
			if x.Name == name && change == nil {
				continue
			} else if x.Name == name {
				change(v)
			}
			tensors, values[x.Name] = append(tensors, x), v
		}
		filetest.Write(t, file, tensors, values)
		c := opened(file)
		c.Metadata = f.Metadata
		return c
	}
	for name, c := range map[string]struct {
		change func(x []float32)
		want   string
	}{
		"adamw.v.head": {func(x []float32) { x[5] = float32(math.Inf(1)) }, "[5] is +Inf: second moments are finite and not negative"},
		"adamw.v.norm": {func(x []float32) { x[0] = -1e-30 }, "[0] is -1e-30: second moments are finite and not negative"},
		"adamw.m.tied": {func(x []float32) { x[1] = float32(math.NaN()) }, "[1] is NaN: moments are finite"},
	} {
		require.EqualError(t, r.m.LoadState(ctx, changed(name, c.change)), "train: "+name+c.want)
		require.Equal(t, before, r.weights())
	}
	require.EqualError(t, r.m.LoadState(ctx, changed("N.up", nil)), `train: tensor "N.up" is missing`)
	require.Equal(t, before, r.weights())
	large := changed("adamw.v.head", func(x []float32) { x[2] = 1e32 })
	require.NoError(t, r.m.LoadState(ctx, large))
	other, _ := start(1 << 20)
	require.EqualError(t, other.m.LoadState(ctx, large), "train: adamw.v.head[2] is beyond float32 with loss scale 1.048576e+06; the file has 16")

	saved := must(os.ReadFile(path))
	before["norm"][3] = float32(math.Inf(-1))
	require.NoError(t, r.m.SetWeights(ctx, before))
	require.EqualError(t, r.m.SaveState(ctx, path, nil), "train: norm[3] is -Inf: parameters are finite")
	require.Equal(t, saved, must(os.ReadFile(path)))
}
