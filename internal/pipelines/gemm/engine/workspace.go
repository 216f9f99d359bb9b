package engine

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/steps"
	"github.com/flashvk/flashvk/vk"
)

// A MemoryPlan has the offsets of what a call keeps in its workspace, in bytes.
type MemoryPlan struct {
	packA, packB   bool
	right          Layout // of a packed op(B), if any
	parts          bool   // A and B become f32x2, parts.go
	topsA, topsB   int64
	a, b, Partials int64
	Bytes          int64
}

// Memory lays out the workspace of a call.
func (c *Config) Memory(caps *vk.Caps, p *Problem, opt *Options) (m MemoryPlan) {
	take := func(n int64) int64 {
		at := m.Bytes
		m.Bytes += (n + 255) &^ 255
		return at
	}
	if m.parts = c.inParts(p); m.parts {
		l := c.partsLayout(p.K)
		m.topsA, m.topsB = take(l.topsBytes(p.Batches(), p.M)), take(l.topsBytes(p.Batches(), p.N))
		m.a, m.b = take(c.partsBytes(l, p.Batches(), p.M)), take(c.partsBytes(l, p.Batches(), p.N))
	}
	m.packA, m.packB = c.packs(p, opt)
	if m.packA {
		m.a = take(packedBytes(p.AShape()))
	}
	if m.packB {
		m.b = take(packedBytes(p.BShape()))
	}
	if c.PackB {
		m.right = c.rightLayout(caps, p)
		m.b = take(c.rightBytes(caps, p))
	}
	m.Partials = take(c.PartialBytes(*p))
	return m
}

// Workspace returns the bytes of device memory that Multiply takes for partial sums, for copies
// of operands and for f32x2 operands, with the same options.
func Workspace(caps *vk.Caps, p Problem, opt Options) (int64, error) {
	config, err := Choose(caps, p, opt)
	if err != nil {
		return 0, err
	}
	config = config.Fit(&p)
	return config.Memory(caps, &p, &opt).Bytes, nil
}

// Workspace returns the memory of a call and the offset where it begins: the caller's, or the
// Cmd's. Kernels are bound to slices of it.
func (m *MemoryPlan) Workspace(c *vk.Cmd, opt *Options, args *Args) (*vk.Buffer, int64, error) {
	if m.Bytes == 0 {
		return nil, 0, nil
	}
	t, err := workspace(c, opt.Workspace, opt.WorkspaceOffset, m.Bytes)
	if err == nil && opt.Workspace != nil {
		err = args.checkApart(t)
	}
	return t.Buffer, 4 * int64(t.Offset), err
}

// workspace returns memory of that many bytes: the caller's from an offset on, or for nil the
// Cmd's.
func workspace(c *vk.Cmd, memory *vk.Buffer, offset, bytes int64) (vk.Tensor, error) {
	if memory == nil {
		memory, offset = c.Scratch("gemm", bytes), 0
	} else if offset < 0 || offset%16 != 0 {
		return vk.Tensor{}, fmt.Errorf("gemm: workspace_offset=%d is not a multiple of 16", offset)
	} else if memory.Bytes()-offset < bytes {
		return vk.Tensor{}, fmt.Errorf("gemm: workspace has %d bytes from %d on, want %d", memory.Bytes()-offset, offset, bytes)
	}
	n := int(bytes / 4)
	return vk.Tensor{Buffer: memory, DType: dtype.Float32, Shape: []int{1, 1, n}, Strides: []int{n, n, 1}, Offset: int(offset / 4)}, c.Err()
}

// Region returns a slice of memory that has the bytes from byte at on, and their offset in the
// slice.
func Region(memory *vk.Buffer, at, bytes int64) (*vk.Buffer, int64) {
	t := vk.View(memory, dtype.Float32, int(bytes/4))
	t.Offset = int(at / 4)
	t = t.Narrow()
	return t.Buffer, 4 * int64(t.Offset)
}

// Pack returns the copies of the plan as one step, or none, and makes them the operands. They lie
// in memory from byte at on.
func (m *MemoryPlan) Pack(args *Args, memory *vk.Buffer, at int64) (copies steps.List) {
	for _, x := range []struct {
		t  *vk.Tensor
		on bool
		at int64
	}{{&args.A, m.packA, m.a}, {&args.B, m.packB, m.b}} {
		if x.on && !Aligned(8, *x.t) {
			to, from := packed(*x.t, memory, at+x.at)
			x.t.Buffer, x.t.Strides, x.t.Offset = to.Buffer, to.Strides, to.Offset
			copies = steps.Together(copies, steps.List{func(c *vk.Cmd) error { return Pad(c, to, from) }})
		}
	}
	return copies
}
