// Package problem describes matrix products with an epilogue. The package imports nothing of
// Vulkan, so that references and tests can use it anywhere.
package problem

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/enum"
)

// A Problem is a batch of matrix products of one shape,
//
//	v = Alpha * op(A) * op(B) + Beta * C + bias
//	X = v                    SiLUKeep
//	v = silu(v)              SiLU and SiLUKeep
//	v = v * silu'(X)         TimesDSiLU and TimesDSiLUKeep
//	S = silu(X)              TimesDSiLUKeep
//	C = v + R                Residual
//
// with silu(v) = v / (1 + exp(-v)), and the same with gelu(v) = v/2 * (1 + erf(v/√2)) and with
// gelu(v) = v/2 * (1 + tanh(√(2/π) * (v + 0.044715 v³))).
//
//	tensor   shape              DType
//	op(A)    (batch, m, k)      DType    A itself is (batch, k, m) with TransA
//	op(B)    (batch, k, n)      DType    B itself is (batch, n, k) with TransB
//	C, R, X, S (batch, m, n)    Out
//	bias     (batch, n)         Out or float32
//
// Sums are float32 whatever the formats.
type Problem struct {
	Batch          int // 0 is 1
	M, N, K        int
	TransA, TransB bool
	Ones           bool    // op(A) is ones, and there is no A: a row of C is the sum of the rows of op(B)
	Alpha          float64 // 0 is 1
	Beta           float64 // 0: C is not read
	Activation     Activation
	Bias           bool // not with an activation that reads X
	Residual       bool
	DType, Out     dtype.DType
}

// An Activation is what an epilogue does to the sum: each Function has four. A new Function has
//
//	its name          here: the constants, activationNames
//	its public names  pipelines/gemm/gemm.go, and engine/multiply.go for kernels made of products
//	its formula       shaders/lib/activation.glsl
//	its constant      shaders/lib/gemm_params.glsl
//	its reference     ref.valueOf in float64, and its error bound, ref.activationRoundoff
//
// Tests, flags and random problems take the list from Activations.
type Activation uint8

// The activations.
const (
	Identity       Activation = iota
	SiLU                      // C = silu(v)
	SiLUKeep                  // X = v, C = silu(v): the gradient needs X
	TimesDSiLU                // C = v * silu'(X): the gradient of silu at X
	TimesDSiLUKeep            // the same, and S = silu(X): the gradient of the next product needs S
	GELU
	GELUKeep
	TimesDGELU
	TimesDGELUKeep
	GELUTanh
	GELUTanhKeep
	TimesDGELUTanh
	TimesDGELUTanhKeep
)

// A Function is what an Activation is made of. Its number is that of lib/gemm_params.glsl.
type Function uint8

// The functions of activations, and none.
const (
	None Function = iota
	OfSiLU
	OfGELU
	OfGELUTanh
)

// Function returns the function of a.
func (a Activation) Function() Function { return Function((a + 3) / 4) }

// Plain returns SiLU, SiLUKeep, TimesDSiLU or TimesDSiLUKeep: what a does with its function, whatever
// that is. It is Identity for Identity.
func (a Activation) Plain() Activation { return a - 4*max(Activation(a.Function()), 1) + 4 }

// Activations lists all of them.
func Activations() []Activation { return activationNames.All() }

var activationNames = enum.Names[Activation]{
	Identity: "identity", SiLU: "silu", SiLUKeep: "silu-keep", TimesDSiLU: "times-dsilu", TimesDSiLUKeep: "times-dsilu-keep",
	GELU: "gelu", GELUKeep: "gelu-keep", TimesDGELU: "times-dgelu", TimesDGELUKeep: "times-dgelu-keep",
	GELUTanh: "gelu-tanh", GELUTanhKeep: "gelu-tanh-keep", TimesDGELUTanh: "times-dgelu-tanh", TimesDGELUTanhKeep: "times-dgelu-tanh-keep",
}

