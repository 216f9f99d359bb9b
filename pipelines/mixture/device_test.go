package mixture_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/chips/chipstest"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/mixture/ref"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestDrawn checks drawn calls on every path.
func TestDrawn(t *testing.T) {
	d := vktest.Open(t)
	for impl, n := range map[engine.Impl]int{engine.Scalar: 24, engine.CoopMat: 5} {
		vktest.Require(t, impl.String(), call.TestDrawn(t, d, "mixture", n, call.Space{Impls: []string{impl.String()}, Thorough: vktest.Thorough(d)}, nil))
	}
}

// TestUnrounded wants the one kernel of the forward pass to round nothing between operands and results:
// groups of heads that are equal and that are not.
func TestUnrounded(t *testing.T) {
	d := vktest.Open(t)
	for format := range chipstest.MatrixFormats(t, d) {
		for i, p := range []mixture.Problem{{Tokens: 37, Heads: 5, In: 20, Hidden: 45}, {Tokens: 70, Heads: 3, In: 16, Hidden: 33}, {Tokens: 300, Heads: 10, In: 11, Hidden: 13}} {
			p.DType = format
			m := &call.Mixture{Problem: p, Impl: engine.CoopMat.String(), Groups: 2 + i, LogP: true, Loss: true, Data: call.Data{Workspace: i > 0, Layout: string("pao"[i])}}
			c, record, err := call.Case(d.Caps(), m, kit.Forward, call.Inputs(m))
			require.NoError(t, err)
			var in ref.Inputs
			call.Bind(call.Inputs(m), &in)
			tighten(&c, p, in)
			c.Test(t, d, record)
		}
	}
}

// tighten gives a forward pass the bounds of float32 from the operands on: nothing is rounded in
// between. Matrix units may truncate sums, so the bounds are four times as wide.
func tighten(c *guard.Case, p mixture.Problem, in ref.Inputs) {
	p.DType = dtype.Float32
	b := ref.ForwardBounds(in, p)
	for i := range c.Tensors {
		switch t := &c.Tensors[i]; t.Name {
		case "log_p":
			t.Bound = min(t.Bound, 4*b.LogP)
		case "loss":
			t.Bound = min(t.Bound, 4*b.Loss)
		}
	}
}

// TestForwardChoice wants one kernel on matrices, whose memory does not grow with the heads. The
// test wants outputs in memory where the caller asks for them or nothing else runs.
func TestForwardChoice(t *testing.T) {
	d := vktest.Open(t)
	p := mixture.Problem{Tokens: 1024, Heads: 4, In: 64, Hidden: 512, DType: dtype.Float16, Grad: dtype.Some(dtype.Float16)}
	for _, impl := range engine.Impls() {
		opt := mixture.Options{Impl: impl, Groups: 1}
		plan, err := mixture.Choose(d.Caps(), p, kit.Forward, opt)
		if errors.Is(err, vk.ErrUnsupported) {
			continue
		}
		require.NoError(t, err)
		if impl != engine.CoopMat {
			require.Contains(t, plan.String(), "outputs in memory")
			continue
		}
		require.Contains(t, plan.String(), "groups1")
		p.Heads *= 2
		more, err := mixture.Workspace(d.Caps(), p, kit.Forward, opt)
		require.NoError(t, err)
		require.Equal(t, plan.Workspace(), more)
		opt.Outputs = true
		plan, err = mixture.Choose(d.Caps(), p, kit.Forward, opt)
		require.NoError(t, err)
		require.Contains(t, plan.String(), "outputs in memory")
		plan, err = mixture.Choose(d.Caps(), p, kit.Backward, opt)
		require.NoError(t, err)
		require.Contains(t, plan.String(), "skinny")
	}
}

// table returns inputs whose heads return the outputs out, (tokens, heads, 3), each rounded to a
// number of p.DType times 64. In and hidden are as many as tokens. Token t has hidden unit t
// alone: silu(64) = 64.
func table(p mixture.Problem, out, y []float64) ref.Inputs {
	n := p.Tokens
	in := ref.Inputs{X: make([]float64, n*n), W1: make([]float64, p.Heads*n*n), W2: make([]float64, p.Heads*n*3)}
	for t := range n {
		in.X[t*n+t] = 1
		in.Y = append(in.Y, float64(float32(y[t])))
		for k := range p.Heads {
			in.W1[(k*n+t)*n+t] = 64
			for o := range 3 {
				in.W2[(k*n+t)*3+o] = float64(p.DType.Round(float32(out[(t*p.Heads+k)*3+o] / 64)))
			}
		}
	}
	return in
}

// extremes returns all combinations of logits and of deviations of two heads. Means and values of
// y take turns.
func extremes(logits, sigmas, means, numbers []float64) (out, y []float64) {
	for _, a := range logits {
		for _, b := range logits {
			for _, sa := range sigmas {
				for _, sb := range sigmas {
					i := len(y)
					out = append(out, a, means[i%len(means)], sa, b, means[i/2%len(means)], sb)
					y = append(y, numbers[i%len(numbers)])
				}
			}
		}
	}
	return out, y
}

