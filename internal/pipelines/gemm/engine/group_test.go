package engine_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/cover"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/gemmtest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// groupOnDevice runs engine.MultiplyGroup for the suite.
func groupOnDevice(opt engine.GroupOptions) gemmtest.GroupMultiplier {
	return func(c *vk.Cmd, t []engine.Tensors, g engine.Group) error { return engine.MultiplyGroup(c, t, g, opt) }
}

// groupFormats is formats for groups.
func groupFormats(t *testing.T, d *vk.Device, impl engine.Impl, f func(t *testing.T, format dtype.DType)) {
	formats(t, d, impl, func(t *testing.T, format dtype.DType) {
		if _, err := engine.ChooseGroup(d.Caps(), engine.Group{DType: format, Out: format}, engine.GroupOptions{Impl: impl}); err != nil {
			t.Skip(err)
		}
		f(t, format)
	})
}

// TestMultiplyGroup runs the suite of groups on every path of the device.
func TestMultiplyGroup(t *testing.T) {
	for _, impl := range engine.Impls() {
		t.Run(impl.String(), func(t *testing.T) {
			d := vktest.Open(t)
			groupFormats(t, d, impl, func(t *testing.T, format dtype.DType) {
				gemmtest.TestGroup(t, d, representativeGroups(d, gemmtest.Groups(format)), groupOnDevice(engine.GroupOptions{Impl: impl}))
			})
		})
	}
}

// representativeGroups is representative for groups; the products of a case take one kernel.
func representativeGroups(d *vk.Device, cases []*gemmtest.GroupCase) []*gemmtest.GroupCase {
	if vktest.Thorough(d) {
		return cases
	}
	return cover.Pairs(cases, func(c *gemmtest.GroupCase) []any {
		return []any{c.TransA, c.TransB, c.Layout.Pad < 0, c.Activation.String(), c.Out.String(), c.Residual}
	}, func(c *gemmtest.GroupCase) []any {
		var empty [3]bool
		for _, x := range c.Products {
			empty[0], empty[1], empty[2] = empty[0] || x.M == 0, empty[1] || x.N == 0, empty[2] || x.K == 0
		}
		return []any{len(c.Products), empty}
	})
}

// TestGroupConfigs runs some of the groups on configurations that the tuning table does
// not take on this device.
func TestGroupConfigs(t *testing.T) {
	d := vktest.Open(t)
	for n, text := range []string{"coopmat s1x2 t2x1 k16 loadahead1 g2", fmt.Sprintf("coopmat s2x1 t1x2 k%d g3", 3*side(d)), "scalar 16x32 t4x8 k8 g1"} {
		t.Run(text, func(t *testing.T) {
			config, err := engine.ParseConfig(text)
			require.NoError(t, err)
			groupFormats(t, d, config.Impl, func(t *testing.T, format dtype.DType) {
				step, from := 5, 0
				if config.Impl == engine.CoopMat && !vktest.Thorough(d) {
					step, from = 10, 5*n // half of them for each of the two
				}
				var some []*gemmtest.GroupCase
				for i, c := range gemmtest.Groups(format) {
					if i%step == from {
						some = append(some, c)
					}
				}
				gemmtest.TestGroup(t, d, some, groupOnDevice(engine.GroupOptions{Config: &config}))
			})
		})
	}
}

// TestGroupReplay submits a group twice, after its tensors and sizes have changed on the
// host, and with other inputs: the commands keep what was recorded.
func TestGroupReplay(t *testing.T) {
	d := vktest.Open(t)
	ctx := context.Background()
	a, b, c := vector(t, d, "a", 6), vector(t, d, "b", 2), vector(t, d, "c", 6)
	require.NoError(t, b.Upload(ctx, []float32{1, 10}))
	g := engine.Group{Products: []engine.Product{{M: 2, N: 2, K: 1}, {M: 2, N: 1, K: 1}}}
	tensors := []engine.Tensors{
		{C: at(c, 2, 2, 2), A: at(a, 0, 2, 1), B: at(b, 0, 1, 2)},
		{C: at(c, 0, 2, 1), A: at(a, 4, 2, 1), B: at(b, 1, 1, 1)},
	}
	cmd, err := d.NewCmd("replay")
	require.NoError(t, err)
	defer cmd.Close()
	require.NoError(t, engine.MultiplyGroup(cmd, tensors, g, engine.GroupOptions{}))
	tensors[0].C.Offset, g.Products[1].M = 0, 1
	for i := range 2 {
		x := float32(i)
		require.NoError(t, a.Upload(ctx, []float32{1 + x, 2 + x, -1, -1, 3 + x, 4 + x}))
		require.NoError(t, c.Upload(ctx, make([]float32, 6)))
		require.NoError(t, cmd.Submit(ctx))
		got := make([]float32, 6)
		require.NoError(t, c.Download(ctx, got))
		require.Equal(t, []float32{10 * (3 + x), 10 * (4 + x), 1 + x, 10 * (1 + x), 2 + x, 10 * (2 + x)}, got)
	}
}

