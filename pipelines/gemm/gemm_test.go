package gemm_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// internal returns a problem as the engine has it.
func internal(p gemm.Problem) problem.Problem {
	return problem.Problem{
		Batch: p.Batch, M: p.M, N: p.N, K: p.K, TransA: p.TransA, TransB: p.TransB, Ones: p.Ones, Alpha: p.Alpha, Beta: p.Beta,
		Activation: p.Activation, Bias: p.Bias, Residual: p.Residual, DType: p.DType, Out: p.Out.Or(p.DType),
	}
}

// TestForward runs problems with every tensor on every path: a tensor in the place of another shows.
func TestForward(t *testing.T) {
	d := vktest.Open(t)
	for _, p := range []gemm.Problem{
		{Batch: 2, M: 20, N: 24, K: 33, TransA: true, Alpha: 1.5, Beta: -0.5, Activation: gemm.TimesDSiLUKeep, Residual: true, Out: dtype.Some(dtype.Float32)},
		{M: 19, N: 40, K: 16, TransB: true, Activation: gemm.GELUKeep, Bias: true, Residual: true},
		{M: 9, N: 16, K: 24, DType: dtype.Float16, Activation: gemm.SiLUKeep}, // of which C and X are, too
	} {
		for _, impl := range engine.ProductImpls() {
			if impl == gemm.GEMV && p.TransA {
				continue
			}
			o, g := gemm.Options{Impl: impl}, &call.Gemm{Problem: internal(p), Impl: impl.String()}
			k, _, err := call.Case(d.Caps(), g, kit.Forward, call.Inputs(g))
			vktest.Require(t, impl.String(), err)
			k.Test(t, d, func(c *vk.Cmd, x map[string]vk.Tensor) error {
				return gemm.Forward(c, gemm.Tensors{A: x["a"], B: x["b"], C: x["c"], Bias: x["bias"], Residual: x["r"], X: x["x"], S: x["s"]}, p, o)
			})
		}
	}
}

// TestWorkspace wants memory of Workspace bytes to be what Forward and ForwardGroup need.
func TestWorkspace(t *testing.T) {
	d := vktest.Open(t)
	config, err := gemm.ParseConfig("scalar 32x32 t8x8 k32 g8 splits3")
	require.NoError(t, err)
	o := gemm.Options{Config: &config}
	p := gemm.Problem{M: 20, N: 24, K: 100}
	bytes, err := gemm.Workspace(d.Caps(), p, kit.Forward, o)
	require.NoError(t, err)
	less, err := d.NewBuffer("workspace", bytes-16)
	require.NoError(t, err)
	defer less.Close()
	x := vktest.Tensor(t, d, dtype.Float32, 3, 100, 100)
	matrix := func(i, rows, columns int) vk.Tensor {
		v := vk.View(x.Buffer, dtype.Float32, rows, columns)
		v.Offset = i * 100 * 100
		return v
	}
	tensors := gemm.Tensors{A: matrix(0, 20, 100), B: matrix(1, 100, 24), C: matrix(2, 20, 24)}
	c, err := d.NewCmd("less")
	require.NoError(t, err)
	defer c.Close()
	o.Workspace = less
	require.ErrorContains(t, gemm.Forward(c, tensors, p, o), fmt.Sprintf("gemm: workspace has %d bytes from 0 on, want %d", bytes-16, bytes))
	group := make([]gemm.Problem, bytes/128) // its table has 128 bytes for each product
	for i := range group {
		group[i] = gemm.Problem{M: 1, N: 1, K: 1}
	}
	plan, err := gemm.ChooseGroup(d.Caps(), group, gemm.Options{})
	require.NoError(t, err)
	require.EqualValues(t, 128*len(group), plan.Workspace())
	each := make([]gemm.Tensors, len(group))
	for i := range each {
		c := matrix(2, 1, 1)
		c.Offset += i
		each[i] = gemm.Tensors{A: matrix(0, 1, 1), B: matrix(1, 1, 1), C: c}
	}
	require.ErrorContains(t, gemm.ForwardGroup(c, each, group, gemm.Options{Workspace: less}), "gemm: workspace has")
}

