package norm

import (
	"fmt"
	"math"

	"github.com/flashvk/flashvk/dtype"
)

// A Problem holds the sizes, formats and options of a call.
type Problem struct {
	Rows, Cols int
	// RMS leaves out the mean: RMSNorm, not LayerNorm.
	RMS bool
	// Eps is added to the variance of a row; it is not negative. In LayerNorm a row of equal
	// elements is 0 if Eps is positive, and NaN if it is 0.
	Eps float64
	// DType is the format of all tensors but the weight and the statistics.
	DType dtype.DType
	// WeightDType is the format of the weight and its gradient: Float32 or DType.
	WeightDType dtype.DType
	// Residual adds a second tensor to x before the normalization.
	Residual bool
}

// maxElements bounds the elements of a tensor: kernels count them in 32 bits.
const maxElements = math.MaxUint32

// Validate returns an error that names the first field that is out of its range.
func (p Problem) Validate() error {
	switch {
	case p.Rows <= 0:
		return fmt.Errorf("norm: rows=%d is not positive", p.Rows)
	case p.Cols <= 0:
		return fmt.Errorf("norm: cols=%d is not positive", p.Cols)
	case float64(p.Rows)*float64(p.Cols) > maxElements:
		return fmt.Errorf("norm: rows=%d by cols=%d are more than %d elements", p.Rows, p.Cols, uint32(maxElements))
	case math.IsNaN(p.Eps) || p.Eps < 0 || math.IsInf(float64(float32(p.Eps)), 0):
		return fmt.Errorf("norm: eps=%g is not a finite number from 0 on", p.Eps)
	case !p.DType.Valid() || !p.DType.Float():
		return fmt.Errorf("norm: dtype=%v is not one of float32, float16, bfloat16", p.DType)
	case p.WeightDType != p.DType && p.WeightDType != dtype.Float32:
		return fmt.Errorf("norm: weight dtype=%v is neither float32 nor that of the rows, %v", p.WeightDType, p.DType)
	}
	return nil
}

// String names the problem as benchmarks do.
func (p Problem) String() string {
	kind := "layer"
	if p.RMS {
		kind = "rms"
	}
	return fmt.Sprintf("kind=%s/dtype=%v/weight=%v/rows=%d/cols=%d/residual=%v", kind, p.DType, p.WeightDType, p.Rows, p.Cols, p.Residual)
}

// Bytes returns the least traffic of the forward pass: x, residual and weight read, y,
// sum and the statistics written.
func (p Problem) Bytes() float64 {
	n := float64(p.Rows) * float64(p.Cols) * float64(p.DType.Size())
	tensors := 2.0
	if p.Residual {
		tensors = 4
	}
	return tensors*n + float64(p.Cols*p.WeightDType.Size()) + p.statBytes()
}

// BackwardBytes returns the memory traffic of the backward pass: dy, the normalized rows, weight and statistics
// are read, dx and the gradient of the weight written. With a residual, dsum is read, too.
func (p Problem) BackwardBytes() float64 {
	n := float64(p.Rows) * float64(p.Cols) * float64(p.DType.Size())
	tensors := 3.0
	if p.Residual {
		tensors = 4
	}
	return tensors*n + 2*float64(p.Cols*p.WeightDType.Size()) + p.statBytes()
}

func (p Problem) statBytes() float64 {
	if p.RMS {
		return 4 * float64(p.Rows)
	}
	return 8 * float64(p.Rows)
}

// FLOPs returns the operations of the forward pass, counted as the formulas are
// written: 7 for each element (sum, difference, square, sum, difference, two products),
// 4 without the mean, and 1 more for a residual.
func (p Problem) FLOPs() float64 {
	per := 7.0
	if p.RMS {
		per = 4
	}
	if p.Residual {
		per++
	}
	return per * float64(p.Rows) * float64(p.Cols)
}

// BackwardFLOPs returns the operations of the backward pass: 13 for each element, 9 without
// the mean, and 1 more for a residual.
func (p Problem) BackwardFLOPs() float64 {
	per := 13.0
	if p.RMS {
		per = 9
	}
	if p.Residual {
		per++
	}
	return per * float64(p.Rows) * float64(p.Cols)
}
