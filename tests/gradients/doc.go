// Package gradients compares what backward kernels write with finite differences of the float64
// reference of the forward pass: of small problems, in float32, on every path. No formula of a
// gradient comes between.
package gradients