// vector returns n float32 numbers that are closed with the test.
func vector(t *testing.T, d *vk.Device, name string, n int) vk.Tensor {
	x, err := d.NewTensor(name, dtype.Float32, n)
	require.NoError(t, err)
	t.Cleanup(x.Close)
	return x
}

// at returns a contiguous view of x from an element on.
func at(x vk.Tensor, offset int, shape ...int) vk.Tensor {
	v := vk.View(x.Buffer, x.DType, shape...)
	v.Offset = offset
	return v
}

// TestGroupArguments wants an error that names the product and what does not fit, or none.
func TestGroupArguments(t *testing.T) {
	d := vktest.Open(t)
	a, b, c, other := vector(t, d, "a", 64), vector(t, d, "b", 64), vector(t, d, "c", 64), vector(t, d, "other", 64)
	half := c
	var err error
	half.Buffer, err = c.Buffer.Slice(128, 128)
	require.NoError(t, err)
	columns := func(offset, n int) vk.Tensor { // of a matrix of 8 columns
		v := at(c, offset, 4, n)
		v.Strides[0] = 8
		return v
	}
	group := func() (engine.Group, []engine.Tensors) {
		return engine.Group{Products: []engine.Product{{M: 4, N: 3, K: 5}, {M: 4, N: 2, K: 5}}}, []engine.Tensors{
			{C: at(c, 0, 4, 3), A: at(a, 0, 4, 5), B: at(b, 0, 5, 3)},
			{C: at(c, 12, 4, 2), A: at(a, 20, 4, 5), B: at(b, 15, 5, 2)},
		}
	}
	for _, x := range []struct {
		want   string
		change func(g *engine.Group, t []engine.Tensors)
	}{
		{"", func(g *engine.Group, t []engine.Tensors) {}},
		{"", func(g *engine.Group, t []engine.Tensors) { t[1].A = t[0].A }}, // inputs may be shared
		{"", func(g *engine.Group, t []engine.Tensors) { g.Products[1].M, t[1] = 0, engine.Tensors{} }},
		{"", func(g *engine.Group, t []engine.Tensors) {
			g.Products[1].K, t[1].A, t[1].B = 0, vk.Tensor{}, at(other, 0, 1)
		}},
		{"", func(g *engine.Group, t []engine.Tensors) { t[0].C, t[1].C = columns(5, 3), columns(3, 2) }},
		{
			"gemm: c of product 0 of the group overlaps c of product 1: outputs need memory of their own",
			func(g *engine.Group, t []engine.Tensors) { t[0].C, t[1].C = columns(5, 3), columns(4, 2) },
		},
		{
			"gemm: c of product 1 of the group overlaps c of product 0", // across the end of a row
			func(g *engine.Group, t []engine.Tensors) { t[0].C, t[1].C = columns(6, 3), columns(9, 2) },
		},
		{
			"gemm: c of product 1 of the group overlaps c of product 0: outputs need memory of their own",
			func(g *engine.Group, t []engine.Tensors) { t[1].C.Offset = 11 },
		},
		{
			"gemm: b of product 1 of the group overlaps c of product 0",
			func(g *engine.Group, t []engine.Tensors) { t[1].B, t[0].B = at(c, 2, 5, 2), at(c, 40, 5, 3) },
		},
		{
			"gemm: c of product 0 of the group overlaps b of product 1", // which is in a slice of the buffer
			func(g *engine.Group, t []engine.Tensors) {
				t[1].B, t[0].B = at(half, 0, 5, 2), at(half, 17, 5, 3)
				t[0].C.Offset = 36
			},
		},
		{
			`gemm: b of product 1 of the group is in buffer "other", b of product 0 in "b": it must be one buffer for all products`,
			func(g *engine.Group, t []engine.Tensors) { t[1].B = at(other, 0, 5, 2) },
		},
		{"gemm: product 1 of the group: b has no buffer", func(g *engine.Group, t []engine.Tensors) { t[1].B = vk.Tensor{} }},
		{"gemm: product 0 of the group: x is given, but the problem has none", func(g *engine.Group, t []engine.Tensors) { t[0].X = at(other, 0, 4, 3) }},
		{"gemm: the group has 1 products, and there are tensors for 2", func(g *engine.Group, t []engine.Tensors) { g.Products = g.Products[:1] }},
		{"gemm: product 1 of the group: n=-1 is not from 0 to", func(g *engine.Group, t []engine.Tensors) { g.Products[1].N = -1 }},
		{"gemm: product 0 of the group: beta=NaN is not a finite float32", func(g *engine.Group, t []engine.Tensors) { g.Products[0].Beta = math.NaN() }},
		{"gemm: out=int32 is not one of", func(g *engine.Group, t []engine.Tensors) { g.Out = dtype.Int32 }},
	} {
		g, tensors := group()
		x.change(&g, tensors)
		cmd, err := d.NewCmd("arguments")
		require.NoError(t, err)
		err = engine.MultiplyGroup(cmd, tensors, g, engine.GroupOptions{})
		cmd.Close()
		if x.want == "" {
			require.NoError(t, err)
			continue
		}
		require.Error(t, err, x.want)
		require.True(t, strings.HasPrefix(err.Error(), x.want), "%v, want %s", err, x.want)
	}
	// Nothing to do is no error, and launches nothing.
	cmd, err := d.NewCmd("nothing")
	require.NoError(t, err)
	defer cmd.Close()
	require.NoError(t, engine.MultiplyGroup(cmd, nil, engine.Group{}, engine.GroupOptions{}))
	require.NoError(t, engine.MultiplyGroup(cmd, make([]engine.Tensors, 2), engine.Group{Products: []engine.Product{{N: 4, K: 4}, {M: 3}}}, engine.GroupOptions{}))
	require.NoError(t, cmd.Submit(context.Background()))
}

