package attention

import (
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/chips/chipstest"
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
	caps := nvidia("NVIDIA H200", 132, true)
	p := DecodeProblem{Problem: Problem{Batch: 1, NumHeads: 8192, NumKVHeads: 1, SeqQ: 32, SeqKV: 64, HeadDim: 64, DType: dtype.Float32, Causal: true}}
	c := DecodeConfig{Impl: Scalar, Rows: 4, Subgroups: 8, Groups: 4}
	require.NoError(t, c.Feasible(&caps, p))
	require.NotEqual(t, p.SeqQ, int(byGroup(uint32(8192*33-1), groupInverse(8192))), "what a kernel would make of the last of 33 queries")
	p.SeqQ = 33
	require.EqualError(t, c.Feasible(&caps, p), "attention: decode: seq_q=33 of 8192 heads a key head are 270336 rows, more than the kernels' 262144: unsupported on this device")
}

// TestDecodeLayouts has drivers that answer as NVIDIA's 580 does but for one shape: a kernel that knows
// where elements of that are is never taken, the others are.
func TestDecodeLayouts(t *testing.T) {
	caps := chipstest.H200()
	p := DecodeProblem{Problem: Problem{Batch: 1, NumHeads: 8, NumKVHeads: 2, SeqQ: 1, SeqKV: 64, HeadDim: 128, DType: dtype.BFloat16, Causal: true}}
	cache8 := p
	cache8.Cache = CacheE4M3
	for _, c := range []struct {
		name    string
		liesFor uint32 // N of the shape
		problem DecodeProblem
		refused bool
	}{
		{"the truth", 0, p, false},
		{"the truth", 0, cache8, false},
		{"16x16", 16, p, true},
		{"16x16", 16, cache8, true},
		{"16x8", 8, p, false},
		{"16x8", 8, cache8, true},
	} {
		config := DecodeConfig{Impl: CoopMat, Rows: 16, Subgroups: 8, Groups: 4}
		var asked []dtype.DType
		err := config.checkLayout(caps, &c.problem, func(format dtype.DType, s vk.CoopMatShape) (bool, error) {
			asked = append(asked, format)
			return s.N != c.liesFor, nil
		})
		require.NotContains(t, asked, map[bool]dtype.DType{true: dtype.Float16, false: dtype.BFloat16}[c.problem.Cache == CacheSame], "the format of operands alone")
		if !c.refused {
			require.NoError(t, err, c.name)
			continue
		}
		require.ErrorIs(t, err, vk.ErrUnsupported, c.name)
		require.ErrorContains(t, err, "does not keep elements of "+c.name+" matrices")
		config.Impl = Scalar
		require.NoError(t, config.checkLayout(caps, &c.problem, nil), "the kernel without matrices asks nothing")
	}
	_, ok := chips.NarrowShape(caps, dtype.BFloat16)
	require.False(t, ok, "no device has them")
}

// TestDecodeFewerRows: the rows of a unit are those that were fastest on an H200, H32/8 D128.
func TestDecodeFewerRows(t *testing.T) {
	caps := nvidia("NVIDIA H200", 132, true)
	for _, c := range []struct{ batch, queries, keys, rows int }{
		{1, 1, 16384, 8}, {1, 2, 16384, 8}, {64, 1, 4096, 8},
		{1, 4, 1024, 8}, {1, 4, 4096, 8}, {1, 4, 16384, 16}, {2, 4, 1024, 8}, {2, 4, 4096, 16}, {16, 4, 4096, 16},
		{1, 8, 1024, 8}, {1, 8, 4096, 16}, {1, 8, 16384, 16}, {2, 8, 1024, 16}, {2, 8, 4096, 16}, {2, 8, 16384, 32}, {4, 8, 4096, 32}, {16, 8, 4096, 32},
		{1, 16, 1024, 32}, // not measured
	} {
		p := DecodeProblem{Problem: Problem{Batch: c.batch, NumHeads: 32, NumKVHeads: 8, SeqQ: c.queries, SeqKV: c.keys, HeadDim: 128, DType: dtype.BFloat16, Causal: true}}
		config, _, err := chooseDecode(&caps, p, Options{})
		require.NoError(t, err)
		require.Equal(t, c.rows, config.Rows, "%+v", c)
		p.Cache = CacheE4M3
		config, _, err = chooseDecode(&caps, p, Options{})
		require.NoError(t, err)
		require.Equal(t, min(max(nextPower(4*c.queries), 8), 32), config.Rows, "8 bits, %+v", c)
	}
}
