// Package determinism wants the same bits of a kernel in every run: amid other memory, and of a
// recording that is submitted again as of one that is made anew. Its problems are those of package
// conformance.
package determinism
