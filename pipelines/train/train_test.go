package train

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

// TestCheckpoint wants the same gradients, bit for bit, with every checkpoint.
func TestCheckpoint(t *testing.T) {
	d := vktest.Open(t)
	for _, s := range []sample{model(2, 6), model(2, 66)} {
		r := newRun(t, d, s, Options{Pass: Gradients})
		r.with(Gradients, PlanOptions{})
		want := r.gradients()
		for _, c := range []Checkpoint{Selective, Blocks} {
			r.with(Gradients, PlanOptions{Checkpoint: c})
			require.Equal(t, want, r.gradients(), c)
		}
	}
}

// trainOptions are for steps of a model of this package's tests.
func trainOptions() Options {
	o := Options{Pass: Train, Optim: optim.Default()}
	o.Optim.MaxNorm = 1
	return o
}

// weights returns all parameters.
func (r *run) weights() map[string][]float32 { return must(r.m.Weights(context.Background())) }

// TestFrozen: what is frozen stays, and has neither gradient nor kernels for one. The rest has the
// gradient that it has without.
func TestFrozen(t *testing.T) {
	d := vktest.Open(t)
	all := newRun(t, d, model(2, 6), Options{Pass: Gradients})
	full := all.with(Gradients, PlanOptions{})
	want := all.gradients()
	for _, is := range []func(name string) bool{
		func(name string) bool { return name == "N.a" || name == "N.b" },
		func(name string) bool { return !strings.HasPrefix(name, "N.") && name != "tied" },
		func(name string) bool { return name == "tied" },
	} {
		o := trainOptions()
		o.Trained = is
		r := newRun(t, d, model(2, 6), o)
		before := r.weights()
		gradients := r.with(Gradients, PlanOptions{})
		got, trained := r.gradients(), 0
		for _, p := range r.m.Params() {
			require.Equal(t, p.Frozen, got[p.Name] == nil, p.Name)
			if !p.Frozen {
				require.InDeltaSlice(t, want[p.Name], got[p.Name], 1e-4*length(want[p.Name]), p.Name)
				trained++
			}
		}
		require.NotZero(t, trained)
		require.Less(t, len(gradients.Modules()), len(full.Modules())+1)
		require.Less(t, gradients.Memory().Model, full.Memory().Model*4)
		r.with(Train, PlanOptions{})
		for name, x := range r.weights() {
			require.Equal(t, got[name] == nil, slices.Equal(before[name], x), name)
		}
	}
}

func runs(t *testing.T, p *Plan, n int) {
	for range n {
		require.NoError(t, p.Run(t.Context()))
	}
}

func length(x []float32) float64 {
	sum := 0.0
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	return math.Sqrt(sum)
}

// TestReduce: a step that is cut has the bits of one that is not, and what Reduce changes is what
// AdamW sees. Buckets have every gradient once.
func TestReduce(t *testing.T) {
	d := vktest.Open(t)
	ctx := context.Background()
	for _, n := range []int{1, 2} {
		for _, bytes := range []int64{0, 1, 4000, 1 << 30} {
			o := trainOptions()
			o.Accumulate = n
			r := newRun(t, d, model(2, 6), o)
			plan := r.with(Train, PlanOptions{})
			runs(t, plan, 2*n-1)
			want := r.weights()

			elements, calls := 0, 0
			x := newRun(t, d, model(2, 6), o)
			half := PlanOptions{Bucket: bytes, Reduce: func(ctx context.Context, bucket []vk.Tensor) error {
				calls++
				for _, g := range bucket {
					elements += g.NumElements()
					v := make([]float32, g.NumElements())
					require.NoError(t, g.Download(ctx, v))
					require.Positive(t, length(v))
					require.NoError(t, g.Upload(ctx, v))
				}
				return nil
			}}
			plan = x.with(Train, half)
			require.NoError(t, plan.RunFresh(ctx))
			runs(t, plan, 2*n-2)
			require.Equal(t, want, x.weights(), "%d batches, buckets of %d", n, bytes)
			all := 0
			for _, p := range x.m.Params() {
				all += p.Size()
			}
			require.Equal(t, 2*all, elements)
			require.Equal(t, n == 1 && bytes > 0 && bytes < 1<<20, calls > 2, "%d calls", calls)
		}
	}
}

