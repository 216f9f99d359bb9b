package norm_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/norm/ref"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/vk"
)

// An input says what rows hold.
type input int

const (
	ordinary  input = iota // standard normal
	largeMean              // a mean that is large against the deviation: 1000, or 100 in bfloat16
	constant               // rows of equal elements: the variance is 0
	tiny                   // 2^-12: eps counts more than the variance
	inputs
)

// normCase is a problem with its data.
type normCase struct {
	p      norm.Problem
	in     ref.Inputs
	up     ref.Upstream
	layout guard.Layout
}

func newCase(p norm.Problem, kind input, layout guard.Layout) normCase {
	rng := rand.New(rand.NewPCG(uint64(p.Rows), uint64(p.Cols)))
	n := p.Rows * p.Cols
	draw := func(n int, t dtype.DType, f func(i int) float64) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = float64(t.Round(float32(f(i))))
		}
		return x
	}
	random := func(int) float64 { return rng.NormFloat64() }
	mean := 1000.0
	if p.DType == dtype.BFloat16 {
		mean = 100
	}
	row := func(i int) float64 {
		switch kind {
		case largeMean:
			return mean + rng.NormFloat64()
		case constant:
			return math.Sqrt(float64(1 + i/p.Cols))
		case tiny:
			return 0x1p-12 * rng.NormFloat64()
		}
		return rng.NormFloat64()
	}
	c := normCase{p: p, layout: layout}
	c.in = ref.Inputs{X: draw(n, p.DType, row), W: draw(p.Cols, p.WeightDType, random)}
	c.up.DY = draw(n, p.DType, random)
	if p.Residual {
		c.in.Residual, c.up.DSum = draw(n, p.DType, random), draw(n, p.DType, random)
	}
	return c
}

func (c *normCase) name() string { return fmt.Sprintf("%v/layout=%d", c.p, c.layout) }

// forward returns the forward pass as a case of package guard.
func (c *normCase) forward() guard.Case {
	p, want := c.p, ref.Forward(c.in, c.p)
	b := ref.Bounds(want, ref.PlainForward(c.in, p), p)
	rows, row := []int{p.Rows, p.Cols}, []int{p.Rows}
	k := guard.Case{Name: c.name(), Layout: c.layout, Tensors: []guard.Tensor{
		{Name: "x", DType: p.DType, Shape: rows, Values: c.in.X},
		{Name: "w", DType: p.WeightDType, Shape: []int{p.Cols}, Values: c.in.W},
		{Name: "y", DType: p.DType, Shape: rows, Want: want.Y, Bound: b.Y},
		{Name: "rstd", DType: dtype.Float32, Shape: row, Want: want.Rstd, Bound: b.Rstd},
	}}
	if !p.RMS {
		k.Tensors = append(k.Tensors, guard.Tensor{Name: "mean", DType: dtype.Float32, Shape: row, Want: want.Mean, Bound: b.Mean})
	}
	if p.Residual {
		k.Tensors = append(k.Tensors,
			guard.Tensor{Name: "residual", DType: p.DType, Shape: rows, Values: c.in.Residual},
			guard.Tensor{Name: "sum", DType: p.DType, Shape: rows, Want: want.Sum, Bound: b.Sum})
	}
	return k
}

