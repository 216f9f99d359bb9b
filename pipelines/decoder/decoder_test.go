package decoder

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips/chipstest"
	"github.com/flashvk/flashvk/internal/shaders/layouttest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestLayouts compares every Go mirror of this package with its shader.
func TestLayouts(t *testing.T) {
	layouttest.CheckAll(t, "decoder", map[string]layouttest.Row{
		"decoder": layouttest.Of(params{}, spec{}, "X", "Cos", "Sin", "SeqLens", "NormA", "Qkv", "Bias", "Out", "NormB", "GateUp", "Down", "K", "V", "Words", "Y"),
	})
}

// h200 returns the capabilities of an H200 that decide.
func h200() *vk.Caps {
	caps := chipstest.H200()
	caps.SubgroupOps |= vk.SubgroupArithmetic | vk.SubgroupShuffle
	caps.MinSubgroupSize, caps.MaxSubgroupSize, caps.MaxStorageBuffers = 32, 32, 32
	return caps
}

// TestChoose has layers of language models on an H200, and on devices of which less is known.
func TestChoose(t *testing.T) {
	smol := Problem{Width: 576, Hidden: 1536, Heads: 9, KVHeads: 3, HeadDim: 64, Keys: 1024, DType: dtype.BFloat16}
	llama := Problem{Width: 2048, Hidden: 8192, Heads: 32, KVHeads: 8, HeadDim: 64, Keys: 1024, DType: dtype.BFloat16}
	large := Problem{Width: 4096, Hidden: 14336, Heads: 32, KVHeads: 8, HeadDim: 128, Keys: 1024, DType: dtype.BFloat16}
	long := smol
	long.Keys = 8192
	few, other := h200(), h200()
	few.ComputeUnits, other.Name = 20, "NVIDIA GeForce RTX 4090"
	for _, x := range []struct {
		caps *vk.Caps
		p    Problem
		want string
		fast bool
	}{
		{h200(), smol, "g66 t512 splits16 team32 loads8 keys1 ahead2 copies4 beside", true},
		{h200(), llama, "g132 t512 splits8 team32 loads8 keys2 ahead1 copies4 beside", true},
		{h200(), large, "g132 t512 splits8 team32 loads8 keys2 ahead1 copies4 beside", true},
		{h200(), long, "g66 t512 splits16 team32 loads8 keys1 ahead2 copies4 beside", false},
		{few, smol, "g10 t512 splits2 team32 loads8 keys1 ahead2 copies4 beside", true},
		{other, smol, "g1 t128 splits1 team16 loads4 keys2 ahead1 copies1", false},
	} {
		plan, err := Choose(x.caps, x.p, kit.Forward, Options{})
		require.NoError(t, err)
		require.Equal(t, x.want, plan.String())
		require.Equal(t, x.fast, plan.Fast, plan)
	}
}

// TestFeasible has what the kernel does not compute, and configurations that no device runs.
func TestFeasible(t *testing.T) {
	good := Problem{Width: 64, Hidden: 96, Heads: 4, KVHeads: 2, HeadDim: 64, Keys: 9, DType: dtype.Float16}
	plan, err := Choose(h200(), good, kit.Forward, Options{})
	require.NoError(t, err)
	for want, change := range map[string]func(p *Problem, c *Config, caps *vk.Caps){
		"dtype=float32 is not one of 16 bits":       func(p *Problem, _ *Config, _ *vk.Caps) { p.DType = dtype.Float32 },
		"head_dim=96 is neither":                    func(p *Problem, _ *Config, _ *vk.Caps) { p.HeadDim = 96 },
		"5 heads of 128 for a key head are more":    func(p *Problem, _ *Config, _ *vk.Caps) { p.Heads, p.HeadDim = 10, 128 },
		"width=68 and hidden=96 are not multiples":  func(p *Problem, _ *Config, _ *vk.Caps) { p.Width = 68 },
		"a number is not positive":                  func(_ *Problem, c *Config, _ *vk.Caps) { c.Splits = 0 },
		"splits are more than 16":                   func(_ *Problem, c *Config, _ *vk.Caps) { c.Splits = 17 },
		"133 workgroups are more than the 132":      func(_ *Problem, c *Config, _ *vk.Caps) { c.Groups = 133 },
		"66 workgroups are more than the 2":         func(_ *Problem, _ *Config, caps *vk.Caps) { caps.Type = vk.CPU },
		"subgroups of 4 lack":                       func(_ *Problem, _ *Config, caps *vk.Caps) { caps.SubgroupSize = 4 },
		"subgroups of 32 lack arithmetic":           func(_ *Problem, _ *Config, caps *vk.Caps) { caps.SubgroupOps = vk.SubgroupBasic },
		"the size of subgroups is not known":        func(_ *Problem, _ *Config, caps *vk.Caps) { caps.ComputeFullSubgroups = false },
		"not teams of 24":                           func(_ *Problem, c *Config, _ *vk.Caps) { c.Team = 24 },
		"for 8 copies":                              func(_ *Problem, c *Config, _ *vk.Caps) { c.Team, c.Copies = 4, 8 },
		"15 storage buffers are more than":          func(_ *Problem, _ *Config, caps *vk.Caps) { caps.MaxStorageBuffers = 14 },
		"512 invocations are more than 8 subgroups": func(_ *Problem, _ *Config, caps *vk.Caps) { caps.MaxWorkgroupSubgroups = 8 },
		"bytes of shared memory are more than":      func(p *Problem, _ *Config, _ *vk.Caps) { p.Hidden = 1 << 15 },
		"a workgroup of 512 invocations is larger":  func(_ *Problem, _ *Config, caps *vk.Caps) { caps.MaxWorkgroupInvocations = 256 },
		"no scalar block layout":                    func(_ *Problem, _ *Config, caps *vk.Caps) { caps.ScalarBlockLayout = false },
	} {
		p, c, caps := good, plan.Config, h200()
		change(&p, &c, caps)
		_, err := Choose(caps, p, kit.Forward, Options{Config: &c})
		require.ErrorContains(t, err, want)
		require.ErrorIs(t, err, vk.ErrUnsupported)
	}
	for want, change := range map[string]func(p *Problem){
		"width=0 is not positive":                 func(p *Problem) { p.Width = 0 },
		"keys=-1 is not positive":                 func(p *Problem) { p.Keys = -1 },
		"heads=3 is not a multiple of kv_heads=2": func(p *Problem) { p.Heads = 3 },
		"head_dim=65 is not even":                 func(p *Problem) { p.HeadDim = 65 },
		"a layer has":                             func(p *Problem) { p.Keys = 1 << 28 },
		"eps=-1 is not a finite number":           func(p *Problem) { p.Eps = -1 },
		"dtype=int32 is not one of":               func(p *Problem) { p.DType = dtype.Int32 },
	} {
		p := good
		change(&p)
		_, err := Choose(h200(), p, kit.Forward, Options{})
		require.ErrorContains(t, err, "decoder: "+want)
	}
	_, err = Choose(h200(), good, kit.Backward, Options{})
	require.ErrorContains(t, err, "there is no backward pass")
}
