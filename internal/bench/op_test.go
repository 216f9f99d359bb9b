package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestCheck has outputs that are right and wrong in one way each.
func TestCheck(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	y, apart := call.Tensor{Name: "y", Shape: []int{3}}, call.Tensor{Name: "y", Shape: []int{2, 3}, Part: []int{2, 2}}
	all := call.Wanted{Want: []float64{1, math.Inf(1), 3}, Bound: 0.25}
	some := call.Wanted{Sample: []int{2}, Want: []float64{3}, Bound: 0.25}
	exact := call.Wanted{Want: []float64{1, 2, 3}}
	each := call.Wanted{Want: []float64{1, 2, 3}, Bounds: []float64{1, 0.25, 0}}
	far := call.Wanted{Want: []float64{1, -100, 0, math.Inf(1)}, Bound: 1}
	near := []float32{1.01, -100.5, 1e-3, inf}
	for _, c := range []struct {
		of    call.Tensor
		want  call.Wanted
		got   []float32
		near  *Tolerance
		off   float64
		wrong string
	}{
		{y, all, []float32{1, inf, 3}, nil, 0, ""},
		{y, all, []float32{1, inf, 3.25}, nil, 0.25, ""},
		{y, all, []float32{1, inf, 3.5}, nil, 0.5, "y[2] is 3.5, want 3: off by 0.5, limit 0.25"},
		{y, all, []float32{1, 7, 3}, nil, math.Inf(1), "y[1] is 7, want +Inf: off by +Inf, limit 0.25"},
		{y, all, []float32{1, -inf, 3}, nil, math.Inf(1), "y[1] is -Inf, want +Inf"},
		{y, all, []float32{nan, inf, 3}, nil, math.Inf(1), "y[0] is NaN, want 1"},
		{y, some, []float32{5, 6, 3}, nil, 0, ""},
		{y, some, []float32{5, nan, 3}, nil, 0, "y[1] was not written or is NaN"},
		{y, some, []float32{5, 6, 4}, nil, 1, "y[2] is 4, want 3"},
		{apart, some, []float32{5, 6, nan, 3, 4, nan}, nil, 0, ""},
		{apart, some, []float32{5, nan, nan, 3, 4, nan}, nil, 0, "y[1] was not written or is NaN"},
		{y, call.Wanted{Any: true}, []float32{5, 6, 7}, nil, 0, ""},
		{y, call.Wanted{Any: true}, []float32{5, nan, 7}, nil, 0, "y[1] was not written or is NaN"},
		{y, exact, []float32{1, 2, 3}, nil, 0, ""},
		{y, exact, []float32{1, 2, 3.5}, nil, 0.5, "y[2] is 3.5, want 3: off by 0.5, limit 0"},
		{y, each, []float32{1.5, 2, 3}, nil, 0.5, ""},
		{y, each, []float32{1.5, 2.5, 3}, nil, 0.5, "y[1] is 2.5, want 2: off by 0.5, limit 0.25"},

		{y, far, near, &Tolerance{1, 0}, 0.5, ""},
		{y, far, near, &Tolerance{1.1e-3, 1e-2}, 1e-3, ""},
		{y, far, near, &Tolerance{0, 1e-2}, 1e-3, "y[2] is 0.001, want 0: off by 0.001, limit 0, also atol 0 + rtol 0.01 * |want|"},
		{y, far, near, &Tolerance{2e-3, 6e-3}, 0.01, "y[0] is 1.01, want 1: "},
		{y, far, near, &Tolerance{1.5e-2, 5e-4}, 0.5, "y[1] is -100.5, want -100: off by 0.5, limit 0.065"},
		{y, far, []float32{1, -100, 0, nan}, &Tolerance{1, 1}, math.Inf(1), "want +Inf"},
		{y, far, []float32{1, -100, 0, 1e30}, &Tolerance{1, 1}, math.Inf(1), "want +Inf"},
	} {
		got, wrong := CheckOutputs([]call.Tensor{{Name: "missing"}, c.of}, call.Outputs{"missing": {Want: []float64{1}}, "y": c.want}, map[string][]float32{"y": c.got}, c.near)
		if got.MaxAbs != c.off {
			require.InDelta(t, c.off, got.MaxAbs, 1e-6, "%v", c)
		}
		require.Equal(t, []int{len(c.want.Want), len(within(&c.of, c.got))}, []int{got.Rows, got.OfRows})
		if c.wrong == "" {
			require.NoError(t, wrong)
		} else {
			require.ErrorContains(t, wrong, c.wrong)
		}
	}
	// The output that is worst by its own limit counts.
	two := []call.Tensor{{Name: "a", Shape: []int{1}}, {Name: "b", Shape: []int{1}}}
	got, _ := CheckOutputs(two, call.Outputs{"a": {Want: []float64{0.5}, Bound: 10}, "b": {Want: []float64{0.9}, Bound: 0.2}}, map[string][]float32{"a": {1}, "b": {1}}, nil)
	require.InDelta(t, 0.1, got.MaxAbs, 1e-6)
	require.Equal(t, 0.2, got.Limit)
	require.Equal(t, 2, got.OfRows)
}