// String returns the name used by flags.
func (a Activation) String() string { return activationNames.Of(a) }

// ParseActivation accepts the names that String returns.
func ParseActivation(name string) (Activation, error) {
	return activationNames.Parse("gemm: activation", name)
}

// HasX reports whether the problem has the tensor X.
func (p Problem) HasX() bool { return p.WritesX() || p.ReadsX() }

// WritesX reports whether X is an output.
func (p Problem) WritesX() bool { return p.Activation.Plain() == SiLUKeep }

// ReadsX reports whether X is an input.
func (p Problem) ReadsX() bool { return p.Activation.Plain() == TimesDSiLU || p.HasS() }

// HasS reports whether the problem has the tensor S.
func (p Problem) HasS() bool { return p.Activation.Plain() == TimesDSiLUKeep }

// Batches returns Batch, 1 for 0.
func (p Problem) Batches() int { return max(p.Batch, 1) }

// Scale returns Alpha, 1 for 0.
func (p Problem) Scale() float64 {
	if p.Alpha == 0 {
		return 1
	}
	return p.Alpha
}

// FLOPs returns the operations of the products, 2*m*n*k for each.
func (p Problem) FLOPs() float64 {
	return 2 * float64(p.Batches()) * float64(p.M) * float64(p.N) * float64(p.K)
}

// Bytes returns the least memory traffic: each tensor once, C twice if it is read.
func (p Problem) Bytes() float64 {
	m, n, k := float64(p.M), float64(p.N), float64(p.K)
	outs := 1.0
	for _, more := range []bool{p.Beta != 0, p.HasX(), p.HasS(), p.Residual} {
		if more {
			outs++
		}
	}
	if p.Bias {
		outs += 1 / m
	}
	if p.Ones {
		m = 0
	}
	return float64(p.Batches()) * (float64(p.DType.Size())*(m*k+k*n) + float64(p.Out.Size())*outs*float64(p.M)*n)
}

// AShape returns the shape of A as it lies in memory.
func (p Problem) AShape() []int { return p.shape(p.M, p.K, p.TransA) }

// BShape returns the shape of B as it lies in memory.
func (p Problem) BShape() []int { return p.shape(p.K, p.N, p.TransB) }

// CShape returns the shape of C, R, X and S.
func (p Problem) CShape() []int { return p.shape(p.M, p.N, false) }

// BiasShape returns the shape of the bias.
func (p Problem) BiasShape() []int { return []int{p.Batches(), p.N} }

func (p Problem) shape(rows, cols int, transposed bool) []int {
	if transposed {
		rows, cols = cols, rows
	}
	return []int{p.Batches(), rows, cols}
}

// String describes the problem in a few words: sizes, transposes as BLAS writes
// them, formats, and the epilogue.
func (p Problem) String() string {
	s := fmt.Sprintf("%dx%dx%d %s %v", p.M, p.N, p.K, p.Transposes(), p.DType)
	if p.Batches() > 1 {
		s = fmt.Sprintf("%d of %s", p.Batch, s)
	}
	if p.Ones {
		s += " ones"
	}
	if p.Out != p.DType {
		s += fmt.Sprintf(" to %v", p.Out)
	}
	if p.Scale() != 1 {
		s += fmt.Sprintf(" alpha %g", p.Alpha)
	}
	if p.Beta != 0 {
		s += fmt.Sprintf(" beta %g", p.Beta)
	}
	if p.Activation != Identity {
		s += " " + p.Activation.String()
	}
	if p.Bias {
		s += " bias"
	}
	if p.Residual {
		s += " residual"
	}
	return s
}

// Transposes returns nn, nt, tn or tt.
func (p Problem) Transposes() string {
	name := map[bool]string{false: "n", true: "t"}
	return name[p.TransA] + name[p.TransB]
}

// ParseTransposes reads the string of Transposes.
func ParseTransposes(s string) (transA, transB bool, err error) {
	if len(s) != 2 || strings.Trim(s, "nt") != "" {
		return false, false, fmt.Errorf("gemm: transposes %q are not one of nn, nt, tn, tt", s)
	}
	return s[0] == 't', s[1] == 't', nil
}