// TestGoodSteps: a loss scale that follows the gradients halves with an overflow, which changes
// nothing else, and doubles after good steps. Training goes on as with a scale that stays, and from a
// file with the same bits.
func TestGoodSteps(t *testing.T) {
	d := vktest.Open(t)
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "state")
	start := func(scale float64, good int) (*run, *Plan) {
		o := trainOptions()
		o.DType, o.LossScale, o.GoodSteps = dtype.Float16, scale, good
		r := newRun(t, d, model(2, 6), o)
		return r, r.with(Train, PlanOptions{})
	}
	r, plan := start(0x1p40, 3)
	for tries := 0; must(r.m.Steps(ctx)) == 0; tries++ {
		require.Less(t, tries, 60)
		require.True(t, slices.Equal(r.w["head"], r.weights()["head"]), "a step that was skipped")
		runs(t, plan, 1)
	}
	first := r.m.LossScale()
	require.Less(t, first, 0x1p30)
	skipped := must(r.m.Skipped(ctx))
	require.Equal(t, 0x1p40/math.Exp2(float64(skipped)), first)

	fixed, other := start(16, 0)
	r, plan = start(16, 3)
	runs(t, other, 2)
	runs(t, plan, 2)
	require.Equal(t, fixed.weights(), r.weights())
	require.NoError(t, r.m.SaveState(ctx, path, nil))
	require.EqualValues(t, 32, r.m.LossScale())
	runs(t, plan, 4)
	require.EqualValues(t, 64, r.m.LossScale())
	runs(t, other, 4)
	for name, x := range fixed.weights() {
		require.InDeltaSlice(t, x, r.weights()[name], 1e-4, name)
	}
	file := must(safetensors.Open(path))
	defer file.Close()
	again, rest := start(1, 3)
	require.NoError(t, again.m.LoadState(ctx, file))
	require.EqualValues(t, 32, again.m.LossScale())
	runs(t, rest, 4)
	require.Equal(t, r.weights(), again.weights())
	require.Equal(t, r.m.LossScale(), again.m.LossScale())

	o := trainOptions()
	o.Optim.MaxNorm, o.GoodSteps = 0, 1
	require.EqualError(t, o.Validate(), "train: good_steps=1 needs a max_norm, without which no step is skipped")
}

// TestErrors: mistakes of an author have one line, with the name of the op.
func TestErrors(t *testing.T) {
	d := vktest.Open(t)
	for want, f := range map[string]Func{
		"train: up: x has shape [4 8], w [4 8]": func(t *Tape) {
			t.Product("up", Product{X: t.Input("x", dtype.Float32, 4, 8), W: t.Weight("w", 4, 8)})
		},
		"train: a plan of pass gradients needs a loss: Tape.Loss": func(t *Tape) { t.Input("x", dtype.Float32, 4) },
		"train: parameter w is float32 [4 8] and float32 [8 4]": func(t *Tape) {
			t.Weight("w", 4, 8)
			t.Weight("w", 8, 4)
		},
		"train: parameter b is joined to others and is not": func(t *Tape) {
			t.Join(Param{Name: "a", Shape: []int{4}}, Param{Name: "b", Shape: []int{8}})
			t.Vector("b", 8)
		},
		"train: parameters [a b] differ beyond the first axis, in format, or some are trained": func(t *Tape) {
			t.Join(Param{Name: "a", Shape: []int{4, 2}}, Param{Name: "b", Shape: []int{4, 3}})
		},
		"train: parameters [w]: at least one, and a shape of each, is needed": func(t *Tape) { t.Weight("w") },
		"train: parameter w of shape [4] is no block of a matrix": func(t *Tape) {
			t.Diagonal(Param{Name: "w", Shape: []int{4}})
		},
		"train: block b lies in another": func(t *Tape) { t.Block("a", func() { t.Block("b", func() {}) }) },
	} {
		_, err := Measure(d.Caps(), f, Options{Pass: Gradients}, PlanOptions{})
		require.EqualError(t, err, want)
	}
	o := Options{Pass: Gradients}
	params := must(Params(d.Caps(), model(2, 6).f, o))
	m := must(NewModel(t.Context(), d, params[1:], o))
	defer m.Close()
	_, err := m.NewPlan(t.Context(), model(2, 6).f, Forward, PlanOptions{})
	require.EqualError(t, err, "train: the model has no parameter tied of float32 [7 16]")
	_, err = m.NewPlan(t.Context(), func(t *Tape) {
		t.Join(Param{Name: "bias", Shape: []int{dim}}, Param{Name: "norm", Shape: []int{dim}})
	}, Forward, PlanOptions{})
	require.EqualError(t, err, "train: the model has parameter norm, but not joined to bias")
	w := must(m.Weights(t.Context()))
	require.EqualError(t, m.Get(t.Context(), "head", 250, make([]float32, 7)), `train: the model has no elements 250 to 256 of a parameter "head"`)
	require.EqualError(t, m.Set(t.Context(), "tied", 0, w["head"][:3]), `train: the model has no elements 0 to 2 of a parameter "tied"`)
	w["head"] = w["head"][1:]
	require.EqualError(t, m.SetWeights(t.Context(), w), "train: parameter head has 255 elements, want [16 16]")
}

