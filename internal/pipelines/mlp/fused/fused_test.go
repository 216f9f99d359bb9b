package fused_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/chips/chipstest"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/internal/pipelines/mlp/fused"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// configs are configurations that run where matrices are of 8 and of 16 rows: x in
// shared memory, in the cache, and both; grids of subgroups for hidden units of one row and
// of several; one chunk of hidden units in shared memory and two; blocks that share rows,
// all of them or those from a row on.
func configs(m int) []string {
	return []string{
		"pair s2 t2x2 h1x1 x4 ahead2",
		"pair s2 t1x3 h1x3 x0 ahead3 loadahead1 double",
		fmt.Sprintf("pair s3 t2x2 h2x2 x1 ahead2 splits2 rows%d", 2*m),
		"pair s4 t2x1 h1x2 x2 ahead4 double splits3",
	}
}

// cases calls f for problems of a format that w of some columns and more fit: sizes 1,
// whole blocks and chunks, and tails of all four.
func cases(m, columns int, format dtype.DType, f func(p fused.Problem, layout guard.Layout)) {
	for i, p := range []fused.Problem{
		{M: 1, In: 1, Hidden: 1, N: 1, Out: dtype.Float32},
		{M: 4 * m, In: 4 * m, Hidden: 12 * m, N: columns, Out: format},
		{M: 5*m + 3, In: 5*m + 1, Hidden: 9*m + 5, N: columns - 3, Out: format},
		{M: 3*m - 1, In: m - 1, Hidden: 14*m - 1, N: 5, Out: dtype.Float32},
	} {
		p.DType = format
		f(p, guard.Layout(i)%guard.Layouts)
	}
}

// TestForward compares with two products in float64.
func TestForward(t *testing.T) {
	d := vktest.Open(t)
	for format, shape := range chipstest.MatrixFormats(t, d) {
		m := int(shape.M)
		layout, err := chips.LayoutOf(d, format, shape)
		require.NoError(t, err)
		if layout.Length != 8 || !layout.SameAsAcc {
			t.Logf("%v: no kernel: matrices lie as %+v", format, layout)
			continue
		}
		for i, text := range append(configs(m), "") { // i goes on to count cases
			var config *fused.Config
			columns := 4 * m
			if text != "" {
				c, err := fused.ParseConfig(text)
				require.NoError(t, err)
				config, columns = &c, c.Subgroups*c.TilesN*m
			}
			cases(m, columns, format, func(p fused.Problem, layout guard.Layout) {
				if i++; i%2 == 0 && !vktest.Thorough(d) {
					return // every other case of a configuration; the next one has the others
				}
				t.Run(fmt.Sprintf("%v/%s", p, text), func(t *testing.T) {
					report, err := check(d, p, layout, fused.Options{Config: config})
					require.NoError(t, err)
					t.Log(report)
				})
			})
		}
	}
}

// check runs a problem on random tensors.
func check(d *vk.Device, p fused.Problem, layout guard.Layout, opt fused.Options) (string, error) {
	rng := rand.New(rand.NewPCG(uint64(p.M), uint64(p.Hidden)))
	random := func(n int) []float64 { return guard.Random(rng, p.DType, n, 1) }
	x, w1, w2 := random(p.M*p.In), random(p.In*p.Hidden), random(p.Hidden*p.N)
	first := engine.Problem{M: p.M, N: p.Hidden, K: p.In, Activation: engine.SiLU, DType: p.DType, Out: p.DType}
	second := engine.Problem{M: p.M, N: p.N, K: p.Hidden, DType: p.DType, Out: p.Out}
	in := ref.Inputs{A: x, B: w1}
	want := ref.Multiply(ref.Inputs{A: ref.Multiply(in, first).C, B: w2}, second)
	hidden := ref.Plain(in, first).C
	plain := ref.Plain(ref.Inputs{A: hidden, B: w2}, second)
	c := guard.Case{Name: "fused", Layout: layout, Tensors: []guard.Tensor{
		{Name: "x", DType: p.DType, Shape: []int{p.M, p.In}, Values: x},
		{Name: "w1", DType: p.DType, Shape: []int{p.In, p.Hidden}, Values: w1},
		{Name: "w2", DType: p.DType, Shape: []int{p.Hidden, p.N}, Values: w2},
		{Name: "y", DType: p.Out, Shape: []int{p.M, p.N}, Want: want.C, Bound: ref.NewBounds(want, plain, ref.Inputs{A: hidden, B: w2}, second).C},
	}}
	return c.Check(d, func(c *vk.Cmd, t map[string]vk.Tensor) error {
		return fused.Forward(c, fused.Tensors{X: t["x"], W1: t["w1"], W2: t["w2"], Y: t["y"]}, p, opt)
	})
}

// TestWorkspace wants a call with memory of Workspace bytes, from some byte on, to
// give what one without gives, and to refuse less.
func TestWorkspace(t *testing.T) {
	d := vktest.Open(t)
	p := fused.Problem{M: 5, In: 3, Hidden: 70, N: 4, DType: dtype.Float16, Out: dtype.Float16}
	bytes, err := fused.Workspace(d.Caps(), p, fused.Options{})
	vktest.Require(t, engine.CoopMat.String(), err)
	memory, err := d.NewBuffer("workspace", bytes+48)
	require.NoError(t, err)
	defer memory.Close()
	for offset, want := range map[int64]string{
		48: "",
		64: fmt.Sprintf("gemm: workspace has %d bytes from 64 on, want %d", bytes-16, bytes),
		8:  "gemm: workspace_offset=8 is not a multiple of 16",
	} {
		_, err := check(d, p, guard.Odd, fused.Options{Workspace: memory, WorkspaceOffset: offset})
		if want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, want)
		}
	}
}
