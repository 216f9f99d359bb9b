package dtype

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestE4M3 compares all numbers with what sign, exponent and fraction say, and rounds each to
// itself.
func TestE4M3(t *testing.T) {
	for b := range 256 {
		x := FromE4M3(uint8(b))
		if b&0x7f == 0x7f {
			require.True(t, math.IsNaN(float64(x)), "%#x", b)
			continue
		}
		want := float64(b&7) / 8 * 0x1p-6
		if e := b >> 3 & 15; e > 0 {
			want = math.Ldexp(1+float64(b&7)/8, e-7)
		}
		if b >= 128 {
			want = math.Copysign(want, -1)
		}
		require.Equal(t, want, float64(x), "%#x", b)
		require.Equal(t, uint8(b), ToE4M3(x), "%#x", b)
	}
	require.Equal(t, float32(448), FromE4M3(0x7e))
}

// TestToE4M3 has numbers between all neighbours: the nearer one, in the middle the even one, and
// beyond the last the last.
func TestToE4M3(t *testing.T) {
	for b := range uint8(0x7e) {
		low, high := FromE4M3(b), FromE4M3(b+1)
		middle := low + (high-low)/2
		even := b + b%2
		for _, sign := range []float32{1, -1} {
			bit := uint8(0)
			if sign < 0 {
				bit = 0x80
			}
			require.Equal(t, bit|even, ToE4M3(sign*middle), "%v", sign*middle)
			require.Equal(t, bit|b, ToE4M3(sign*math.Nextafter32(middle, 0)), "below %v", sign*middle)
			require.Equal(t, bit|(b+1), ToE4M3(sign*math.Nextafter32(middle, 1000)), "above %v", sign*middle)
		}
	}
	for _, x := range []float32{448, 449, 464, 479, 1e30, float32(math.Inf(1))} {
		require.Equal(t, uint8(0x7e), ToE4M3(x), "%v", x)
		require.Equal(t, uint8(0xfe), ToE4M3(-x), "%v", -x)
	}
	require.Equal(t, uint8(0x7f), ToE4M3(float32(math.NaN()))&0x7f)
	require.Equal(t, uint8(0x80), ToE4M3(float32(math.Copysign(0, -1))))
}
