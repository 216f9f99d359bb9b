package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/bench/compare"
)

func TestBenchOverhead(t *testing.T) {
	_, dev := device(t)
	code, stdout, stderr := flashvk("bench", "overhead", dev, "--impl=scalar,unfused", "--dtype=float32", "--count=2")
	require.Zero(t, code, stderr)
	require.Empty(t, stderr)
	require.Regexp(t, `\nscalar +1 +[0-9.]+ .s `, stdout)
	require.Regexp(t, `\nunfused +3 +[0-9.]+ .s `, stdout)

	code, stdout, _ = flashvk("bench", "overhead", dev, "--impl=scalar", "--dtype=float32", "--count=3", "--format=benchfmt")
	require.Zero(t, code)
	median := func(unit string) float64 {
		f, err := compare.Read(strings.NewReader(stdout), "stdout", unit)
		require.NoError(t, err)
		require.Len(t, f.Order, 1)
		r, err := compare.Compare(f, f, unit)
		require.NoError(t, err)
		require.Equal(t, []int{3, 3}, []int{r.Changes[0].N1, r.Changes[0].N2})
		return r.Changes[0].Old.Center
	}
	fresh, submit, record := median("fresh-sec/op"), median("submit-sec/op"), median("record-sec/op")
	require.Greater(t, fresh, submit, "a fresh call is submitted, too")
	require.Greater(t, fresh, record/2, "a fresh call is recorded, too")
	require.GreaterOrEqual(t, median("replay-sec/kernel"), median("device-sec/kernel"))
	require.Greater(t, median("trip-sec/op"), submit)
}

// TestOverheadOfKernel measures a pass of another kernel.
func TestOverheadOfKernel(t *testing.T) {
	_, dev := device(t)
	code, stdout, stderr := flashvk("bench", "overhead", "norm", dev, "--rows=4", "--cols=32", "--backward", "--count=1", "--format=benchfmt")
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "\nBenchmarkNormBwdOverhead/impl=auto/kind=LayerNorm/dtype=float16/weight_dtype=float32/rows=4/")
}
