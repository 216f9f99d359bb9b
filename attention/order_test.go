package attention

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
)

// TestTurns wants groups of heads under a causal mask alone, as large as memory and the device's limits
// allow. TestLimits has a device run them.
func TestTurns(t *testing.T) {
	for _, limit := range [][3]uint32{{1<<31 - 1, 65535, 65535}, {4, 64, 8}, {1 << 16, 3, 65535}, {1 << 16, 64, 1}} {
		for _, n := range [][5]int{{1, 1, 1, 1, 1}, {3, 6, 3, 17, 300}, {8, 12, 12, 1000, 1000}, {2, 16, 2, 4096, 4096}, {8, 32, 8, 9000, 50000}, {3, 7, 7, 1024, 77}} {
			p := Problem{Batch: n[0], NumHeads: n[1], NumKVHeads: n[2], SeqQ: n[3], SeqKV: n[4], HeadDim: 64, DType: dtype.BFloat16}
			rows, keys, walked := int(groups(p.SeqQ, 128)), int(groups(p.SeqKV, 128)), float64(p.NumHeads/p.NumKVHeads)
			require.Zero(t, rowGroup(&p, rows, limit)+keyGroup(&p, keys, limit))
			p.Causal = true
			for _, c := range []struct {
				group, blocks, heads int
				bytes                float64 // that a head walks over
			}{{rowGroup(&p, rows, limit), rows, p.NumHeads, 4 * 64 * float64(p.SeqKV) / walked}, {keyGroup(&p, keys, limit), keys, p.NumKVHeads, 4 * 64 * float64(p.SeqQ) * walked}} {
				all := p.Batch * c.heads
				fits := func(n int) bool { return shared(all, n, c.blocks, limit) && float64(n)*c.bytes <= groupBytes }
				require.True(t, c.group == 0 || fits(c.group), "%v: %+v", p, c)
				for n := c.group + 1; c.group == 0 && n <= all; n++ {
					require.False(t, n > 1 && fits(n), "%v: %d heads could take turns: %+v", p, n, c)
				}
			}
		}
	}
}

// shared reports whether groups of n heads share out all heads, within the limits of a dispatch.
func shared(heads, n, blocks int, limit [3]uint32) bool {
	return heads%n == 0 && n <= min(maxGroup, int(limit[0])) && blocks <= int(limit[1]) && heads/n <= int(limit[2])
}