// backward returns the backward pass.
func (c *normCase) backward() guard.Case {
	p, out := c.p, ref.Forward(c.in, c.p)
	want := ref.Backward(out.Sum, c.in.W, c.up, p)
	b := ref.BackwardBounds(want, ref.PlainBackward(out.Sum, c.in.W, c.up, p), out.Sum, c.in.W, c.up, p)
	float32s := func(x []float64) []float64 {
		y := make([]float64, len(x))
		for i := range x {
			y[i] = float64(float32(x[i]))
		}
		return y
	}
	rows, row := []int{p.Rows, p.Cols}, []int{p.Rows}
	k := guard.Case{Name: c.name(), Layout: c.layout, Tensors: []guard.Tensor{
		{Name: "s", DType: p.DType, Shape: rows, Values: out.Sum},
		{Name: "dy", DType: p.DType, Shape: rows, Values: c.up.DY},
		{Name: "w", DType: p.WeightDType, Shape: []int{p.Cols}, Values: c.in.W},
		{Name: "rstd", DType: dtype.Float32, Shape: row, Values: float32s(out.Rstd)},
		{Name: "dx", DType: p.DType, Shape: rows, Want: want.DX, Bound: b.DX},
		{Name: "dw", DType: p.WeightDType, Shape: []int{p.Cols}, Want: want.DW, Bound: b.DW},
	}}
	if !p.RMS {
		k.Tensors = append(k.Tensors, guard.Tensor{Name: "mean", DType: dtype.Float32, Shape: row, Values: float32s(out.Mean)})
	}
	if p.Residual {
		k.Tensors = append(k.Tensors,
			guard.Tensor{Name: "dsum", DType: p.DType, Shape: rows, Values: c.up.DSum},
			guard.Tensor{Name: "dresidual", DType: p.DType, Shape: rows, Want: want.DX, Bound: b.DX})
	}
	return k
}

// check runs both passes of a case.
func (c *normCase) check(t *testing.T, d *vk.Device, opt norm.Options) {
	t.Helper()
	c.checkForward(t, d, c.forward(), opt)
	k := c.backward()
	report, err := k.Check(d, func(cmd *vk.Cmd, x map[string]vk.Tensor) error {
		t := norm.Tensors{X: x["s"], W: x["w"], Mean: x["mean"], RStd: x["rstd"]}
		if c.p.Residual {
			t.X, t.Sum = vk.Tensor{}, x["s"]
		}
		g := norm.Gradients{DY: x["dy"], DSum: x["dsum"], DX: x["dx"], DResidual: x["dresidual"], DW: x["dw"]}
		return norm.Backward(cmd, t, g, c.p, opt)
	})
	require.NoError(t, err, "backward, %s", c.name())
	t.Log(c.name(), report)
}

// checkForward runs the forward pass, with the bounds that k has.
func (c *normCase) checkForward(t *testing.T, d *vk.Device, k guard.Case, opt norm.Options) {
	t.Helper()
	report, err := k.Check(d, func(cmd *vk.Cmd, x map[string]vk.Tensor) error {
		t := norm.Tensors{X: x["x"], Residual: x["residual"], W: x["w"], Y: x["y"], Sum: x["sum"], Mean: x["mean"], RStd: x["rstd"]}
		return norm.Forward(cmd, t, c.p, opt)
	})
	require.NoError(t, err, "forward, %s", c.name())
	t.Log(c.name(), report)
}

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
			c := newCase(p, ordinary, layout)
			t.Run(c.name(), func(t *testing.T) { c.check(t, d, norm.Options{}) })
		}
	}
}

// TestHardRows has rows whose mean is large, whose variance is 0, or less than eps.
func TestHardRows(t *testing.T) {
	d := vktest.Open(t)
	for kind := range inputs {
		for _, format := range dtype.All() {
			for _, rms := range []bool{false, true} {
				c := newCase(norm.Problem{Rows: 6, Cols: 200, Eps: 1e-5, DType: format, RMS: rms}, kind, guard.Packed)
				t.Run(fmt.Sprintf("%d/%s", kind, c.name()), func(t *testing.T) { c.check(t, d, norm.Options{}) })
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
			c := newCase(p, ordinary, guard.Layout(i))
			t.Run(fmt.Sprintf("%v/%s", config, c.name()), func(t *testing.T) { c.check(t, d, norm.Options{Config: &config}) })
		}
	}
	require.Equal(t, 6, ran[true])
	require.GreaterOrEqual(t, ran[false], 12)
}
