package attention

import (
	"errors"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// bwdTable has the configurations of Backward. Fill counts the blocks of keys or of rows, whichever
// are fewer; with a fused kernel the blocks of keys.
var bwdTable = table.New(table.Table[Problem, BackwardConfig, shape]{
	Kernel: "attention", Pass: kit.Backward, Paths: pathNames, Manual: Unfused.String(), Family: chips.Family,
	Rows:     func() []bwdRow { return slices.Concat(bwdRows(), bwdF32x2Rows()) },
	Format:   format,
	Path:     func(c *BackwardConfig) string { return c.Impl.String() },
	Feasible: func(c *BackwardConfig, caps *vk.Caps, p *Problem) error { return c.Feasible(caps, *p) },
	Blocks:   (*BackwardConfig).blocks,
	None:     func(path string, p *Problem) error { return unsupported("%s: no backward kernel of %v", path, p.DType) },
	Fit: func(c BackwardConfig, _ *vk.Caps, _ *Problem, measured bool) BackwardConfig {
		if measured {
			c.Chunk = 0
		}
		return c
	},
	Candidates: backwardCandidates, Variants: backwardVariants,
	Likeness: likeness, Same: sameButScale, Validate: validateProblem,
	Module: func(p *Problem, c *BackwardConfig) string { return moduleHash(bwdModules, c.Impl, p.DType) },
})

type bwdRow = table.Row[shape, BackwardConfig]

// blocks returns the number of blocks of keys or rows of p with c, whichever are fewer.
func (c *BackwardConfig) blocks(caps *vk.Caps, p *Problem) int {
	if c.fused() {
		return p.Batch * p.NumKVHeads * int(groups(p.SeqKV, c.Fused.owned(caps, c.Impl, p.DType)))
	}
	dkv := c.DKV
	if c.stored() { // products of blocks as large as the blocks of rows
		dkv = c.DQ
	}
	keys := p.Batch * p.NumKVHeads * int(groups(p.SeqKV, dkv.owned(caps, c.Impl, p.DType)))
	rows := p.Batch * p.NumHeads * int(groups(p.SeqQ, c.DQ.owned(caps, c.Impl, p.DType)))
	return min(keys, rows)
}

// bwdRows is searched in order; the first feasible match of a path wins.
func bwdRows() []bwdRow {
	words := table.Must[BackwardConfig]
	return []bwdRow{
		// Swept on an H200, TUNING.md. A subgroup keeps K, V, dK and dV of its keys in
		// registers. 16 keys take 3*head_dim/2 words of each of 32 invocations: 32 keys of
		// head_dim 64, or 16 keys of 128, take 192 of 255.
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 64, seqKV: 64}, Fill: 1.5, Config: words("coopmat2 fused sg4 rt1 by32 prefetch peel")}, // one block of keys
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 64, seqKV: 64}, Config: words("coopmat2 dkv sg4 rt1 by64 peel dq sg4 rt1 by32 prefetch peel")},
		{Family: "hopper", Formats: table.OfFloat16, Shape: shape{headDim: 64, causal: true}, Fill: 1, Config: words("coopmat2 dkv sg4 rt2 by32 peel dq sg4 rt2 by64 peel")}, // DKV: 64 spills 80 bytes
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 64}, Fill: 1, Config: words("coopmat2 dkv sg4 rt2 by64 peel dq sg4 rt2 by64 peel")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 64}, Config: words("coopmat2 dkv sg4 rt1 by64 peel dq sg4 rt1 by32 prefetch peel")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 88}, Fill: 1.5, Config: words("coopmat2 dkv sg4 rt1 by32 peel dq sg8 rt1 by64 prefetch peel")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 128}, Fill: 1.5, Config: words("coopmat2 stored sg4 rt4 by32 dq sg8 rt1 by64 prefetch peel")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 128}, Fill: 1.5, Config: words("coopmat2 dkv sg4 rt1 by32 peel dq sg8 rt1 by64 prefetch peel")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 128}, Config: words("coopmat2 dkv sg4 rt1 by64 peel dq sg8 rt1 by32 prefetch peel")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 256}, Fill: 0.5, Config: words("coopmat2 stored sg8 rt4 by32 dq sg8 rt1 by32 peel")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 64, seqKV: 64}, Fill: 1.5, Config: words("coopmat fused sg4 rt1 by32 prefetch peel")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 64}, Fill: 1, Config: words("coopmat dkv sg4 rt2 by64 peel dq sg4 rt2 by64 peel")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 64}, Config: words("coopmat dkv sg4 rt1 by64 peel dq sg4 rt1 by32 prefetch peel")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 128}, Config: words("coopmat dkv sg4 rt1 by32 peel dq sg8 rt1 by32 prefetch peel")},

		// Small tiles: the time to compile on lavapipe grows with stream * head_dim.
		{Family: "lavapipe", Formats: table.Of16Bits, Shape: shape{headDim: 256}, Config: words("coopmat2 dkv sg2 rt1 by8 dq sg2 rt1 by8")},
		{Family: "lavapipe", Formats: table.Of16Bits, Shape: shape{headDim: 256}, Config: words("coopmat dkv sg2 rt1 by8 dq sg2 rt1 by8")},
		{Family: "lavapipe", Shape: shape{headDim: 24}, Config: words("scalar dkv 16x16 t8x8 depth8 rows4 dq 16x16 t8x8 depth8 rows4")},
		{Family: "lavapipe", Shape: shape{headDim: 24}, Config: words("unfused dkv 16x16 t8x8 depth8 rows4 dq 16x16 t8x8 depth8 rows4")},

		// Any device with matrices, with less and less shared memory.
		{Formats: table.Of16Bits, Shape: shape{headDim: 256}, Config: words("coopmat2 dkv sg4 rt1 by32 peel dq sg4 rt1 by32 peel")},
		{Formats: table.Of16Bits, Shape: shape{headDim: 256}, Config: words("coopmat2 dkv sg2 rt1 by16 peel dq sg2 rt1 by16 peel")},
		{Formats: table.Of16Bits, Shape: shape{headDim: 256}, Config: words("coopmat dkv sg4 rt1 by32 peel dq sg4 rt1 by32 peel")},
		{Formats: table.Of16Bits, Shape: shape{headDim: 256}, Config: words("coopmat dkv sg2 rt1 by16 peel dq sg2 rt1 by16 peel")},

		// Any device. This fits Vulkan's guaranteed 16 KiB and 128 invocations for every
		// head_dim.
		{Shape: shape{headDim: 256}, Config: words("scalar dkv 32x32 t8x16 depth32 rows8 dq 32x32 t8x16 depth32 rows8")},
		{Shape: shape{headDim: 256}, Config: words("unfused dkv 32x32 t8x16 depth32 rows8 dq 32x32 t8x16 depth32 rows8")},
	}
}

