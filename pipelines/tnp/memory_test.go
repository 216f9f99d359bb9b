package tnp

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/vk"
)

// roomy returns the capabilities of a device, with memory for the largest shape.
func roomy(d *vk.Device) *vk.Caps {
	caps := *d.Caps()
	caps.MaxAllocationBytes, caps.MaxBufferBytes, caps.MaxStorageBufferRange = 4<<30, 4<<30, 4<<30
	caps.MaxWorkgroupCount = [3]uint32{1<<31 - 1, 1<<16 - 1, 1<<16 - 1}
	return &caps
}

// TestMemory wants the presets to take what issue 19 allows, each checkpoint less than the one
// before, and Auto to take the first that fits.
func TestMemory(t *testing.T) {
	caps := roomy(vktest.Open(t))
	o := ModelOptions{DType: dtype.Float16, Pass: Train, Optim: optim.Default()}
	for name, most := range map[string][]int64{ // GB: off, selective, blocks
		"small": {5, 5, 5}, "mid": {5, 5, 5}, "large": {30, 9, 7},
	} {
		p, err := PresetOf(name)
		require.NoError(t, err)
		var bytes []int64
		for i, c := range []Checkpoint{Off, Selective, Blocks} {
			m, err := Measure(caps, p.Config, p.Shape, o, PlanOptions{Checkpoint: c})
			require.NoError(t, err)
			t.Logf("%s, checkpoint %v: %v", name, c, m)
			require.Equal(t, c, m.Checkpoint)
			require.Less(t, m.Bytes(), most[i]*1e9, "%s, checkpoint %v", name, c)
			if i > 0 {
				require.Less(t, m.Bytes(), bytes[i-1], "%s, checkpoint %v", name, c)
			}
			require.LessOrEqual(t, float64(m.Plan.Bytes), 1.1*float64(m.Plan.Live), "%s, checkpoint %v: gaps", name, c)
			bytes = append(bytes, m.Bytes())
		}
		for i, c := range []Checkpoint{Off, Selective, Blocks, Blocks} {
			room := int64(1)
			if i < len(bytes) {
				room = bytes[i]
			}
			caps.Heaps = []vk.Heap{{SizeBytes: 1 << 40}, {SizeBytes: 1 << 40, BudgetBytes: uint64(room) + 5, UsageBytes: 5, DeviceLocal: true}}
			m, err := Measure(caps, p.Config, p.Shape, o, PlanOptions{Checkpoint: Auto})
			require.NoError(t, err)
			require.Equal(t, c, m.Checkpoint, "%s in %d", name, room)
		}
	}
}

// TestTooLarge wants an error that says how many bytes are missing, and what would fit.
func TestTooLarge(t *testing.T) {
	d := vktest.Open(t)
	p, err := PresetOf("tiny")
	require.NoError(t, err)
	o := ModelOptions{Pass: Gradients}
	var memory [Auto]*Memory
	for c := range Auto {
		_, memory[c], err = build(d.Caps(), p.Config, p.Shape, Gradients, o, PlanOptions{Checkpoint: c})
		require.NoError(t, err)
	}
	choose := func(room int64, c Checkpoint, what string, bytes func(*Memory) int64) error {
		heaps := []vk.Heap{{SizeBytes: uint64(room), DeviceLocal: true}}
		_, m, err := fit{d.Caps(), heaps, p.Config, p.Shape, Gradients, o, PlanOptions{Checkpoint: c}}.choose(what, bytes)
		if err == nil {
			require.LessOrEqual(t, bytes(m), room)
		}
		return err
	}
	for what, bytes := range map[string]func(*Memory) int64{
		"activations":           func(m *Memory) int64 { return m.Plan.Bytes },
		"model and activations": (*Memory).Bytes,
	} {
		off, selective, blocks := bytes(memory[Off]), bytes(memory[Selective]), bytes(memory[Blocks])
		require.EqualError(t, choose(selective, Off, what, bytes),
			fmt.Sprintf("tnp: %s take %d bytes, %d more than the device has left: with checkpoint selective it would fit, %d", what, off, off-selective, selective))
		require.EqualError(t, choose(blocks-1, Off, what, bytes),
			fmt.Sprintf("tnp: %s take %d bytes, %d more than the device has left: with checkpoint blocks it would take %d, too many as well", what, off, off-blocks+1, blocks))
		for _, c := range []Checkpoint{Blocks, Auto} {
			require.EqualError(t, choose(blocks-1, c, what, bytes),
				fmt.Sprintf("tnp: %s take %d bytes, 1 more than the device has left: no other setting takes less", what, blocks))
			require.NoError(t, choose(blocks, c, what, bytes))
		}
	}
	require.NoError(t, CheckFits(d, p.Config, p.Shape, o, PlanOptions{}))
	most := int64(0)
	for _, h := range d.Caps().Heaps {
		most = max(most, int64(h.SizeBytes))
	}
	require.EqualError(t, checkModel(d.Caps().Heaps, 2*most+1e9), fmt.Sprintf("tnp: weights, gradients and moments take %d bytes, %d more than the device has left", 2*most+int64(1e9), missing(d.Caps().Heaps, 2*most+1e9)))

	// No device has the memory of as many blocks and heads as there may be.
	p.Layers, p.DModel, p.Components, p.DFF = 1024, 1<<16, 1024, 1<<18
	before := d.Memory().Bytes
	_, err = NewModel(t.Context(), d, p.Config, ModelOptions{Pass: Train, Optim: optim.Default()})
	require.ErrorContains(t, err, "tnp: weights, gradients and moments take ")
	require.Equal(t, before, d.Memory().Bytes)
}

