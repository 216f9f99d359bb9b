package attention

import (
	"math/bits"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
)

// splits records a fused kernel whose workgroups divide the keys of a block of rows
// (shaders/lib/split_kv.glsl), and attention_combine, which makes O and LSE of their partial
// results. The partial results lie in memory of c.
func (f *forward) splits() error {
	c, p, config, lse := f.c, f.p, &f.config, f.lse
	d := c.Device()
	spec := newCombineSpec(d.Caps(), p, config.Splits)
	spec.WriteLSE = !lse.IsZero()
	blocks, most := groups(p.SeqQ, spec.rows()), d.Caps().MaxWorkgroupCount[0]
	if blocks > most {
		return unsupported("seq_q=%d makes %d workgroups that combine splits, more than the device's %d", p.SeqQ, blocks, most)
	}
	kernel := chips.Kernel[combineParams](c, "attention_combine", p.DType.Short(), spec, vk.KernelOptions{})

	bytes := config.partialBytes(p)
	rows := config.Splits * p.SeqQ
	partO := vk.View(c.Scratch("attention.splits.O", bytes), dtype.Float32, p.Batch, p.NumHeads, rows, p.HeadDim)
	partML := vk.View(c.Scratch("attention.splits.ML", bytes/int64(p.HeadDim)*2), dtype.Float32, p.Batch, p.NumHeads, rows, 2)
	if err := c.Err(); err != nil {
		return err
	}
	parts := *f
	parts.o, parts.lse = partO, partML
	if err := parts.fused(); err != nil {
		return err
	}
	params := combineParams{SeqQ: uint32(p.SeqQ), Splits: uint32(config.Splits), outParams: newOutParams(f.o, lse)}
	lse = orElse(lse, partML) // every binding needs a tensor; the kernel does not write it
	inSteps(d, p.Batch, func(first, n uint32) {
		params.FirstBatch = first
		kernel.Dispatch(c, vk.Groups{X: blocks, Y: uint32(p.NumHeads), Z: n}, params, partO, partML, f.o, lse)
	})
	return c.Err()
}

// combineParams is the push-constant block of attention_combine.comp.
type combineParams struct {
	SeqQ       uint32 `glsl:"seq_q"`
	Splits     uint32 `glsl:"splits"`
	FirstBatch uint32 `glsl:"first_batch"`
	outParams
}

// combineSpec is the specialization of attention_combine.comp.
type combineSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	Teams         uint32 `glsl:"TEAMS"`
	HeadDim       uint32 `glsl:"HEAD_DIM"`
	WriteLSE      bool   `glsl:"WRITE_LSE"`
}

// combineThreads is the workgroup size of attention_combine, if the device allows it.
// Vulkan guarantees 128, which holds two teams of head_dim 256.
const combineThreads = 256

// newCombineSpec takes as many teams as there are splits, rounded down to a power of two, so
// that few kernels are compiled while a sequence grows.
func newCombineSpec(caps *vk.Caps, p Problem, splits int) combineSpec {
	size := min(combineThreads, caps.MaxWorkgroupInvocations, caps.MaxWorkgroupSize[0])
	most := min(uint32(splits), size/uint32(p.HeadDim/4))
	return combineSpec{WorkgroupSize: size, Teams: 1 << (bits.Len32(most) - 1), HeadDim: uint32(p.HeadDim)}
}

// rows returns the number of rows that a workgroup combines.
func (s *combineSpec) rows() int { return int(s.WorkgroupSize / (s.Teams * (s.HeadDim / 4))) }

// partialBytes returns the size of O of all splits.
func (c *Config) partialBytes(p Problem) int64 {
	return 4 * int64(c.Splits) * int64(p.Batch) * int64(p.NumHeads) * int64(p.SeqQ) * int64(p.HeadDim)
}

const (
	// maxSplitFill is the most blocks per compute unit at which keys are divided. Above it
	// more than half of the compute units have work, and the cost of combining is
	// no longer small against the gain.
	maxSplitFill = 0.5

	// splitGroups is the number of workgroups per compute unit that splits aim at.
	// Two of them hide each other's latencies.
	splitGroups = 2

	// minSplitKeys is the smallest share of the keys. Reading fewer keys takes no
	// longer than starting a workgroup and writing its float32 O. On an H200 two
	// splits of 256 keys lose by half (8 heads, 512 rows), and four of 512 win a
	// third (8 heads, 256 rows).
	minSplitKeys = 512
)

// splitChoices returns the numbers of splits that are worth measuring: none, the number
// of splitsToFill, half and twice that; two if splitsToFill returns none but the device is
// not full.
func (c *Config) splitChoices(caps *vk.Caps, p Problem) []int {
	n := c.splitsToFill(caps, p)
	switch fill := table.Fill(caps, c.blocks(caps, p)); {
	case n > 0:
		return []int{0, n / 2, n, 2 * n}
	case fill > 0 && fill < splitGroups:
		return []int{0, 2}
	}
	return []int{0}
}

// splitsToFill returns the number of workgroups that divide the keys of each block of rows
// of p, so that the device is full; 0 if the keys are not divided.
func (c Config) splitsToFill(caps *vk.Caps, p Problem) int {
	fill := table.Fill(caps, c.blocks(caps, p))
	if fill == 0 || fill > maxSplitFill || !c.divides(&p) {
		return 0
	}
	c.Splits = min(int(splitGroups/fill), p.SeqKV/minSplitKeys)
	if c.Splits < 2 || c.Feasible(caps, p) != nil {
		return 0
	}
	return c.Splits
}
