// Package determinism wants a kernel to give the same bits in every run: amid other memory, and
// whether a recording is submitted again or made anew. The problems are the problems of
// package conformance.
package determinism