// TestGradients computes the gradients of A and B as the package documentation has them, for all
// transposes, and compares them with differences of the product.
func TestGradients(t *testing.T) {
	const m, n, k, alpha = 3, 4, 5, 1.5
	rng := rand.New(rand.NewPCG(1, 2))
	a, b, dv := guard.Random(rng, dtype.Float32, m*k, 1), guard.Random(rng, dtype.Float32, k*n, 1), guard.Random(rng, dtype.Float32, m*n, 1)
	for i := range 4 {
		transA, transB := i&1 != 0, i&2 != 0
		byA, ofA := gemm.Problem{M: m, N: k, K: n, TransB: !transB, Alpha: alpha}, ref.Inputs{A: dv, B: b}
		if transA {
			byA, ofA = gemm.Problem{M: k, N: m, K: n, TransA: transB, TransB: true, Alpha: alpha}, ref.Inputs{A: b, B: dv}
		}
		byB, ofB := gemm.Problem{M: k, N: n, K: m, TransA: !transA, Alpha: alpha}, ref.Inputs{A: a, B: dv}
		if transB {
			byB, ofB = gemm.Problem{M: n, N: k, K: m, TransA: true, TransB: transA, Alpha: alpha}, ref.Inputs{A: dv, B: a}
		}
		// The product is linear in each operand: a difference of one is exact.
		loss := func() (sum float64) {
			p := gemm.Problem{M: m, N: n, K: k, TransA: transA, TransB: transB, Alpha: alpha}
			for i, c := range ref.Multiply(ref.Inputs{A: a, B: b}, internal(p)).C {
				sum += c * dv[i]
			}
			return sum
		}
		da, db, before := ref.Multiply(ofA, internal(byA)).C, ref.Multiply(ofB, internal(byB)).C, loss()
		for i, x := range [][]float64{a, b} {
			for j, got := range [][]float64{da, db}[i] {
				x[j]++
				require.InDelta(t, loss()-before, got, 1e-9)
				x[j]--
			}
		}
	}
}

// TestGroup wants lists whose products differ in sizes and factors, and refuses those that
// differ in more, or are batches.
func TestGroup(t *testing.T) {
	caps := vktest.Open(t).Caps()
	one := gemm.Problem{
		M: 3, N: 4, K: 5, TransA: true, TransB: true, Alpha: 2, Beta: 0.5, Activation: gemm.TimesDSiLU, Residual: true,
		DType: dtype.Float32, Out: dtype.Some(dtype.Float32),
	}
	for want, change := range map[string]func(p *gemm.Problem){
		"":                       func(p *gemm.Problem) { p.M, p.N, p.K, p.Alpha, p.Beta, p.Out = 0, 1, 2, 3, 4, 0 },
		"batch=2, but products":  func(p *gemm.Problem) { p.Batch = 2 },
		"is 3x4x5 nt float32":    func(p *gemm.Problem) { p.TransA = false },
		"is 3x4x5 tn float32":    func(p *gemm.Problem) { p.TransB = false },
		"times-dsilu, product 0": func(p *gemm.Problem) { p.Residual = false },
		"tt float16 to float32":  func(p *gemm.Problem) { p.DType = dtype.Float16 },
		"tt float16 alpha":       func(p *gemm.Problem) { p.DType, p.Out = dtype.Float16, 0 },
		"tt float32 to float16":  func(p *gemm.Problem) { p.Out = dtype.Some(dtype.Float16) },
		"silu-keep residual":     func(p *gemm.Problem) { p.Activation = gemm.SiLUKeep },
		"n=-1 is not from 0 to":  func(p *gemm.Problem) { p.N = -1 },
	} {
		other := one
		change(&other)
		_, err := gemm.ChooseGroup(caps, []gemm.Problem{one, other}, gemm.Options{})
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, "gemm: product 1 of the group")
		require.ErrorContains(t, err, want)
	}
	plan, err := gemm.ChooseGroup(caps, nil, gemm.Options{})
	require.NoError(t, err)
	require.Zero(t, plan.Workspace())
}
