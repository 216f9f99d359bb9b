package attention

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// pagesSeen counts blocks of rows by keys that some row sees of a sequence, were its last block of rows whole, and the
// most of a block of rows.
func pagesSeen(p *Problem, seqQ, seqKV, block int) (head, most int) {
	mask, spec := p.MaskOf(seqQ, seqKV), newFeatureSpec(p)
	blocks := (seqKV + block - 1) / block
	for row := 0; row < seqQ; row += block {
		n := 0
		for j := range blocks {
			first, last := j*block, j*block+block-1 // keys; of the last block also those that are not there
			before := spec.WindowRight && first > row+block-1+mask.Shift+mask.Right
			after := spec.WindowLeft && last < row+mask.Shift-mask.Left
			if !before && !after {
				n++
			}
		}
		head, most = head+n, max(most, n)
	}
	return head, most
}

// TestPageRoom counts pages one by one: there is room for those of a head and of a block of rows, of all sequences
// that may be packed, and without these or a window that begins none is left.
func TestPageRoom(t *testing.T) {
	windows := []Window{{}, {true, 0, 0}, {true, 20, 0}, {true, 3, 7}, {true, Unlimited, 9}, {true, 9, Unlimited}, {true, 33, 31}, {true, 1 << 30, 1 << 30}}
	for _, block := range []int{8, 24} {
		for _, seq := range [][2]int{{1, 1}, {1, 40}, {40, 1}, {16, 32}, {25, 40}, {40, 25}, {33, 31}} {
			for _, window := range windows {
				for _, align := range []Align{BottomRight, TopLeft} {
					for _, causal := range []bool{false, true} {
						p := Problem{SeqQ: seq[0], SeqKV: seq[1], Causal: causal, CausalAlign: align, Window: window}
						what := fmt.Sprintf("block %d, %dx%d, window %v, %v, causal %v", block, p.SeqQ, p.SeqKV, window, align, causal)
						room := newPageRoom(&p, block)
						head, most := pagesSeen(&p, p.SeqQ, p.SeqKV, block)
						if !p.cutsPages() {
							require.Equal(t, max(head, 1), int(room.Head), what)
						}
						require.GreaterOrEqual(t, int(room.Block), most, what)
						require.LessOrEqual(t, int(room.Block), (p.SeqKV+block-1)/block, what)

						p.Varlen = Varlen{On: true, TotalQ: 1000, TotalKV: 1000}
						room = newPageRoom(&p, block)
						left := newFeatureSpec(&p).WindowLeft
						for seqQ := range p.SeqQ + 1 {
							for seqKV := range p.SeqKV + 1 {
								head, most := pagesSeen(&p, seqQ, seqKV, block)
								if left { // blocks lie Block pages apart
									head = (seqQ + block - 1) / block * int(room.Block)
								}
								require.GreaterOrEqual(t, int(room.Head), head, "%s, sequence %dx%d", what, seqQ, seqKV)
								require.GreaterOrEqual(t, int(room.Block), most, "%s, sequence %dx%d", what, seqQ, seqKV)
							}
						}
					}
				}
			}
		}
	}
}