// A copyOp is an Op that computes nothing: y is x, and dx is dy, by copies of buffers. What it says of
// itself may be wrong.
type copyOp struct {
	Op
	off         float64 // of the reference
	unsupported error
	closed      *int
}

func (o copyOp) Name() string                     { return "copy_of" }
func (o copyOp) Describe() string                 { return "a copy" }
func (o copyOp) Keys() []Key                      { return []Key{{"n", 256}} }
func (o copyOp) Cost(Pass) (flops, bytes float64) { return 0, 2048 }
func (o copyOp) Close()                           { *o.closed++ }

func (o copyOp) Tensors() []call.Tensor {
	shape := []int{256}
	return []call.Tensor{
		{Name: "x", Shape: shape, Draw: func(x float64) float64 { return x * x }},
		{Name: "y", Shape: shape, Role: call.Output},
		{Name: "dy", Shape: shape, DType: dtype.Int32, Role: call.Upstream, Draw: func(x float64) float64 { return float64(int(9 * x)) }},
		{Name: "dx", Shape: shape, DType: dtype.Int32, Role: call.Gradient},
	}
}

func (o copyOp) Choose(_ *vk.Caps, impl string, _ Pass) (kit.Plan, error) {
	return copyPlan{}, o.unsupported
}

type copyPlan struct{}

func (copyPlan) String() string    { return "vkCmdCopyBuffer" }
func (copyPlan) Workspace() int64  { return 16 }
func (copyPlan) Kernels() []string { return nil }

func (o copyOp) Bind(_ *vk.Device, t map[string]vk.Tensor, workspace *vk.Buffer, _ string, p Pass) (call.Recording, error) {
	to, from := t["y"], t["x"]
	if p == Backward {
		to, from = t["dx"], t["dy"]
	}
	if workspace == nil || workspace.Bytes() < 16 {
		return nil, fmt.Errorf("there is no workspace")
	}
	return func(c *vk.Cmd) error {
		c.Copy(to.Buffer, 0, from.Buffer, 0, 1024)
		return c.Err()
	}, nil
}

func (o copyOp) Reference(t map[string][]float32, p Pass) (call.Outputs, error) {
	from, to := "x", "y"
	if p == Backward {
		from, to = "dy", "dx"
		if t["y"] == nil && o.off == 0 {
			return nil, fmt.Errorf("y is missing")
		}
	}
	var w call.Wanted
	for _, x := range t[from] {
		w.Want = append(w.Want, float64(x)+o.off)
	}
	return call.Outputs{to: w}, nil
}

