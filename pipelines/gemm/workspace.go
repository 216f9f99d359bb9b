package gemm

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// A memoryPlan says where what a call keeps in its workspace begins, in bytes.
type memoryPlan struct {
	packA, packB   bool
	a, b, partials int64
	bytes          int64
}

// plan lays out the workspace of a call.
func (c *Config) plan(p *Problem, opt *Options) (m memoryPlan) {
	take := func(n int64) int64 {
		at := m.bytes
		m.bytes += (n + 255) &^ 255
		return at
	}
	m.packA, m.packB = c.packs(p, opt)
	if m.packA {
		m.a = take(packedBytes(p.AShape()))
	}
	if m.packB {
		m.b = take(packedBytes(p.BShape()))
	}
	m.partials = take(c.partialBytes(*p))
	return m
}

// Workspace returns the bytes of device memory that Multiply takes for partial sums and
// for copies of operands whose rows are not aligned, with the same options; 0 if it needs
// none.
func Workspace(caps *vk.Caps, p Problem, opt Options) (int64, error) {
	config, err := Choose(caps, p, opt)
	if err != nil {
		return 0, err
	}
	config = config.fit(&p)
	return config.plan(&p, &opt).bytes, nil
}

// workspace returns the memory of a call and where it begins: the caller's, or the Cmd's.
func (m *memoryPlan) workspace(c *vk.Cmd, opt *Options, args *arguments) (*vk.Buffer, int64, error) {
	if m.bytes == 0 {
		return nil, 0, nil
	}
	memory, offset := opt.Workspace, opt.WorkspaceOffset
	if memory == nil {
		memory, offset = c.Scratch("gemm", m.bytes), 0
		return memory, offset, c.Err()
	}
	if offset < 0 || offset%16 != 0 {
		return nil, 0, fmt.Errorf("gemm: workspace_offset=%d is not a multiple of 16", offset)
	}
	if memory.Bytes()-offset < m.bytes {
		return nil, 0, fmt.Errorf("gemm: workspace has %d bytes from %d on, want %d", memory.Bytes()-offset, offset, m.bytes)
	}
	n := int(m.bytes / 4)
	return memory, offset, args.checkApart(vk.Tensor{Buffer: memory, DType: dtype.Float32, Shape: []int{n}, Strides: []int{1}, Offset: int(offset / 4)})
}

// pack records the copies of the plan in memory from byte `at` on.
func (m *memoryPlan) pack(c *vk.Cmd, args *arguments, memory *vk.Buffer, at int64) (err error) {
	for _, x := range []struct {
		t  *vk.Tensor
		on bool
		at int64
	}{{&args.a, m.packA, m.a}, {&args.b, m.packB, m.b}} {
		if x.on && !aligned(8, *x.t) {
			if *x.t, err = pack(c, *x.t, memory, at+x.at); err != nil {
				return err
			}
			c.Barrier() // each: synchronization validation compares whole buffers
		}
	}
	return nil
}
