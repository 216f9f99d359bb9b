package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips/chipstest"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// TestSharedMemory wants kernels on matrices to take the shared memory that Feasible counts. A
// kernel that takes 16 bytes more than the device has hung an H200 with more workgroups than
// multiprocessors.
func TestSharedMemory(t *testing.T) {
	caps := chipstest.H200()
	kernel := func(name, element string, want int, c Config, spec any) {
		module, err := shaders.Get(name, element)
		require.NoError(t, err)
		got, err := vk.SharedBytes(module.SPIRV, spec)
		require.NoError(t, err)
		require.Equal(t, want, got, "%s, %v", name, c)
	}
	for _, c := range []Config{
		{SubgroupsM: 4, SubgroupsN: 2, TilesM: 3, TilesN: 4, BlockK: 64},
		{SubgroupsM: 2, SubgroupsN: 2, TilesM: 4, TilesN: 4, BlockK: 32},
		{SubgroupsM: 1, SubgroupsN: 3, TilesM: 1, TilesN: 5, BlockK: 16},
		{SubgroupsM: 8, SubgroupsN: 1, TilesM: 1, TilesN: 1, BlockK: 16},
	} {
		c.Impl = CoopMat
		for turned := range 4 {
			p := Problem{Batch: 2, M: 1000, N: 120, K: 100, TransA: turned&1 != 0, TransB: turned&2 != 0, Activation: SiLU, DType: dtype.Float16}
			spec, err := NewMatrixSpec(caps, Args{}, p, c)
			require.NoError(t, err)
			blockM, blockN := c.Block(caps, p.DType)
			tile := c.tileBytes(p, 16, 16)
			kernel("gemm_coopmat", "f16", tile, c, coopMatSpec{resultsSpec{MatrixSpec: spec}, false})
			fragmented := c
			fragmented.PackB = true
			if p.TransB {
				continue // fragments are of B as it is
			}
			spec.Epilogue.OutAligned = false // as tileBytes takes it to be
			kernel("gemm_coopmat_fragmented", "f16", fragmented.tileBytes(p, 16, 16), fragmented, fragmentedSpec{resultsSpec: resultsSpec{MatrixSpec: spec}, Deal: Deal{RowRun: 4}})
			require.Equal(t, [2]int{blockM, blockN}, [2]int{16 * c.SubgroupsM * c.TilesM, 16 * c.SubgroupsN * c.TilesN})
		}
		// Float32 operands are in parts.
		p := Problem{M: 1000, N: 120, K: 100, DType: dtype.Float32, Out: dtype.Float32}
		parts, as := c, p
		parts.BlockK *= 2
		as.DType, as.TransB = dtype.Float16, true
		spec, err := NewMatrixSpec(caps, Args{panel: parts.BlockK}, as, parts)
		require.NoError(t, err)
		kernel("gemm_coopmat", "f16", c.tileBytes(p, 16, 16), c, coopMatSpec{resultsSpec{MatrixSpec: spec}, true})
	}
	scalar := Config{Impl: Scalar, Threads: 64, ThreadsX: 8, BlockM: 48, BlockN: 16, BlockK: 12}
	p := Problem{M: 10, N: 10, K: 10, DType: dtype.Float16}
	least := caps.MaxSharedMemoryBytes
	for ; ; least-- {
		if caps.MaxSharedMemoryBytes = least; scalar.feasibleScalar(caps) != nil {
			break
		}
	}
	kernel("gemm_scalar", "f16", int(least)+1, scalar, newScalarSpec(Args{}, p, scalar))
}
