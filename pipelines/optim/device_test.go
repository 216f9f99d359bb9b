package optim_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/pipelines/optim/ref"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/vk"
)

// TestDrawn makes drawn steps: of tensors of one element to several pieces, with gradients and copies of
// every format.
func TestDrawn(t *testing.T) {
	d := vktest.Open(t)
	require.NoError(t, call.TestDrawn(t, d, "optim", 40, call.Space{Thorough: vktest.Thorough(d)}, func(c call.Call) { c.(*call.Optim).Strict = true }))
}

// TestClipRounds: a factor of gradients that is one unit in the last place off, as a device's quotient may be, is so for all
// elements: the largest v was off by 1.12 of what was allowed.
func TestClipRounds(t *testing.T) {
	p := optim.Problem{LR: 0.26, Beta1: 0.95, Beta2: 0.5, Eps: 1e-8}
	data := call.Data{Seed: 18268356763644910190, Kind: call.OutlierKind, Magnitude: 1.187134861946106}
	o := call.NewOptim(call.Optim{Problem: p, Sizes: []int{385, 33, 337, 1740, 2768}, Grad: dtype.BFloat16, Clip: call.OptimClip, ClipBy: 0.03591018170118332, Data: data})
	o.Strict = true
	x := call.Inputs(o)
	want := o.Want(x, o.Pass())
	norm := want["norm"].Want[0]
	scale := math.Nextafter32(float32(norm*o.ClipBy)/float32(norm), 1)
	got := ref.PlainStep(p, ref.Param{Param: x["param0"], M: x["m0"], V: x["v0"]}, x["grad0"], float64(scale), 1)
	require.Equal(t, float32(47.003788), float32(got.V[70]), "as on an H200")
	require.InDeltaSlice(t, want["v0"].Want, got.V, want["v0"].Bound)
}

// count reads a tensor of one element.
func count(t *testing.T, x vk.Tensor) int32 {
	var got [4]byte
	require.NoError(t, x.DownloadRaw(context.Background(), got[:]))
	return int32(binary.LittleEndian.Uint32(got[:]))
}

// arena returns parameters of these sizes. Their tensors lie in one buffer of each kind.
func arena(t *testing.T, d *vk.Device, sizes ...int) (params []optim.Param, whole map[string]vk.Tensor) {
	total := 0
	for _, n := range sizes {
		total += n
	}
	whole = map[string]vk.Tensor{}
	for name, format := range map[string]dtype.DType{"param": dtype.Float32, "grad": dtype.Float32, "m": dtype.Float32, "v": dtype.Float32, "copy": dtype.BFloat16} {
		whole[name] = vktest.Values[float32](t, d, format, nil, total)
	}
	at := 0
	for i, n := range sizes {
		piece := func(name string) vk.Tensor {
			x := whole[name]
			x.Shape, x.Offset = []int{n}, at
			return x
		}
		params = append(params, optim.Param{Name: fmt.Sprint(i), Tensors: optim.Tensors{Param: piece("param"), Grad: piece("grad"), M: piece("m"), V: piece("v"), Copy: piece("copy")}})
		at += n
	}
	return params, whole
}

// TestTraining submits one recorded step again and again. It counts, follows a changed learning
// rate, skips a step with a gradient that is not finite, and goes on after it. Tensors of one
// buffer are one launch.
func TestTraining(t *testing.T) {
	d := vktest.Open(t)
	ctx := context.Background()
	params, whole := arena(t, d, 5000, 3, 17)
	h := optim.Default()
	h.MaxNorm = math.Inf(1)
	a, err := optim.New(ctx, d, params, h)
	require.NoError(t, err)
	t.Cleanup(a.Close)
	require.Equal(t, 1, a.Launches())
	c, err := d.NewCmd("step")
	require.NoError(t, err)
	t.Cleanup(c.Close)
	require.NoError(t, a.Step(c))

	want := ref.Param{Param: make([]float64, 5020), M: make([]float64, 5020), V: make([]float64, 5020)}
	grad, steps := make([]float32, 5020), 0
	for i := range 6 {
		if i > 0 { // the first rate is New's
			h.LR = 0.1 / float64(i+1)
			require.NoError(t, a.SetLR(ctx, h.LR))
		}
		wide := make([]float64, len(grad))
		for j := range grad {
			grad[j] = float32(j%7-3) + float32(i)
			wide[j] = float64(grad[j])
		}
		bad := i == 2 || i == 4
		if bad {
			grad[5010] = []float32{2: float32(math.NaN()), 4: float32(math.Inf(-1))}[i]
		}
		require.NoError(t, whole["grad"].Upload(ctx, grad))
		require.NoError(t, c.Submit(ctx))
		if !bad {
			steps++
			want = ref.Step(h, want, wide, 1, steps)
		}
		require.Equal(t, int32(steps), count(t, a.Count()))
		require.Equal(t, int32(i+1-steps), count(t, a.Skipped()))
		norm := make([]float32, 1)
		require.NoError(t, a.Norm().Download(ctx, norm))
		require.Equal(t, bad, math.IsNaN(float64(norm[0]-norm[0])), "norm %g", norm[0])
		got, rounded := make([]float32, 5020), make([]float32, 5020)
		require.NoError(t, whole["param"].Download(ctx, got))
		require.NoError(t, whole["copy"].Download(ctx, rounded))
		for j := range got {
			require.InDelta(t, want.Param[j], got[j], 1e-6)
			require.Equal(t, dtype.BFloat16.Round(got[j]), rounded[j])
		}
	}
}

