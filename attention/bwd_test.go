package attention_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// backwardArgs are the tensors of one call.
type backwardArgs struct {
	dq, dk, dv, do, o, lse, q, k, v vk.Tensor
	in                              attention.Tensors   // of features
	g                               attention.Gradients // further ones
	p                               attention.Problem
	opt                             attention.Options
}

func (x *backwardArgs) record(c *vk.Cmd) error {
	in, g := x.tensors(), x.g
	g.DO, g.DQ, g.DK, g.DV = x.do, x.dq, x.dk, x.dv
	return attention.Backward(c, in, g, x.p, x.opt)
}

// tensors returns those of the forward pass.
func (x *backwardArgs) tensors() attention.Tensors {
	in := x.in
	in.O, in.LSE, in.Q, in.K, in.V = x.o, x.lse, x.q, x.k, x.v
	return in
}

// newBackwardArgs makes all tensors of p, with room and no more.
func newBackwardArgs(t testing.TB, d *vk.Device, p attention.Problem) *backwardArgs {
	x := &backwardArgs{p: p}
	x.o, x.lse, x.q, x.k, x.v = newTensors(t, d, p)
	x.dq, x.dk, x.dv, x.do = newTensor(t, d, p.DType, p.QShape()), newTensor(t, d, p.DType, p.KShape()), newTensor(t, d, p.DType, p.VShape()), newTensor(t, d, p.DType, p.OShape())
	return x
}

func newTensor(t testing.TB, d *vk.Device, format dtype.DType, shape []int) vk.Tensor {
	x := vktest.Tensor(t, d, format, shape...)
	return x
}

// TestBackwardErrors has the message of each argument that does not fit.
func TestBackwardErrors(t *testing.T) {
	d := vktest.Open(t)
	p := attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 3, SeqKV: 5, HeadDim: 8, DType: dtype.Float16}
	good := newBackwardArgs(t, d, p)
	workspace, err := d.NewBuffer("workspace", 191)
	require.NoError(t, err)
	defer workspace.Close()
	large, err := d.NewBuffer("large", 1<<12)
	require.NoError(t, err)
	defer large.Close()
	none := vk.Tensor{}
	for _, c := range []struct {
		change func(x *backwardArgs)
		want   string
	}{
		{func(x *backwardArgs) {}, ""},
		{func(x *backwardArgs) { x.dq = none }, "attention: dq has no buffer"},
		{func(x *backwardArgs) { x.dk = x.dq }, "attention: dk has shape [2 4 3 8] and strides [96 24 8 1], want shape [2 2 5 8]: (batch, num_kv_heads, seq_kv, head_dim)"},
		{func(x *backwardArgs) { x.dv.DType = dtype.Float32 }, "attention: dv is float32, want float16"},
		{func(x *backwardArgs) { x.do = none }, "attention: do has no buffer"},
		{func(x *backwardArgs) { x.o = none }, "attention: o has no buffer"},
		{func(x *backwardArgs) { x.lse = none }, "attention: lse has no buffer"},
		{func(x *backwardArgs) { x.q.Shape = x.q.Shape[1:] }, "attention: q has shape [4 3 8] and strides [96 24 8 1], want shape [2 4 3 8]: (batch, num_heads, seq_q, head_dim)"},
		{func(x *backwardArgs) { x.k = none }, "attention: k has no buffer"},
		{func(x *backwardArgs) { x.dq = x.q }, "attention: dq overlaps q: outputs need memory of their own"},
		{func(x *backwardArgs) { x.dq = x.o }, "attention: dq overlaps o: outputs need memory of their own"},
		{func(x *backwardArgs) { x.dq = x.do }, "attention: dq overlaps do: outputs need memory of their own"},
		{func(x *backwardArgs) { x.dv = x.dk }, "attention: dv overlaps dk: outputs need memory of their own"},
		{func(x *backwardArgs) { x.dv.Strides = []int{80, 0, 8, 1} }, "attention: dv has strides [80 0 8 1] for shape [2 2 5 8]: elements of an output may not share memory"},
		{func(x *backwardArgs) { x.g.DLSE = x.q }, "attention: dlse is float16, want float32"},
		{func(x *backwardArgs) { x.g.DLSE = x.lse }, ""}, // inputs may share memory
		{func(x *backwardArgs) { x.g.DBias = x.q }, "attention: dbias is given, but the problem has none"},
		{func(x *backwardArgs) { x.g.DSinks = x.lse }, "attention: dsinks is given, but the problem has none"},
		{func(x *backwardArgs) { x.in.Bias = x.q }, "attention: bias is given, but the problem has none"},
		{func(x *backwardArgs) { x.opt.Workspace = workspace }, "attention: workspace has 191 bytes, want 192"},
		{func(x *backwardArgs) { x.opt.Workspace = large }, ""},
		{func(x *backwardArgs) { x.opt.Workspace, x.q = large, vk.View(large, p.DType, p.QShape()...) }, "attention: workspace overlaps q: outputs need memory of their own"},
		{func(x *backwardArgs) { x.opt.Workspace, x.dk = large, vk.View(large, p.DType, p.KShape()...) }, "attention: workspace overlaps dk: outputs need memory of their own"},
		{func(x *backwardArgs) { x.opt.Config = &attention.Config{} }, "attention: Options.Config is of the forward pass, the backward pass takes Options.BackwardConfig"},
		{func(x *backwardArgs) { x.p.NumKVHeads = 3 }, "attention: num_heads=4 is not a multiple of num_kv_heads=3"},
	} {
		x := *good
		c.change(&x)
		cmd, err := d.NewCmd("errors")
		require.NoError(t, err)
		err = x.record(cmd)
		if c.want == "" {
			require.NoError(t, err)
			require.NoError(t, cmd.Submit(context.Background()))
		} else {
			require.EqualError(t, err, c.want)
		}
		cmd.Close()
	}
}