// bwdF32x2Rows are the rows for float32 tensors on matrices. Tiles take twice the shared
// memory of 16-bit ones, 4 * BlockN rows of head_dim. K and V, or Q and dO, of a subgroup
// take twice the registers: 16 keys take 2*head_dim words of each of 32 invocations, half
// of them for dK and dV.
func bwdF32x2Rows() []bwdRow {
	words := table.Must[BackwardConfig]
	return []bwdRow{
		// Swept on an H200, TUNING.md.
		{Family: "hopper", Formats: table.OfFloat32, Shape: shape{headDim: 64}, Config: words("coopmat2 dkv sg4 rt1 by32 peel dq sg4 rt1 by32 peel")},                      // DQ: 8 by 64 is 1 % faster alone, with twice the shared memory
		{Family: "hopper", Formats: table.OfFloat32, Shape: shape{headDim: 128}, Config: words("coopmat2 dkv sg4 rt1 by16 peel dq sg8 rt1 by16 prefetch peel loadahead2")}, // DKV: spills 384 bytes: K, V, dK and dV alone are 256 registers; DQ: 32 without prefetch is 5 % faster alone, and spills 352 bytes
		{Family: "hopper", Formats: table.OfFloat32, Shape: shape{headDim: 64}, Config: words("coopmat dkv sg4 rt1 by32 peel dq sg8 rt1 by32 prefetch peel")},
		{Family: "hopper", Formats: table.OfFloat32, Shape: shape{headDim: 128}, Config: words("coopmat dkv sg4 rt1 by16 peel dq sg8 rt1 by16 prefetch peel loadahead2")},

		// Small tiles, as in bwdRows.
		{Family: "lavapipe", Formats: table.OfFloat32, Shape: shape{headDim: 256}, Config: words("coopmat2 dkv sg2 rt1 by8 dq sg2 rt1 by8")},
		{Family: "lavapipe", Formats: table.OfFloat32, Shape: shape{headDim: 256}, Config: words("coopmat dkv sg2 rt1 by8 dq sg2 rt1 by8")},

		// Any device with matrices, with less and less shared memory.
		{Formats: table.OfFloat32, Shape: shape{headDim: 64}, Config: words("coopmat2 dkv sg4 rt1 by32 peel dq sg4 rt1 by32 peel")},
		{Formats: table.OfFloat32, Shape: shape{headDim: 256}, Config: words("coopmat2 dkv sg4 rt1 by16 peel dq sg4 rt1 by16 peel")},
		{Formats: table.OfFloat32, Shape: shape{headDim: 64}, Config: words("coopmat dkv sg4 rt1 by32 peel dq sg4 rt1 by32 peel")},
		{Formats: table.OfFloat32, Shape: shape{headDim: 256}, Config: words("coopmat dkv sg4 rt1 by16 peel dq sg4 rt1 by16 peel")},
		{Formats: table.OfFloat32, Shape: shape{headDim: 256}, Config: words("coopmat dkv sg2 rt1 by16 peel dq sg2 rt1 by16 peel")},
	}
}