// extremeCases calls f in every format of every path, with inputs of table.
func extremeCases(t *testing.T, out, y []float64, f func(t *testing.T, d *vk.Device, impl engine.Impl, p mixture.Problem, in ref.Inputs)) {
	d := vktest.Open(t)
	for _, impl := range engine.Impls() {
		for _, format := range dtype.All() {
			if engine.Supports(d.Caps(), impl, engine.Problem{M: 1, N: 1, K: 1, DType: format, Out: format}) != nil {
				continue
			}
			p := mixture.Problem{Tokens: len(y), Heads: 2, In: len(y), Hidden: len(y), DType: format, Grad: dtype.Some(dtype.Float32)}
			t.Run(fmt.Sprintf("%v/%v", impl, format), func(t *testing.T) { f(t, d, impl, p, table(p, out, y)) })
		}
	}
}

// TestExtremes compares each log-probability relative to itself. A log-probability that float32
// cannot hold must be the infinity that it rounds to.
func TestExtremes(t *testing.T) {
	out, y := extremes([]float64{-1e4, 0, 1e4}, []float64{-200, -40, 0, 40, 200}, []float64{-4e6, 0, 5, 1e-3}, []float64{0, 5, 1e30, -3e38, 1e19, 0, 7})
	extremeCases(t, out, y, func(t *testing.T, d *vk.Device, impl engine.Impl, p mixture.Problem, in ref.Inputs) {
		want, _ := ref.Forward(in, p)
		for groups := 1; groups <= 2; groups++ {
			got, loss := forward(t, d, p, in, mixture.Options{Impl: impl, Groups: groups})
			require.Equal(t, math.Inf(1), float64(loss))
			infinite := 0
			for i, w := range want {
				at := fmt.Sprintf("log_p[%d]: outputs %v, y %g", i, out[6*i:6*i+6], y[i])
				if rounded := float64(float32(w)); math.IsInf(rounded, 0) {
					infinite++
					require.Equal(t, rounded, float64(got[i]), at)
					continue
				}
				require.InDelta(t, w, float64(got[i]), 1e-5*(1+math.Abs(w)), at)
			}
			require.Greater(t, infinite, 20)
		}
	})
}

func forward(t *testing.T, d *vk.Device, p mixture.Problem, in ref.Inputs, opt mixture.Options) (logP []float32, loss float32) {
	ctx := context.Background()
	tensor := func(values []float64, format dtype.DType, shape ...int) vk.Tensor {
		return vktest.Values(t, d, format, values, shape...)
	}
	c, err := d.NewCmd("extremes")
	require.NoError(t, err)
	t.Cleanup(c.Close)
	logProb, one := tensor(nil, dtype.Float32, p.Tokens), tensor(nil, dtype.Float32, 1)
	x, w1, w2 := tensor(in.X, p.DType, p.XShape()...), tensor(in.W1, p.DType, p.W1Shape()...), tensor(in.W2, p.DType, p.W2Shape()...)
	y := tensor(in.Y, dtype.Float32, p.Tokens)
	require.NoError(t, mixture.Forward(c, mixture.Tensors{X: x, W1: w1, W2: w2, Y: y, LogP: logProb, Loss: one}, p, opt))
	require.NoError(t, c.Submit(ctx))
	logP, last := make([]float32, p.Tokens), make([]float32, 1)
	require.NoError(t, logProb.Download(ctx, logP))
	require.NoError(t, one.Download(ctx, last))
	return logP, last[0]
}

// TestExtremeGradients has logits of the same extremes. The other inputs are as extreme as the
// format of gradients allows.
func TestExtremeGradients(t *testing.T) {
	out, y := extremes([]float64{-1e4, 0, 1e4}, []float64{-1, 0, 40}, []float64{-5, 0, 5}, []float64{0, 5, -20, 1e-3})
	extremeCases(t, out, y, func(t *testing.T, d *vk.Device, impl engine.Impl, p mixture.Problem, in ref.Inputs) {
		x := call.Values{"x": in.X, "w1": in.W1, "w2": in.W2, "y": in.Y, "dloss": {0.25}}
		m := &call.Mixture{Problem: p, Impl: impl.String(), Loss: true, DLoss: 0.25}
		c, record, err := call.Case(d.Caps(), m, kit.Backward, x)
		require.NoError(t, err)
		b := ref.BackwardBounds(in, ref.Backward(in, 0.25, p), 0.25, p)
		bounds := map[string]float64{"dx": b.DX, "dw1": b.DW1, "dw2": b.DW2}
		for i := range c.Tensors { // the narrower ones, of many outputs
			if bound, ok := bounds[c.Tensors[i].Name]; ok {
				c.Tensors[i].Bound = bound
			}
		}
		c.Test(t, d, record)
	})
}