// maxDim keeps products of two sizes within an int64, and indices within uint32
// where a tensor fits a buffer.
const maxDim = 1 << 30

// Validate returns an error that names the first value that breaks a rule.
func (p Problem) Validate() error {
	err := cmp.Or(
		ValidateSizes(0, Size{"batch", p.Batch}), ValidateSizes(1, Size{"m", p.M}, Size{"n", p.N}, Size{"k", p.K}),
		p.validateFactors(), p.validateFormats())
	if err != nil {
		return fmt.Errorf("gemm: %w", err)
	}
	return nil
}

// Empty reports whether a product of a group has no elements of C.
func (p Problem) Empty() bool { return p.M == 0 || p.N == 0 }

// ValidateGroup returns the common part of the products of a group, a problem without sizes, or an
// error that names a product and the first value that breaks a rule. Products differ in sizes,
// which may be 0, and in factors.
func ValidateGroup(list []Problem) (common Problem, err error) {
	for i, p := range list {
		if p.Batch != 0 {
			return common, fmt.Errorf("gemm: product %d of the group: batch=%d, but products of a group have no batch", i, p.Batch)
		}
		if err := cmp.Or(ValidateSizes(0, Size{"m", p.M}, Size{"n", p.N}, Size{"k", p.K}), p.validateFactors()); err != nil {
			return common, fmt.Errorf("gemm: product %d of the group: %w", i, err)
		}
		one := p
		one.M, one.N, one.K, one.Alpha, one.Beta = 0, 0, 0, 0, 0
		if i == 0 {
			common = one
		}
		if one != common {
			return common, fmt.Errorf("gemm: product %d of the group is %v, product 0 %v: products differ in m, n, k, alpha and beta alone", i, p, list[0])
		}
	}
	if err := common.validateFormats(); err != nil {
		return common, fmt.Errorf("gemm: %w", err)
	}
	return common, nil
}

// A Size is a number of a problem with its name, for messages.
type Size struct {
	Name string
	N    int
}

// ValidateSizes returns an error that names the first size that is below least or above 2^30.
func ValidateSizes(least int, sizes ...Size) error {
	for _, s := range sizes {
		if s.N < least || s.N > maxDim {
			return fmt.Errorf("%s=%d is not from %d to %d", s.Name, s.N, least, maxDim)
		}
	}
	return nil
}

// A Format is an element format of a problem with its name, for messages.
type Format struct {
	Name  string
	DType dtype.DType
}

// ValidateFormats returns an error that names the first format that has no floating-point numbers.
func ValidateFormats(formats ...Format) error {
	for _, f := range formats {
		if !f.DType.Float() {
			return fmt.Errorf("%s=%v is not one of float32, float16, bfloat16", f.Name, f.DType)
		}
	}
	return nil
}

func (p Problem) validateFactors() error {
	for _, f := range []struct {
		name string
		x    float64
	}{{"alpha", p.Alpha}, {"beta", p.Beta}} {
		if x := float32(f.x); math.IsNaN(f.x) || math.IsInf(float64(x), 0) || f.x != 0 && x == 0 {
			return fmt.Errorf("%s=%g is not a finite float32", f.name, f.x)
		}
	}
	return nil
}

func (p Problem) validateFormats() error {
	if p.Activation > TimesDGELUTanhKeep {
		return fmt.Errorf("activation %v is not one of %v", p.Activation, activationNames)
	}
	if p.Ones && p.TransA {
		return fmt.Errorf("transposes %s: op(a) of ones has no a to transpose", p.Transposes())
	}
	if p.Bias && p.ReadsX() {
		return fmt.Errorf("activation %v is a gradient, which has no bias", p.Activation)
	}
	return ValidateFormats(Format{"dtype", p.DType}, Format{"out", p.Out})
}
