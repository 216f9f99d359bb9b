package tnp

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/train"
)

// A Param is a tensor of weights with the name and the shape of a PyTorch state dict. A linear
// layer is (out, in) there.
type Param struct {
	Name  string
	Shape []int
	kind  paramKind
}

// paramKind is the role of a parameter in the model.
type paramKind uint8

const (
	linear     paramKind = iota // (out, in): y = x * wᵀ
	normWeight                  // (d_model): no weight decay
	head                        // (components, in, out): y = x * w[k]
)

// Size returns the number of elements.
func (p Param) Size() int {
	n := 1
	for _, d := range p.Shape {
		n *= d
	}
	return n
}

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
func (c Config) Params() []Param {
	list := []Param{{"embed.weight", []int{c.DModel, c.InputDim}, linear}}
	for i := range c.Layers {
		list = append(list,
			Param{BlockName(i, "norm1.weight"), []int{c.DModel}, normWeight},
			Param{BlockName(i, "qkv.weight"), []int{3 * c.inner(), c.DModel}, linear},
			Param{BlockName(i, "out.weight"), []int{c.DModel, c.inner()}, linear},
			Param{BlockName(i, "norm2.weight"), []int{c.DModel}, normWeight},
			Param{BlockName(i, "up.weight"), []int{c.DFF, c.DModel}, linear},
			Param{BlockName(i, "down.weight"), []int{c.DModel, c.DFF}, linear})
	}
	return append(list,
		Param{"norm.weight", []int{c.DModel}, normWeight},
		Param{"heads.up", []int{c.Components, c.DModel, c.DFF}, head},
		Param{"heads.down", []int{c.Components, c.DFF, 3}, head})
}

// BlockName returns the name of a parameter of block i.
func BlockName(i int, name string) string { return fmt.Sprintf("blocks.%d.%s", i, name) }

// NumParams returns the number of weights.
func (c Config) NumParams() int {
	n := 0
	for _, p := range c.Params() {
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
	for i, p := range c.Params() {
		rng := rand.New(rand.NewPCG(seed, uint64(i))) // one for each, so that sizes of others do not matter
		x := make([]float32, p.Size())
		for j := range x {
			switch p.kind {
			case normWeight:
				x[j] = 1
			case linear:
				x[j] = float32((2*rng.Float64() - 1) / math.Sqrt(float64(p.Shape[1])))
			case head:
				x[j] = float32(rng.NormFloat64() / math.Sqrt(float64(p.Shape[1])))
			}
		}
		w[p.Name] = x
	}
	return w, nil
}

// On the device linear layers are transposed, (in, out), so that a product is x * w. Sizes that are no
// multiples of 8 are padded with zeros, so that all rows are multiples of 16 bytes:
//
//	file                         device
//	embed.weight  (512, 3)       (8, 512)          of rows x of zeros, too
//	up.weight     (1365, 512)    (512, 1368)
//	down.weight   (512, 1365)    (1368, 512)
//	heads.up      (10, 512, 1365)  (10, 512, 1368)
//	heads.down    (10, 1365, 3)    (10, 1368, 3)
//
// The zeros stay. A hidden unit without weights is silu(0) = 0, the gradients of its weights are
// 0, and so are their moments and their updates.

// padded returns n rounded up to a multiple of 8.
func padded(n int) int { return (n + rowMultiple - 1) &^ (rowMultiple - 1) }

// ff and input are the numbers of hidden units and of elements of a token on the device.
func (c Config) ff() int    { return padded(c.DFF) }
func (c Config) input() int { return padded(c.InputDim) }

// device returns the shape on the device.
func (p Param) device() []int {
	switch shape := p.Shape; {
	case p.kind == linear:
		return []int{padded(shape[1]), padded(shape[0])}
	case p.Name == "heads.down":
		return []int{shape[0], padded(shape[1]), shape[2]}
	case p.kind == head:
		return []int{shape[0], padded(shape[1]), padded(shape[2])}
	default:
		return shape
	}
}

// layout returns how files have the parameter.
func (p Param) layout() *train.Layout {
	if p.kind == normWeight {
		return nil
	}
	file, device := p.Shape, p.device()
	n, stride := len(file), device[len(device)-1]
	return &train.Layout{Shape: file, Each: func(f func(device, file int)) {
		rows, cols := file[n-2], file[n-1]
		for i := range p.Size() {
			matrix, r, c := i/cols/rows, i/cols%rows, i%cols
			if p.kind == linear {
				r, c = c, r
			}
			f((matrix*device[n-2]+r)*stride+c, i)
		}
	}}
}

// parameters returns the parameters for a device.
func (c Config) parameters(format dtype.DType) (list []train.Param) {
	for _, p := range c.Params() {
		q := train.Param{Name: p.Name, Shape: p.device(), DType: format, File: p.layout()}
		if p.kind == normWeight {
			q.DType, q.NoDecay = dtype.Float32, true
		}
		list = append(list, q)
	}
	return list
}
