package dtype

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestToInt8 has all integers, and numbers in the middle of neighbours and beside it.
func TestToInt8(t *testing.T) {
	for i := -128; i < 128; i++ {
		x := float32(i)
		require.Equal(t, int8(i), ToInt8(x))
		if i == 127 {
			break
		}
		even := int8(i + i&1)
		require.Equal(t, even, ToInt8(x+0.5), "%v", x+0.5)
		require.Equal(t, int8(i), ToInt8(math.Nextafter32(x+0.5, -200)), "below %v", x+0.5)
		require.Equal(t, int8(i+1), ToInt8(math.Nextafter32(x+0.5, 200)), "above %v", x+0.5)
	}
	inf := float32(math.Inf(1))
	require.Equal(t, []int8{127, -128, 127, -128, 0}, []int8{ToInt8(127.5), ToInt8(-1e30), ToInt8(inf), ToInt8(-inf), ToInt8(float32(math.NaN()))})
}

// TestQuant rounds every element times a scale to itself, whatever the scale, and wants a scale to
// be the stored number that is nearest to amax divided by the largest element.
func TestQuant(t *testing.T) {
	require.False(t, NoQuant.Valid() || (QuantE4M3+1).Valid())
	require.Equal(t, "none Quant(4)", NoQuant.String()+" "+(QuantE4M3+1).String())
	for _, q := range Quants() {
		require.True(t, q.Valid())
		for _, amax := range []float64{0x1p-100, 1e-9, 0.1, 1, 448, 65504, 1e30, math.MaxFloat32} {
			amax = float64(float32(amax))
			scale := q.Scale(amax)
			largest := q.Round(amax, scale)
			switch {
			case q == QuantQ8 && scale == 0:
				require.Less(t, amax, 127*0x1p-25)
				continue
			case q == QuantQ8 && amax > 65468:
				require.Equal(t, 515.5, scale)
			case q == QuantQ8:
				require.InDelta(t, amax/127, scale, max(scale*0x1p-11, 0x1p-25))
			default:
				require.InDelta(t, amax/q.Largest(), scale, scale*0x1p-24)
				require.Equal(t, q.Largest(), largest)
			}
			for b := range 256 {
				x := float64(int8(b))
				if q.Element() == E4M3 {
					x = float64(FromE4M3(uint8(b)))
				}
				if math.IsNaN(x) || x == -128 {
					continue
				}
				require.Equal(t, x, q.Round(x*scale, scale), "%v %#x", q, b)
			}
		}
		nan, inf := q.Round(math.NaN(), 1), math.Inf(1)
		require.Equal(t, q == QuantE4M3, math.IsNaN(nan))
		require.True(t, q == QuantE4M3 || nan == 0)
		require.Equal(t, q.Scale(math.MaxFloat32), q.Scale(inf))
		require.Equal(t, []float64{q.Largest(), -q.Largest()}, []float64{q.Round(inf, 1), q.Round(-inf, 1)})
		require.Equal(t, []float64{0, 0, 0}, []float64{q.Scale(0), q.Scale(0x1p-101), q.Round(1, 0)})
	}
}
