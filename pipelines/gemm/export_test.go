package gemm

import "github.com/flashvk/flashvk/internal/pipelines/gemm/problem"

// Internal returns the problem as the engine has it.
func (p Problem) Internal() problem.Problem { return p.internal() }
