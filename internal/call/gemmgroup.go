package call

import (
	"fmt"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// GemmGroup is a call of gemm.ForwardGroup. Tensors of one kind lie one after the other in memory.
type GemmGroup struct {
	Products       []GemmProduct
	TransA, TransB bool
	Activation     engine.Activation
	Residual       bool
	DType, Out     dtype.DType
	Impl, Config   string
	Lie            GemmLie
	Data
	Whole bool `json:"-"` // tensors of a kind are one tensor of one axis
}

// A GemmProduct is what the products of a group differ in.
type GemmProduct struct {
	M, N, K     int
	Alpha, Beta float64 // as in gemm.Problem
}

// GemmLie says where the tensors of a group lie, in elements.
type GemmLie struct {
	Offset int // before the first element
	Pad    int // after each row; -1: rows begin at multiples of 8
}

// Pass implements Call.
func (g *GemmGroup) Pass() kit.Pass { return kit.Forward }

// Few returns the sizes of the first products, and how many more there are.
func (g *GemmGroup) Few() string {
	const most = 4
	var words []string
	for i, x := range g.Products {
		if n := len(g.Products); i == most-1 && n > most {
			words = append(words, fmt.Sprintf("%d more", n-i))
			break
		}
		words = append(words, fmt.Sprintf("%dx%dx%d", x.M, x.N, x.K))
	}
	return strings.Join(words, " ")
}

// String describes the group in a few words.
func (g *GemmGroup) String() string {
	return fmt.Sprintf("group %s, transposed %v %v, %v to %v %v residual=%v (%s %s) %+v", g.Few(), g.TransA, g.TransB, g.DType, g.Out, g.Activation, g.Residual, g.Impl, g.Config, g.Lie)
}

// Validate implements Call.
func (g *GemmGroup) Validate() error {
	_, err := problem.ValidateGroup(g.problems())
	return err
}

// Problem returns product i.
func (g *GemmGroup) Problem(i int) engine.Problem {
	x := g.Products[i]
	return engine.Problem{
		M: x.M, N: x.N, K: x.K, Alpha: x.Alpha, Beta: x.Beta,
		TransA: g.TransA, TransB: g.TransB, Activation: g.Activation, Residual: g.Residual, DType: g.DType, Out: g.Out,
	}
}

func (g *GemmGroup) problems() (list []engine.Problem) {
	for i := range g.Products {
		list = append(list, g.Problem(i))
	}
	return list
}

// FLOPs returns the operations of all products.
func (g *GemmGroup) FLOPs() (flops float64) {
	for _, p := range g.problems() {
		flops += p.FLOPs()
	}
	return flops
}

// Bytes returns the least memory traffic of all products.
func (g *GemmGroup) Bytes() (bytes float64) {
	for _, p := range g.problems() {
		if !p.Empty() {
			bytes += p.Bytes()
		}
	}
	return bytes
}

// product returns a product of the group as a call of its own.
func (g *GemmGroup) product(i int) *Gemm { return &Gemm{Problem: g.Problem(i), Data: g.Data} }

// part returns the name of a tensor of a product.
func part(name string, i int) string { return fmt.Sprintf("%s of product %d", name, i) }

// Tensors implements Call.
func (g *GemmGroup) Tensors() (list []Tensor) {
	deepest, size := 0, map[string]int{}
	for i, x := range g.Products {
		if x.K > g.Products[deepest].K {
			deepest = i
		}
		for _, t := range g.product(i).Tensors() {
			size[t.Name] += Product(t.Shape)
			t.Place = &guard.Place{Offset: g.Lie.Offset, RowGap: max(g.Lie.Pad, 0), Aligned: g.Lie.Pad < 0, Tight: true}
			t.Off = t.Off || Product(t.Shape) == 0
			t.Memory, t.Name = t.Name, part(t.Name, i)
			list = append(list, t)
		}
	}
	if !g.Whole {
		return list
	}
	list = g.product(deepest).Tensors()
	for i := range list {
		list[i].Shape = []int{size[list[i].Name]}
	}
	return list
}

// Want implements Call.
func (g *GemmGroup) Want(x Values, pass kit.Pass) Outputs {
	list, at := Outputs{}, map[string]int{}
	for i := range g.Products {
		p, of, first := g.product(i), Values{}, map[string]int{}
		for _, t := range p.Tensors() {
			n := Product(t.Shape)
			if of[t.Name] = x[part(t.Name, i)]; g.Whole && x[t.Name] != nil {
				of[t.Name] = x[t.Name][at[t.Name]:][:n]
			}
			first[t.Name] = at[t.Name]
			at[t.Name] += n
		}
		if p.Empty() {
			continue
		}
		for name, w := range p.Want(of, pass) {
			if !g.Whole {
				list[part(name, i)] = w
				continue
			}
			all := list[name]
			for j, v := range w.Want {
				if w.Sample != nil {
					j = w.Sample[j]
				}
				all.Want, all.Bounds, all.Sample = append(all.Want, v), append(all.Bounds, w.Bound), append(all.Sample, first[name]+j)
			}
			list[name] = all
		}
	}
	return list
}

// Choose implements Call.
func (g *GemmGroup) Choose(caps *vk.Caps, _ kit.Pass) (kit.Plan, error) {
	opt, err := engineOptions(g.Impl, g.Config)
	if err != nil {
		return nil, err
	}
	config, err := engine.ChooseGroup(caps, g.problems(), opt)
	return &productPlan{config, engine.GroupWorkspace(g.problems()), config.GroupKernels()}, err
}

// Record implements Call.
func (g *GemmGroup) Record(c *vk.Cmd, t map[string]vk.Tensor, workspace *vk.Buffer, _ kit.Pass) error {
	opt, err := engineOptions(g.Impl, g.Config)
	if err != nil {
		return err
	}
	opt.Workspace = workspace
	list, at := make([]engine.Tensors, len(g.Products)), map[string]int{}
	for i := range list {
		shapes := map[string][]int{}
		for _, x := range g.product(i).Tensors() {
			shapes[x.Name] = x.Shape
		}
		list[i] = tensorsOf(func(name string) vk.Tensor {
			whole := t[name]
			if !g.Whole || whole.IsZero() {
				return t[part(name, i)]
			}
			x := vk.View(whole.Buffer, whole.DType, shapes[name]...)
			x.Offset = whole.Offset + at[name]
			at[name] += x.NumElements()
			return x
		})
	}
	return engine.MultiplyGroup(c, list, g.problems(), opt)
}
