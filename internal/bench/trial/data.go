package trial

import (
	"context"
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/vk"
)

// kernelData has the values and layouts of a problem's tensors. All training kernels have it in
// their problems.
type kernelData struct {
	Seed      uint64
	Kind      string  // the kind of inputs: normal, outliers (1 in 64 is 100 times as large), zeros (3 of 4 are 0)
	Magnitude float64 // of the first operand; 0: 1
	Second    float64 // of the second one, times the factor that keeps results near 1; 0: 1
	// Layout has a letter for each tensor, and repeats: p for packed rows, a for rows that
	// begin at multiples of 8 elements, o for rows that do not.
	Layout string
	// Workspace gives the call a workspace, and watches the memory on both sides of it.
	Workspace bool
	// Sample is how many rows the reference has; 0: all.
	Sample int
}

// The kinds of inputs.
const (
	normalKind   = "normal"
	outlierKind  = "outliers"
	zeroKind     = "zeros"
	outlierTimes = 100
)

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
func drawData(family, rng *rand.Rand) kernelData {
	d := kernelData{Seed: rng.Uint64(), Kind: normalKind, Layout: drawLayout(family), Workspace: rng.IntN(4) == 0}
	if rng.IntN(2) == 0 {
		d.Kind = []string{normalKind, outlierKind, outlierKind, zeroKind}[rng.IntN(4)]
		d.Magnitude, d.Second = tenTo(rng, -4, 4), tenTo(rng, -4, 4)
	}
	return d
}

// tenTo draws a power of ten.
func tenTo(rng *rand.Rand, least, most float64) float64 {
	return float64(float32(math.Pow(10, least+(most-least)*rng.Float64())))
}

// orOne returns x, 1 for 0.
func orOne(x float64) float64 {
	if x == 0 {
		return 1
	}
	return x
}

// largest returns about the largest of normal numbers of the kind.
func (d *kernelData) largest() float64 {
	if d.Kind == outlierKind {
		return 4 * outlierTimes
	}
	return 6
}

// sumLargest bounds a sum of n products of two numbers of the kind.
func (d *kernelData) sumLargest(n int) float64 {
	if d.Kind == outlierKind {
		return outlierTimes * (16*outlierTimes + 8*math.Sqrt(float64(n)))
	}
	return 36 + 8*math.Sqrt(float64(n))
}

// rng returns the source of random numbers of a tensor, or of another draw from the seed.
func (d *kernelData) rng(stream int) *rand.Rand { return rand.New(rand.NewPCG(d.Seed, uint64(stream))) }

// most is the largest number of a format, less room for roundoff.
func most(t dtype.DType) float64 {
	if t == dtype.Float16 {
		return 60000
	}
	return 1e37
}

// numbers returns n inputs times scale, within the format.
func (d *kernelData) numbers(stream int, t dtype.DType, n int, scale float64) []float64 {
	rng := d.rng(stream)
	limit := most(t)
	x := make([]float64, n)
	for i := range x {
		v := scale * rng.NormFloat64()
		switch d.Kind {
		case outlierKind:
			if rng.Uint32()%64 == 0 || i == 0 {
				v *= outlierTimes
			}
		case zeroKind:
			if rng.Uint32()%4 != 0 {
				v = 0
			}
		}
		x[i] = float64(t.Round(float32(max(-limit, min(v, limit)))))
	}
	return x
}

// plain returns normal numbers whatever the kind.
func (d *kernelData) plain(stream int, t dtype.DType, n int, scale float64) []float64 {
	ordinary := *d
	ordinary.Kind = normalKind
	return ordinary.numbers(stream, t, n, scale)
}

// place says where tensor i lies.
func (d *kernelData) place(i int, shape []int) *guard.Place {
	rng := d.rng(1000 + i)
	letter := byte('p')
	if d.Layout != "" {
		letter = d.Layout[i%len(d.Layout)]
	}
	cols := shape[len(shape)-1]
	switch letter {
	case 'a':
		return &guard.Place{Offset: 8 * (1 + rng.IntN(8)), RowGap: (8-cols%8)%8 + 8*rng.IntN(3), MatrixGap: 8 * rng.IntN(4)}
	case 'o':
		return &guard.Place{Offset: 1 + rng.IntN(70), RowGap: 1 + rng.IntN(9), MatrixGap: rng.IntN(20)}
	}
	return &guard.Place{}
}

// workspaceName is the name of the tensor that is a call's workspace.
const workspaceName = "workspace"

// workspace returns the tensor of a workspace of some bytes from an offset on, or none.
func (d *kernelData) workspace(bytes int64, offset int) []guard.Tensor {
	if !d.Workspace || bytes == 0 {
		return nil
	}
	return []guard.Tensor{{Name: workspaceName, Shape: []int{int(bytes+3) / 4}, Scratch: true, Place: &guard.Place{Offset: offset / 4}}}
}

// check runs a call on tensors.
func (d *kernelData) check(ctx context.Context, r *Runner, name string, tensors []guard.Tensor, record guard.Record) error {
	for i := range tensors {
		if tensors[i].Place == nil {
			tensors[i].Place = d.place(i, tensors[i].Shape)
		}
	}
	c := guard.Case{Name: name, Tensors: tensors}
	_, err := c.CheckContext(ctx, r.Guard(), func(c *vk.Cmd, t map[string]vk.Tensor) error {
		return r.Record(c, func(c *vk.Cmd) error { return record(c, t) })
	})
	return err
}

// smaller calls f with each step to simpler data.
func (d kernelData) smaller(f func(d kernelData)) {
	if d.Kind != normalKind || d.Magnitude != 0 || d.Second != 0 {
		e := d
		e.Kind, e.Magnitude, e.Second = normalKind, 0, 0
		f(e)
	}
	if d.Layout != "p" {
		e := d
		e.Layout = "p"
		f(e)
	}
	if d.Workspace {
		d.Workspace = false
		f(d)
	}
}

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

// sampleRows returns some rows in order, the first and the last among them.
func sampleRows(rng *rand.Rand, rows, n int) []int {
	if n <= 0 || n >= rows {
		return nil
	}
	taken := map[int]bool{0: true, rows - 1: true}
	for len(taken) < max(n, 2) {
		taken[rng.IntN(rows)] = true
	}
	var list []int
	for row := range rows {
		if taken[row] {
			list = append(list, row)
		}
	}
	return list
}

// elements returns the indices of the elements of some rows.
func elements(rows []int, cols int) []int {
	list := make([]int, 0, len(rows)*cols)
	for _, r := range rows {
		for c := range cols {
			list = append(list, r*cols+c)
		}
	}
	return list
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
