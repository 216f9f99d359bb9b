// Package tests holds tests of the whole: of the program as users run it, on a device.
// Below it,
//
//	conformance  a problem for every kernel and pass, on every path, against the float64 reference
//	determinism  the same problems, for the same bits: in another run, and of a recording again
//	gradients    backward kernels against finite differences of the reference
//	faults       the driver fails
//	cli          the program as users start it: exit status, outputs, files
//	seeds        what the projects that we learned from promise
//	lab          experiments, built with the tag lab
//
// Package guard, below internal, runs the calls of all of them, and watches their memory.
//
// TestMutants plants mistakes in kernels (package internal/shaders/mutate) and says that random
// problems find them. The table says what finds each mistake on lavapipe. The suite there is
// the fixed suite of attention in flashvk selftest, in four minutes for each of the first two
// mutants, in 100 s for the others:
//
//	mutant                fixed suite                              random problems
//	half-of-the-maxima    misses it: 473 of 473 forward cases      7 in 120
//	half-of-the-columns   misses it: 472 of 473 forward cases      2 in 72
//	half-of-the-lanes     one case in 44, key-mask/decoding        4 in 24
//	late-amax             20 cases in 34                           6 in 8
//	k-tile-read           has no case of gemm                      2 in 8
//	rows-past-k           has no case of gemm                      3 in 24
//	sums-early            has no case of norm                      10 in 30
//	partial-left          has no case of norm                      3 in 40
//	vector-past-the-row   has no case of glu                       10 in 23
//	rest-subtracted       has no case of glu                       1 in 30
//	far-position          has no case of rope                      1 in 30
//	one-too-many          has no case of sample                    2 in 30
//	loss-left             has no case of gmm                       10 in 30
//	branch-before-max     hidden: lavapipe runs a subgroup in lockstep
//	columns-left          hidden: every head_dim fills lavapipe's matrices
//
// Kernels of training have fixed cases of their own in go test ./pipelines/..., which
// cannot run other modules than those built in. The maxima are missed because no fixed case
// has scores so far apart that exp overflows where another than the largest is subtracted.
package tests
