package faults

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// scenario does a little of everything that programs do on a device: tensors, a call on slices of
// the host, a recording with scratch memory and several kernels, run twice. It closes all that it
// opened, even after errors, and returns the first error.
func scenario(d *vk.Device) (err error) {
	ctx := context.Background()
	p := attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 1, SeqQ: 3, SeqKV: 5, HeadDim: 8, DType: dtype.Float32}
	q, kv, o := make([]float32, 2*3*8), make([]float32, 5*8), make([]float32, 2*3*8)
	for i := range kv {
		kv[i] = float32(i % 8)
	}
	if err := attention.ForwardHost(ctx, d, attention.HostTensors{Q: q, K: kv, V: kv, O: o}, p, attention.Options{Impl: attention.Scalar}); err != nil {
		return err
	}
	for i, x := range o { // all keys alike: the mean of v
		if x != float32(i%8) {
			return errors.New("attention is wrong")
		}
	}

	rows := norm.Problem{Rows: 2, Cols: 4, DType: dtype.Float32}
	tensors := map[string]vk.Tensor{}
	defer func() {
		for _, t := range tensors {
			t.Close()
		}
	}()
	for name, shape := range map[string][]int{"x": {2, 4}, "w": {4}, "y": {2, 4}, "mean": {2}, "rstd": {2}, "dy": {2, 4}, "dx": {2, 4}, "dw": {4}} {
		t, err := d.NewTensor(name, dtype.Float32, shape...)
		if err != nil {
			return err
		}
		tensors[name] = t
		data := make([]float32, t.NumElements())
		for i := range data {
			data[i] = float32(i + 1)
		}
		if err := t.Upload(ctx, data); err != nil {
			return err
		}
	}
	c, err := d.NewCmd("step")
	if err != nil {
		return err
	}
	defer c.Close()
	t := norm.Tensors{X: tensors["x"], W: tensors["w"], Y: tensors["y"], Mean: tensors["mean"], RStd: tensors["rstd"]}
	if err := norm.Forward(c, t, rows, norm.Options{}); err != nil {
		return err
	}
	if err := norm.Backward(c, t, norm.Gradients{DY: tensors["dy"], DX: tensors["dx"], DW: tensors["dw"]}, rows, norm.Options{}); err != nil {
		return err
	}
	for range 2 {
		if err := c.Submit(ctx); err != nil {
			return err
		}
	}
	mean := make([]float32, 2)
	if err := t.Mean.Download(ctx, mean); err != nil {
		return err
	}
	if mean[0] != 2.5 || mean[1] != 6.5 {
		return errors.New("norm is wrong")
	}
	return nil
}

// TestFaults makes each call that can fail do so: the first, then the second and so on. The error
// says what failed, nothing leaks, and the device works afterwards, or the next one if the device
// was lost.
func TestFaults(t *testing.T) {
	bytes, err := norm.Workspace(vktest.Open(t).Caps(), norm.Problem{Rows: 2, Cols: 4, DType: dtype.Float32}, kit.Backward, norm.Options{})
	require.NoError(t, err)
	require.Positive(t, bytes, "the scenario has no scratch memory")
	lost, full := vk.ErrDeviceLost, vk.ErrOutOfDeviceMemory
	for _, x := range []struct {
		call  string
		err   error
		least int // calls of the scenario
	}{
		{"vkCreateBuffer", vk.ErrOutOfHostMemory, 12},
		{"vkAllocateMemory", full, 12},
		{"vkCreateCommandPool", full, 2},
		{"vkCreateDescriptorPool", full, 2},
		{"vkCreateComputePipelines", full, 3},
		{"vkQueueSubmit", lost, 12},
		{"vkWaitSemaphores", lost, 4},
	} {
		t.Run(x.call, func(t *testing.T) {
			n := 0
			for failed := true; failed; n++ {
				failed = fault(t, x.call, x.err, n)
			}
			require.Greater(t, n, x.least, "calls that failed")
		})
	}
}

// fault runs the scenario with call number n failing, and after a loss all later ones. It
// reports whether there was such a call.
func fault(t *testing.T, call string, want error, n int) bool {
	lost := errors.Is(want, vk.ErrDeviceLost)
	calls := 0
	d, err := vk.Open(vk.Options{Name: t.Name(), Validate: vk.HaveValidation() == nil, Fault: func(of string) vk.Result {
		if of != call {
			return 0
		}
		calls++
		if calls-1 == n || lost && calls > n {
			return want.(vk.Result)
		}
		return 0
	}})
	require.NoError(t, err)
	err = scenario(d)
	if calls <= n {
		require.NoError(t, err)
		require.NoError(t, d.Close())
		return false
	}
	require.ErrorIs(t, err, want, "%s number %d", call, n)
	require.ErrorContains(t, err, call)
	if !lost {
		require.NoError(t, scenario(d), "after %s number %d failed", call, n)
	}
	require.NoError(t, d.Close(), "after %s number %d failed", call, n)
	return true
}
