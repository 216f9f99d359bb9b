package mlp

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/enum"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
)

// A Problem holds the sizes, formats and options of a call.
type Problem struct {
	// Heads is the number of perceptrons. 0 is one perceptron, and tensors have no axis of heads.
	Tokens, Heads, In, Hidden, Out int
	DType                          dtype.DType
	Grad                           dtype.Option // of DW1 and DW2; the zero value is DType
	// Keep says what Forward writes for Backward. What it does not write is computed again.
	Keep Keep
	// Units is how many columns Pre and Hidden have with KeepHidden, what KeptUnits returns: Hidden of
	// them, and zeros behind, which kernels write and read so that they have no edges. 0 is Hidden.
	Units int
	// Float32 makes Y float32; DY stays DType.
	Float32 bool
}

// Keep says which tensors the forward pass leaves to the backward pass.
type Keep uint8

// The choices. PyTorch's autograd keeps both pre and silu(pre).
const (
	KeepNothing Keep = iota
	KeepPre          // Tensors.Pre
	KeepHidden       // Tensors.Pre and Tensors.Hidden, without heads
)

// Keeps lists the choices.
func Keeps() []Keep { return keepNames.All() }

// String returns nothing, pre or hidden.
func (k Keep) String() string { return keepNames.Of(k) }

var keepNames = enum.Names[Keep]{"nothing", "pre", "hidden"}

// ParseKeep accepts the names that String returns.
func ParseKeep(name string) (Keep, error) { return keepNames.Parse("mlp: keep", name) }

// Validate returns an error that names the first value that breaks a rule.
func (p Problem) Validate() error {
	err := cmp.Or(
		problem.ValidateSizes(1, problem.Size{Name: "tokens", N: p.Tokens}, problem.Size{Name: "in", N: p.In}, problem.Size{Name: "hidden", N: p.Hidden}, problem.Size{Name: "out", N: p.Out}),
		problem.ValidateFormats(problem.Format{Name: "dtype", DType: p.DType}, problem.Format{Name: "grad", DType: p.GradDType()}))
	if err != nil {
		return fmt.Errorf("mlp: %w", err)
	}
	switch {
	case p.Heads < 0 || p.Heads > 1<<30:
		return fmt.Errorf("mlp: heads=%d is not from 0 to %d", p.Heads, 1<<30)
	case p.Keep > KeepHidden:
		return fmt.Errorf("mlp: keep=%v is not one of %v", p.Keep, keepNames)
	case p.Keep == KeepHidden && p.Heads > 0:
		return fmt.Errorf("mlp: keep=hidden, but of heads=%d only pre is kept", p.Heads)
	case p.Units != 0 && p.Units != p.Hidden && (p.Keep != KeepHidden || p.Units != p.wholeLines()):
		return fmt.Errorf("mlp: units=%d is none of 0, hidden=%d and, with keep=hidden, %d", p.Units, p.Hidden, p.wholeLines())
	}
	return nil
}

// heads returns the number of perceptrons.
func (p Problem) heads() int { return max(p.Heads, 1) }

// yType returns the format of Y.
func (p Problem) yType() dtype.DType {
	if p.Float32 {
		return dtype.Float32
	}
	return p.DType
}

// GradDType returns the format of DW1 and DW2.
func (p Problem) GradDType() dtype.DType { return p.Grad.Or(p.DType) }

// FLOPs returns the operations of the products of the forward pass.
func (p Problem) FLOPs() float64 { return 2 * float64(p.Tokens) * p.weights() }

// BackwardFLOPs returns the operations of the gradients, twice the operations of Forward. Computing
// pre again is not counted.
func (p Problem) BackwardFLOPs() float64 { return 2 * p.FLOPs() }

// weights returns the number of elements of W1 and W2.
func (p Problem) weights() float64 {
	return float64(p.heads()) * float64(p.Hidden) * (float64(p.In) + float64(p.Out))
}

// Bytes returns the least memory traffic of the forward pass: X, weights and Y once.
func (p Problem) Bytes() float64 {
	return float64(p.DType.Size()) * (float64(p.Tokens)*(float64(p.In)+float64(p.heads())*float64(p.Out)) + p.weights())
}

// BackwardBytes returns the memory traffic of the backward pass: X, DY, DX, weights and their gradients once.
func (p Problem) BackwardBytes() float64 {
	tokens := float64(p.Tokens) * (2*float64(p.In) + float64(p.heads())*float64(p.Out))
	return float64(p.DType.Size())*(tokens+p.weights()) + float64(p.GradDType().Size())*p.weights()
}

// XShape, W1Shape, W2Shape, YShape and PreShape are the shapes of tensors and of their gradients.
// Hidden has the shape of Pre.
func (p Problem) XShape() []int   { return []int{p.Tokens, p.In} }
func (p Problem) W1Shape() []int  { return p.shape(0, p.In, p.Hidden) }
func (p Problem) W2Shape() []int  { return p.shape(0, p.Hidden, p.Out) }
func (p Problem) YShape() []int   { return p.shape(1, p.Tokens, p.Out) }
func (p Problem) PreShape() []int { return p.shape(1, p.Tokens, max(p.Units, p.Hidden)) }

// wholeLines returns the hidden units of one perceptron up to whole lines of memory.
func (p Problem) wholeLines() int { return heads{0, 1}.rowStride(p) }

// shape returns (rows, columns), with an axis of heads inserted at axis if there are heads.
func (p Problem) shape(axis, rows, columns int) []int {
	shape := []int{rows, columns}
	if p.Heads > 0 {
		shape = slices.Insert(shape, axis, p.Heads)
	}
	return shape
}

// String describes the problem in a few words.
func (p Problem) String() string {
	heads := ""
	if p.Heads > 0 {
		heads = fmt.Sprintf("%d heads of ", p.Heads)
	}
	s := fmt.Sprintf("%d tokens, %s%d to %d to %d, %v", p.Tokens, heads, p.In, p.Hidden, p.Out, p.DType)
	if p.GradDType() != p.DType {
		s += fmt.Sprintf(", weight gradients %v", p.GradDType())
	}
	return s
}
