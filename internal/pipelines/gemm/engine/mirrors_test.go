package engine

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/shaders/layouttest"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// TestLayouts compares every Go mirror of this package with its shader, for every element type that is
// compiled. Packages skinny, and fused of mlp, have the others.
func TestLayouts(t *testing.T) {
	product := []string{"A", "B", "C4", "R4", "X4", "S4"}
	table := map[string]struct {
		push, spec any
		bindings   []string
	}{
		"gemm_coopmat":        {Params{}, coopMatSpec{}, product},
		"gemm_coopmat_packed": {Params{}, packedSpec{}, product},
		"gemm_scalar":         {Params{}, scalarSpec{}, product},
		"gemm_gemv":           {Params{}, gemvSpec{}, product},
		"gemm_gemv_coopmat":   {Params{}, gemvMatrixSpec{}, product},
		"gemm_coopmat_group":  {groupParams{}, MatrixSpec{}, append(slices.Clone(product), "Table")},
		"gemm_scalar_group":   {groupParams{}, scalarSpec{}, append(slices.Clone(product), "Table")},
		"gemm_combine":        {Params{}, combineSpec{}, []string{"Sums", "C4", "R4", "X4", "S4"}},
		"gemm_align":          {alignParams{}, alignSpec{}, []string{"A", "Out"}},
		"gemm_pack":           {packParams{}, PackSpec{}, []string{"X", "W1", "W2", "Out"}},
		"gemm_amax":           {f32x2Params{}, amaxSpec{}, []string{"A", "B", "Amax"}},
		"gemm_f32x2":          {f32x2Params{}, f32x2Spec{}, []string{"A", "B", "Panels"}},
	}
	found := map[string]bool{}
	for _, v := range shaders.Variants() {
		row, ok := table[v.Kernel]
		if !ok {
			elsewhere := slices.Contains([]string{"gemm_pair", "gemm_skinny", "gemm_skinny_packed", "gemm_skinny_bwd", "gemm_skinny_dsilu", "gemm_mixture"}, v.Kernel)
			require.True(t, elsewhere || !strings.HasPrefix(v.Kernel, "gemm_"), "%s has no row in TestLayouts", v.Kernel)
			continue
		}
		found[v.Kernel] = true
		module, err := shaders.Get(v.Kernel, v.Type)
		require.NoError(t, err)
		if strings.HasSuffix(v.Kernel, "_group") {
			layouttest.CheckRows(t, module, "Table", groupRow{})
		}
		layouttest.Check(t, module, row.push, row.spec, row.bindings...)
	}
	require.Len(t, found, len(table))
}

// TestSharedMemory wants kernels to take the shared memory that Feasible counts. A kernel that takes 16
// bytes more than the device has hung an H200 with more workgroups than multiprocessors.
func TestSharedMemory(t *testing.T) {
	caps := device()
	kernel := func(name string, want int, c Config, spec any) {
		module, err := shaders.Get(name, "f16")
		require.NoError(t, err)
		got, err := vk.SharedBytes(module.SPIRV, spec)
		require.NoError(t, err)
		require.Equal(t, want, got, "%s, %v", name, c)
	}
	for _, text := range []string{"coopmat s4x2 t3x4 k64 g1", "coopmat s2x2 t4x4 k32 g1", "coopmat s1x3 t1x5 k16 g1", "coopmat s8x1 t1x1 k16 g1"} {
		c := parsed(t, text)
		for turned := range 4 {
			p := Problem{Batch: 2, M: 1000, N: 120, K: 100, TransA: turned&1 != 0, TransB: turned&2 != 0, Activation: SiLU, DType: dtype.Float16}
			spec, err := NewMatrixSpec(caps, Args{}, p, c)
			require.NoError(t, err)
			kernel("gemm_coopmat", c.tileBytes(p, 16, 16), c, coopMatSpec{resultsSpec{MatrixSpec: spec}, false})
			if packed := c; !p.TransB { // only B as it is can be packed
				packed.PackB, spec.Epilogue.OutAligned = true, false // as tileBytes takes it to be
				kernel("gemm_coopmat_packed", packed.tileBytes(p, 16, 16), packed, packedSpec{resultsSpec{MatrixSpec: spec}, Deal{RowRun: 4}})
			}
		}
		// Float32 operands are in parts.
		p := float(1000, 120, 100)
		parts, as := c, p
		parts.BlockK *= 2
		as.DType, as.TransB = dtype.Float16, true
		spec, err := NewMatrixSpec(caps, Args{panel: parts.BlockK}, as, parts)
		require.NoError(t, err)
		kernel("gemm_coopmat", c.tileBytes(p, 16, 16), c, coopMatSpec{resultsSpec{MatrixSpec: spec}, true})
	}
	scalar := parsed(t, "scalar 48x16 t8x8 k12 g1")
	for caps.MaxSharedMemoryBytes > 0 && scalar.feasibleScalar(caps) == nil {
		caps.MaxSharedMemoryBytes--
	}
	kernel("gemm_scalar", int(caps.MaxSharedMemoryBytes)+1, scalar, newScalarSpec(Args{}, Problem{M: 10, N: 10, K: 10, DType: dtype.Float16}, scalar))
	gemv, p := parsed(t, "gemv 16x12 t3x32 k256 g1"), Problem{M: 10, N: 10, K: 10, TransB: true, DType: dtype.Float16}
	few := parsed(t, "gemv 16x96 t2x64 k512 matrix g1")
	for _, inPlace := range []bool{false, true} {
		kernel("gemm_gemv_coopmat", few.gemvMatrixTiles(caps, &p, inPlace).bytes, few, newGEMVMatrixSpec(caps, Args{}, p, few, inPlace))
	}
	kernel("gemm_gemv", gemv.gemvBytes(gemv.gemvTiles(&p)), gemv, newGEMVSpec(Args{}, p, gemv))
}
