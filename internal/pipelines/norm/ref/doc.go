// Package ref computes layer normalization and its gradients in float64, and what a
// plain program in the storage format makes of it, from which the error that a kernel
// may have is derived. It uses no device.
//
//	Forward, Backward            the formulas, in float64
//	PlainForward, PlainBackward  the same, float32, rounded where a kernel stores
//	Bound                        what a kernel may be off by
package ref
