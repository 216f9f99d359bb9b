package engine

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/steps"
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
// The numbers were measured on an H200. Only their ratios matter, and they serve for other large
// devices. For 4096^3, without and with splits, they give 282 and 297 TFLOP/s, where 300 and 320
// were measured; for 512 x 1365 x 18048 tn they give 55 and 256 (60 and 227).
const (
	MatrixFLOPs = 340e12 / 132 // operations a second of a compute unit
	f32x2FLOPs  = 73e12 / 132  // the same with float32 operands, f32x2.go
	scalarFLOPs = 21e12 / 132
	unitBytes   = 4e12 / 132 // bytes a second that a compute unit reads or writes
	startTime   = 3e-6       // the first k-tile of a workgroup, and writing C: products with k = 512 have 248 of 340 TFLOP/s
	combineTime = 8e-6       // two barriers, and a kernel starts; some microseconds, not measured
	splitTime   = 3e-7       // gemm_combine adds one split after the other: latency of memory
	clearGain   = 0.03       // the least gain for which splits are taken
)

// MaxSplits bounds the splits of k.
const MaxSplits = 256

// Slots returns how many workgroups of c a device runs at a time: two for each compute unit, as
// registers allow for the configurations of large devices, or one where shared memory does not
// hold two. Slots returns 0 if the driver does not tell the number of units.
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

func (c *Config) costs(caps *vk.Caps, p *Problem) costs {
	rate := MatrixFLOPs
	switch {
	case c.Impl == Scalar:
		rate = scalarFLOPs
	case c.isF32x2(p):
		rate = f32x2FLOPs
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
// withSplits compares the divisions of C whose unshared blocks fill whole waves: sharing more takes
// longer. Splits gain less than a wave, so sums that take as long do not pay. Path scalar shares
// all or nothing: its slots are the small workgroups that keep a device busy; the device runs more
// at a time.
func (c Config) withSplits(caps *vk.Caps, p *Problem, t costs) Config {
	c.Splits, c.Rows = 1, 0
	if c.Impl == GEMV {
		return c.splitRows(caps, p)
	}
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

// Splits (split-K): where C has few blocks and k is long, workgroups share a block, each with a
// part of k, and gemm_combine adds up their sums. All rows of C are divided so, or with Config.Rows
// the rows after the first Rows. Example: a device runs 264 blocks at a time. 344 blocks take two
// waves, as long as 528. With 264 whole blocks, and then 80 blocks with a third of k in each of 240
// workgroups, the time is little longer than for 352 blocks. splits.go chooses.

// splitK returns the part of k of a split, a multiple of BlockK. The last splits may be missing;
// none is empty.
func (c *Config) splitK(k int) int {
	splits := max(c.Splits, 1)
	blocks := (k + c.BlockK - 1) / c.BlockK
	return (blocks + splits - 1) / splits * c.BlockK
}

// Fit returns c without splits that have no part of k, and without splits where Rows are all rows.
func (c Config) Fit(p *Problem) Config {
	if c.Splits > 1 {
		part := c.splitK(p.K)
		c.Splits = (p.K + part - 1) / part
	}
	if c.Splits <= 1 || c.Rows >= p.Batches()*p.M {
		c.Splits, c.Rows = 1, 0
	}
	return c
}

// PartialStride returns the length of a row of partial sums, a multiple of 4 floats.
func PartialStride(n int) int { return (n + 3) / 4 * 4 }

// PartialBytes returns the memory of partial sums.
func (c Config) PartialBytes(p Problem) int64 {
	if c.Splits <= 1 {
		return 0
	}
	return 4 * int64(c.Splits) * int64(p.Batches()*p.M-c.Rows) * int64(PartialStride(p.N))
}

// combineSpec is the specialization of gemm_combine.comp.
type combineSpec struct {
	WorkgroupSize uint32       `glsl:"WORKGROUP_SIZE"`
	Epilogue      EpilogueSpec `glsl:"epilogue"`
}

// A Program records the one kernel of a configuration.
type Program func(c *vk.Cmd, args Args, p Problem, config Config) error

// Steps returns the steps of a product: the kernel alone, or the kernel whose workgroups have a
// part of k each, and gemm_combine, which adds up their sums. These lie in memory from byte at
// on.
func (multiply Program) Steps(args Args, p Problem, config Config, memory *vk.Buffer, at int64) steps.List {
	if config.Splits <= 1 {
		return steps.List{func(c *vk.Cmd) error { return multiply(c, args, p, config) }}
	}
	var whole steps.List
	if rows := config.Rows; rows > 0 {
		one := config
		one.Splits, one.Rows, config.Rows = 1, 0, 0
		unshared, first := args.rowsFrom(0, rows, p)
		whole = steps.List{func(c *vk.Cmd) error { return multiply(c, unshared, first, one) }}
		args, p = args.rowsFrom(rows, p.Batches()*p.M-rows, p)
	}
	stride := PartialStride(p.N)
	partial := Args{A: args.A, B: args.B, panel: args.panel, Deal: args.Deal, n: args.n, K: args.K, More: args.More, C: vk.Tensor{
		Buffer: memory, DType: dtype.Float32,
		Shape:   []int{config.Splits * p.Batches(), p.M, p.N},
		Strides: []int{p.M * stride, stride, 1},
		Offset:  int(at / 4),
	}}
	partial.C = partial.C.Narrow()
	sums := Problem{Batch: p.Batch, M: p.M, N: p.N, K: p.K, TransA: p.TransA, TransB: p.TransB, Ones: p.Ones, DType: p.DType, Out: dtype.Float32}
	return steps.Together(whole, steps.List{
		func(c *vk.Cmd) error { return multiply(c, partial, sums, config) },
		func(c *vk.Cmd) error { return Combine(c, args, partial.C, p, config.Splits) },
	})
}

// Combine records gemm_combine: the epilogue of p on sums, (splits * batch, m, n) float32, added
// up over the splits.
func Combine(c *vk.Cmd, args Args, sums vk.Tensor, p Problem, splits int) error {
	stride := sums.Strides[1]
	const threads = 128
	kernel := chips.Kernel[Params](c, "gemm_combine", "", combineSpec{threads, NewEpilogueSpec(args, p)}, vk.KernelOptions{})
	n := (p.M*stride/4 + threads - 1) / threads // each adds up 4 * threads elements
	groups := Grid(c, n, p.Batches(), "a sum of m=%d and n=%d", p.M, p.N)
	out := NewParams(args, p, &Config{BlockK: 1}, n)
	out.Splits = uint32(splits)
	out.AOffset, out.AStride, out.AStrideB = uint32(sums.Offset), uint32(stride), uint32(sums.Strides[0])
	outs := args.Bound()
	c.Note(func() vk.Note {
		text := fmt.Sprintf("%dx%d, %d sums of each", p.M, p.N, splits)
		if n := p.Batches(); n > 1 {
			text = fmt.Sprintf("%d of %s", n, text)
		}
		return vk.Note{Text: text, Bytes: vk.Traffic(sums) + args.traffic(&p)}
	})
	kernel.Dispatch(c, groups, out, sums, outs[0], outs[1], outs[2], outs[3])
	return c.Err()
}
