package main

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestRunBackward runs files through the forward and the backward pass of every
// path, where there are kernels, and compares all gradients with the reference.
func TestRunBackward(t *testing.T) {
	caps, dev := device(t)
	run := func(name string, flags []string, p attention.Problem, in ref.Inputs[float32], dlse bool, impls []attention.Impl) {
		for _, impl := range impls {
			t.Run(fmt.Sprintf("%s/%v", name, impl), func(t *testing.T) {
				err := attention.Supports(caps, p, kit.Forward, attention.Options{Impl: impl})
				if err == nil {
					err = attention.Supports(caps, p, kit.Backward, attention.Options{Impl: impl})
				}
				runBackwardFile(t, p, in, dlse, err, append(flags, "--backward", "--impl", impl.String(), dev)...)
			})
		}
	}
	for _, dt := range dtype.All() {
		p := attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 35, SeqKV: 50, HeadDim: 24, DType: dt}
		if caps.Type == vk.CPU && dt == dtype.Float32 {
			p.HeadDim = 8 // lavapipe compiles its kernels on matrices for long
		}
		all := append([]attention.Impl{attention.Auto}, attention.Impls()...)
		run(fmt.Sprintf("plain/%v", dt), nil, p, randomInputs(p), false, all)
		if caps.Type == vk.CPU && (dt != dtype.Float16 || !vktest.ThoroughWith(caps)) {
			all = softwarePaths[dt]
		}
		p.Causal, p.SeqQ, p.Scale = true, 60, -0.4 // 10 rows see no key
		run(fmt.Sprintf("causal/%v", dt), []string{"--causal", "--scale", "-0.4"}, p, randomInputs(p), true, all)
	}
	eachFeature(func(i int, name string, flags []string, p attention.Problem, in ref.Inputs[float32]) {
		run(name, flags, p, in, true, featurePaths(caps, p, i))
	})
}

// runBackwardFile is runFile with --backward.
func runBackwardFile(t *testing.T, p attention.Problem, in ref.Inputs[float32], dlse bool, unsupported error, flags ...string) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	elements := func(shape []int) int {
		n := 1
		for _, s := range shape {
			n *= s
		}
		return n
	}
	up := ref.Upstream[float32]{DO: bench.Normal(p.DType, elements(p.OShape()), 8)}
	if dlse {
		up.DLSE = bench.Normal(dtype.Float32, elements(p.LSEShape()), 9)
	}
	writeBackwardInputs(t, path, in, up, p)
	code, stdout, stderr := flashvk(append([]string{"run", "attention", "--in", path, "--out", path}, flags...)...)
	if unsupported != nil {
		reason, _, _ := strings.Cut(unsupported.Error(), ": unsupported")
		require.Equal(t, 1, code)
		require.Contains(t, stderr, reason)
		return
	}
	require.Zero(t, code, stderr)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "flashvk: backward ")
	out, err := safetensors.Open(path)
	require.NoError(t, err)
	defer out.Close()

	want, plain := ref.NewGradients(p), ref.NewGradients(p)
	require.NoError(t, ref.Backward(want, up, in, p))
	o, lse, err := ref.Saved(in, p)
	require.NoError(t, err)
	require.NoError(t, ref.PlainBackward(plain, o, lse, up, in, p))
	scope, err := ref.MeasureBackward(up, in, p)
	require.NoError(t, err)
	bound := ref.GradientBounds(want, plain, scope, p)
	tensors := 2
	for _, g := range []struct {
		name   string
		want   []float64
		format dtype.DType
		shape  []int
		bound  float64
	}{
		{"dq", want.DQ, p.DType, p.QShape(), bound.DQ}, {"dk", want.DK, p.DType, p.KShape(), bound.DK}, {"dv", want.DV, p.DType, p.VShape(), bound.DV},
		{"dbias", want.DBias, p.Bias.DType, p.BiasShape(), bound.DBias}, {"dsinks", want.DSinks, dtype.Float32, p.SinksShape(), bound.DSinks},
	} {
		if g.want == nil {
			continue
		}
		tensors++
		got := widened(read(t, out, g.name, g.format, g.shape...))
		diff := guard.MaxDiff(got, g.want)
		require.LessOrEqual(t, diff.Off, g.bound, "%s[%d] = %v, want %v", g.name, diff.Index, diff.Got, diff.Want)
	}
	require.Len(t, out.Tensors(), tensors)
}

// TestRunBackwardOverflow has score gradients beyond float16's range. Paths that keep them in float32 are right
// while the gradients fit, matrices with a loss scale. Of gradients that do not fit the program warns.
func TestRunBackwardOverflow(t *testing.T) {
	caps, dev := device(t)
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 2, HeadDim: 8, DType: dtype.Float16, Scale: 1}
	for _, c := range []struct {
		impl      attention.Impl
		lossScale float32
		overflows bool
	}{{attention.Scalar, 1, false}, {attention.Unfused, 1, false}, {attention.CoopMat, 1. / 8, false}, {attention.Scalar, 16, true}} {
		t.Run(fmt.Sprintf("%v/%v", c.impl, c.lossScale), func(t *testing.T) {
			vktest.Require(t, c.impl.String(), attention.Supports(caps, p, kit.Backward, attention.Options{Impl: c.impl}))
			// dP = ±512000 of weights 1/2, so that dS = ±256000 and dQ = 2 * 256000 / 64.
			in := ref.Inputs[float32]{Q: make([]float32, 8), K: make([]float32, 16), V: make([]float32, 16)}
			up := ref.Upstream[float32]{DO: make([]float32, 8)}
			for i := range 8 {
				up.DO[i], in.V[i], in.V[8+i] = 256*c.lossScale, 250, -250
				in.K[i], in.K[8+i] = 1./64, -1./64
			}
			path := filepath.Join(t.TempDir(), "x.safetensors")
			writeBackwardInputs(t, path, in, up, p)
			code, _, stderr := flashvk("run", "attention", "--in", path, "--out", path, "--scale", "1", "--backward", "--impl", c.impl.String(), dev)
			require.Zero(t, code, stderr)
			require.Equal(t, c.overflows, strings.Contains(stderr, "WARNING: dq has elements that are not finite"), stderr)
			out, err := safetensors.Open(path)
			require.NoError(t, err)
			defer out.Close()
			x, _ := out.Tensor("dq")
			dq, err := out.Float32s(x)
			require.NoError(t, err)
			if c.overflows {
				require.True(t, math.IsInf(float64(dq[0]), 1))
			} else {
				require.InDelta(t, 8000*c.lossScale, dq[0], 8)
			}
		})
	}
}
