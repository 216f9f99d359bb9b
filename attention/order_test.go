package attention

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
)

// A place in the order of shaders/lib/order.glsl.
type turn struct{ block, head, batch int }

// turns returns what the workgroups of a dispatch take, first to last: next_work in Go.
func turns(group, blocks, heads, batches int, lastFirst bool) (order []turn) {
	grid := [3]int{blocks, heads, batches}
	if group > 0 {
		grid = [3]int{group, blocks, batches * heads / group}
	}
	for z := range grid[2] {
		for y := range grid[1] {
			for x := range grid[0] {
				w := turn{x, y, z}
				if group > 0 {
					number := z*grid[0] + x
					w = turn{y, number % heads, number / heads}
				}
				if lastFirst {
					w.block = blocks - 1 - w.block
				}
				order = append(order, w)
			}
		}
	}
	return order
}

// TestTurns wants every block of every head and batch once, and under a causal mask the longest of
// a group first, the heads of a group one after the other, and no more memory than groupBytes under
// a group of several.
func TestTurns(t *testing.T) {
	limits := [][3]uint32{{1<<31 - 1, 65535, 65535}, {65535, 65535, 65535}, {4, 64, 8}, {1 << 16, 3, 65535}, {1 << 16, 64, 1}}
	masks := []Problem{{}, {Causal: true}, {Causal: true, CausalAlign: TopLeft}, {Causal: true, Window: Window{On: true, Left: 100}},
		{Window: Window{On: true, Left: 100, Right: 3}}, {Causal: true, Varlen: Varlen{On: true}}}
	grouped := 0
	for _, batch := range []int{1, 2, 3, 8} {
		for _, heads := range [][2]int{{1, 1}, {2, 1}, {6, 3}, {12, 12}, {16, 2}, {10, 10}, {32, 8}, {7, 7}} {
			for _, seq := range [][2]int{{1, 1}, {17, 300}, {1000, 1000}, {1024, 77}, {4096, 4096}, {9000, 50000}} {
				for _, mask := range masks {
					p := mask
					p.Batch, p.NumHeads, p.NumKVHeads, p.SeqQ, p.SeqKV, p.HeadDim, p.DType = batch, heads[0], heads[1], seq[0], seq[1], 64, dtype.BFloat16
					for _, limit := range limits {
						rows, keys := int(groups(p.SeqQ, 128)), int(groups(p.SeqKV, 128))
						walked := float64(p.NumHeads / p.NumKVHeads)
						grouped += checkTurns(t, &p, rowGroup(&p, rows, limit), rows, p.NumHeads, 4*64*float64(p.SeqKV)/walked, true, limit)
						grouped += checkTurns(t, &p, keyGroup(&p, keys, limit), keys, p.NumKVHeads, 4*64*float64(p.SeqQ)*walked, false, limit)
					}
				}
			}
		}
	}
	require.Greater(t, grouped, 1000) // of the table
}

// checkTurns checks one dispatch, whose heads walk over so many bytes each, and returns 1 if it has
// groups.
func checkTurns(t *testing.T, p *Problem, group, blocks, heads int, bytes float64, ofRows bool, limit [3]uint32) int {
	of := fmt.Sprintf("%v: %d blocks of %d heads, rows %v, limit %v, group %d", *p, blocks, heads, ofRows, limit, group)
	all := p.Batch * heads
	order := turns(group, blocks, heads, p.Batch, ofRows && p.Causal)
	seen := make([]bool, all*blocks)
	for _, w := range order {
		at := (w.batch*heads+w.head)*blocks + w.block
		if seen[at] {
			require.Fail(t, "taken twice", "%v of %s", w, of)
		}
		seen[at] = true
	}
	require.NotContains(t, seen, false, of)
	if group == 0 {
		for n := 2; p.Causal && blocks <= int(limit[1]) && n <= min(all, maxGroup, int(limit[0])); n++ {
			if all%n == 0 && all/n <= int(limit[2]) && float64(n)*bytes <= groupBytes {
				require.Fail(t, "no turns", "%d heads could take turns: %s", n, of)
			}
		}
		return 0
	}
	require.True(t, p.Causal, of)
	require.LessOrEqual(t, group, min(maxGroup, int(limit[0])), of)
	require.LessOrEqual(t, blocks, int(limit[1]), of)
	require.LessOrEqual(t, all/group, int(limit[2]), of)
	require.LessOrEqual(t, float64(group)*bytes, float64(groupBytes), of)
	for i, w := range order {
		round, member := i/group, i%group
		number := round/blocks*group + member
		longest := round % blocks // blocks taken before by the heads of the group
		if ofRows {
			longest = blocks - 1 - longest
		}
		if w != (turn{longest, number % heads, number / heads}) {
			require.Fail(t, "not in turn", "%v is number %d of %s", w, i, of)
		}
	}
	return 1
}
