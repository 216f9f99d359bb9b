package gmm

import (
	"fmt"
	"math"

	"github.com/flashvk/flashvk/dtype"
)

// A Problem holds the sizes and formats of a call.
type Problem struct {
	Tokens     int
	Components int          // of the mixture of a token
	DType      dtype.DType  // of logit, mu and log sigma
	Grad       dtype.Option // of their gradients; the zero value is DType
}

// Validate returns an error that names the first field that is out of its range.
func (p Problem) Validate() error {
	switch {
	case p.Tokens <= 0:
		return fmt.Errorf("gmm: tokens=%d is not positive", p.Tokens)
	case p.Components <= 0:
		return fmt.Errorf("gmm: components=%d is not positive", p.Components)
	case float64(p.Tokens)*float64(p.Components) > math.MaxUint32/3:
		return fmt.Errorf("gmm: tokens=%d by components=%d are more than %d", p.Tokens, p.Components, uint32(math.MaxUint32/3))
	case !p.DType.Float():
		return fmt.Errorf("gmm: dtype=%v is not one of float32, float16, bfloat16", p.DType)
	case !p.GradDType().Float():
		return fmt.Errorf("gmm: grad=%v is not one of float32, float16, bfloat16", p.GradDType())
	}
	return nil
}

// GradDType returns the format of the gradients.
func (p Problem) GradDType() dtype.DType { return p.Grad.Or(p.DType) }

// FLOPs returns the operations of the forward pass: 14 for each component of a token, as the
// formulas are written, with an exponential or a logarithm as one.
func (p Problem) FLOPs() float64 { return 14 * float64(p.Tokens) * float64(p.Components) }

// BackwardFLOPs returns the operations of the backward pass: 24 for each component of a token.
func (p Problem) BackwardFLOPs() float64 { return 24 * float64(p.Tokens) * float64(p.Components) }

// Bytes returns the least memory traffic of the forward pass: mixtures and y are read, log_p and
// the loss written.
func (p Problem) Bytes() float64 { return p.mixtureBytes(p.DType) + 8*float64(p.Tokens) + 4 }

// BackwardBytes returns the memory traffic of the backward pass: mixtures and y are read, gradients written.
func (p Problem) BackwardBytes() float64 {
	return p.mixtureBytes(p.DType) + p.mixtureBytes(p.GradDType()) + 4*float64(p.Tokens)
}

// mixtureBytes returns the bytes of mixtures in a format: three numbers for each component.
func (p Problem) mixtureBytes(t dtype.DType) float64 {
	return 3 * float64(p.Tokens) * float64(p.Components) * float64(t.Size())
}

// String describes the problem in a few words.
func (p Problem) String() string {
	s := fmt.Sprintf("%d tokens, %d components, %v", p.Tokens, p.Components, p.DType)
	if p.GradDType() != p.DType {
		s += fmt.Sprintf(", gradients %v", p.GradDType())
	}
	return s
}
