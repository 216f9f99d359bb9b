package gemmtest

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/vk"
)

// A Multiplier computes a problem on its device.
type Multiplier interface {
	Device() *vk.Device
	Multiply(c *vk.Cmd, t engine.Tensors, p problem.Problem) error
}

// A GroupMultiplier computes a group. Tensors of one name lie in one buffer. Those
// of products without elements have none, and where k is 0, A and B.
type GroupMultiplier func(c *vk.Cmd, t []engine.Tensors, g problem.Group) error

// Test runs the cases as subtests.
func Test[S guard.Parent[S]](t S, cases []*Case, got Multiplier) {
	t.Helper()
	for _, c := range cases {
		test(t, c.String(), func() (string, error) { return Check(c, got) })
	}
}

// TestGroup runs the cases of groups as subtests.
func TestGroup[S guard.Parent[S]](t S, d *vk.Device, cases []*GroupCase, got GroupMultiplier) {
	t.Helper()
	for _, c := range cases {
		test(t, c.String(), func() (string, error) { return CheckGroup(context.Background(), guard.Device{Device: d}, c, got) })
	}
}

func test[S guard.Parent[S]](t S, name string, check func() (string, error)) {
	t.Helper()
	t.Run(name, func(t S) {
		report, err := check()
		if err != nil {
			t.Fatal(err)
		}
		t.Log(report)
	})
}

// Check runs a case, and says how close the outputs came, or what is wrong.
func Check(c *Case, got Multiplier) (report string, err error) {
	x := call{[]problem.Problem{c.Problem}, c.Layout, newInputs}
	g := x.guard()
	return g.Check(got.Device(), func(cmd *vk.Cmd, t map[string]vk.Tensor) error {
		return got.Multiply(cmd, tensors(t, 0), c.Problem)
	})
}

// CheckGroup is Check for a group.
func CheckGroup(ctx context.Context, d guard.Device, c *GroupCase, got GroupMultiplier) (report string, err error) {
	x := call{nil, c.Layout, newInputs}
	if c.Inputs != nil {
		x.inputs = c.Inputs
	}
	for i := range c.Products {
		x.problems = append(x.problems, c.Problem(i))
	}
	g := x.guard()
	return g.CheckContext(ctx, d, func(cmd *vk.Cmd, t map[string]vk.Tensor) error {
		list := make([]engine.Tensors, len(x.problems))
		for i := range list {
			list[i] = tensors(t, i)
		}
		return got(cmd, list, c.Group)
	})
}

// A call is what is checked.
type call struct {
	problems []problem.Problem
	layout   Layout
	inputs   func(p problem.Problem, i int) ref.Inputs
}

// name is that of a tensor of a product.
func name(word string, i int) string { return fmt.Sprintf("%s of product %d", word, i) }

// tensors returns those of a product, by their names.
func tensors(t map[string]vk.Tensor, i int) engine.Tensors {
	return engine.Tensors{
		C: t[name("c", i)], A: t[name("a", i)], B: t[name("b", i)],
		Residual: t[name("residual", i)], X: t[name("x", i)], S: t[name("s", i)],
	}
}

// guard returns the case of the call: tensors of one name lie in one memory.
func (c *call) guard() guard.Case {
	g := guard.Case{Name: "gemm"}
	for i, p := range c.problems {
		if p.M == 0 || p.N == 0 {
			continue
		}
		in := c.inputs(p, i)
		if c.layout.Broadcast {
			for j := range in.A {
				in.A[j] = in.A[j%(p.M*p.K)]
			}
		}
		add := func(word string, t guard.Tensor) {
			t.Name, t.Memory, t.Place = name(word, i), word, c.layout.place(word)
			g.Tensors = append(g.Tensors, t)
		}
		want, plain := ref.Multiply(in, p), ref.Plain(in, p)
		bounds := ref.NewBounds(want, plain, in, p)
		if p.K > 0 {
			add("a", guard.Tensor{DType: p.DType, Shape: p.AShape(), Values: in.A})
			add("b", guard.Tensor{DType: p.DType, Shape: p.BShape(), Values: in.B})
		}
		add("c", guard.Tensor{DType: p.Out, Shape: p.CShape(), Values: in.C, Want: want.C, Bound: bounds.C})
		if p.Residual {
			add("residual", guard.Tensor{DType: p.Out, Shape: p.CShape(), Values: in.R})
		}
		switch {
		case p.ReadsX():
			add("x", guard.Tensor{DType: p.Out, Shape: p.CShape(), Values: in.X})
		case p.HasX():
			add("x", guard.Tensor{DType: p.Out, Shape: p.CShape(), Want: want.X, Bound: bounds.X})
		}
		if p.HasS() {
			add("s", guard.Tensor{DType: p.Out, Shape: p.CShape(), Want: want.S, Bound: bounds.S})
		}
	}
	return g
}

// newInputs returns random inputs of product i that the formats of p can hold.
func newInputs(p problem.Problem, i int) ref.Inputs {
	rng := rand.New(rand.NewPCG(uint64(p.M)+uint64(i)<<32, uint64(p.N*1000+p.K)))
	random := func(present bool, format dtype.DType, shape []int) []float64 {
		if !present {
			return nil
		}
		return guard.Random(rng, format, shape[0]*shape[1]*shape[2], 1)
	}
	return ref.Inputs{
		A: random(true, p.DType, p.AShape()),
		B: random(true, p.DType, p.BShape()),
		C: random(p.Beta != 0, p.Out, p.CShape()),
		R: random(p.Residual, p.Out, p.CShape()),
		X: random(p.ReadsX(), p.Out, p.CShape()),
	}
}

// place says where a tensor lies.
func (l Layout) place(word string) *guard.Place {
	return &guard.Place{
		Offset: l.Offset, RowGap: max(l.Pad, 0), MatrixGap: l.BatchPad,
		Aligned: l.Pad == padded, Tight: true, Broadcast: l.Broadcast && word == "a",
	}
}
