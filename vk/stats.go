package vk

import (
	"math"
	"strings"
)

// read asks the driver for the statistics of a pipeline. Not getting them is
// no failure.
func (s *KernelStats) read(d *Device, raw rawKernel) {
	size, list, err := d.api.statistics(raw.pipeline)
	if err != nil || len(list) == 0 {
		return
	}
	s.Available = true
	s.SubgroupSize = size
	for _, r := range list {
		s.All = append(s.All, Statistic{r.name, r.value()})
	}
	s.name()
}

// name picks the numbers with a field of their own out of s.All.
func (s *KernelStats) name() {
	s.Registers = s.find("register count", "vgprs", "registers")
	// NVIDIA (driver 580) has something else in the upper half of "Local Memory Size".
	s.SpillBytes = s.find("local memory", "scratch", "spill size") & math.MaxUint32
	s.SharedBytes = s.find("shared memory", "lds size")
	s.CodeBytes = s.find("binary size", "code size")
}

// value returns the number in whatever format it came.
func (r rawStatistic) value() float64 {
	switch r.format {
	case 0: // boolean, of which the driver writes half the union
		return float64(uint32(r.bits))
	case 1:
		return float64(int64(r.bits))
	case 3:
		return math.Float64frombits(r.bits)
	}
	return float64(r.bits)
}

// find returns the first statistic that begins with one of the names, in any
// case; drivers do not agree on them.
func (s *KernelStats) find(names ...string) uint64 {
	for _, name := range names {
		for _, st := range s.All {
			if strings.HasPrefix(strings.ToLower(st.Name), name) {
				return uint64(st.Value)
			}
		}
	}
	return 0
}
