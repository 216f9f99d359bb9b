package guard

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
)

// TestBeyond: an infinity is right where what is wanted, or what the bound allows, is beyond the
// format, and of the same sign.
func TestBeyond(t *testing.T) {
	inf := math.Inf(1)
	for _, c := range []struct {
		got, want, bound float64
		right            bool
	}{
		{-inf, -70000, 0, true},
		{inf, 65510, 10, true},
		{inf, 65500, 10, false},
		{inf, -70000, 1, false},
		{70000, inf, 1, false},
	} {
		v := &View{Name: "x", DType: dtype.Float16, Shape: []int{1}}
		_, _, err := v.compare([]float64{c.got}, []float64{c.want}, []float64{c.bound}, nil)
		require.Equal(t, c.right, err == nil, "%v: %v", c, err)
	}
}
