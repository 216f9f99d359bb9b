package norm_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

var both = []kit.Pass{kit.Forward, kit.Backward}

// newCall returns a call with all outputs.
func newCall(p norm.Problem) *call.Norm { return &call.Norm{Problem: p, Save: true, DResidual: true} }

// problems returns what the suite varies: every format, both formulas, a residual, sizes of 1 and
// odd sizes, more rows than one workgroup has, and sizes on both sides of what a subgroup of 8 or
// 32 and a workgroup keep in registers.
func problems() []norm.Problem {
	var list []norm.Problem
	for i, size := range [][2]int{{1, 1}, {1, 7}, {3, 1}, {5, 8}, {2, 255}, {9, 256}, {4, 257}, {7, 512}, {2, 1365}, {3, 4096}, {1, 8200}, {300, 33}, {1000, 64}} {
		for j, format := range dtype.All() {
			p := norm.Problem{Rows: size[0], Cols: size[1], Eps: 1e-5, DType: format, RMS: (i+j)%2 == 1, Residual: (i/2+j)%2 == 1}
			if (i+j)%3 == 0 {
				p.WeightDType = format
			}
			list = append(list, p)
		}
	}
	return list
}

// TestSuite runs forward and backward pass of every problem in every layout.
func TestSuite(t *testing.T) {
	d := vktest.Open(t, vktest.WholeBuffers)
	for _, p := range problems() {
		for layout := range guard.Layouts {
			if layout != guard.Packed && (p.Rows*p.Cols > 4096 || (p.Cols+int(layout)+int(p.DType))%2 == 0) {
				continue // half of the small ones will do
			}
			t.Run(fmt.Sprintf("%v/layout=%d", p, layout), func(t *testing.T) { call.Test(t, d, newCall(p), nil, layout, both...) })
		}
	}
}

// TestHardRows has rows whose mean is large against the deviation, whose variance is 0, or less
// than eps.
func TestHardRows(t *testing.T) {
	d := vktest.Open(t)
	for _, format := range dtype.All() {
		mean := 1000.0
		if format == dtype.BFloat16 {
			mean = 100
		}
		for name, data := range map[string]call.Data{"mean": {Mean: mean}, "equal": {Equal: true}, "tiny": {Magnitude: 0x1p-12}} {
			for _, rms := range []bool{false, true} {
				c := newCall(norm.Problem{Rows: 6, Cols: 200, Eps: 1e-5, DType: format, RMS: rms})
				c.Data = data
				t.Run(fmt.Sprintf("%s/%v", name, c), func(t *testing.T) { call.Test(t, d, c, nil, guard.Packed, both...) })
			}
		}
	}
}

// configs returns ways to share rows, also those that Choose takes for other sizes only. Not
// every device can run each of them for rows of every length.
func configs(size int) []norm.Config {
	return []norm.Config{
		{Threads: size, SubgroupTeam: true, Loads: 1, Rows: 4, Groups: 1},
		{Threads: 2 * size, SubgroupTeam: true, Loads: 2, Rows: 2, Ahead: true, Groups: 3},
		{Threads: 256, SubgroupTeam: true, Loads: 4, Rows: 1, Reload: true, Groups: 1},
		{Threads: 256, SubgroupTeam: true, Loads: 4, Rows: 4, Reload: true, Ahead: true, Groups: 4},
		{Threads: 64, Loads: 1, Rows: 1, Ahead: true, Groups: 1}, {Threads: 128, Loads: 4, Rows: 1, Groups: 1},
		{Threads: 64, Rows: 1, Groups: 1}, {Threads: 256, Rows: 1, Ahead: true, Groups: 2},
	}
}

// TestConfigs runs every way to share rows that the device can take.
func TestConfigs(t *testing.T) {
	d := vktest.Open(t)
	size := int(d.Caps().SubgroupSize)
	ran := map[bool]int{}
	for _, config := range configs(size) {
		for i, cols := range []int{5, 8 * size, 100} {
			p := norm.Problem{Rows: 21, Cols: cols, Eps: 1e-5, DType: dtype.All()[i], RMS: i == 1, Residual: i == 2}
			if err := config.Feasible(d.Caps(), p); err != nil {
				require.ErrorIs(t, err, vk.ErrUnsupported)
				continue
			}
			ran[config.Loads == 0]++
			c := newCall(p)
			c.Config = &config
			t.Run(fmt.Sprintf("%v/%v", config, c), func(t *testing.T) { call.Test(t, d, c, nil, guard.Layout(i), both...) })
		}
	}
	require.Equal(t, 6, ran[true])
	require.GreaterOrEqual(t, ran[false], 12)
}