// TestGroupWorkspace wants two calls that have a workspace one after the other to give what
// they give without, and one that is too small, begins elsewhere or is a tensor to be refused.
func TestGroupWorkspace(t *testing.T) {
	d := vktest.Open(t)
	c := gemmtest.Groups(dtype.Float32)[0]
	bytes := engine.GroupWorkspace(c.Group)
	other, err := d.NewTensor("other", dtype.Float32, 6, 7)
	require.NoError(t, err)
	defer other.Close()
	for _, x := range []struct {
		bytes, offset int64
		want          string
	}{
		{bytes, 0, ""},
		{bytes + 384, 384, ""},
		{bytes + 384, 256 + 16, "gemm: workspace_offset=272 of a group is not a multiple of 128"},
		{bytes - 1, 0, "gemm: workspace has"},
	} {
		workspace, err := d.NewBuffer("workspace", x.bytes)
		require.NoError(t, err)
		defer workspace.Close()
		opt := engine.GroupOptions{Workspace: workspace, WorkspaceOffset: x.offset}
		_, err = gemmtest.CheckGroup(context.Background(), guard.Device{Device: d}, c, func(cmd *vk.Cmd, t []engine.Tensors, g engine.Group) error {
			for _, first := range []bool{true, false} {
				one, tensors := g, t
				if first { // another table, and the same results of these products
					one.Products, tensors = g.Products[3:], t[3:]
				}
				if err := engine.MultiplyGroup(cmd, tensors, one, opt); err != nil {
					return err
				}
			}
			return nil
		})
		if x.want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, x.want)
		}
	}
	cmd, err := d.NewCmd("overlap")
	require.NoError(t, err)
	defer cmd.Close()
	a := vector(t, d, "a", 64)
	err = engine.MultiplyGroup(cmd, []engine.Tensors{{C: at(other, 0, 6, 7), A: at(a, 40, 6, 2), B: at(a, 0, 2, 7)}},
		engine.Group{Products: []engine.Product{{M: 6, N: 7, K: 2}}}, engine.GroupOptions{Workspace: a.Buffer})
	require.EqualError(t, err, "gemm: workspace of the group overlaps b of product 0: outputs need memory of their own")
}
