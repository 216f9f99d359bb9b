// Package lab has experiments whose results teach something and that no program needs. They are built
// with the tag lab:
//
//	go test -tags lab ./tests/lab -run '^$' -bench LeaveOut      the kernels as they are
//
// What lost, with its numbers, is in the TUNING.md of each package; the kernels among it that stay
// selectable are internal/pipelines/mlp/fused and attention/bwd_fused.go.
package lab
