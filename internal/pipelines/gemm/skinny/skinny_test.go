package skinny

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips/chipstest"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/shaders/layouttest"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// TestLayouts compares the Go mirrors with the shaders.
func TestLayouts(t *testing.T) {
	for name, x := range map[string]struct {
		spec     any
		bindings []string
	}{
		"gemm_skinny":        {skinnySpec{}, []string{"A", "B", "C4", "R4", "X4", "S4"}},
		"gemm_skinny_packed": {packedSpec{}, []string{"A", "B", "C4", "R4", "X4", "S4"}},
		"gemm_skinny_bwd":    {skinnySpec{}, []string{"A", "B", "C2", "R16", "X16", "S1"}},
		"gemm_skinny_dsilu":  {keptSpec{}, []string{"A", "C", "R", "X", "S"}},
		"gemm_mixture":       {mixtureSpec{}, []string{"A", "B", "C4", "R4", "X4", "S4"}},
	} {
		for _, element := range []string{"f16", "bf16"} {
			module, err := shaders.Get(name, element)
			require.NoError(t, err)
			layouttest.Check(t, module, engine.Params{}, x.spec, x.bindings...)
		}
	}
}

// TestSharedMemory wants a configuration to fit beside the kernels' own arrays exactly where the
// module has no more shared memory than the device: with 16 bytes more, an H200 with more
// workgroups than multiprocessors hung.
func TestSharedMemory(t *testing.T) {
	for _, c := range []engine.Config{
		{SubgroupsM: 4, SubgroupsN: 2, TilesM: 3, TilesN: 4, BlockK: 64}, // with 8 columns of W 16 bytes too many
		{SubgroupsM: 2, SubgroupsN: 2, TilesM: 4, TilesN: 4, BlockK: 32},
		{SubgroupsM: 1, SubgroupsN: 3, TilesM: 1, TilesN: 5, BlockK: 16},
		{SubgroupsM: 8, SubgroupsN: 1, TilesM: 1, TilesN: 1, BlockK: 16},
	} {
		c.Impl = engine.CoopMat
		for turned := range 4 {
			caps := chipstest.H200()
			p := engine.Problem{Batch: 2, M: 1000, N: 120, K: 100, TransA: turned&1 != 0, TransB: turned&2 != 0, Activation: engine.SiLU, DType: dtype.Float16}
			spec, err := engine.NewMatrixSpec(caps, engine.Args{}, p, c)
			require.NoError(t, err)
			of := c
			of.PackB = true
			check := func(c engine.Config, name, element string, bytes int, constants any) {
				module, err := shaders.Get(name, element)
				require.NoError(t, err)
				has, err := vk.SharedBytes(module.SPIRV, constants)
				require.NoError(t, err)
				caps.MaxSharedMemoryBytes = uint32(has)
				require.NoError(t, c.FitsBeside(caps, &p, bytes), "%s, %v", name, c)
				caps.MaxSharedMemoryBytes--
				require.ErrorIs(t, c.FitsBeside(caps, &p, bytes), vk.ErrUnsupported, "%s, %v", name, c)
			}
			for columns := 1; columns <= maxColumns; columns++ {
				check(c, "gemm_skinny", "bf16", forwardBytes(caps, &c, &p, columns), skinnySpec{spec, uint32(columns)})
				if packed := spec; !p.TransB { // of B as it is
					packed.Epilogue.OutAligned = false // as FitsBeside takes it to be
					constants := packedSpec{skinnySpec{packed, uint32(columns)}, false, engine.Deal{RowRun: 4}}
					check(of, "gemm_skinny_packed", "bf16", forwardBytes(caps, &of, &p, columns), constants)
				}
				check(c, "gemm_skinny_bwd", "bf16", backwardBytes(caps, &c, &p, columns), skinnySpec{spec, uint32(columns)})
			}
			check(c, "gemm_mixture", "f16", mixtureBytes(caps, &c, &p), mixtureSpec{spec, 2})
		}
	}
}

// TestChoose wants a packed op(B) in the forward pass of many rows; and where there are none the largest
// tile, which leaves as much shared memory as few columns take, and a smaller one for more of them.
func TestChoose(t *testing.T) {
	p := engine.Problem{Batch: 10, M: 16000, N: 1365, K: 512, Activation: engine.SiLU, DType: dtype.BFloat16, Out: dtype.BFloat16}
	caps := chipstest.H200()
	for columns, want := range map[int][2]string{
		3: {"coopmat s2x2 t4x4 k64 align packb g10", "coopmat s4x2 t3x4 k64 align g10"},
		8: {"coopmat s2x2 t4x4 k64 align packb g10", "coopmat s2x2 t4x4 k32 align g16"}, // 16 bytes too many
	} {
		forward, err := ChooseForward(caps, p, columns, engine.Options{})
		require.NoError(t, err)
		backward, err := ChooseBackward(caps, p, columns, engine.Options{})
		require.NoError(t, err)
		require.Equal(t, want, [2]string{forward.Config.String(), backward.Config.String()}, columns)
	}
}

// TestMixtureGroups wants as few groups of heads as keep the workgroups of a device busy,
// with two heads each at the least.
func TestMixtureGroups(t *testing.T) {
	for _, c := range []struct{ slots, blocks, heads, want int }{
		{264, 125, 10, 2}, // one round of 250 workgroups with 5 heads
		{264, 40, 10, 5},  // 200 with 2
		{264, 86, 10, 3},  // 258 with 4
		{264, 1602, 10, 2},
		{264, 1, 10, 5},
		{264, 1, 3, 1},
		{264, 1, 1, 1},
		{0, 100, 10, 1}, // a driver that does not tell
	} {
		require.Equal(t, c.want, mixtureGroups(c.slots, c.blocks, c.heads), "%+v", c)
	}
}
