package trial

import (
	"context"
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/vk"
)

// kernelData is the data of the kernels that package call does not describe yet.
type kernelData struct{ call.Data }

// drawLayout draws the layouts of tensors, since kernels are compiled for aligned rows and others.
func drawLayout(family *rand.Rand) string {
	switch family.IntN(8) {
	case 0, 1:
		return "p"
	case 2, 3, 4:
		return "a"
	case 5:
		return "o"
	}
	mixed := make([]byte, 7)
	for i := range mixed {
		mixed[i] = "pao"[family.IntN(3)]
	}
	return string(mixed)
}

// drawData draws the rest of the data. Half of the time the numbers are ordinary.
func drawData(family, rng *rand.Rand) call.Data {
	d := call.Data{Seed: rng.Uint64(), Kind: call.NormalKind, Layout: drawLayout(family), Workspace: rng.IntN(4) == 0}
	if rng.IntN(2) == 0 {
		d.Kind = []string{call.NormalKind, call.OutlierKind, call.OutlierKind, call.ZeroKind}[rng.IntN(4)]
		d.Magnitude, d.Second = tenTo(rng, -4, 4), tenTo(rng, -4, 4)
	}
	return d
}

// tenTo draws a power of ten.
func tenTo(rng *rand.Rand, least, most float64) float64 {
	return float64(float32(math.Pow(10, least+(most-least)*rng.Float64())))
}

// check runs a call on tensors.
func (d *kernelData) check(ctx context.Context, r *Runner, name string, tensors []guard.Tensor, record guard.Record) error {
	for i := range tensors {
		if tensors[i].Place == nil {
			tensors[i].Place = d.Place(i, tensors[i].Shape)
		}
	}
	return r.Check(ctx, guard.Case{Name: name, Tensors: tensors}, record)
}

// Check runs a case, with poison before each call.
func (r *Runner) Check(ctx context.Context, c guard.Case, record guard.Record) error {
	_, err := c.CheckContext(ctx, r.Guard(), func(c *vk.Cmd, t map[string]vk.Tensor) error {
		return r.Record(c, func(c *vk.Cmd) error { return record(c, t) })
	})
	return err
}

// smaller calls f with each step to simpler data.
func (d kernelData) smaller(f func(d kernelData)) { d.Smaller(func(x call.Data) { f(kernelData{x}) }) }

// halves calls f for every size above one: with half of it, and if it is even with one less.
func halves(sizes []*int, f func()) {
	for _, half := range []bool{true, false} {
		for _, n := range sizes {
			old := *n
			if half && old > 1 {
				*n = (old + 1) / 2
			} else if !half && old > 1 {
				*n = old - 1
			} else {
				continue
			}
			f()
			*n = old
		}
	}
}

// budget returns the operations that the reference of a problem may take.
func budget(rng *rand.Rand, s Space) float64 {
	if rng.IntN(8) == 0 {
		return 8 * s.Work
	}
	return s.Work
}

// within makes sizes smaller until a cost that grows with them is within a budget.
func within(rng *rand.Rand, limit float64, cost func() float64, sizes ...*int) {
	for cost() > limit {
		n := sizes[rng.IntN(len(sizes))]
		for _, other := range sizes { // the larger of two
			if rng.IntN(2) == 0 && *other > *n {
				n = other
			}
		}
		*n = max(1, *n*3/4)
	}
}

// sizeOf draws a size for a Space.
func sizeOf(rng *rand.Rand, s Space, most int) int {
	if s.Soft {
		most = min(most, 70)
	}
	return Size(rng, most)
}

// kernelCaps are the capabilities of a typical device. Configurations are drawn again until they
// are feasible on it.
func kernelCaps(soft bool) *vk.Caps {
	caps := &vk.Caps{
		Name: "NVIDIA H200", VendorID: chips.VendorNVIDIA, DriverID: 4, ComputeUnits: 132, APIVersion: vk.MakeVersion(1, 4, 0),
		SubgroupSize: 32, MinSubgroupSize: 32, MaxSubgroupSize: 32, MaxSharedMemoryBytes: 49152, MaxWorkgroupInvocations: 1024, MaxWorkgroupSize: [3]uint32{1024, 1024, 64},
		MaxStorageBufferRange: 1<<32 - 1, MaxWorkgroupCount: [3]uint32{1<<31 - 1, 1<<16 - 1, 1<<16 - 1},
		Float16: true, Int16: true, Storage16: true, ScalarBlockLayout: true, VulkanMemoryModel: true,
		SubgroupSizeControl: true, ComputeFullSubgroups: true, CoopMat: true, BFloat16CoopMat: true,
		SubgroupOps:       vk.SubgroupBasic | vk.SubgroupVote | vk.SubgroupArithmetic | vk.SubgroupShuffle,
		MaxStorageBuffers: 32, MaxPushConstantsBytes: 256, MaxAllocationBytes: 1<<32 - 1,
	}
	size := uint32(16)
	if soft {
		size = 8
		caps.Name, caps.VendorID, caps.DriverID, caps.ComputeUnits = "llvmpipe", 0x10005, 13, 0
		caps.SubgroupSize, caps.MinSubgroupSize, caps.MaxSubgroupSize, caps.MaxSharedMemoryBytes, caps.BFloat16CoopMat = 8, 8, 8, 32768, false
		caps.MaxWorkgroupSubgroups = 32
	}
	for _, t := range []vk.ComponentType{vk.F16, vk.BF16} {
		caps.CoopMatShapes = append(caps.CoopMatShapes, vk.CoopMatShape{M: size, N: size, K: size, A: t, B: t, C: vk.F32, Result: vk.F32, Scope: vk.ScopeSubgroup})
	}
	if !soft {
		caps.CoopMatShapes = append(caps.CoopMatShapes, vk.CoopMatShape{M: 16, N: 8, K: 16, A: vk.F16, B: vk.F16, C: vk.F32, Result: vk.F32, Scope: vk.ScopeSubgroup})
	}
	return caps
}
