package attention

import (
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// byGroup is by_group of lib/decode_work.glsl.
func byGroup(row, inverse uint32) uint32 {
	high, _ := bits.Mul32(2*row, inverse)
	return high
}

// TestGroupInverse divides rows around every multiple of some groups, up to the last that Feasible allows.
func TestGroupInverse(t *testing.T) {
	for _, group := range []int{1, 2, 3, 4, 5, 7, 8, 12, 96, 127, 1000, 4096, 5793, 8191, 8192, 32767} {
		rows := min(MaxDecodeQueries*group, mostByGroup/group)
		for row := 0; row < rows; row++ {
			if got := byGroup(uint32(row), groupInverse(group)); int(got) != row/group {
				t.Fatalf("%d / %d = %d, want %d", row, group, got, row/group)
			}
		}
	}
}

// TestDecodeRows: more rows of a key head than those are not supported.
func TestDecodeRows(t *testing.T) {
	caps := vk.Caps{
		SubgroupOps: vk.SubgroupBasic | vk.SubgroupVote | vk.SubgroupShuffle, ComputeFullSubgroups: true, SubgroupSize: 32, MaxStorageBuffers: 32,
		MaxPushConstantsBytes: 256, MaxWorkgroupCount: [3]uint32{65535, 65535, 65535}, MaxWorkgroupSize: [3]uint32{1024, 1024, 64}, MaxWorkgroupInvocations: 1024,
		MaxStorageBufferRange: 1 << 31, MaxAllocationBytes: 1 << 31, MaxSharedMemoryBytes: 48 << 10,
	}
	p := DecodeProblem{Problem: Problem{Batch: 1, NumHeads: 8192, NumKVHeads: 1, SeqQ: 32, SeqKV: 64, HeadDim: 64, DType: dtype.Float32, Causal: true}}
	c := DecodeConfig{Impl: Scalar, Rows: 4, Subgroups: 8, Groups: 4}
	require.NoError(t, c.Feasible(&caps, p))
	require.NotEqual(t, p.SeqQ, int(byGroup(uint32(8192*33-1), groupInverse(8192))), "what a kernel would make of the last of 33 queries")
	p.SeqQ = 33
	err := c.Feasible(&caps, p)
	require.ErrorIs(t, err, vk.ErrUnsupported)
	require.ErrorContains(t, err, "decode: seq_q=33 of 8192 heads a key head are 270336 rows, more than the kernels' 262144")
}