// TestRanges: a model and a plan with a tensor that a kernel does not see whole are refused without
// any memory, with a batch that has none.
func TestRanges(t *testing.T) {
	d := vktest.Open(t)
	p, err := PresetOf("tiny")
	require.NoError(t, err)
	o := ModelOptions{Pass: Train, Optim: optim.Default(), Accumulate: 2}
	_, n := p.slots()
	caps := *d.Caps()
	for limit, want := range map[int]string{
		12 * n:   "",
		12*n - 1: fmt.Sprintf("tnp: gradients take %d bytes, of which AdamW sees %d: without accumulation they would fit: unsupported on this device", 12*n, 12*n-1),
		4*n - 1:  fmt.Sprintf("tnp: weights take %d bytes, of which AdamW sees %d: a smaller model would fit: unsupported on this device", 4*n, 4*n-1),
	} {
		caps.MaxStorageBufferRange = uint64(limit)
		if err := checkRanges(&caps, p.Config, o); want != "" {
			require.EqualError(t, err, want)
			require.ErrorIs(t, err, vk.ErrUnsupported)
		} else {
			require.NoError(t, err)
		}
	}

	const small = 128 << 20
	if d.Caps().MaxStorageBufferRange > small {
		t.Skip("kernels see more than tests fill")
	}
	const most = 8192 // hidden units of its heads take 96 MiB, of twice as many 192 MiB
	p.Batch = 2 * most
	before := d.Memory().Bytes
	d.ResetPeak()
	err = CheckFits(d, p.Config, p.Shape, o, PlanOptions{Checkpoint: Auto})
	require.ErrorIs(t, err, vk.ErrUnsupported)
	require.Regexp(t, fmt.Sprintf(`^tnp: \S+: .* a kernel sees %d: .*; with batch %d it would fit$`, small, most), err.Error())
	p.Batch = most
	require.NoError(t, CheckFits(d, p.Config, p.Shape, o, PlanOptions{Checkpoint: Auto}))
	require.Equal(t, before, d.Memory().Bytes)
	require.LessOrEqual(t, d.Memory().Peak, before)
}

// TestByName: the holders of a plan's memory are all of it, each name once.
func TestByName(t *testing.T) {
	d := vktest.Open(t)
	p, err := PresetOf("tiny")
	require.NoError(t, err)
	for _, format := range []dtype.DType{dtype.Float32, dtype.Float16} {
		m, err := Measure(d.Caps(), p.Config, p.Shape, ModelOptions{DType: format, Pass: Train, Optim: optim.Default()}, PlanOptions{})
		require.NoError(t, err)
		sum, names := int64(0), map[string]int64{}
		for _, h := range m.ByName() {
			require.Zero(t, names[h.Name], h.Name)
			require.Positive(t, h.Bytes, h.Name)
			names[h.Name], sum = h.Bytes, sum+h.Bytes
		}
		require.Equal(t, m.Bytes(), sum)
		require.Equal(t, names["weights"], names["second moments"])
		require.Equal(t, format == dtype.Float16, names["weights, rounded"] > 0)
		require.Positive(t, names["pre"], "of both blocks")
		require.Equal(t, m.Parts[0].Name, m.ByName()[0].Name)
	}
}
