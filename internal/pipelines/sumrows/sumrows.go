// Package sumrows adds up the sums of workgroups where a kernel sums over several of them: each
// writes a row of sums, and a second kernel adds the rows, in order. The sums take no atomics, and
// have the same bits every time.
//
//	parts, err := sumrows.Open(c, "norm", opt.Workspace, groups, cols, inputs, outputs)
//	k.Dispatch(c, …, parts)         workgroup i writes row i
//	err = sumrows.Record(c, dst, parts)
package sumrows

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// Bytes returns the size of count rows of cols float32, which are padded to vectors of
// four.
func Bytes(count, cols int) int64 { return 4 * int64(count) * int64((cols+3)/4*4) }

// Open checks the tensors of a call as argument.Open does, and returns the tensor (count, cols rounded up
// to 4) of rows in its workspace. An error about rows that no kernel of the device sees wraps vk.ErrUnsupported.
func Open(c *vk.Cmd, kernel string, given *vk.Buffer, count, cols int, inputs, outputs []argument.Argument) (vk.Tensor, error) {
	bytes := Bytes(count, cols)
	if limit := c.Device().Caps().MaxStorageBufferRange; uint64(bytes) > limit {
		return vk.Tensor{}, fmt.Errorf("%s: %d bytes of partial sums are more than the device's largest storage buffer, %d: %w", kernel, bytes, limit, vk.ErrUnsupported)
	}
	b, err := argument.Open(c, kernel, given, bytes, inputs, outputs)
	if err != nil {
		return vk.Tensor{}, err
	}
	return vk.View(b, dtype.Float32, count, int(bytes/4)/count).Narrow(), nil
}

// params is the push-constant block of sum_rows.comp.
type params struct {
	Count     uint32 `glsl:"count"`
	Cols      uint32 `glsl:"cols"`
	DstOffset uint32 `glsl:"dst_offset"` // elements
}

// spec is the specialization of sum_rows.comp.
type spec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	GroupQuads    uint32 `glsl:"GROUP_QUADS"`
}

const (
	// threads invocations, if the device allows and there are rows for them, share the sums of
	// groupQuads vectors of four columns, 64 bytes of a row: each then has few to add one after
	// the other.
	threads    = 1024
	groupQuads = 4
	// quadBytes is the shared memory of each invocation.
	quadBytes = 16
)

// newSpec returns the workgroup for that many rows and columns: the smallest power of two of
// invocations that has them all, or the largest that the device allows.
func newSpec(caps *vk.Caps, count, cols int) spec {
	s := spec{threads, groupQuads}
	for int(s.GroupQuads)/2 >= (cols+3)/4 {
		s.GroupQuads /= 2
	}
	for s.WorkgroupSize > min(caps.MaxWorkgroupInvocations, caps.MaxWorkgroupSize[0]) || quadBytes*s.WorkgroupSize > caps.MaxSharedMemoryBytes ||
		s.WorkgroupSize > 32 && int(s.WorkgroupSize) >= 2*count*int(s.GroupQuads) {
		s.WorkgroupSize /= 2
	}
	return s
}

// Record records dst[c] = sum over i of parts[i,c]. Dst is (cols), contiguous, of any
// floating-point format; parts is the tensor of Workspace for the same columns. The caller has
// checked both.
func Record(c *vk.Cmd, dst, parts vk.Tensor) (err error) {
	defer c.Keep(&err)
	count, cols := parts.Shape[0], dst.Shape[0]
	s := newSpec(c.Device().Caps(), count, cols)
	k := chips.Kernel[params](c, "sum_rows", dst.DType.Short(), s, vk.KernelOptions{})
	groups := (cols + 4*int(s.GroupQuads) - 1) / (4 * int(s.GroupQuads))
	c.Note(func() vk.Note {
		return vk.Note{Text: fmt.Sprintf("%d, %d sums of each", cols, count), Bytes: vk.Traffic(parts, dst)}
	})
	k.Dispatch(c, vk.Groups{X: uint32(groups)}, params{uint32(count), uint32(cols), uint32(dst.Offset)}, parts, dst)
	return c.Err()
}
