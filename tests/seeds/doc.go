// Package seeds tests what the projects that flashvk learned from promise of their kernels, as
// far as it can be seen without their GPUs: a test for each claim, at its tolerance, against
// attention written down in float64 here, which shares nothing with package attention's
// references. What they say of speed is in docs/measured.md.
package seeds
