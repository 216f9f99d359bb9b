package bench

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTolerance(t *testing.T) {
	inf := float32(math.Inf(1))
	want := Expectations{{Name: "y", Want: []float64{1, -100, 0, math.Inf(1)}, Limit: 1}, {Name: "z", At: []int{2}, Want: []float64{5}, Limit: 1}}
	got := map[string][]float32{"y": {1.01, -100.5, 1e-3, inf}, "z": {9, 9, 5.02}}
	for _, c := range []struct {
		tol  *Tolerance
		want string
	}{
		{nil, ""},
		{&Tolerance{1, 0}, ""},
		{&Tolerance{1.1e-3, 1e-2}, ""},
		{&Tolerance{0, 1e-2}, "y is not close in 1 of 4 compared elements, the worst 0.001, want 0: off by 0.001, allowed 0, which is atol 0 + rtol 0.01 * |want|"},
		{&Tolerance{0.05, 0}, "y is not close in 1 of 4 compared elements, the worst -100.5, want -100: off by 0.5, allowed 0.05, which is atol 0.05 + rtol 0 * |want|"},
		{&Tolerance{2e-3, 6e-3}, "y is not close in 1 of 4 compared elements, the worst 1.01, want 1: "},
		{&Tolerance{1.5e-2, 5e-4}, "y is not close in 1 of 4 compared elements, the worst -100.5"},
	} {
		err := c.tol.check(want, got)
		if c.want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, c.want)
		}
	}
	for _, bad := range []float32{float32(math.NaN()), -inf, 1e30} {
		require.Error(t, (&Tolerance{1, 1}).check(want[1:], map[string][]float32{"z": {0, 0, bad}}))
	}
	require.Error(t, (&Tolerance{1, 1}).check(want[:1], map[string][]float32{"y": {1, -100, 0, 7}}), "not infinite")
}
