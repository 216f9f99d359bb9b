package tnp

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/train"
)

// Params lists the parameters, in the order of the forward pass:
//
//	embed.weight           (d_model, input_dim)
//	blocks.N.norm1.weight  (d_model)
//	blocks.N.qkv.weight    (3*heads*head_dim, d_model): rows of q, then k, then v, head after head
//	blocks.N.out.weight    (d_model, heads*head_dim)
//	blocks.N.norm2.weight  (d_model)
//	blocks.N.up.weight     (d_ff, d_model)
//	blocks.N.down.weight   (d_model, d_ff)
//	norm.weight            (d_model)
//	heads.up               (components, d_model, d_ff)
//	heads.down             (components, d_ff, 3): logit, mu, log sigma
//
// Shapes are those of a PyTorch state dict, where a linear layer is (out, in). On the device linear layers are
// transposed, (in, out), so that a product is x * w. Sizes that are no multiples of 8 are padded with zeros, so that
// all rows are multiples of 16 bytes:
//
//	file                         device
//	embed.weight  (512, 3)       (8, 512)          of rows x of zeros, too
//	up.weight     (1365, 512)    (512, 1368)
//	down.weight   (512, 1365)    (1368, 512)
//	heads.up      (10, 512, 1365)  (10, 512, 1368)
//	heads.down    (10, 1365, 3)    (10, 1368, 3)
//
// The zeros stay. A hidden unit without weights is silu(0) = 0, the gradients of its weights are
// 0, and so are their moments and their updates. Ops read matrices in format, and the weights of norms,
// which have no weight decay, in float32.
func (c Config) Params(format dtype.DType) []train.Param {
	linear := func(name string, out, in int) train.Param {
		rows, cols := padded(in), padded(out)
		return train.Param{Name: name, Shape: []int{out, in}, DType: format, Device: []int{rows, cols},
			At: func(i int) int { return i%in*cols + i/in }}
	}
	norm := func(name string) train.Param {
		return train.Param{Name: name, Shape: []int{c.DModel}, NoDecay: true}
	}
	head := func(name string, in, out, cols int) train.Param {
		rows := padded(in)
		return train.Param{Name: name, Shape: []int{c.Components, in, out}, DType: format, Device: []int{c.Components, rows, cols},
			At: func(i int) int { return (i/out/in*rows+i/out%in)*cols + i%out }}
	}
	list := []train.Param{linear("embed.weight", c.DModel, c.InputDim)}
	for i := range c.Layers {
		list = append(list,
			norm(BlockName(i, "norm1.weight")),
			linear(BlockName(i, "qkv.weight"), 3*c.inner(), c.DModel),
			linear(BlockName(i, "out.weight"), c.DModel, c.inner()),
			norm(BlockName(i, "norm2.weight")),
			linear(BlockName(i, "up.weight"), c.DFF, c.DModel),
			linear(BlockName(i, "down.weight"), c.DModel, c.DFF))
	}
	return append(list, norm("norm.weight"), head("heads.up", c.DModel, c.DFF, c.ff()), head("heads.down", c.DFF, 3, 3))
}

// BlockName returns the name of a parameter of block i.
func BlockName(i int, name string) string { return fmt.Sprintf("blocks.%d.%s", i, name) }

// NumParams returns the number of weights.
func (c Config) NumParams() int {
	n := 0
	for _, p := range c.Params(dtype.Float32) {
		n += p.Size()
	}
	return n
}

// Weights holds the values of parameters by name, row-major: see Config.Params.
type Weights map[string][]float32

// Init returns the weights that a training begins with. Weights of linear layers are uniform in
// ±1/√in, the default of PyTorch. Weights of the heads are normal with deviation 1/√in. Weights of
// norms are 1. The same seed gives the same weights.
func Init(c Config, seed uint64) (Weights, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	w := Weights{}
	for i, p := range c.Params(dtype.Float32) {
		rng := rand.New(rand.NewPCG(seed, uint64(i))) // one for each, so that sizes of others do not matter
		x := make([]float32, p.Size())
		for j := range x {
			switch len(p.Shape) {
			case 1: // of a norm
				x[j] = 1
			case 2: // of a linear layer
				x[j] = float32((2*rng.Float64() - 1) / math.Sqrt(float64(p.Shape[1])))
			default: // of heads
				x[j] = float32(rng.NormFloat64() / math.Sqrt(float64(p.Shape[1])))
			}
		}
		w[p.Name] = x
	}
	return w, nil
}

// padded returns n rounded up to a multiple of 8.
func padded(n int) int { return (n + rowMultiple - 1) &^ (rowMultiple - 1) }

// ff and input are the numbers of hidden units and of elements of a token on the device.
func (c Config) ff() int    { return padded(c.DFF) }
func (c Config) input() int { return padded(c.InputDim) }