// TestBackwardConfigs runs problems on tiles that the tuning table does not take:
// not square, one and several tiles of an invocation or a subgroup, rows that wait in
// registers, one loop and two, matrix layouts that are not known. Features have
// TestBackwardFeatureTiles.
func TestBackwardConfigs(t *testing.T) {
	d := vktest.Open(t)
	n := matrixSize(d)
	rows, both := heavy(d)
	small := backwardSuite(d).Where(func(c *attntest.Case) bool {
		return c.Problem.Plain() && c.Problem.HeadDim <= setOf(d).HeadDims().Odd && c.FLOPs() < 4e6 && lightOnSoftware(d, c)
	})
	for _, config := range []attention.BackwardConfig{
		{
			Impl: attention.Scalar,
			DKV:  attention.BackwardTile{Threads: 64, ThreadsX: 8, Own: 8, Stream: 16, Depth: 8, Slice: 4},
			DQ:   attention.BackwardTile{Threads: 32, ThreadsX: 4, Own: 24, Stream: 4, Depth: 16, Slice: 4},
		},
		{
			// All weights are read by the last product before the next ones are written.
			Impl: attention.Scalar,
			DKV:  attention.BackwardTile{Threads: 128, ThreadsX: 16, Own: 16, Stream: 64, Depth: 16, Slice: 64},
			DQ:   attention.BackwardTile{Threads: 64, ThreadsX: 16, Own: 8, Stream: 64, Depth: 32, Slice: 32},
		},
		{
			Impl: attention.CoopMat2,
			DKV:  attention.BackwardTile{Subgroups: 4, RowTiles: 1, Stream: 16, Prefetch: true, PeelMask: both},
			DQ:   attention.BackwardTile{Subgroups: 2, RowTiles: rows, Stream: n, Prefetch: true, PeelMask: true},
		},
		{
			Impl: attention.CoopMat2,
			DKV:  attention.BackwardTile{Subgroups: 2, RowTiles: 2, Stream: n, Detour: true},
			DQ:   attention.BackwardTile{Subgroups: 4, RowTiles: 1, Stream: n, Detour: true, Prefetch: true},
		},
		{
			Impl: attention.CoopMat,
			DKV:  attention.BackwardTile{Subgroups: 2, RowTiles: rows, Stream: n, PeelMask: true, Detour: true},
			DQ:   attention.BackwardTile{Subgroups: 2, RowTiles: 2, Stream: n, PeelMask: both, Detour: true},
		},
	} {
		t.Run(config.String(), func(t *testing.T) {
			vktest.Require(t, config.Impl.String(), pathError(d.Caps(), config.Impl))
			cases := small
			if config.Impl != attention.Scalar { // float32 on matrices: TestBackwardF32x2Configs
				cases = small.Where(func(c *attntest.Case) bool {
					// What is not aligned is another kernel.
					light := strings.HasPrefix(c.Name, "edge/") || strings.HasPrefix(c.Name, "layout/") && config.DKV.Prefetch
					return c.Problem.DType != dtype.Float32 && (light || !software(d))
				})
			}
			f := backwardOnDevice{d, attention.Options{BackwardConfig: &config}}
			attntest.TestBackward(t, standIns(d, cases, f.Supports), f)
		})
	}
}

// TestBackwardManyBatches runs several dispatches, as for more batches than the
// device has workgroups. A dispatch of the unfused path has at least the heads of a group.
func TestBackwardManyBatches(t *testing.T) {
	d := vktest.Open(t)
	for _, impl := range attention.Impls() {
		t.Run(impl.String(), func(t *testing.T) {
			d.Caps().MaxWorkgroupCount[2] = 1
			if impl == attention.Unfused {
				d.Caps().MaxWorkgroupCount[2] = 2
			}
			small := backwardSuite(d).Where(func(c *attntest.Case) bool {
				p := &c.Problem
				several := p.Plain() || len(p.Features()) >= attntest.Several || vktest.Thorough(d) // one more is another kernel on every path
				return p.Batch > 1 && p.NumHeads <= 2*p.NumKVHeads && p.HeadDim <= setOf(d).HeadDims().Odd && c.FLOPs() < 4e6 && p.DType == dtype.Float16 && several
			})
			require.NotEmpty(t, small.Cases)
			f := backwardOnDevice{d, attention.Options{Impl: impl}}
			attntest.TestBackward(t, standIns(d, small, f.Supports), f)
		})
	}
}

