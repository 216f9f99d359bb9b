package norm_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

var both = []kit.Pass{kit.Forward, kit.Backward}

// newCall returns a call with all outputs.
func newCall(p norm.Problem) *call.Norm { return &call.Norm{Problem: p, Save: true, DResidual: true} }

// TestDrawn checks drawn calls, and drawn rows in every way to share them that the device can take.
func TestDrawn(t *testing.T) {
	d := vktest.Open(t, vktest.WholeBuffers)
	require.NoError(t, call.TestDrawn(t, d, "norm", 40, call.Space{Thorough: vktest.Thorough(d)}, nil))
	for _, config := range configs(int(d.Caps().SubgroupSize)) {
		err := call.TestDrawn(t, d, "norm", 3, call.Space{Thorough: vktest.Thorough(d)}, func(c call.Call) { c.(*call.Norm).Config = &config })
		require.True(t, err == nil || config.Loads > 0, "%v: %v", config, err)
	}
}

// configs returns ways to share rows, also ways that Choose takes for other sizes only. Not every
// device can run each of them for rows of every length.
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

// meanRows are rows whose result is wrong if the mean has the error of a float32 sum. Elements
// are base plus 0, 1 or 2 steps; with no step they are equal.
var meanRows = []struct {
	format     dtype.DType
	base, step float64
	cols       int
	eps        float64
}{
	// Equal elements: y and dw are 0. The least error would count, since eps is small.
	{dtype.Float16, 1000, 0, 1000, 1e-5},
	{dtype.Float16, 1000, 0, 1000, 1e-12},
	{dtype.Float16, 60000, 0, 7, 1e-5},
	{dtype.BFloat16, 1e5, 0, 1000, 1e-5},
	{dtype.BFloat16, 1e5, 0, 1000, 1e-12},
	{dtype.Float32, 12345.678, 0, 512, 1e-5},
	{dtype.Float32, 12345.678, 0, 512, 1e-12},
	{dtype.Float32, 33333333, 0, 512, 1e-5},
	{dtype.Float32, 33333333, 0, 512, 1e-12},
	// A sum of them is more than float32 holds.
	{dtype.BFloat16, 3e38, 0, 1000, 1e-5},
	{dtype.Float32, 3e38, 0, 512, 1e-5},
	// Neighbouring float32 at 1e6 are as far apart as these steps. The same holds at 1e7 and 1e4.
	{dtype.Float32, 1e6, 0.0625, 5000, 1e-5},
	{dtype.Float32, 1e7, 1, 512, 1e-5},
	{dtype.Float32, -1e4, 0.001, 512, 1e-5},
	// The same in 16 bits.
	{dtype.Float16, 1000, 0.5, 1000, 1e-5},
	{dtype.BFloat16, 1e5, 512, 1000, 1e-5},
}

// TestMean runs meanRows in every way to share rows, and in one that keeps the longest of them in
// registers, with and without a residual, in both passes.
func TestMean(t *testing.T) {
	d := vktest.Open(t)
	list := append(configs(int(d.Caps().SubgroupSize)), norm.Config{Threads: 512, Loads: 4, Rows: 1, Groups: 1})
	for j, config := range list {
		for i, m := range meanRows {
			if !vktest.Thorough(d) && (i+j)%6 != 0 {
				continue // on lavapipe a sixth of the kinds with each configuration, all kinds with some
			}
			p := norm.Problem{Rows: 5, Cols: config.Most(d.Caps(), m.format, m.cols), Eps: m.eps, DType: m.format, Residual: i%3 == 1, Bias: i%4 == 2}
			if err := config.Feasible(d.Caps(), p); err != nil {
				require.ErrorIs(t, err, vk.ErrUnsupported)
				continue
			}
			c := newCall(p)
			c.Config = &config
			x, rng := call.Inputs(c), rand.New(rand.NewPCG(7, uint64(i)))
			for j := range x["x"] {
				x["x"][j] = float64(m.format.Round(float32(m.base + m.step*float64(rng.IntN(3)))))
				if p.Residual { // the sum has the same steps
					x["residual"][j] = float64(m.format.Round(float32(-m.base / 4)))
				}
			}
			if m.eps < 1e-5 { // rstd is 1e6: float16 holds dx only of a smaller dy
				for j, dy := range x["dy"] {
					x["dy"][j] = float64(m.format.Round(float32(dy * 0x1p-10)))
				}
			}
			name := fmt.Sprintf("%v/base=%g/step=%g/eps=%g/%v", config, m.base, m.step, m.eps, c)
			t.Run(name, func(t *testing.T) { call.Test(t, d, c, x, both...) })
		}
	}
}

// TestSavedMean wants Mean to be the mean rounded to float32, and no worse.
func TestSavedMean(t *testing.T) {
	d := vktest.Open(t)
	c := newCall(norm.Problem{Rows: 40, Cols: 1000, Eps: 1e-5})
	c.Mean = 1e4
	k, record, err := call.Case(d.Caps(), c, kit.Forward, call.Inputs(c))
	require.NoError(t, err)
	for i := range k.Tensors {
		if x := &k.Tensors[i]; x.Name == "mean" {
			x.Bound = 1.01 * tolerance.Roundoff32 * tolerance.Largest(x.Want)
		}
	}
	k.Test(t, d, record)
}

// TestFarFirst has float32 rows whose first element is a million deviations from the others. Its
// weight is 0, so that it does not hide the errors of the others.
func TestFarFirst(t *testing.T) {
	d := vktest.Open(t)
	for _, config := range configs(int(d.Caps().SubgroupSize)) {
		p := norm.Problem{Rows: 5, Cols: config.Most(d.Caps(), dtype.Float32, 1000), Eps: 1e-5, DType: dtype.Float32}
		if config.Feasible(d.Caps(), p) != nil {
			continue
		}
		c := newCall(p)
		c.Config = &config
		x := call.Inputs(c)
		x["w"][0] = 0
		for r := range p.Rows {
			x["x"][r*p.Cols] = math.Copysign(1e6, float64(r%2)-0.5)
		}
		t.Run(config.String(), func(t *testing.T) { call.Test(t, d, c, x, kit.Forward) })
	}
}
