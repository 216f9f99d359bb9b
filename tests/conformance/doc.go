// Package conformance has a problem for every kernel and pass of the public packages, on every
// path, and compares it with the float64 reference:
//
//	TestKernels     each problem, as flashvk selftest --problem checks it: amid poison, twice; together
//	                they run each module of the library
//	TestFunctions   each exported function that records a call has a problem
//
// The packages' own tests have the cases that a kernel needs. Package trial draws others at
// random. Package tests/determinism runs the table again, and compares bits.
package conformance
