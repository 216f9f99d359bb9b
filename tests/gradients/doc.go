// Package gradients compares the results of backward kernels with finite differences of the forward
// pass's float64 reference, for small problems in float32 on every path. No formula of a gradient
// is involved.
package gradients
