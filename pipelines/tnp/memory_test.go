package tnp_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/pipelines/train"
)

// TestMemory wants the presets to take what issue 19 allows, and each checkpoint less than the one
// before.
func TestMemory(t *testing.T) {
	caps := *vktest.Open(t).Caps()
	caps.MaxAllocationBytes, caps.MaxBufferBytes, caps.MaxStorageBufferRange = 4<<30, 4<<30, 4<<30 // for the largest shape
	caps.MaxWorkgroupCount = [3]uint32{1<<31 - 1, 1<<16 - 1, 1<<16 - 1}
	o := train.Options{DType: dtype.Float16, Pass: train.Train, Optim: optim.Default()}
	for name, most := range map[string][]int64{ // GB: off, selective, blocks
		"small": {5, 5, 5}, "mid": {5, 5, 5}, "large": {30, 9, 7},
	} {
		p := must(tnp.PresetOf(name))
		var bytes []int64
		for i, c := range []train.Checkpoint{train.Off, train.Selective, train.Blocks} {
			m := must(tnp.Measure(&caps, p.Config, p.Shape, o, tnp.PlanOptions{Checkpoint: c}))
			t.Logf("%s, checkpoint %v: %v", name, c, m)
			require.Equal(t, c, m.Checkpoint)
			require.Less(t, m.Bytes(), most[i]*1e9, "%s, checkpoint %v", name, c)
			if i > 0 {
				require.Less(t, m.Bytes(), bytes[i-1], "%s, checkpoint %v", name, c)
			}
			require.LessOrEqual(t, float64(m.Plan.Bytes), 1.1*float64(m.Plan.Live), "%s, checkpoint %v: gaps", name, c)
			bytes = append(bytes, m.Bytes())
		}
	}
}

// TestByName: the holders of a plan's memory are all of it, each name once.
func TestByName(t *testing.T) {
	d := vktest.Open(t)
	p := must(tnp.PresetOf("tiny"))
	for _, format := range []dtype.DType{dtype.Float32, dtype.Float16} {
		m := must(tnp.Measure(d.Caps(), p.Config, p.Shape, train.Options{DType: format, Pass: train.Train, Optim: optim.Default()}, tnp.PlanOptions{}))
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
