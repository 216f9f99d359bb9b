package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips/chipstest"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
)

// TestWithSplits compares the choice with the estimates of all rows and products that may
// be shared and all numbers of splits.
func TestWithSplits(t *testing.T) {
	caps := chipstest.H200()
	taken := map[bool]int{}
	for _, p := range []Problem{
		{M: 4096, N: 4096, K: 4096, TransB: true},
		{M: 3000, N: 1000, K: 30000},
		{M: 16000, N: 512, K: 13680, TransB: true},
		{M: 512, N: 1365, K: 18048, TransA: true},
		{M: 11000, N: 512, K: 1365},
		{M: 18048, N: 1536, K: 512},
		{M: 1, N: 1, K: 100000},
		{Batch: 10, M: 512, N: 1365, K: 16000, TransA: true},
		{Batch: 7, M: 500, N: 1000, K: 4000, TransA: true},
		{Batch: 3, M: 2000, N: 2000, K: 9000},
		{Batch: 300, M: 100, N: 100, K: 3000},
	} {
		p.DType, p.Out = dtype.BFloat16, dtype.BFloat16
		for _, row := range rows {
			config := row.Config
			if row.Formats == table.OfFloat32 || config.Feasible(caps, p) != nil {
				continue
			}
			c := config.withSplits(caps, &p, config.costs(caps, &p))
			t.Run(p.String()+"/"+c.String(), func(t *testing.T) {
				require.NoError(t, c.Feasible(caps, p))
				require.Equal(t, c, c.Fit(&p))
				x := c.costs(caps, &p)
				pieces, rows := c.pieces(caps, &p)
				time := func(kept int, c Config) float64 {
					return x.estimate((pieces-kept)*x.blocks/pieces, c.Splits, c.splitK(p.K))
				}
				none, least, other := x.estimate(0, 1, p.K), 1.0, c
				for kept := range pieces {
					if c.Impl == Scalar && (kept > 0 || x.blocks > x.slots) {
						continue
					}
					other.Rows = kept * rows
					for other.Splits = 2; other.Splits <= MaxSplits; other.Splits++ {
						if other.Fit(&p).Splits == other.Splits {
							least = min(least, time(kept, other))
						}
					}
				}
				if taken[c.Splits > 1]++; c.Splits > 1 {
					require.InEpsilon(t, least, time(c.Rows/rows, c), 1e-9)
					require.Less(t, least, 0.97*none)
				} else {
					require.GreaterOrEqual(t, least, 0.97*none)
				}
			})
		}
	}
	require.Greater(t, min(taken[true], taken[false]), 10)
}

// TestShares wants errors about splits that name the rule, and memory of the shared rows
// of all products.
func TestShares(t *testing.T) {
	caps := chipstest.H200()
	p := Problem{Batch: 10, M: 100, N: 30, K: 5000, DType: dtype.Float16, Out: dtype.Float16}
	for text, want := range map[string]string{
		"rows300 splits4":   "",
		"rows1000 splits4":  "",
		"rows9999900":       "",
		"rows120 splits4":   "gemm: coopmat: rows120 are no whole products of m=100",
		"splits257":         "gemm: coopmat: k32 and g2 must be positive, splits257 at most 256, rows0 not negative",
		"splits7":           "gemm: coopmat: splits7 of 10 products are more than the device's 64 workgroups",
		"rows100 splits8":   "gemm: coopmat: splits8 of 9 products are more than the device's 64 workgroups",
		"rows100 splits7":   "",
		"rows5000 splits64": "",
	} {
		c, err := ParseConfig("coopmat s1x1 t1x1 k32 g2 " + text)
		require.NoError(t, err)
		caps.MaxWorkgroupCount[2] = 64
		if err = c.Feasible(caps, p); want == "" {
			require.NoError(t, err, text)
			continue
		}
		require.ErrorIs(t, err, vk.ErrUnsupported)
		require.ErrorContains(t, err, want)
	}
	one := p
	one.Batch = 0
	require.ErrorContains(t, Config{Impl: Scalar, BlockK: 8, GroupM: 1, Splits: 2, Rows: 20}.Feasible(caps, one), "gemm: scalar: rows20 is not a multiple of 8")

	for _, x := range []struct {
		splits, rows int
		p            Problem
		want         int64
	}{
		{4, 300, p, 4 * 4 * 700 * 32},
		{4, 0, p, 4 * 4 * 1000 * 32},
		{4, 1000, p, 0},
		{1, 300, p, 0},
		{4, 56, one, 4 * 4 * 44 * 32},
	} {
		c := Config{BlockK: 32, Splits: x.splits, Rows: x.rows}
		c = c.Fit(&x.p)
		require.Equal(t, x.want, c.PartialBytes(x.p), x)
	}
	unknown := chipstest.H200()
	unknown.ComputeUnits = 0
	c, err := Choose(unknown, Problem{M: 16, N: 16, K: 1 << 20, DType: dtype.Float16, Out: dtype.Float16}, Options{})
	require.NoError(t, err)
	require.Equal(t, Config{Splits: 1}, Config{Splits: c.Splits, Rows: c.Rows})
}