// TestNaN wants a NaN to stay in its element without clipping.
func TestNaN(t *testing.T) {
	d := vktest.Open(t)
	ctx := context.Background()
	params, whole := arena(t, d, 9)
	a, err := optim.New(ctx, d, params, optim.Default())
	require.NoError(t, err)
	t.Cleanup(a.Close)
	require.NoError(t, a.SetLR(ctx, 1))
	require.NoError(t, whole["grad"].Upload(ctx, []float32{1, 1, float32(math.NaN()), 1, 1, 1, 1, 1, 1}))
	c, err := d.NewCmd("step")
	require.NoError(t, err)
	t.Cleanup(c.Close)
	require.NoError(t, a.Step(c))
	require.NoError(t, c.Submit(ctx))
	got := make([]float32, 9)
	require.NoError(t, whole["param"].Download(ctx, got))
	for i, x := range got {
		require.Equal(t, i == 2, math.IsNaN(float64(x)), "%d: %v", i, x)
	}
	require.Equal(t, int32(1), count(t, a.Count()))
}

// TestErrors has the message of each parameter that does not fit.
func TestErrors(t *testing.T) {
	d := vktest.Open(t)
	ctx := context.Background()
	for _, c := range []struct {
		change func(p []optim.Param, h *optim.Problem)
		want   string
	}{
		{func(p []optim.Param, h *optim.Problem) {}, ""},
		{func(p []optim.Param, h *optim.Problem) { h.Beta1 = 2 }, "optim: beta1=2 is not in [0, 1)"},
		{func(p []optim.Param, h *optim.Problem) { p[1].Grad = vk.Tensor{} }, `optim: parameter "1": grad has no buffer`},
		{func(p []optim.Param, h *optim.Problem) { p[1].M.DType = dtype.Float16 }, `optim: parameter "1": m is float16, want [float32]`},
		{func(p []optim.Param, h *optim.Problem) { p[1].Copy.DType = dtype.Float32 }, `optim: parameter "1": copy is float32, want [float16 bfloat16]`},
		{func(p []optim.Param, h *optim.Problem) { p[0].V.Shape = []int{7} }, `optim: parameter "0": v has shape [7], want [8], the shape of param`},
		{func(p []optim.Param, h *optim.Problem) { p[0].V.Strides = []int{2} }, `optim: parameter "0": v has strides [2]: it is not contiguous`},
		{func(p []optim.Param, h *optim.Problem) { p[0].V.Offset = 100 }, `optim: parameter "0": v: vk: tensor with shape [8]`},
		{func(p []optim.Param, h *optim.Problem) { p[0].Grad.DType = dtype.Float16 }, `optim: parameter "0": copy is bfloat16, but grad is float16: formats of 16 bits are the same`},
		{func(p []optim.Param, h *optim.Problem) { p[1].M.Offset -= 1 }, `optim: m of parameter "1" overlaps m of parameter "0", which is written`},
		{func(p []optim.Param, h *optim.Problem) {
			p[0].Grad = p[1].Param
			p[0].Grad.Shape = []int{8}
			p[0].Grad.Offset = 4
		}, `overlaps`},
		{func(p []optim.Param, h *optim.Problem) { p[0].Grad = p[1].V.Narrow(); p[0].Grad.Shape = []int{8} }, `overlaps`},
		{func(p []optim.Param, h *optim.Problem) { p[1] = p[0] }, `overlaps`},
		{func(p []optim.Param, h *optim.Problem) { p[1].Grad.Offset = 0 }, ""}, // gradients may be shared
	} {
		params, _ := arena(t, d, 8, 60)
		h := optim.Default()
		c.change(params, &h)
		a, err := optim.New(ctx, d, params, h)
		if c.want == "" {
			require.NoError(t, err)
			require.EqualError(t, a.SetLR(ctx, -1), "optim: lr=-1 is not a finite number from 0 on")
			require.EqualError(t, a.SetStep(ctx, -1), "optim: step=-1 is not in 0..16777215")
			a.Close()
			a.Close()
			continue
		}
		require.ErrorContains(t, err, c.want)
	}
	_, err := optim.New(ctx, d, nil, optim.Default())
	require.EqualError(t, err, "optim: there are no parameters")
}
