package ref

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
)

// TestModelRescale: with one row of rising scores, a lazy model rescales less
// often, to the same result.
func TestModelRescale(t *testing.T) {
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 64, HeadDim: 8, Scale: 1}
	d := newData(p)
	clear(d.in.Q)
	d.in.Q[0] = 1
	for j := range p.SeqKV {
		d.in.K[j*8] = float64(j) * math.Ln2 // one log2 unit per key
	}
	d.forward(t)
	bound := Float64Bound(d.lse, Measure(d.in, p), p)
	for _, above := range []float64{0, 8, 1000} {
		m := Model{BlockM: 1, BlockN: 1, RescaleAbove: above, Float64: true}
		o, lse := make([]float64, 8), make([]float64, 1)
		require.NoError(t, m.Forward(o, lse, d.in, p))
		require.LessOrEqual(t, guard.MaxDiff(o, d.o).Off, bound.O, "%v", m)
		require.LessOrEqual(t, guard.MaxDiff(lse, d.lse).Off, bound.LSE, "%v", m)

		// Count by walking the tiles.
		tile := newModelTile[float64](m, &d.in, p)
		tile.start(p.Mask(), Row{}, 1)
		rescales, last := 0, math.Inf(-1)
		for j := range p.SeqKV {
			tile.scores(j)
			tile.rescale()
			if tile.m[0] != last {
				rescales, last = rescales+1, tile.m[0]
			}
			require.LessOrEqual(t, tile.s[0]-tile.m[0], above)
		}
		switch above {
		case 0:
			require.Equal(t, 64, rescales)
		case 8:
			require.InDelta(t, 8, rescales, 1) // every 9th key is more than 8 above
		case 1000:
			require.Equal(t, 1, rescales)
		}
	}
}

// TestModelRounds: RoundP and the storage type show in the result, Float64
// switches both off.
func TestModelRounds(t *testing.T) {
	run := func(d *data, m Model) []float64 {
		o := make([]float64, len(d.o))
		require.NoError(t, m.Forward(o, nil, d.in, d.p))
		return o
	}
	for _, dt := range dtype.All() {
		p := small
		p.DType = dt
		d := newData(p).forward(t)
		rounded := run(d, Model{BlockM: 16, BlockN: 16, RoundP: true})
		unrounded := run(d, Model{BlockM: 16, BlockN: 16})
		for _, x := range append(rounded, unrounded...) {
			require.Equal(t, x, float64(dt.Round(float32(x))))
		}
		if dt == dtype.Float32 {
			require.Equal(t, unrounded, rounded) // P is float32 already
		} else {
			require.NotEqual(t, unrounded, rounded)
		}
		require.Greater(t, guard.MaxDiff(unrounded, d.o).Off, dt.Eps()/10)
		exact := run(d, Model{BlockM: 16, BlockN: 16, RoundP: true, Float64: true})
		require.Less(t, guard.MaxDiff(exact, d.o).Off, 1e-13)
	}
}

// TestPlainRounds: P and O are rounded to the storage type, for float32 too.
func TestPlainRounds(t *testing.T) {
	for _, dt := range dtype.All() {
		p := small
		p.DType = dt
		d := newData(p).forward(t)
		o := make([]float64, len(d.o))
		require.NoError(t, Plain(o, nil, d.in, p))
		for _, x := range o {
			require.Equal(t, x, float64(dt.Round(float32(x))))
		}
		off := guard.MaxDiff(o, d.o).Off
		require.Greater(t, off, dt.Eps()/50, "%v", dt)
		require.Less(t, off, 4*dt.Eps(), "%v", dt)
	}
}

func TestModelString(t *testing.T) {
	require.Equal(t, "model/block_m=64/block_n=32/round-p/rescale-above=8", Model{BlockM: 64, BlockN: 32, RoundP: true, RescaleAbove: 8}.String())
	require.Equal(t, "model/block_m=1/block_n=2/float64", Model{BlockM: 1, BlockN: 2, Float64: true}.String())
}
