package engine

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/steps"
	"github.com/flashvk/flashvk/vk"
)

// Splits (split-K): where C has few blocks and k is long, workgroups share a block, each with a
// part of k, and gemm_combine adds up their sums. All rows of C are divided so, or with
// Config.Rows those after the first Rows. Example: a device runs 264 blocks at a time. 344 blocks
// take two waves, as long as 528. With 264 blocks, and then 80 with a third of k in each of 240
// workgroups, they take little longer than 352. splits.go chooses.

// splitK returns the part of k of a split, a multiple of BlockK. The last splits may be missing;
// none is empty.
func (c *Config) splitK(k int) int {
	splits := max(c.Splits, 1)
	blocks := (k + c.BlockK - 1) / c.BlockK
	return (blocks + splits - 1) / splits * c.BlockK
}

// Fit returns c with as many splits as have a part of k, and rows as there are.
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
	sums := Problem{Batch: p.Batch, M: p.M, N: p.N, K: p.K, TransA: p.TransA, TransB: p.TransB, DType: p.DType, Out: dtype.Float32}
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
	kernel, err := NewKernel[Params](c, "gemm_combine", "", combineSpec{threads, NewEpilogueSpec(args, p)}, vk.KernelOptions{})
	if err != nil {
		return err
	}
	n := (p.M*stride/4 + threads - 1) / threads // each adds up 4 * threads elements
	groups, err := Grid(c, n, p.Batches(), "a sum of m=%d and n=%d", p.M, p.N)
	if err != nil {
		return err
	}
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
