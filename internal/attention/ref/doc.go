// Package ref holds what attention kernels are judged by: a float64
// reference, a plain implementation in the storage type, and the tolerances
// that follow from them. It uses no device.
//
//	           arithmetic                rounds to DType   order of sums       used as
//	Forward    float64, gonum's Gemm     nothing           whole rows          the truth
//	Plain      float32                   P, O              one key at a time   the size of an honest error
//
// All compute, for each batch and head,
//
//	S   = Scale * Q * Kᵀ
//	P   = softmax(S) over the visible keys of each row
//	O   = P * V
//	LSE = log(sum(exp(S))) of each row, natural logarithm
//
// with all features of package problem, on contiguous slices in logical order,
// destination first. Inputs are []float32 or []float64 holding values that
// p.DType can store; results are []float64.
//
// How a kernel's result is checked (tolerance.go derives the bounds):
//
//	q, k, v ──┬── kernel ──────────── got ──┐
//	          ├── Forward ─────────── want ─┼── |got-want| <= times*|plain-want| + rounding
//	          └── Plain ───────────── plain ┘
//
// The backward pass has the same, but for the rows: Backward, PlainBackward,
// and GradientBounds. Saved is what a forward pass leaves for it.
//
// ForwardRows, PlainRows and SampleBackward do the same on sampled rows, so that a
// shape of any size is checked at the cost of the rows looked at.
package ref
