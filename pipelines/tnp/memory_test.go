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
	m := &Model{d: d, c: p.Config, o: ModelOptions{Pass: Gradients}}
	var memory [Auto]*Memory
	for c := range Auto {
		_, memory[c], err = build(d.Caps(), m.c, p.Shape, Gradients, m.o, PlanOptions{Checkpoint: c})
		require.NoError(t, err)
	}
	room := func(bytes int64) []vk.Heap { return []vk.Heap{{SizeBytes: uint64(bytes), DeviceLocal: true}} }
	off, selective, blocks := memory[Off].Plan.Bytes, memory[Selective].Plan.Bytes, memory[Blocks].Plan.Bytes
	require.EqualError(t, m.tooLarge(room(selective), p.Shape, Gradients, PlanOptions{}, memory[Off]),
		fmt.Sprintf("tnp: activations take %d bytes, %d more than the device has left: with checkpoint selective it would take %d", off, off-selective, selective))
	require.EqualError(t, m.tooLarge(room(blocks-1), p.Shape, Gradients, PlanOptions{Checkpoint: Blocks}, memory[Blocks]),
		fmt.Sprintf("tnp: activations take %d bytes, 1 more than the device has left: no other setting has less", blocks))
}
