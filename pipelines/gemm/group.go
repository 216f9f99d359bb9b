package gemm

import (
	"fmt"

	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// ForwardGroup computes products of different sizes in one launch, whatever their number:
// t[i] and list[i] are those of product i, with the epilogue of Forward.
//
//	products          blocks of C                  workgroups
//	0   3x2 blocks    0 1 2 3 4 5                  0 1 2 3 4 5
//	1   no rows
//	2   1x2 blocks    0 1                                      6 7
//	3   2x2 blocks    0 1 2 3                                      8 9 10 11
//
// A workgroup looks its product up in a table of their sizes and places. Those with the
// longest k come first, so that the last workgroups to finish are short.
//
// The problems differ in M, N, K, Alpha and Beta alone, and have no batch: tensors are
// matrices. Every A is a view of one buffer, as the rows of the experts are views of all
// tokens; likewise every B, every C, and so on. A and B may be those of several products;
// outputs have memory of their own, as in Forward, but may be columns of one matrix.
//
// A product with M = 0 or N = 0 does nothing, as that of an expert to whom no token went, and
// its tensors are not looked at; a list of nothing else, or of no products, launches nothing.
// One with K = 0 has no A and B: C = epilogue(Beta * C), as BLAS and torch._grouped_mm have
// it, so that the gradient of such an expert's weights is 0.
//
// Kernels load eight elements of A and B and four of the rest at a time, if offsets and
// strides of all products are multiples of that; one that has others makes all slower.
// Nothing is copied, and k is not divided among workgroups. Float32 operands take path scalar,
// as path coopmat multiplies parts of them, which are copies.
//
// ForwardGroup records into c and returns, as Forward does. The table is a part of what is
// recorded: c may be submitted again and again, and t and list changed. Other than Forward's,
// the commands include a transfer, to the workspace. Errors are those of Forward, and name the
// product.
func ForwardGroup(c *vk.Cmd, t []Tensors, list []Problem, o Options) (err error) {
	defer c.Keep(&err)
	g, err := group(list)
	if err != nil {
		return err
	}
	tensors := make([]engine.Tensors, len(t))
	for i := range t {
		tensors[i] = engine.Tensors(t[i])
	}
	return engine.MultiplyGroup(c, tensors, g, o.group())
}

// ChooseGroup returns how ForwardGroup would run on a device: its Workspace is the bytes that
// Options.Workspace must have. Its errors are those of ForwardGroup about list and o.
func ChooseGroup(caps *vk.Caps, list []Problem, o Options) (Plan, error) {
	g, err := group(list)
	if err != nil {
		return Plan{}, err
	}
	config, err := engine.ChooseGroup(caps, g, o.group())
	if err != nil {
		return Plan{}, err
	}
	return Plan{Config(config), kit.Origin{}, config.GroupKernels(), engine.GroupWorkspace(g)}, nil
}

// group returns the products as the engine wants them, or an error about one that differs
// from the first in what they have in common.
func group(list []Problem) (engine.Group, error) {
	if len(list) == 0 {
		return engine.Group{}, nil
	}
	first := list[0]
	g := engine.Group{
		TransA: first.TransA, TransB: first.TransB, Activation: first.Activation, Residual: first.Residual,
		DType: first.DType, Out: first.OutDType(),
	}
	for i, p := range list {
		if p.Batch != 0 {
			return g, fmt.Errorf("gemm: product %d of the group: batch=%d, but products of a group have no batch", i, p.Batch)
		}
		g.Products = append(g.Products, engine.Product{M: p.M, N: p.N, K: p.K, Alpha: p.Alpha, Beta: p.Beta})
		if g.Problem(i) != p.internal() {
			return g, fmt.Errorf("gemm: product %d of the group is %v, product 0 %v: products differ in m, n, k, alpha and beta alone", i, p, first)
		}
	}
	return g, nil
}

// group returns the options as the engine wants them for a list.
func (o Options) group() engine.GroupOptions {
	return engine.GroupOptions{Impl: o.Impl, Config: (*engine.Config)(o.Config), Workspace: o.Workspace}
}
