package engine_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/gemmtest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// sharedCases returns batches whose last products may be shared: blocks and k with tails, every
// activation, products that share A or lie anywhere.
func sharedCases(format dtype.DType) []*gemmtest.Case {
	var list []*gemmtest.Case
	layouts := []gemmtest.Layout{{}, {Offset: 8, Pad: 4, BatchPad: 16}, {Offset: 3, Pad: 1, BatchPad: 5, Broadcast: true}}
	for i, act := range []engine.Activation{engine.Identity, engine.SiLU, engine.SiLUKeep, engine.TimesDSiLU, engine.TimesDSiLUKeep} {
		p := engine.Problem{Batch: 5, M: 19, N: 21, K: 77, TransA: i%2 == 0, TransB: i%3 == 0, Activation: act, DType: format, Out: format}
		list = append(list, &gemmtest.Case{Problem: p, Layout: layouts[i%3]})
		p.Residual, p.Beta, p.Alpha, p.Out = true, -0.5, 1.5, dtype.Float32
		p.N, p.K = 40, 96
		list = append(list, &gemmtest.Case{Problem: p, Layout: layouts[(i+1)%3]})
	}
	return list
}

// TestSharedProducts divides k of the last products of a batch: of one, of some, and of
// nearly all in more parts than there are slabs.
func TestSharedProducts(t *testing.T) {
	d := vktest.Open(t)
	for i, text := range []string{
		"scalar 16x16 t4x4 k8 g2 splits3 rows76",
		fmt.Sprintf("coopmat s1x1 t1x2 k%d g2 splits3 rows38", 2*side(d)),
		fmt.Sprintf("coopmat s2x1 t1x1 k%d g1 splits200 rows19", side(d)),
	} {
		t.Run(text, func(t *testing.T) {
			config, err := engine.ParseConfig(text)
			require.NoError(t, err)
			formats(t, d, config.Impl, func(t *testing.T, format dtype.DType) {
				cases := sharedCases(format)
				if !vktest.Thorough(d) && config.Impl == engine.CoopMat {
					cases = every(9, 3*i+int(format), cases)
				} else if d.Caps().Type == vk.CPU {
					cases = every(5, 3*i+int(format), cases)
				}
				gemmtest.Test(t, cases, onDevice{d, engine.Options{Config: &config}})
			})
		})
	}
}

// TestSharedWorkspace wants a call whose last products are shared to leave alone what lies
// beside the bytes that Workspace says.
func TestSharedWorkspace(t *testing.T) {
	d := vktest.Open(t)
	config, err := engine.ParseConfig("scalar 16x16 t4x4 k8 g2 splits3 rows60")
	require.NoError(t, err)
	c := &gemmtest.Case{Problem: engine.Problem{Batch: 5, M: 20, N: 16, K: 50, DType: dtype.Float32, Out: dtype.Float32}}
	opt := engine.Options{Config: &config, WorkspaceOffset: 64}
	bytes, err := engine.Workspace(d.Caps(), c.Problem, opt)
	require.NoError(t, err)
	require.EqualValues(t, 4*3*2*20*16, bytes)
	opt.Workspace, err = d.NewBuffer("workspace", 64+bytes+64)
	require.NoError(t, err)
	defer opt.Workspace.Close()
	ctx := context.Background()
	want := slices.Repeat([]byte{0xA5}, int(64+bytes+64))
	require.NoError(t, opt.Workspace.Upload(ctx, 0, want))
	_, err = gemmtest.Check(c, onDevice{d, opt})
	require.NoError(t, err)
	got := make([]byte, len(want))
	require.NoError(t, opt.Workspace.Download(ctx, 0, got))
	require.NotEqual(t, want[64:64+bytes], got[64:64+bytes])
	require.Equal(t, want[:64], got[:64])
	require.Equal(t, want[:64], got[64+bytes:])
}

// TestSharedManyProducts runs more products than a device counts along one axis, some of
// them shared, and refuses more splits than it counts.
func TestSharedManyProducts(t *testing.T) {
	d := vktest.Open(t)
	d.Caps().MaxWorkgroupCount[2] = 6
	c := &gemmtest.Case{Problem: engine.Problem{Batch: 16, M: 5, N: 7, K: 40, DType: dtype.Float32, Out: dtype.Float32}}
	for text, want := range map[string]string{
		"splits3 rows70": "", // 14 products in three dispatches, and 2 * 3 workgroups
		"splits6 rows75": "",
		"splits3 rows65": "gemm: scalar: splits3 of 3 products are more than the device's 6 workgroups",
		"splits2":        "gemm: scalar: splits2 of 16 products are more than the device's 6 workgroups",
	} {
		config, err := engine.ParseConfig("scalar 16x16 t4x4 k8 g2 " + text)
		require.NoError(t, err)
		_, err = gemmtest.Check(c, onDevice{d, engine.Options{Config: &config}})
		if want == "" {
			require.NoError(t, err, text)
			continue
		}
		require.ErrorIs(t, err, vk.ErrUnsupported)
		require.ErrorContains(t, err, want)
	}
}