// TestTooLarge wants an error that says how many bytes are missing, and what would fit.
func TestTooLarge(t *testing.T) {
	d := vktest.Open(t)
	f, o := model(2, 66).f, Options{Pass: Gradients}
	var memory [Auto]*Memory
	for c := range Auto {
		var err error
		_, memory[c], err = build(d.Caps(), f, Gradients, o, PlanOptions{Checkpoint: c})
		require.NoError(t, err)
	}
	choose := func(room int64, c Checkpoint, what string, bytes func(*Memory) int64) error {
		heaps := []vk.Heap{{SizeBytes: uint64(room), DeviceLocal: true}}
		_, m, err := fit{d.Caps(), heaps, f, Gradients, o, PlanOptions{Checkpoint: c}}.choose(what, bytes)
		if err == nil {
			require.LessOrEqual(t, bytes(m), room)
			for before := range m.Checkpoint {
				require.True(t, c != Auto || bytes(memory[before]) > room, "%v would fit", before)
			}
		}
		return err
	}
	for what, bytes := range map[string]func(*Memory) int64{
		"activations":           func(m *Memory) int64 { return m.Plan.Bytes },
		"model and activations": (*Memory).Bytes,
	} {
		off, blocks := bytes(memory[Off]), bytes(memory[Blocks])
		require.EqualError(t, choose(blocks, Off, what, bytes),
			fmt.Sprintf("train: %s take %d bytes, %d more than the device has left: with checkpoint blocks it would fit, %d", what, off, off-blocks, blocks))
		require.EqualError(t, choose(blocks-1, Off, what, bytes),
			fmt.Sprintf("train: %s take %d bytes, %d more than the device has left: with checkpoint blocks it would take %d, too many as well", what, off, off-blocks+1, blocks))
		require.NoError(t, choose(off, Auto, what, bytes))
		for _, c := range []Checkpoint{Blocks, Auto} {
			require.EqualError(t, choose(blocks-1, c, what, bytes),
				fmt.Sprintf("train: %s take %d bytes, 1 more than the device has left: no other checkpoint takes less", what, blocks))
			require.NoError(t, choose(blocks, c, what, bytes))
		}
	}
	var before int64
	for range 2 { // the first finds out how the device's matrices lie
		before = d.Memory().Bytes
		d.ResetPeak()
		_, err := CheckFits(d, f, o, PlanOptions{}, nil)
		require.NoError(t, err)
	}

	// No device has the memory of such a model.
	list := []Param{{Name: "a", Shape: []int{1 << 10, 1 << 10}}}
	for i := range 1 << 19 {
		list = append(list, Param{Name: fmt.Sprint(i), Shape: []int{1 << 10, 1 << 10}})
	}
	_, err := NewModel(t.Context(), d, list, Options{Pass: Train, Optim: optim.Default()})
	require.ErrorContains(t, err, "train: weights, gradients and moments take 8796")
	require.Equal(t, before, d.Memory().Bytes)
	require.LessOrEqual(t, d.Memory().Peak, before)
}

// TestRanges: parameters share buffers that a kernel sees whole. One that no kernel sees whole is
// refused.
func TestRanges(t *testing.T) {
	caps := *vktest.Open(t).Caps()
	params := []Param{{Name: "a", Shape: []int{10, 100}}, {Name: "b", Shape: []int{1000}}, {Name: "c", Shape: []int{2, 128}}}
	o := Options{Pass: Train, Optim: optim.Default()}
	for limit, want := range map[uint64][]int{4096: {1024, 1024, 256}, 5120: {1024, 1280}, 9216: {2304}} {
		caps.MaxStorageBufferRange = limit
		l := must(newLayout(&caps, params, &o))
		var sizes []int
		for _, g := range l.groups {
			sizes = append(sizes, g.size)
		}
		require.Equal(t, want, sizes)
		for _, p := range l.parts() {
			require.LessOrEqual(t, p.bytes(), int64(limit))
		}
	}
	caps.MaxStorageBufferRange = 4095
	_, err := newLayout(&caps, params, &o)
	require.EqualError(t, err, "train: parameter a takes 4096 bytes, of which a kernel sees 4095: a smaller model would fit: unsupported on this device")
	require.ErrorIs(t, err, vk.ErrUnsupported)
	caps.MaxStorageBufferRange, o.Accumulate = 3*4096-1, 2
	_, err = newLayout(&caps, params, &o)
	require.EqualError(t, err, "train: parameter a takes 12288 bytes, of which a kernel sees 12287: without accumulation it would fit: unsupported on this device")
	o.Accumulate, o.Trained, o.DType = 0, func(string) bool { return false }, dtype.Float16
	params[0].DType, params[2].DType = o.DType, o.DType
	l := must(newLayout(&caps, params, &o))
	require.Equal(t, []part{{"weights", dtype.Float16, 1280, &l.groups[0].weights}, {"weights", dtype.Float32, 1024, &l.groups[1].weights}}, l.parts())
}
