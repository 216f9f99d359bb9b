package compile

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/spirv"
)

// TestReconverge says which modules reconverge maximally, and that what they get stands where
// SPIR-V wants it: the extension behind the capabilities, the mode behind the entry point.
func TestReconverge(t *testing.T) {
	for capability, want := range map[uint32]bool{1: false, 60: false, 61: true, 63: true, 68: true, 69: false, 6022: true} {
		list := []spirv.Instruction{
			{Op: spirv.OpCapability, Args: []uint32{capability}}, {Op: spirv.OpEntryPoint, Args: []uint32{5, 4, 0x6e69616d, 0}},
			{Op: spirv.OpExecutionMode, Args: []uint32{4, spirv.ModeLocalSize, 8, 1, 1}},
		}
		got := reconverge(list)
		if !want {
			require.Equal(t, list, got, capability)
			continue
		}
		require.Equal(t, []spirv.Instruction{
			list[0], {Op: spirv.OpExtension, Args: spirv.Literal("SPV_KHR_maximal_reconvergence")},
			list[1], {Op: spirv.OpExecutionMode, Args: []uint32{4, 6023}}, list[2],
		}, got, capability)
	}
}
