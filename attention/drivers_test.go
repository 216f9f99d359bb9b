package attention

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
)

// TestDriverProblems refuses the configurations that a driver computes wrong numbers with, and
// no others: on NVIDIA, path coopmat with one subgroup, and float32 gradients of Q on
// coopmat2 with several rows of matrices.
func TestDriverProblems(t *testing.T) {
	h200 := nvidia("NVIDIA H200", 132, true)
	other := h200
	other.DriverID = 3
	p := Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 64, SeqKV: 64, HeadDim: 64, DType: dtype.Float16}
	const lone = "attention: coopmat: the driver loses the order of shared memory in workgroups of one subgroup: unsupported on this device"

	c := Config{Impl: CoopMat, Subgroups: 1, RowTiles: 1, BlockN: 64}
	require.EqualError(t, c.Feasible(&h200, p), lone)
	require.NoError(t, c.Feasible(&other, p))
	c.Subgroups = 2
	require.NoError(t, c.Feasible(&h200, p))
	c.Impl, c.Subgroups = CoopMat2, 1
	require.NoError(t, c.Feasible(&h200, p))

	many := BackwardTile{Subgroups: 2, RowTiles: 1, Stream: 16}
	one := BackwardTile{Subgroups: 1, RowTiles: 1, Stream: 16}
	for _, b := range []BackwardConfig{{Impl: CoopMat, DKV: one, DQ: many}, {Impl: CoopMat, DKV: many, DQ: one}, {Impl: CoopMat, Fused: one}} {
		require.EqualError(t, b.Feasible(&h200, p), lone, b)
		require.NoError(t, b.Feasible(&other, p), b)
		b.Impl = CoopMat2
		require.NoError(t, b.Feasible(&h200, p), b)
	}
}
