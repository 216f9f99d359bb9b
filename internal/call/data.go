package call

import (
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/vk/kit"
)

// Data says what the inputs of a call hold, and how tensors lie.
type Data struct {
	Seed      uint64
	Kind      string  // the kind of inputs: normal ("" too), outliers (1 in 64 is 100 times as large), zeros (3 of 4 are 0)
	Magnitude float64 // of the first operand; 0: 1
	Second    float64 // of the second one, times the factor that keeps results near 1; 0: 1
	Mean      float64 // of rows, in deviations
	Equal     bool    // elements of a row are equal
	// Layout has a letter for each tensor, and repeats: p for packed rows, a for rows that
	// begin at multiples of 8 elements, o for rows that do not; t and e for p and a where memory
	// ends with the last element.
	Layout string
	// Workspace gives the call a workspace, and watches the memory on both sides of it.
	Workspace bool
	// Sample is how many rows the reference has; 0: all.
	Sample int

	Tuning *kit.Tuning `json:"-"`
}

// The kinds of inputs, and the factor of an outlier.
const (
	NormalKind   = "normal"
	OutlierKind  = "outliers"
	ZeroKind     = "zeros"
	OutlierTimes = 100
)

func (d *Data) Given() *Data { return d }

// OrOne returns x, 1 for 0.
func OrOne(x float64) float64 {
	if x == 0 {
		return 1
	}
	return x
}

// Most is the largest number of a format, less room for roundoff.
func Most(t dtype.DType) float64 {
	if t == dtype.Float16 {
		return 60000
	}
	return 1e37
}

// Rand returns the source of random numbers of a tensor, or of another draw from the seed.
func (d *Data) Rand(stream int) *rand.Rand { return rand.New(rand.NewPCG(d.Seed, uint64(stream))) }

// Numbers returns n inputs times scale, within the format.
func (d *Data) Numbers(stream int, t dtype.DType, n int, scale float64) []float64 {
	rng := d.Rand(stream)
	limit := Most(t)
	x := make([]float64, n)
	for i := range x {
		v := scale * rng.NormFloat64()
		switch d.Kind {
		case OutlierKind:
			if rng.Uint32()%64 == 0 || i == 0 {
				v *= OutlierTimes
			}
		case ZeroKind:
			if rng.Uint32()%4 != 0 {
				v = 0
			}
		}
		x[i] = float64(t.Round(float32(max(-limit, min(v, limit)))))
	}
	return x
}

// Normal returns normal numbers whatever the kind.
func (d *Data) Normal(stream int, t dtype.DType, n int, scale float64) []float64 {
	ordinary := *d
	ordinary.Kind = NormalKind
	return ordinary.Numbers(stream, t, n, scale)
}

// input returns what input i of a call holds.
func (d *Data) input(i int, t *Tensor) []float64 {
	n, scale, numbers := Product(t.Shape), OrOne(t.Scale), d.Normal
	if t.Main {
		numbers = d.Numbers
	}
	x := numbers(i, t.DType, n, scale)
	for i, v := range x {
		if t.Draw != nil {
			x[i] = float64(t.DType.Round(float32(t.Draw(v))))
		}
	}
	if !t.Rows || d.Mean == 0 && !d.Equal {
		return x
	}
	rng, common, cols := d.Rand(20+i), 0.0, t.Shape[len(t.Shape)-1]
	for i, v := range x {
		if i%cols == 0 {
			common = scale * d.Mean * (0.5 + rng.Float64())
			if d.Equal && d.Mean == 0 {
				common = scale * rng.NormFloat64()
			}
		}
		if d.Equal {
			v = 0
		}
		x[i] = float64(t.DType.Round(float32(v + common)))
	}
	return x
}

// Place says where tensor i lies.
func (d *Data) Place(i int, shape []int) *guard.Place {
	rng := d.Rand(1000 + i)
	letter := byte('p')
	if d.Layout != "" {
		letter = d.Layout[i%len(d.Layout)]
	}
	cols := shape[len(shape)-1]
	switch letter {
	case 'a':
		return &guard.Place{Offset: 8 * (1 + rng.IntN(8)), RowGap: (8-cols%8)%8 + 8*rng.IntN(3), MatrixGap: 8 * rng.IntN(4)}
	case 't', 'e':
		return &guard.Place{Aligned: letter == 'e', Tight: true}
	case 'o':
		return &guard.Place{Offset: 1 + rng.IntN(70), RowGap: 1 + rng.IntN(9), MatrixGap: rng.IntN(20)}
	}
	return &guard.Place{}
}

// WorkspaceName is the name of the tensor that is a call's workspace.
const WorkspaceName = "workspace"

// WorkspaceTensor returns the tensor of a workspace of some bytes from an offset on, or none.
func (d *Data) WorkspaceTensor(bytes int64, offset int) []guard.Tensor {
	if !d.Workspace || bytes == 0 {
		return nil
	}
	return []guard.Tensor{{Name: WorkspaceName, Shape: []int{int(bytes+3) / 4}, Scratch: true, Place: &guard.Place{Offset: offset / 4}}}
}

// Largest returns about the largest of normal numbers of the kind.
func (d *Data) Largest() float64 {
	if d.Kind == OutlierKind {
		return 4 * OutlierTimes
	}
	return 6
}

// SumLargest bounds a sum of n products of two numbers of the kind.
func (d *Data) SumLargest(n int) float64 {
	if d.Kind == OutlierKind {
		return OutlierTimes * (16*OutlierTimes + 8*math.Sqrt(float64(n)))
	}
	return 36 + 8*math.Sqrt(float64(n))
}

// Roomy bounds the results of problems in float16.
const Roomy = 30000

// Lower divides numbers by a power of two if the results that are most in proportion to them are
// more than Roomy.
func Lower(x []float64, t dtype.DType, most float64) bool {
	if !(most > Roomy) {
		return false
	}
	factor := math.Ldexp(1, -int(math.Ceil(math.Log2(most/Roomy))))
	for i, v := range x {
		x[i] = float64(t.Round(float32(v * factor)))
	}
	return true
}

// SampleRows returns some rows in order, the first and the last among them; nil: all.
func SampleRows(rng *rand.Rand, rows, n int) []int {
	if n <= 0 || n >= rows {
		return nil
	}
	taken := map[int]bool{0: true, rows - 1: true}
	for len(taken) < max(n, 2) {
		taken[rng.IntN(rows)] = true
	}
	var list []int
	for row := range rows {
		if taken[row] {
			list = append(list, row)
		}
	}
	return list
}

// compared returns the rows of an output that are compared, and their elements; nil: all elements.
func (d *Data) compared(stream, n, cols int) (list, elements []int) {
	if list = SampleRows(d.Rand(stream), n, d.Sample); list != nil {
		return list, Elements(list, cols)
	}
	for row := range n {
		list = append(list, row)
	}
	return list, nil
}

// Elements returns the indices of the elements of some rows.
func Elements(rows []int, cols int) []int {
	list := make([]int, 0, len(rows)*cols)
	for _, r := range rows {
		for c := range cols {
			list = append(list, r*cols+c)
		}
	}
	return list
}

// Turn returns matrices (rows, cols) transposed.
func Turn(x []float64, rows, cols int) []float64 {
	y := make([]float64, len(x))
	for m := 0; m < len(x); m += rows * cols {
		for r := range rows {
			for c := range cols {
				y[m+c*rows+r] = x[m+r*cols+c]
			}
		}
	}
	return y
}
