package attention

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/attention/philox"
)

// TestDropoutRow: one call of Philox for four keys, its words compared with
// the threshold as documented.
func TestDropoutRow(t *testing.T) {
	p := square(100, 100)
	p.Batch, p.NumHeads = 2, 3
	p.Dropout = Dropout{P: 0.5, Seeded: true, Seed: 0x123456789abcdef0, Offset: 0xfffffffe}
	require.Equal(t, uint32(1<<31), p.Dropout.Threshold())
	row := p.DropoutRow(1, 2, 77) // head 5 after an offset of 2^32-2: the carry matters
	for _, key := range []int{0, 1, 2, 3, 4, 50, 51, 99, 0} {
		words := philox.Words([4]uint32{uint32(key / 4), 77, 3, 1}, [2]uint32{0x9abcdef0, 0x12345678})
		require.Equal(t, words[key%4] >= 1<<31, row.Kept(key), "key %d", key)
	}
}

// TestDropoutRate: as many weights are dropped as P says, and different ones in
// other rows, heads, batches, seeds and offsets.
func TestDropoutRate(t *testing.T) {
	p := square(1, 1)
	p.Batch, p.NumHeads = 2, 2
	count := func(batch, head, i int, d Dropout) (dropped int, mask [4096]bool) {
		p.Dropout = d
		row := p.DropoutRow(batch, head, i)
		for j := range mask {
			mask[j] = row.Kept(j)
			if !mask[j] {
				dropped++
			}
		}
		return dropped, mask
	}
	base := Dropout{P: 0.25, Seeded: true, Seed: 1}
	n, mask := count(0, 0, 0, base)
	require.InDelta(t, 1024, n, 5*28) // 5 standard deviations
	for _, other := range []struct {
		batch, head, row int
		d                Dropout
	}{
		{1, 0, 0, base}, {0, 1, 0, base}, {0, 0, 1, base},
		{0, 0, 0, Dropout{P: 0.25, Seeded: true, Seed: 2}},
		{0, 0, 0, Dropout{P: 0.25, Seeded: true, Seed: 1 + 1<<32}},
		{0, 0, 0, Dropout{P: 0.25, Seeded: true, Seed: 1, Offset: 1 << 33}},
	} {
		_, m := count(other.batch, other.head, other.row, other.d)
		differ := 0
		for j := range m {
			if m[j] != mask[j] {
				differ++
			}
		}
		require.InDelta(t, 4096*2*0.25*0.75, differ, 5*31, "%+v", other)
	}
	_, next := count(0, 0, 0, Dropout{P: 0.25, Seeded: true, Seed: 1, Offset: 4})
	p.Batch = 3
	_, third := count(2, 0, 0, base)
	require.Equal(t, third, next) // an offset of batch*num_heads is where the next call begins
}

func TestThreshold(t *testing.T) {
	for _, c := range []struct {
		p    float64
		want uint32
	}{{0, 0}, {0.5, 1 << 31}, {0x1p-32, 1}, {0x1p-40, 0}, {0.1, 429496730}, {1 - 0x1p-53, 1<<32 - 1}} {
		require.Equal(t, c.want, Dropout{P: c.p}.Threshold(), "%v", c.p)
	}
	require.Equal(t, 4.0, Dropout{P: 0.75}.KeepScale())
}
