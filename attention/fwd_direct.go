package attention

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/vk"
)

// Small problems: K and V go from memory straight to operands of products, without a barrier, and
// Config.Stripes subgroups of a workgroup divide the keys of the same rows.

const fwdDirectKernel = "attention_fwd_direct"

// fwdDirectSpec is the specialization of attention_fwd_direct.comp.
type fwdDirectSpec struct {
	matrixSpec
	SameLayout bool `glsl:"SAME_LAYOUT"`
	fwdTileSpec
	Stripes uint32 `glsl:"STRIPES"`
	Quads   bool   `glsl:"QUADS"`
}

// forwardDirect records attention_fwd_direct.
func forwardDirect(c *vk.Cmd, o, lse, q, k, v vk.Tensor, p Problem, config Config) error {
	d := c.Device()
	matrix, err := newFwdMatrixSpec(d, o, lse, q, k, v, p, config)
	if err != nil {
		return err
	}
	spec := fwdDirectSpec{
		matrixSpec: matrix.matrixSpec, SameLayout: matrix.SameLayout, fwdTileSpec: matrix.fwdTileSpec,
		Stripes: uint32(config.Stripes), Quads: !config.Detour,
	}
	if spec.Quads {
		if err := asksQuads(d, config, config.Impl, p.DType); err != nil {
			return err
		}
	}
	kernel, err := newKernel[fwdParams](d, fwdDirectKernel, p.DType.Short(), &p, spec, matrixKernelOptions(d))
	if err != nil {
		return err
	}
	return dispatchFwd(c, kernel, o, lse, q, k, v, p, nil, config)
}

// feasibleDirect is feasibleMatrix for a configuration with Stripes.
func (c Config) feasibleDirect(caps *vk.Caps, p *Problem, shape vk.CoopMatShape) error {
	switch {
	case c.Stripes < 0 || c.Subgroups%max(c.Stripes, 1) != 0:
		return unsupported("%v: stripes=%d do not divide subgroups=%d", c.Impl, c.Stripes, c.Subgroups)
	case c.Impl != CoopMat2 || p.DType == dtype.Float32 || !p.Plain():
		return unsupported("%v: stripes=%d, but no kernel of stripes for such a problem", c.Impl, c.Stripes)
	case c.Prefetch || c.PeelMask || c.LoadAhead != 0:
		return unsupported("%v: stripes=%d with prefetch, a loop of masked tiles or loads ahead", c.Impl, c.Stripes)
	case c.Splits > 1:
		return unsupported("%v: stripes=%d and splits=%d divide the same keys", c.Impl, c.Stripes, c.Splits)
	case shape.M != shape.N:
		return unsupported("%v: stripes=%d with matrices of %dx%d", c.Impl, c.Stripes, shape.M, shape.N)
	case !c.Detour && (!chips.Quads(caps) || shape.M != 16 || caps.SubgroupSize != 32):
		return unsupported("%v: stripes=%d: the kernel knows where NVIDIA keeps elements of 16x16 matrices, no others", c.Impl, c.Stripes)
	}
	return fitsShared(caps, c.Impl, c.stripeBytes(p, int(shape.M)))
}

// stripeBytes is the shared memory of attention_fwd_direct: lib/direct_sums.glsl.
func (c *Config) stripeBytes(p *Problem, m int) int {
	if c.Stripes <= 1 {
		return vk.SharedVariables(16, 8)
	}
	rows := c.RowTiles * m
	parts, pass := 4*((p.HeadDim+63)/64), 1
	ld := 4*rows + 2
	switch fit := 1536 / (c.Subgroups * ld); {
	case fit >= parts:
		pass = parts
	case fit >= 4:
		pass = 4
	case fit >= 2:
		pass = 2
	}
	return vk.SharedVariables(16*c.Subgroups*pass*ld, 8*c.Subgroups*rows)
}

// mostStripedKeys is the largest number of keys for which Candidates has configurations with Stripes.
// With more keys each subgroup has a long walk, and sharing tiles in shared memory pays.
const mostStripedKeys = 1024
