package call

import (
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/pipelines/dropout"
	"github.com/flashvk/flashvk/vk/kit"
)

// Dropout is a call of dropout.Forward.
type Dropout struct {
	dropout.Problem
	onePass
	Data
}

// Tensors implements Call. Integers of files and benchmarks are ones that float32 has, which these compare in.
func (d *Dropout) Tensors() []Tensor {
	shape := []int{d.Rows, d.Cols}
	return []Tensor{
		{Name: "x", DType: d.DType, Shape: shape, Scale: d.Magnitude, Main: true},
		{Name: "state", DType: dtype.Int32, Shape: []int{3}, Own: true, Ints: dropout.States(d.Seed%(1<<24), 1), Free: true},
		{Name: "y", DType: d.DType, Shape: shape, Role: Output},
	}
}

func (d *Dropout) Adjust(x Values) {
	rng := d.Rand(63)
	for range 3 {
		x["state"] = append(x["state"], float64(int32(rng.Uint32())))
	}
}

// Want implements Call: y is x * 1/(1-P), each of three roundings in float32, and that as it is stored.
func (d *Dropout) Want(x Values, _ kit.Pass) Outputs {
	state := x["state"]
	words, want, bounds := []int32{int32(state[0]), int32(state[1]), int32(state[2])}, make([]float64, len(x["x"])), make([]float64, len(x["x"]))
	for i, v := range x["x"] {
		if d.Kept(words, i/d.Cols, i%d.Cols) {
			want[i] = v / (1 - d.P)
			bounds[i] = 3*tolerance.Stored(dtype.Float32, want[i]) + tolerance.Stored(d.DType, want[i])
		}
	}
	return Outputs{"y": {Want: want, Bounds: bounds}}
}

func (d *Dropout) Host() Host {
	return hostedForward(d, d.Problem, dropout.Choose, dropout.Forward)
}

// drawDropout draws a matrix whose elements stay within their format.
func drawDropout(d *Dropout, family, rng *rand.Rand, s Space) {
	d.Data = DrawData(family, rng)
	d.P, d.Stream = one(rng, 0, 0.05, 0.5, rng.Float64(), 0.999), int(rng.Uint32()>>1)
	d.Magnitude = min(d.Magnitude, Most(d.DType)/d.Largest()*(1-d.P))
	d.Rows, d.Cols = Size(rng, 2000), Size(rng, 3000)
	Within(rng, s.Budget(rng), func() float64 { return 100 * float64(d.Rows) * float64(d.Cols) }, &d.Rows, &d.Cols)
}
