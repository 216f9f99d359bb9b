// Package problem describes two-layer perceptrons that share their input. It imports
// nothing of Vulkan, so that references and tests can use it anywhere.
package problem

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
)

// A Problem is one call of
//
//	pre[k]  = x * W1[k]
//	y[:, k] = silu(pre[k]) * W2[k]       silu(v) = v / (1 + exp(-v))
//
// for every head k.
//
//	tensor    shape                DType
//	x, dx     (tokens, in)         DType
//	W1, dW1   (heads, in, hidden)  DType, Grad
//	W2, dW2   (heads, hidden, out) DType, Grad
//	y, dy     (tokens, heads, out) DType
//	pre       (tokens, heads, hidden) DType
//
// Sums are float32.
type Problem struct {
	Tokens, Heads, In, Hidden, Out int
	DType                          dtype.DType
	Grad                           dtype.DType // of dW1 and dW2
}

// Validate returns an error that names the first value that breaks a rule.
func (p Problem) Validate() error {
	for _, d := range []struct {
		name string
		n    int
	}{{"tokens", p.Tokens}, {"heads", p.Heads}, {"in", p.In}, {"hidden", p.Hidden}, {"out", p.Out}} {
		if d.n < 1 || d.n > 1<<30 {
			return fmt.Errorf("grouped: %s=%d is not from 1 to %d", d.name, d.n, 1<<30)
		}
	}
	for _, t := range []struct {
		name string
		t    dtype.DType
	}{{"dtype", p.DType}, {"grad", p.Grad}} {
		if !t.t.Float() {
			return fmt.Errorf("grouped: %s=%v is not one of float32, float16, bfloat16", t.name, t.t)
		}
	}
	return nil
}

// FLOPs returns the operations of the products of the forward pass.
func (p Problem) FLOPs() float64 {
	return 2 * float64(p.Tokens) * float64(p.Heads) * float64(p.Hidden) * (float64(p.In) + float64(p.Out))
}

// BackwardFLOPs returns those of the gradients, twice as many: what computes pre again
// is not counted.
func (p Problem) BackwardFLOPs() float64 { return 2 * p.FLOPs() }

// weights returns the elements of W1 and W2.
func (p Problem) weights() float64 {
	return float64(p.Heads) * float64(p.Hidden) * (float64(p.In) + float64(p.Out))
}

// Bytes returns the least memory traffic of the forward pass: each tensor once.
func (p Problem) Bytes() float64 {
	return float64(p.DType.Size()) * (float64(p.Tokens)*(float64(p.In)+float64(p.Heads)*float64(p.Out)) + p.weights())
}

// BackwardBytes returns that of the backward pass: x, dy, dx and weights and gradients.
func (p Problem) BackwardBytes() float64 {
	tokens := float64(p.Tokens) * (2*float64(p.In) + float64(p.Heads)*float64(p.Out))
	return float64(p.DType.Size())*(tokens+p.weights()) + float64(p.Grad.Size())*p.weights()
}

// XShape, W1Shape, W2Shape, YShape and PreShape are the shapes of tensors and of their
// gradients.
func (p Problem) XShape() []int   { return []int{p.Tokens, p.In} }
func (p Problem) W1Shape() []int  { return []int{p.Heads, p.In, p.Hidden} }
func (p Problem) W2Shape() []int  { return []int{p.Heads, p.Hidden, p.Out} }
func (p Problem) YShape() []int   { return []int{p.Tokens, p.Heads, p.Out} }
func (p Problem) PreShape() []int { return []int{p.Tokens, p.Heads, p.Hidden} }

// String describes the problem in a few words.
func (p Problem) String() string {
	s := fmt.Sprintf("%d tokens, %d heads of %d to %d to %d, %v", p.Tokens, p.Heads, p.In, p.Hidden, p.Out, p.DType)
	if p.Grad != p.DType {
		s += fmt.Sprintf(", weight gradients %v", p.Grad)
	}
	return s
}
