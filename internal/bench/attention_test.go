package bench_test

import (
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
)

func init() { bench.NewAttention = kernels.Attention }
