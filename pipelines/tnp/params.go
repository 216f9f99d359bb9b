package tnp

import (
	"fmt"
	"math"
	"math/rand/v2"
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

// Validate returns an error that names the first parameter of c that w lacks or has in another
// size, or the first name in w that is no parameter.
func (w Weights) Validate(c Config) error {
	params := c.Params()
	for _, p := range params {
		x, ok := w[p.Name]
		if !ok {
			return fmt.Errorf("tnp: parameter %s is missing", p.Name)
		}
		if len(x) != p.Size() {
			return fmt.Errorf("tnp: parameter %s has %d elements, want %v", p.Name, len(x), p.Shape)
		}
	}
	if len(w) > len(params) {
		known := map[string]bool{}
		for _, p := range params {
			known[p.Name] = true
		}
		for name := range w {
			if !known[name] {
				return fmt.Errorf("tnp: %q is no parameter of %v", name, c)
			}
		}
	}
	return nil
}

// Init returns the weights that a training begins with. Those of linear layers are uniform in
// ±1/√in, the default of PyTorch. Those of the heads are normal with deviation 1/√in. Those of
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