// TestBackwardTurns has a device so small that the heads of several groups take turns with their
// blocks, which larger devices do from megabytes on.
func TestBackwardTurns(t *testing.T) {
	d := vktest.Open(t)
	d.Caps().MaxWorkgroupCount[0] = 3
	small := backwardSuite(d).Where(func(c *attntest.Case) bool {
		p := &c.Problem
		return p.Causal && p.Batch*p.NumHeads > 3 && p.SeqQ <= 48 && p.DType == dtype.Float16 && c.FLOPs() < 4e6
	})
	require.NotEmpty(t, small.Cases)
	for _, impl := range []attention.Impl{attention.CoopMat2, attention.CoopMat} {
		t.Run(impl.String(), func(t *testing.T) {
			vktest.Require(t, impl.String(), pathError(d.Caps(), impl))
			f := backwardOnDevice{d, attention.Options{Impl: impl}}
			attntest.TestBackward(t, standIns(d, small, f.Supports), f)
		})
	}
}

// TestBackwardAfterForward computes O and LSE in the same Cmd, into a workspace that
// the caller gives, with the gradients side by side in one buffer: the validation
// layer looks at the barriers.
func TestBackwardAfterForward(t *testing.T) {
	ctx, d := context.Background(), vktest.Open(t)
	p := attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 33, SeqKV: 70, HeadDim: 24, DType: dtype.Float32, Causal: true}
	x := newBackwardArgs(t, d, p)
	in, up := ref.Inputs[float32]{Q: normal(x.q), K: normal(x.k), V: normal(x.v)}, ref.Upstream[float32]{DO: normal(x.do)}
	for _, y := range []struct {
		t    vk.Tensor
		data []float32
	}{{x.q, in.Q}, {x.k, in.K}, {x.v, in.V}, {x.do, up.DO}} {
		require.NoError(t, y.t.Upload(ctx, y.data))
	}
	bytes, err := attention.Workspace(d.Caps(), p, kit.Backward, x.opt)
	require.NoError(t, err)
	require.Equal(t, int64(8*2*4*33), bytes)
	x.opt.Workspace, err = d.NewBuffer("workspace", bytes)
	require.NoError(t, err)
	defer x.opt.Workspace.Close()
	all, err := d.NewBuffer("gradients", 4*int64(len(in.Q)+2*len(in.K)))
	require.NoError(t, err)
	defer all.Close()
	x.dk, x.dq, x.dv = vk.View(all, p.DType, p.KShape()...), vk.View(all, p.DType, p.QShape()...), vk.View(all, p.DType, p.VShape()...)
	x.dq.Offset, x.dv.Offset = len(in.K), len(in.K)+len(in.Q)

	c, err := d.NewCmd("training")
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, attention.Forward(c, x.tensors(), p, x.opt))
	require.NoError(t, x.record(c))
	require.NoError(t, c.Submit(ctx))

	rows := make([]byte, bytes)
	require.NoError(t, x.opt.Workspace.Download(ctx, 0, rows))
	require.NotEqual(t, make([]byte, bytes), rows)
	want := ref.NewGradients(p)
	require.NoError(t, ref.Backward(want, up, in, p))
	for _, y := range []struct {
		t    vk.Tensor
		want []float64
	}{{x.dq, want.DQ}, {x.dk, want.DK}, {x.dv, want.DV}} {
		got := make([]float32, len(y.want))
		require.NoError(t, y.t.Download(ctx, got))
		for i := range got {
			require.InDelta(t, y.want[i], got[i], 2e-5)
		}
	}
}

// normal returns reproducible numbers for a tensor, different for each size.
func normal(t vk.Tensor) []float32 {
	x, state := make([]float32, t.NumElements()), uint32(t.NumElements())
	for i := range x {
		sum := float32(0)
		for range 4 { // uniform ones of variance 1/3 each
			state = state*1664525 + 1013904223
			sum += float32(int32(state)) / (1 << 31)
		}
		x[i] = sum * 0.866
	}
	return x
}

// TestBackwardRepeatedCall says that recording a call again compiles nothing and
// allocates next to nothing.
func TestBackwardRepeatedCall(t *testing.T) {
	d := vktest.Open(t)
	for _, format := range dtype.All() {
		p := attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 8, SeqKV: 8, HeadDim: 8, DType: format}
		x := newBackwardArgs(t, d, p)
		c, err := d.NewCmd("repeated")
		require.NoError(t, err)
		record := func() {
			c.Reset()
			require.NoError(t, x.record(c))
		}
		record()
		kernels := len(d.CachedKernels())
		require.LessOrEqual(t, testing.AllocsPerRun(10, record), 90.0, format)
		require.Len(t, d.CachedKernels(), kernels)
		c.Close()
	}
}