// TestRun measures an Op that is right in every pass, and finds out one that is wrong, that writes
// nothing, and whose outputs change later.
func TestRun(t *testing.T) {
	d, ctx := vktest.Open(t), context.Background()
	pr := Protocol{Samples: 1, Iters: 3, WarmupTime: time.Microsecond, WallTime: -1, CacheBytes: 8192}
	closed := 0
	for i, c := range []struct {
		op     copyOp
		pass   Pass
		status Status
		reason string
	}{
		{copyOp{}, Forward, StatusOK, ""},
		{copyOp{}, Backward, StatusOK, ""},
		{copyOp{}, Both, StatusOK, ""},
		{copyOp{off: 1}, Forward, StatusFailed, "off by 1, limit 0"},
		{copyOp{unsupported: fmt.Errorf("copy_of: auto: no copies: %w", vk.ErrUnsupported)}, Forward, StatusUnsupported, "no copies"},
	} {
		c.op.closed = &closed
		last, ends := 0, 0
		results, err := Run(ctx, d, Case{Op: c.op, Pass: c.pass, Impls: []string{"auto"}, Protocol: pr}, func(done, total int, what string) {
			require.True(t, last <= done && done <= total && what != "", "step %d of %d after %d: %q", done, total, last, what)
			last, ends = done, total
		})
		require.NoError(t, err)
		x, parts := results[0], len(c.pass.Parts())
		require.Equal(t, c.status, x.Status, x.Reason)
		require.Contains(t, x.Reason, c.reason)
		require.Equal(t, "copy_of"+c.pass.suffix(), x.Kernel)
		require.Equal(t, "copy_of "+c.pass.String()+", a copy", x.Subject.title)
		require.Equal(t, []any{"n=256", map[Pass]string{Forward: "CopyOfFwd", Backward: "CopyOfBwd", Both: "CopyOfFwdBwd"}[c.pass]}, []any{x.Subject.params, x.Subject.benchmark})
		require.Equal(t, i+1, closed)
		if c.status == StatusOK {
			require.Equal(t, []any{256 * parts, "vkCmdCopyBuffer", ends}, []any{x.Check.Rows, x.Choice, last})
			require.InEpsilon(t, 2048e9*float64(parts)/x.NS(), x.ByteRate(), 1e-12)
		}
	}
	_, err := Run(ctx, d, Case{Op: copyOp{off: 1, closed: &closed}, Pass: Backward, Impls: []string{"auto"}, Protocol: pr}, nil)
	require.ErrorContains(t, err, "the forward pass is wrong: y[")

	r := newOpRun(d, Case{Op: copyOp{closed: &closed}})
	defer r.close()
	require.NoError(t, r.prepare(ctx))
	var x Result
	target, err := r.check(ctx, func(*vk.Cmd, int) error { return nil }, &x)
	require.NoError(t, err)
	require.Equal(t, StatusFailed, x.Status)
	require.Contains(t, x.Reason, "is NaN, want")
	require.Nil(t, target.Record)
	// Copies of the inputs give the same outputs.
	require.NoError(t, r.addSets(ctx, 3))
	target, err = r.check(ctx, r.call(r.op, "auto"), &x)
	require.NoError(t, err)
	require.Equal(t, StatusOK, x.Status, x.Reason)
	require.NoError(t, d.Run(ctx, "last set", func(c *vk.Cmd) error {
		require.NoError(t, target.Record(c, 2))
		again := testing.AllocsPerRun(20, func() { err = target.Record(c, 2) })
		require.LessOrEqual(t, again, 3.0, "a call is bound to a set once")
		return err
	}))
	require.NoError(t, errors.Join(target.Verify(ctx, 2), target.Verify(ctx, 0)))
	require.Error(t, target.Verify(ctx, 1), "a set that was never computed")
	require.NoError(t, target.Clear(ctx, 0))
	require.Error(t, target.Verify(ctx, 0), "cleared outputs")
}
