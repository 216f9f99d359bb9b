package train

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/vk"
)

// TestTooLarge wants an error that says how many bytes are missing, and what would fit.
func TestTooLarge(t *testing.T) {
	d := vktest.Open(t)
	f, o := model(2, 66).f, Options{Pass: Gradients}
	var memory [Auto]*Memory
	for c := range Auto {
		var err error
		_, memory[c], err = build(d.Caps(), f, Gradients, o, PlanOptions{Checkpoint: c})
		require.NoError(t, err)
	}
	choose := func(room int64, c Checkpoint, what string, bytes func(*Memory) int64) error {
		heaps := []vk.Heap{{SizeBytes: uint64(room), DeviceLocal: true}}
		_, m, err := fit{d.Caps(), heaps, f, Gradients, o, PlanOptions{Checkpoint: c}}.choose(what, bytes)
		if err == nil {
			require.LessOrEqual(t, bytes(m), room)
			for before := range m.Checkpoint {
				require.True(t, c != Auto || bytes(memory[before]) > room, "%v would fit", before)
			}
		}
		return err
	}
	for what, bytes := range map[string]func(*Memory) int64{
		"activations":           func(m *Memory) int64 { return m.Plan.Bytes },
		"model and activations": (*Memory).Bytes,
	} {
		off, blocks := bytes(memory[Off]), bytes(memory[Blocks])
		require.EqualError(t, choose(blocks, Off, what, bytes),
			fmt.Sprintf("train: %s take %d bytes, %d more than the device has left: with checkpoint blocks it would fit, %d", what, off, off-blocks, blocks))
		require.EqualError(t, choose(blocks-1, Off, what, bytes),
			fmt.Sprintf("train: %s take %d bytes, %d more than the device has left: with checkpoint blocks it would take %d, too many as well", what, off, off-blocks+1, blocks))
		require.NoError(t, choose(off, Auto, what, bytes))
		for _, c := range []Checkpoint{Blocks, Auto} {
			require.EqualError(t, choose(blocks-1, c, what, bytes),
				fmt.Sprintf("train: %s take %d bytes, 1 more than the device has left: no other checkpoint takes less", what, blocks))
			require.NoError(t, choose(blocks, c, what, bytes))
		}
	}
	var before int64
	for range 2 { // the first finds out how the device's matrices lie
		before = d.Memory().Bytes
		d.ResetPeak()
		_, err := CheckFits(d, f, o, PlanOptions{}, nil)
		require.NoError(t, err)
	}

	// No device has the memory of such a model.
	list := []Param{{Name: "a", Shape: []int{1 << 10, 1 << 10}}}
	for i := range 1 << 19 {
		list = append(list, Param{Name: fmt.Sprint(i), Shape: []int{1 << 10, 1 << 10}})
	}
	_, err := NewModel(t.Context(), d, list, Options{Pass: Train, Optim: optim.Default()})
	require.ErrorContains(t, err, "train: weights, gradients and moments take 8796")
	require.Equal(t, before, d.Memory().Bytes)
	require.LessOrEqual(t, d.Memory().Peak, before)
}

// TestRanges: parameters share buffers that a kernel sees whole. One that no kernel sees whole is
// refused.
func TestRanges(t *testing.T) {
	caps := *vktest.Open(t).Caps()
	params := []Param{{Name: "a", Shape: []int{10, 100}}, {Name: "b", Shape: []int{1000}}, {Name: "c", Shape: []int{2, 128}}}
	o := Options{Pass: Train, Optim: optim.Default()}
	for limit, want := range map[uint64][]int{4096: {1024, 1024, 256}, 5120: {1024, 1280}, 9216: {2304}} {
		caps.MaxStorageBufferRange = limit
		l := must(newLayout(&caps, params, &o))
		var sizes []int
		for _, g := range l.groups {
			sizes = append(sizes, g.size)
		}
		require.Equal(t, want, sizes)
		for _, p := range l.parts() {
			require.LessOrEqual(t, p.bytes(), int64(limit))
		}
	}
	caps.MaxStorageBufferRange = 4095
	_, err := newLayout(&caps, params, &o)
	require.EqualError(t, err, "train: parameter a takes 4096 bytes, of which a kernel sees 4095: a smaller model would fit: unsupported on this device")
	require.ErrorIs(t, err, vk.ErrUnsupported)
	caps.MaxStorageBufferRange, o.Accumulate = 3*4096-1, 2
	_, err = newLayout(&caps, params, &o)
	require.EqualError(t, err, "train: parameter a takes 12288 bytes, of which a kernel sees 12287: without accumulation it would fit: unsupported on this device")
	o.Accumulate, o.Trained, o.DType = 0, func(string) bool { return false }, dtype.Float16
	params[0].DType, params[2].DType = o.DType, o.DType
	l := must(newLayout(&caps, params, &o))
	require.Equal(t, []part{{"weights", dtype.Float16, 1280, &l.groups[0].weights}, {"weights", dtype.Float32, 1024, &l.groups[1].weights}}, l.parts())
}
