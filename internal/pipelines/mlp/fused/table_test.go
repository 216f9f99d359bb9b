package fused

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips/chipstest"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/shaders/layouttest"
	"github.com/flashvk/flashvk/vk"
)

// TestChoose wants of a large device how hidden units are divided: among all workgroups
// where there are few blocks, and of the rows that are left after whole rounds.
func TestChoose(t *testing.T) {
	for m, want := range map[int]string{
		64:     " splits11",
		132:    " splits11",
		9000:   " splits2 rows6336",
		11000:  "",
		205000: "", // half a round of 32
	} {
		p := Problem{M: m, In: 512, Hidden: 1365, N: 512, DType: dtype.BFloat16, Out: dtype.BFloat16}
		c, err := Choose(chipstest.H200(), p, nil)
		require.NoError(t, err)
		require.Equal(t, rows[0].config.String()+want, c.String())
		forced := c.Config
		forced.Splits, forced.Rows = 1, 0
		c, err = Choose(chipstest.H200(), p, &forced)
		require.NoError(t, err)
		require.Equal(t, rows[0].config.String(), c.String())
	}
}

// TestTable wants every row, and the configurations of TUNING.md, to be feasible on a large
// device, and other configurations to have a reason.
func TestTable(t *testing.T) {
	p := Problem{M: 4096, In: 512, Hidden: 1365, N: 64, DType: dtype.Float16, Out: dtype.Float16}
	for _, row := range rows {
		require.NoError(t, row.config.Feasible(chipstest.H200(), p), row.config)
		c, err := ParseConfig(row.config.String())
		require.NoError(t, err)
		require.Equal(t, row.config, c)
	}
	p.N = 512
	for text, want := range map[string]string{
		"pair s8 t4x4 h2x2 x16 ahead8":                      "",
		"pair s8 t4x4 h4x1 x16 ahead8":                      "",
		"pair s8 t4x4 h2x1 x20 ahead4":                      "",
		"pair s8 t4x4 h2x1 x0 ahead8 double":                "",
		"pair s8 t3x4 h3x1 x24 ahead8":                      "",
		"pair s16 t4x2 h2x1 x16 ahead4":                     "",
		"pair s8 t4x4 h2x1 x32 ahead8":                      "gemm: coopmat: 73728 bytes of shared memory are more than the device's 49152",
		"pair s8 t4x2 h2x1 x16 ahead8":                      "fused: n=512 is more than the 256 columns of a workgroup",
		"pair s8 t3x4 h1x1 x16 ahead8":                      "fused: 8 subgroups with 3 rows of matrices are no grid of 1 rows each",
		"pair s8 t4x4 h2x1 x16 ahead6":                      "fused: ahead6 is not a multiple of 4 and 1 columns of matrices",
		"pair s8 t4x4 h2x1 x4 ahead8":                       "fused: x4 is not a multiple of the 8 steps that ahead8 is for",
		"pair s8 t4x4 h2x1 x32 ahead32":                     "fused: a chunk of 4 steps is not a multiple of the 8 that ahead32 is for",
		"pair s8 t4x4 h2x1 x16 ahead8 splits257":            "fused: splits257 is not from 0 to 256",
		"pair s8 t4x4 h0x1 x16 ahead8":                      "fused: a tile size of pair s8 t4x4 x16 ahead8 is not positive",
		"pair s64 t4x4 h2x1 x16 ahead8":                     "gemm: coopmat: a workgroup of 2048 invocations is larger than the device's 1024",
		"pair s8 t4x4 h2x1 x16 ahead8 splits2 rows32":       "fused: rows32 is not a multiple of the 64 of a block",
		"pair s8 t4x4 h2x1 x16 ahead8 double splits3 rows0": "",
	} {
		c, err := ParseConfig(text)
		require.NoError(t, err)
		err = c.Feasible(chipstest.H200(), p)
		if want == "" {
			require.NoError(t, err, text)
			continue
		}
		require.ErrorIs(t, err, vk.ErrUnsupported)
		require.ErrorContains(t, err, want)
	}
	for text, want := range map[string]string{
		"":              `fused: configuration "" does not begin with pair`,
		"coopmat s2x2":  "does not begin with pair",
		"pair s8 fence": `fused: configuration "s8 fence": "fence" is not one of its choices`,
	} {
		_, err := ParseConfig(text)
		require.ErrorContains(t, err, want)
	}
	c := rows[0].config
	for want, change := range map[string]func(caps *vk.Caps, p *Problem){
		"float32 matrices have no kernel":                                     func(_ *vk.Caps, p *Problem) { p.DType = dtype.Float32 },
		"the device has no VK_KHR_cooperative_matrix":                         func(caps *vk.Caps, _ *Problem) { caps.CoopMat = false },
		"the device has no 16-bit storage":                                    func(caps *vk.Caps, _ *Problem) { caps.Storage16 = false },
		"matrices of 16x16 are not eight elements for each of 64 invocations": func(caps *vk.Caps, _ *Problem) { caps.SubgroupSize = 64 },
	} {
		caps, p := chipstest.H200(), p
		change(caps, &p)
		err := c.Feasible(caps, p)
		require.ErrorIs(t, err, vk.ErrUnsupported)
		require.ErrorContains(t, err, "fused: "+want)
	}
}

// TestLayout compares the Go mirrors with the shader.
func TestLayout(t *testing.T) {
	layouttest.CheckAll(t, "gemm_pair", map[string]layouttest.Row{"gemm_pair": layouttest.Of(engine.Params{}, spec{}, "A", "B", "C4", "R4", "X4", "S4")})
}
