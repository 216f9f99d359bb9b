package engine_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/vk/steps"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// TestSteps runs products side by side, with operands, results and workspaces in one buffer
// of each kind, and wants the bits that they have one after the other. The validation layer
// objects if they meet.
func TestSteps(t *testing.T) {
	d := vktest.Open(t)
	ctx := context.Background()
	for _, x := range []struct {
		format  dtype.DType
		configs []string // of products side by side
	}{
		{dtype.Float16, []string{"coopmat s2x2 t2x2 k16 align g2 splits2", "coopmat s2x2 t2x2 k16 align g2 splits3 rows32", "coopmat s2x2 t2x2 k16 align g2"}},
		{dtype.Float32, []string{"coopmat s1x2 t2x1 k16 g2 splits2 rows32", "scalar 16x32 t4x8 k8 g1 splits2", "coopmat s1x2 t2x1 k16 g2"}},
	} {
		t.Run(x.format.String(), func(t *testing.T) {
			p := engine.Problem{M: 260, N: 257, K: 70, TransA: true, DType: x.format, Out: x.format} // rows that are copied
			vktest.Require(t, engine.CoopMat.String(), engine.Supports(d.Caps(), engine.CoopMat, p))
			a, b := random(t, d, p.K, p.M+1, x.format), random(t, d, p.K, p.N, x.format)
			a.Shape = []int{p.K, p.M}
			n := len(x.configs)
			c := vktest.Tensor(t, d, x.format, 2*n, p.M, 272)
			result := func(i int) vk.Tensor {
				c := c
				c.Shape, c.Strides, c.Offset = []int{p.M, p.N}, []int{272, 1}, i*p.M*272
				return c
			}
			var options []engine.Options
			bytes := int64(0)
			for _, text := range x.configs {
				config, err := engine.ParseConfig(text)
				require.NoError(t, err)
				opt := engine.Options{Config: &config, WorkspaceOffset: bytes}
				one, err := engine.Workspace(d.Caps(), p, opt)
				require.NoError(t, err)
				bytes += one
				options = append(options, opt)
			}
			workspace, err := d.NewBuffer("workspace", bytes)
			require.NoError(t, err)
			defer workspace.Close()
			cmd, err := d.NewCmd("steps")
			require.NoError(t, err)
			defer cmd.Close()
			var copies, products steps.List
			for i, opt := range options {
				opt.Workspace = workspace
				s, err := engine.MultiplySteps(cmd, engine.Tensors{A: a, B: b, C: result(i)}, p, opt)
				require.NoError(t, err)
				copies, products = steps.Together(copies, s.Copies), steps.Together(products, s.Product)
			}
			require.NoError(t, slices.Concat(copies, products).Record(cmd))
			for i, opt := range options {
				opt.Workspace = workspace
				require.NoError(t, engine.Multiply(cmd, engine.Tensors{A: a, B: b, C: result(n + i)}, p, opt))
			}
			require.NoError(t, cmd.Submit(ctx))
			for i, text := range x.configs {
				got, want := make([]float32, p.M*p.N), make([]float32, p.M*p.N)
				require.NoError(t, result(i).Download(ctx, got))
				require.NoError(t, result(n+i).Download(ctx, want))
				require.Equal(t, want, got, text)
			}
		})
	}
}

// random returns a matrix of random numbers that is closed with the test.
func random(t *testing.T, d *vk.Device, rows, cols int, format dtype.DType) vk.Tensor {
	x := vktest.Tensor(t, d, format, rows, cols)
	rng := rand.New(rand.NewPCG(uint64(rows), uint64(cols)))
	data := make([]float32, rows*cols)
	for i := range data {
		data[i] = float32(rng.NormFloat64())
	}
	require.NoError(t, x.Upload(context.Background(), data))
	return x
}
