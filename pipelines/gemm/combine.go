package gemm

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// maxSplits bounds the parts of k.
const maxSplits = 256

// splitK returns how much of k a split has: a multiple of BlockK. There may be fewer
// splits than asked for; none is empty.
func (c *Config) splitK(k int) int {
	splits := max(c.Splits, 1)
	blocks := (k + c.BlockK - 1) / c.BlockK
	return (blocks + splits - 1) / splits * c.BlockK
}

// fitSplits returns c with as many splits as have some of k.
func (c Config) fitSplits(k int) Config {
	if c.Splits > 1 {
		part := c.splitK(k)
		c.Splits = (k + part - 1) / part
	}
	return c
}

// splitsToFill returns into how many parts k is divided so that every compute unit of
// the device has two workgroups, each with at least leastSplitK of k.
func (c *Config) splitsToFill(caps *vk.Caps, p *Problem) int {
	const leastSplitK = 512
	if caps.ComputeUnits == 0 {
		return 1
	}
	wanted := 2 * int(caps.ComputeUnits) / c.blocks(caps, p)
	return max(min(wanted, p.K/leastSplitK, maxSplits), 1)
}

// partialStride returns the length of a row of partial sums: whole vec4.
func partialStride(n int) int { return (n + 3) / 4 * 4 }

// partialBytes returns the memory of partial sums.
func (c Config) partialBytes(p Problem) int64 {
	return 4 * int64(c.Splits) * int64(p.Batches()) * int64(p.M) * int64(partialStride(p.N))
}

// Workspace returns the bytes of device memory that Multiply takes for partial sums,
// with the same options; 0 if it needs none.
func Workspace(caps *vk.Caps, p Problem, opt Options) (int64, error) {
	config, err := Choose(caps, p, opt)
	if err != nil {
		return 0, err
	}
	config = config.fitSplits(p.K)
	if config.Splits <= 1 {
		return 0, nil
	}
	return config.partialBytes(p), nil
}

// combineSpec is the specialization of gemm_combine.comp.
type combineSpec struct {
	WorkgroupSize uint32       `glsl:"WORKGROUP_SIZE"`
	Epilogue      epilogueSpec `glsl:"epilogue"`
}

// multiplySplits records a kernel whose workgroups have a part of k each, and
// gemm_combine, which adds up their sums.
func multiplySplits(c *vk.Cmd, args arguments, p Problem, config Config, opt *Options) error {
	d := c.Device()
	config = config.fitSplits(p.K)
	if config.Splits <= 1 {
		return multiply(c, args, p, config)
	}
	limit := d.Caps().MaxWorkgroupCount
	if n := p.Batches() * config.Splits; n > int(limit[2]) {
		return unsupported("batch=%d with %d splits is more than the device's %d workgroups", p.Batches(), config.Splits, limit[2])
	}
	bytes := config.partialBytes(p)
	workspace, offset := opt.Workspace, opt.WorkspaceOffset
	if workspace == nil {
		workspace, offset = c.Scratch("gemm.partial", bytes), 0
		if err := c.Err(); err != nil {
			return err
		}
	}
	if offset < 0 || offset%16 != 0 {
		return fmt.Errorf("gemm: workspace_offset=%d is not a multiple of 16", offset)
	}
	if workspace.Bytes()-offset < bytes {
		return fmt.Errorf("gemm: workspace has %d bytes from %d on, want %d", workspace.Bytes()-offset, offset, bytes)
	}
	stride := partialStride(p.N)
	partial := arguments{a: args.a, b: args.b, c: vk.Tensor{
		Buffer: workspace, DType: dtype.Float32,
		Shape:   []int{config.Splits * p.Batches(), p.M, p.N},
		Strides: []int{p.M * stride, stride, 1},
		Offset:  int(offset / 4),
	}}
	if err := args.checkApart(partial.c); err != nil {
		return err
	}
	sums := Problem{Batch: p.Batch, M: p.M, N: p.N, K: p.K, TransA: p.TransA, TransB: p.TransB, DType: p.DType, Out: dtype.Float32}
	if err := multiply(c, partial, sums, config); err != nil {
		return err
	}
	c.Barrier()

	module, err := shaders.Get("gemm_combine", "")
	if err != nil {
		return err
	}
	const threads = 128
	kernel, err := vk.CachedKernel[params](d, module.Name, module.SPIRV, combineSpec{threads, newEpilogueSpec(args, p)}, vk.KernelOptions{})
	if err != nil {
		return err
	}
	// A workgroup adds up 4 * threads elements; there are no more of them than
	// blocks of any configuration, of which there are not too many.
	groups := (p.M*stride/4 + threads - 1) / threads
	x := min(groups, int(limit[0]))
	y := (groups + x - 1) / x
	if y > int(limit[1]) {
		return unsupported("m=%d and n=%d make %d workgroups, more than the device's %d x %d", p.M, p.N, groups, limit[0], limit[1])
	}
	out := newParams(args, p, &config, groups)
	out.AOffset, out.AStride, out.AStrideB = uint32(offset/4), uint32(stride), uint32(p.M*stride)
	outs := args.bound()
	kernel.Dispatch(c, vk.Groups{X: uint32(x), Y: uint32(y), Z: uint32(p.Batches())}, out, partial.c, outs[0], outs[1], outs[2], outs[3])
	return c.Err()
}
