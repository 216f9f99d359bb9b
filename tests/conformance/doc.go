// Package conformance has a problem for every kernel and pass of the public packages, on every
// path, and compares it with the float64 reference.
//
// TestKernels checks each problem, as flashvk selftest --problem does: amid poison, twice, with the same bits. Together they run
// each module of the library, and TestFaces of package tests wants one for each exported function that
// records a call.
//
// The packages' own tests have the cases that a kernel needs. Package trial draws others at
// random.
package conformance
