package gemm

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
)

// A Problem is a batch of matrix products of one shape, with an epilogue; the package
// documentation has the formula. The zero value of an option leaves it out. Problems are
// comparable.
type Problem struct {
	Batch          int // 0 is 1
	M, N, K        int
	TransA, TransB bool
	Alpha          float64 // 0 is 1
	Beta           float64 // 0: C is not read
	Activation     Activation
	Residual       bool
	DType          dtype.DType  // of A and B
	Out            dtype.Option // of C, Residual, X and S; the zero value is DType
}

// An Activation is what the epilogue does to the sum: one of the constants. Its String is the name that
// the program has for it: silu-keep.
type Activation = problem.Activation

// The activations, with silu(v) = v / (1 + exp(-v)).
const (
	Identity       = problem.Identity       // C = v
	SiLU           = problem.SiLU           // C = silu(v)
	SiLUKeep       = problem.SiLUKeep       // X = v, C = silu(v): the gradient needs X
	TimesDSiLU     = problem.TimesDSiLU     // C = v * silu'(X): the gradient of silu at X
	TimesDSiLUKeep = problem.TimesDSiLUKeep // the same, and S = silu(X): the gradient of the next product needs S
)

// OutDType returns the format of C, Residual, X and S.
func (p Problem) OutDType() dtype.DType { return p.Out.Or(p.DType) }

// internal returns the problem as the engine has it.
func (p Problem) internal() problem.Problem {
	return problem.Problem{
		Batch: p.Batch, M: p.M, N: p.N, K: p.K, TransA: p.TransA, TransB: p.TransB, Alpha: p.Alpha, Beta: p.Beta,
		Activation: p.Activation, Residual: p.Residual, DType: p.DType, Out: p.OutDType(),
	}
}

// Validate returns an error that names the first value that breaks a rule.
func (p Problem) Validate() error { return p.internal().Validate() }

// String describes the problem in a few words: sizes, transposes as BLAS writes them (nn, nt, tn,
// tt), formats, and the epilogue.
func (p Problem) String() string { return p.internal().String() }

// FLOPs returns the operations of the products, 2*m*n*k for each.
func (p Problem) FLOPs() float64 { return p.internal().FLOPs() }

// Bytes returns the least memory traffic: each tensor once, C twice if it is read.
func (p Problem) Bytes() float64 { return p.internal().Bytes() }

// AShape, BShape and CShape are the shapes of tensors in memory. Residual, X and S have that of
// C.
func (p Problem) AShape() []int { return p.internal().AShape() }
func (p Problem) BShape() []int { return p.internal().BShape() }
func (p Problem) CShape() []int { return p.internal().CShape() }