// chooseBackward returns the configuration that Backward takes for p on a device.
// Its error wraps vk.ErrUnsupported if no path, or not the forced one, handles p.
func chooseBackward(caps *vk.Caps, p Problem, opt Options) (BackwardConfig, error) {
	c, _, err := backwardConfig(caps, p, opt)
	return c, err
}

// backwardConfig is chooseBackward with the origin of the configuration.
func backwardConfig(caps *vk.Caps, p Problem, opt Options) (BackwardConfig, table.Origin, error) {
	if err := p.Validate(); err != nil {
		return BackwardConfig{}, table.Origin{}, err
	}
	if p.Quant != dtype.NoQuant {
		return BackwardConfig{}, table.Origin{}, unsupported("quant=%v has no backward pass", p.Quant)
	}
	if opt.Config != nil {
		return BackwardConfig{}, table.Origin{}, errors.New("attention: Options.Config is of the forward pass, the backward pass takes Options.BackwardConfig")
	}
	c, origin, err := backwardConfigOn(caps, &p, opt)
	if err == nil && c.stored() && c.Chunk == 0 && opt.Workspace != nil {
		room := *caps // weights that pass through memory make do with the caller's workspace
		room.MaxStorageBufferRange = min(caps.MaxStorageBufferRange, uint64(opt.Workspace.Bytes()))
		if c, origin, err = backwardConfigOn(&room, &p, opt); c.stored() {
			chunk := c.chunk(&room, &p)
			c.Chunk = chunk.keyHeads * chunk.members
		}
	}
	return c, origin, err
}

// backwardConfigOn is backwardConfig for a device that has the memory.
func backwardConfigOn(caps *vk.Caps, p *Problem, opt Options) (BackwardConfig, table.Origin, error) {
	if c := opt.BackwardConfig; c != nil {
		return *c, table.Origin{}, c.Feasible(caps, *p)
	}
	return bwdTable.Choose(caps, p, query[BackwardConfig](opt, autoPaths(caps, p, kit.Backward)))
}
