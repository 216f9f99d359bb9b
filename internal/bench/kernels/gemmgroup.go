package kernels

import (
	"fmt"
	"strings"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A gemmGroupOp is a group of products of package gemm. Each of its tensors holds the matrices of
// all products, one after the other without gaps.
type gemmGroupOp struct {
	g      problem.Group
	config *engine.Config // nil: the table's
}

// newGemmGroup returns a group of products of these sizes that are otherwise like p.
func newGemmGroup(sizes string, p problem.Problem, config *engine.Config) (bench.Op, error) {
	products, err := problem.ParseGroup(sizes)
	if err != nil {
		return nil, err
	}
	for i := range products {
		products[i].Alpha, products[i].Beta = p.Alpha, p.Beta
	}
	o := gemmGroupOp{problem.Group{
		Products: products, TransA: p.TransA, TransB: p.TransB, Activation: p.Activation, Residual: p.Residual, DType: p.DType, Out: p.Out,
	}, config}
	if err := o.g.Validate(); err != nil {
		return nil, err
	}
	for _, t := range o.Tensors() {
		if t.Shape[0] == 0 {
			return nil, fmt.Errorf("gemm: products %s have no elements of %s", sizes, t.Name)
		}
	}
	return o, nil
}

// Name implements bench.Op.
func (o gemmGroupOp) Name() string { return "gemm" }

// Describe implements bench.Op.
func (o gemmGroupOp) Describe() string {
	const most = 4
	p, sizes := o.g.Problem(0), strings.Split(o.g.Sizes(), ",")
	if n := len(sizes); n > most {
		sizes = append(sizes[:most-1], fmt.Sprintf("%d more", n-most+1))
	}
	return fmt.Sprintf("%v: group %s%s", p.DType, strings.Join(sizes, " "), describeProduct(p))
}

// Keys implements bench.Op.
func (o gemmGroupOp) Keys() []bench.Key {
	p := o.g.Problem(0)
	return []bench.Key{
		{Name: "dtype", Value: p.DType.String()}, {Name: "out", Value: p.Out.String()}, {Name: "trans", Value: p.Transposes()},
		{Name: "group", Value: o.g.Sizes()},
		{Name: "alpha", Value: p.Scale()}, {Name: "beta", Value: p.Beta}, {Name: "activation", Value: p.Activation.String()}, {Name: "residual", Value: p.Residual},
	}
}

// Cost implements bench.Op.
func (o gemmGroupOp) Cost(bench.Pass) (flops, bytes float64) { return o.g.FLOPs(), o.g.Bytes() }

// Tensors implements bench.Op with the tensors of a product, each as long as those of all products
// together.
func (o gemmGroupOp) Tensors() []bench.OpTensor {
	most := 1
	a, b, c := 0, 0, 0
	for _, x := range o.g.Products {
		a, b, c = a+x.M*x.K, b+x.K*x.N, c+x.M*x.N
		most = max(most, x.K)
	}
	list := gemmOp{p: o.g.Problem(0)}.Tensors()
	for i := range list {
		switch t := &list[i]; t.Name {
		case "a":
			t.Shape = []int{a}
		case "b":
			t.Shape, t.Draw = []int{b}, perRoot(most)
		default:
			t.Shape = []int{c}
		}
	}
	return list
}

// options returns those of a call.
func (o gemmGroupOp) options(impl string) (gemm.Options, error) {
	return gemmOp{config: o.config}.options(impl)
}

// problems returns the products.
func (o gemmGroupOp) problems() []gemm.Problem {
	list := make([]gemm.Problem, len(o.g.Products))
	for i := range list {
		list[i] = gemmProblem(o.g.Problem(i))
	}
	return list
}

// Choose implements bench.Op.
func (o gemmGroupOp) Choose(caps *vk.Caps, impl string, _ bench.Pass) (kit.Plan, error) {
	opt, err := o.options(impl)
	if err != nil {
		return nil, err
	}
	return gemm.ChooseGroup(caps, o.problems(), opt)
}

// Record implements bench.Op.
func (o gemmGroupOp) Record(c *vk.Cmd, t map[string]vk.Tensor, workspace *vk.Buffer, impl string, _ bench.Pass) error {
	opt, err := o.options(impl)
	if err != nil {
		return err
	}
	opt.Workspace = workspace
	tensors := make([]gemm.Tensors, len(o.g.Products))
	at := map[string]int{}
	for i := range tensors {
		p := o.g.Problem(i)
		// part returns what product i has of a tensor.
		part := func(name string, shape []int) vk.Tensor {
			whole, ok := t[name]
			if !ok {
				return vk.Tensor{}
			}
			x := vk.View(whole.Buffer, whole.DType, shape...)
			x.Offset = whole.Offset + at[name]
			at[name] += x.NumElements()
			return x
		}
		tensors[i] = gemm.Tensors{
			A: part("a", p.AShape()), B: part("b", p.BShape()), C: part("c", p.CShape()),
			Residual: part("r", p.CShape()), X: part("x", p.CShape()), S: part("s", p.CShape()),
		}
	}
	return gemm.ForwardGroup(c, tensors, o.problems(), opt)
}

// Reference implements bench.Op. For large products it has sampled rows.
func (o gemmGroupOp) Reference(t map[string][]float32, _ bench.Pass) (bench.Reference, error) {
	var c, x, s bench.Expectations
	a, b, first := 0, 0, 0
	for i, size := range o.g.Products {
		whole := o.g.Problem(i)
		part := func(name string, at, n int) []float64 {
			if t[name] == nil {
				return nil
			}
			return wide(t[name][at : at+n])
		}
		n := size.M * size.N
		in := ref.Inputs{
			A: part("a", a, size.M*size.K), B: part("b", b, size.K*size.N), C: part("c", first, n), R: part("r", first, n), X: part("x", first, n),
		}
		if !size.Empty() {
			rows := sample(size.M, mostChecked/(len(o.g.Products)*size.N*max(size.K, 1)))
			p, in := ref.Rows(rows, in, whole)
			want, plain := ref.Multiply(in, p), ref.Plain(in, p)
			bounds := ref.NewBounds(want, plain, in, p)
			at := make([]int, 0, len(rows)*size.N)
			for _, row := range rows {
				for col := range size.N {
					at = append(at, first+row*size.N+col)
				}
			}
			c = append(c, bench.Expected{Name: "c", At: at, Want: want.C, Limit: bounds.C})
			if want.X != nil {
				x = append(x, bench.Expected{Name: "x", At: at, Want: want.X, Limit: bounds.X})
			}
			if want.S != nil {
				s = append(s, bench.Expected{Name: "s", At: at, Want: want.S, Limit: bounds.S})
			}
		}
		a, b, first = a+size.M*size.K, b+size.K*size.N, first+n
	}
	return append(append(c, x...), s...), nil
}
