package engine

import (
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/vk"
)

// This file estimates how many seconds a product takes, for every part of C that may be shared
// and every number of splits.
//
// Workgroups of one kind begin and end together, so they take whole waves:
//
//	  waves of the blocks that are not shared * (startTime + k * step)
//	+ waves of splits workgroups for each block that is * (startTime + k of a split * step)
//	+ traffic of their sums + combineTime + splits * splitTime
//
// The numbers are those of an H200. Only their ratios matter, and they serve for other large
// devices. For 4096^3, without and with splits, they give 282 and 297 TFLOP/s, where 300 and 320
// were measured; for 512 x 1365 x 18048 tn they give 55 and 256 (60 and 227).
const (
	MatrixFLOPs = 340e12 / 132 // operations a second of a compute unit
	partsFLOPs  = 73e12 / 132  // the same with float32 operands, parts.go
	scalarFLOPs = 21e12 / 132
	unitBytes   = 4e12 / 132 // bytes a second that a compute unit reads or writes
	startTime   = 3e-6       // the first k-tile of a workgroup, and writing C: products with k = 512 have 248 of 340 TFLOP/s
	combineTime = 8e-6       // two barriers, and a kernel starts; some microseconds, not measured
	splitTime   = 3e-7       // gemm_combine adds one split after the other: latency of memory
	clearGain   = 0.03       // splits are taken if they gain at least this
)

// MaxSplits bounds the splits of k.
const MaxSplits = 256

// Slots returns how many workgroups of c a device runs at a time: two for each compute unit, as
// registers allow for the configurations of large devices, or one where shared memory does not
// hold two. It is 0 if the driver does not tell the number of units.
func (c *Config) Slots(caps *vk.Caps, p *Problem) int {
	shape, lack := chips.MatrixShape(caps, p.DType)
	if c.Impl == CoopMat && lack == "" && 2*c.tileBytes(*p, int(shape.M), int(shape.N)) > int(caps.MaxSharedMemoryBytes) {
		return int(caps.ComputeUnits)
	}
	return 2 * int(caps.ComputeUnits)
}

// A costs has what the estimate needs of a product, a configuration and a device.
type costs struct {
	blocks, slots int // slots are 0 if they are not known
	k             int
	step          float64 // seconds of a workgroup for each k
	sums          float64 // seconds of writing and reading the sums of a block
}

// costs returns the costs of p with c.
func (c *Config) costs(caps *vk.Caps, p *Problem) costs {
	rate := MatrixFLOPs
	switch {
	case c.Impl == Scalar:
		rate = scalarFLOPs
	case c.inParts(p):
		rate = partsFLOPs
	}
	m, n := c.Block(caps, p.DType)
	elements, units := float64(m*n), max(float64(caps.ComputeUnits), 1)
	t := costs{blocks: c.blocks(caps, p), slots: c.Slots(caps, p), k: p.K, sums: 2 * 4 * elements / units / unitBytes}
	t.step = 2 * elements / rate * float64(t.slots) / units
	return t
}

// rounds returns how many waves workgroups take.
func (t *costs) rounds(workgroups int) int { return (workgroups + t.slots - 1) / t.slots }

// round returns the time of a wave whose workgroups have that much of k.
func (t *costs) round(k int) float64 { return startTime + float64(k)*t.step }

// combine returns the time of the sums of shared blocks.
func (t *costs) combine(shared, splits int) float64 {
	return float64(splits*shared)*t.sums + combineTime + float64(splits)*splitTime
}

// estimate returns the time of the product with that many shared blocks, each divided into splits
// with a part of k.
func (t *costs) estimate(shared, splits, part int) float64 {
	time := float64(t.rounds(t.blocks-shared)) * t.round(t.k)
	if shared > 0 {
		time += float64(t.rounds(shared*splits))*t.round(part) + t.combine(shared, splits)
	}
	return time
}

// pieces returns into how many pieces C may be divided, of which the last ones are shared, and
// how many rows each has. A piece is a row of blocks or, of several products, a product.
func (c *Config) pieces(caps *vk.Caps, p *Problem) (pieces, rows int) {
	if p.Batches() > 1 {
		return p.Batches(), p.M
	}
	rows, _ = c.Block(caps, p.DType)
	return (p.M + rows - 1) / rows, rows
}

// withSplits returns c with the splits whose estimate is the least, if they gain clearly.
//
// It compares the divisions of C whose unshared blocks fill whole waves: sharing more takes
// longer. Splits gain less than a wave, so sums that take as long do not pay. Path scalar shares
// all or nothing: the slots of its small workgroups are those that keep a device busy, not all
// that it runs at a time.
func (c Config) withSplits(caps *vk.Caps, p *Problem, t costs) Config {
	c.Splits, c.Rows = 1, 0
	if t.slots == 0 {
		return c
	}
	pieces, rows := c.pieces(caps, p)
	piece := t.blocks / pieces // blocks
	best, taken := t.estimate(0, 1, p.K)*(1-clearGain), c
	for full := t.rounds(t.blocks) - 1; full >= 0 && (full == 0 || c.Impl == CoopMat); full-- {
		kept := full * t.slots / piece
		shared := t.blocks - kept*piece
		c.Rows = kept * rows
		if t.combine(shared, 2) > t.round(p.K) {
			break
		}
		for c.Splits = 2; c.Splits <= c.mostSplits(caps, p) && t.combine(shared, c.Splits) < t.round(p.K); c.Splits++ {
			if fit := c.Fit(p); fit.Splits < c.Splits {
				continue // some splits would be empty
			}
			if time := t.estimate(shared, c.Splits, c.splitK(p.K)); time < best {
				best, taken = time, c
			}
		}
	}
	return taken
}

// mostSplits returns into how many parts k may be divided: one axis of the workgroups counts the
// splits of all products.
func (c *Config) mostSplits(caps *vk.Caps, p *Problem) int {
	return min(MaxSplits, int(caps.MaxWorkgroupCount[2])/max(p.Batches()-c.Rows/p.M, 1))
}

// SplitAs is withSplits for another kernel: a device runs slots of its workgroups at a time, and
// each takes step seconds for each k.
func (c Config) SplitAs(caps *vk.Caps, p *Problem, slots int, step float64) Config {
	t := c.costs(caps, p)
	t.slots, t.step = slots, step
	return c.withSplits(caps, p, t)
}
