package bench

import (
	"fmt"

	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/vk"
)

// An Occupancy is an estimate of how full a compute unit is: how many
// workgroups of a kernel it holds at once, and what keeps more of them out.
type Occupancy struct {
	Workgroups int     // 0: not known
	Fraction   float64 // of the invocations that a unit holds
	Limit      string  // registers, shared memory, invocations or workgroups
}

// String returns, for example, 2 x 128 invocations (25%), registers.
func (o Occupancy) String() string {
	if o.Workgroups == 0 {
		return "-"
	}
	return fmt.Sprintf("%d (%.0f%%), %s", o.Workgroups, 100*o.Fraction, o.Limit)
}

// unitLimits is what a multiprocessor of NVIDIA holds, by family, from CUDA's technical
// specifications per compute capability. Vulkan does not tell.
var unitLimits = map[string]struct{ invocations, workgroups int }{
	"hopper":        {2048, 32},
	"ampere":        {2048, 32},
	"ampere-rtx":    {1536, 16},
	"ada":           {1536, 24},
	"blackwell-rtx": {1536, 24},
}

const (
	unitRegisters = 65536
	registerUnit  = 8 // registers of an invocation come in multiples of this
)

// EstimateOccupancy estimates the occupancy of a kernel from the driver's statistics. It knows
// NVIDIA's chips since Ampere. It assumes that all workgroups of a unit together have as much
// shared memory as one of them may have, as was seen on an H200.
func EstimateOccupancy(caps *vk.Caps, stats vk.KernelStats, workgroup [3]uint32) Occupancy {
	unit, known := unitLimits[chips.Family(caps)]
	size := int(workgroup[0]) * max(int(workgroup[1]), 1) * max(int(workgroup[2]), 1)
	if !known || !stats.Available || stats.Registers == 0 || size == 0 {
		return Occupancy{}
	}
	o := Occupancy{Workgroups: unit.workgroups, Limit: "workgroups"}
	registers := (int(stats.Registers) + registerUnit - 1) / registerUnit * registerUnit
	limits := []struct {
		name string
		n    int
	}{{"invocations", unit.invocations / size}, {"registers", unitRegisters / (registers * size)}}
	if stats.SharedBytes > 0 {
		limits = append(limits, struct {
			name string
			n    int
		}{"shared memory", int(uint64(caps.MaxSharedMemoryBytes) / stats.SharedBytes)})
	}
	for _, l := range limits {
		if l.n < o.Workgroups {
			o.Workgroups, o.Limit = max(l.n, 1), l.name
		}
	}
	o.Fraction = min(float64(o.Workgroups*size)/float64(unit.invocations), 1)
	return o
}
