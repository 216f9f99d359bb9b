package gemm

import (
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// ForwardGroup computes products of different sizes in one launch, whatever their number: t[i]
// and list[i] are those of product i, with the epilogue of Forward.
//
//	products          blocks of C                  workgroups
//	0   3x2 blocks    0 1 2 3 4 5                  0 1 2 3 4 5
//	1   no rows
//	2   1x2 blocks    0 1                                      6 7
//	3   2x2 blocks    0 1 2 3                                      8 9 10 11
//
// A workgroup finds its product in a table of sizes and offsets. The products with the longest k
// come first: the workgroups that finish last are short.
//
// The problems differ in M, N, K, Alpha and Beta alone. They have no batch: tensors are matrices.
// Every A is a view of one buffer, as the rows of the experts are views of all tokens. The same
// holds for every B, every C and the others. Products may share A and B. Outputs have memory of
// their own, as in Forward; they may be columns of one matrix.
//
// A product with M = 0 or N = 0 does nothing, and its tensors may be zero. Such is an expert
// without a token. A list of nothing else, or an empty one, launches nothing. A product with K =
// 0 needs no A and B: C = epilogue(Beta * C), as in BLAS and torch._grouped_mm. So the gradient
// of the weights of an expert without a token is 0.
//
// Kernels load eight elements of A and B and four of the rest at a time if the offsets and
// strides of all products are multiples of that. One product with others makes all slower.
// Nothing is copied, and k is not divided. Float32 operands take path scalar, since path coopmat
// needs copies of them.
//
// ForwardGroup records into c and returns, as Forward does. The table is a part of the recording:
// c may be submitted again and again, and the caller may change t and list. Unlike those of
// Forward, the commands include a transfer to the workspace. Errors are those of Forward, and
// name the product.
func ForwardGroup(c *vk.Cmd, t []Tensors, list []Problem, o Options) (err error) {
	defer c.Keep(&err)
	tensors := make([]engine.Tensors, len(t))
	for i := range t {
		tensors[i] = engine.Tensors(t[i])
	}
	return engine.MultiplyGroup(c, tensors, group(list), o.engine())
}

// ChooseGroup returns how ForwardGroup would run on a device. Plan.Workspace is how many bytes
// Options.Workspace must have. Its errors are those of ForwardGroup about list and o.
func ChooseGroup(caps *vk.Caps, list []Problem, o Options) (Plan, error) {
	g := group(list)
	config, err := engine.ChooseGroup(caps, g, o.engine())
	if err != nil {
		return Plan{}, err
	}
	return Plan{Config(config), kit.Origin{}, config.GroupKernels(), engine.GroupWorkspace(g)}, nil
}

// group returns the products as the engine wants them.
func group(list []Problem) (problems []engine.Problem) {
	for _, p := range list {
		problems = append(problems, p.internal())
	}
	return problems
}
