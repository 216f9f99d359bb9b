package mixture

import (
	"cmp"
	"fmt"
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/pipelines/mlp"
)

// A Problem holds the sizes and formats of a call.
type Problem struct {
	Tokens, Heads, In, Hidden int
	DType                     dtype.DType
	Grad                      dtype.Option // of DW1 and DW2; the zero value is DType
}

// headOutputs is the number of outputs of a head: logit, mu, log sigma.
const headOutputs = 3

// Validate returns an error that names the first value that breaks a rule.
func (p Problem) Validate() error {
	err := cmp.Or(
		problem.ValidateSizes(1, problem.Size{Name: "tokens", N: p.Tokens}, problem.Size{Name: "heads", N: p.Heads}, problem.Size{Name: "in", N: p.In}, problem.Size{Name: "hidden", N: p.Hidden}),
		problem.ValidateFormats(problem.Format{Name: "dtype", DType: p.DType}, problem.Format{Name: "grad", DType: p.GradDType()}))
	if err != nil {
		return fmt.Errorf("mixture: %w", err)
	}
	if float64(p.Tokens)*float64(p.Heads) > math.MaxUint32/headOutputs {
		return fmt.Errorf("mixture: tokens=%d by heads=%d are more than %d", p.Tokens, p.Heads, uint32(math.MaxUint32/headOutputs))
	}
	return nil
}

// Perceptrons returns the problem of the heads alone.
func (p Problem) Perceptrons() mlp.Problem {
	return mlp.Problem{Tokens: p.Tokens, Heads: p.Heads, In: p.In, Hidden: p.Hidden, Out: headOutputs, DType: p.DType, Grad: p.Grad}
}

// Mixtures returns the problem of the mixtures alone, with outputs in float32 and gradients by
// them in p.DType.
func (p Problem) Mixtures() gmm.Problem {
	return gmm.Problem{Tokens: p.Tokens, Components: p.Heads, DType: dtype.Float32, Grad: dtype.Some(p.DType)}
}

// GradDType returns the format of DW1 and DW2.
func (p Problem) GradDType() dtype.DType { return p.Grad.Or(p.DType) }

// FLOPs returns the operations of the forward pass: the products of the heads, and the operations of gmm.
func (p Problem) FLOPs() float64 { return p.Perceptrons().FLOPs() + p.Mixtures().FLOPs() }

// BackwardFLOPs returns the operations of the gradients. Hidden units and outputs that are
// computed again are not counted.
func (p Problem) BackwardFLOPs() float64 {
	return p.Perceptrons().BackwardFLOPs() + p.Mixtures().BackwardFLOPs()
}

// weights returns the number of elements of w1 and w2.
func (p Problem) weights() float64 {
	return float64(p.Heads) * float64(p.Hidden) * float64(p.In+headOutputs)
}

// Bytes returns the least memory traffic of the forward pass: each tensor once.
func (p Problem) Bytes() float64 {
	return float64(p.DType.Size())*(float64(p.Tokens)*float64(p.In)+p.weights()) + 8*float64(p.Tokens) + 4
}

// BackwardBytes returns the memory traffic of the backward pass: inputs and gradients once.
func (p Problem) BackwardBytes() float64 {
	return float64(p.DType.Size())*(2*float64(p.Tokens)*float64(p.In)+p.weights()) + float64(p.GradDType().Size())*p.weights() + 4*float64(p.Tokens)
}

// XShape, W1Shape and W2Shape are the shapes of tensors and of their gradients.
func (p Problem) XShape() []int  { return p.Perceptrons().XShape() }
func (p Problem) W1Shape() []int { return p.Perceptrons().W1Shape() }
func (p Problem) W2Shape() []int { return p.Perceptrons().W2Shape() }

// String describes the problem in a few words.
func (p Problem) String() string { return "mixtures of " + p.Perceptrons().String() }
