// Package seeds tests what the projects that flashvk learned from promise of their kernels, as
// far as it can be seen without their GPUs, at their tolerances, against the float64 references.
// What they say of speed is in docs/measured.md. Tests of packages have the claims without a
// tolerance:
//
//	Triton Attention Kernel Report      "GQA reshape round-trips"                attention.TestHeads
//	Custom Triton Kernels, 1 and 9      "model trains, loss decreases"           examples/train, train.TestCheckpoint
//	phase 4, one backward kernel        "numerics match separate" kernels        tests/conformance
//	phase 6, GEMM, SiLU and GEMM        "output matches unfused MLP"             mlp.TestDrawn
//	phase 7, heads with a shared input  "output matches loop-based head MLPs"    mlp.TestDrawn
//	phase 8, mixtures                   "no overflow/underflow in exp/logsumexp" gmm.TestExtremes
//	phase 10, a captured step           "identical outputs vs non-graph run"     tests/conformance, train.TestStart
package seeds
