package attention

import (
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// fwdTable has the configurations of Forward. docs/tuning.md explains tables and their columns.
var fwdTable = table.New(table.Table[Problem, Config, shape]{
	Kernel: "attention", Pass: kit.Forward, Paths: pathNames, Manual: Unfused.String(), Family: chips.Family,
	Rows:     func() []fwdRow { return slices.Concat(fwdRows(), fwdF32x2Rows()) },
	Format:   format,
	Path:     func(c *Config) string { return c.Impl.String() },
	Feasible: func(c *Config, caps *vk.Caps, p *Problem) error { return c.Feasible(caps, *p) },
	Blocks:   func(c *Config, caps *vk.Caps, p *Problem) int { return c.blocks(caps, *p) },
	None:     func(path string, _ *Problem) error { return unsupported("impl %s is not a path", path) },
	Fit: func(c Config, caps *vk.Caps, p *Problem, measured bool) Config {
		if c.Splits == 0 || measured {
			c.Splits = c.splitsToFill(caps, *p)
		}
		return c
	},
	Candidates: candidates, Variants: variants,
	Likeness: likeness, Same: sameButScale, Validate: validateProblem,
	Module: func(p *Problem, c *Config) string {
		if p.Quant != dtype.NoQuant {
			return moduleHash(fwdQuantModules, c.Impl, p.DType)
		}
		return moduleHash(fwdModules, c.Impl, p.DType)
	},
})

type fwdRow = table.Row[shape, Config]

// A shape is the sizes and masks that a row matches.
type shape struct {
	headDim int  // matches problems with HeadDim and ValueHeadDim <= headDim
	causal  bool // causal problems only; false matches any
	seqQ    int  // matches problems with SeqQ <= seqQ; 0 matches any
	seqKV   int  // matches problems with SeqKV <= seqKV; 0 matches any
	rows    int  // matches problems with at most this many rows of Q in all heads; 0 matches any
	quant   bool // problems with Quant only; false matches any
}

// Has implements table.Shape.
func (s shape) Has(p *Problem) bool {
	return max(p.HeadDim, p.ValueHeadDim()) <= s.headDim && (!s.causal || p.Causal) && (!s.quant || p.Quant != dtype.NoQuant) && (s.seqQ == 0 || p.SeqQ <= s.seqQ) && (s.seqKV == 0 || p.SeqKV <= s.seqKV) &&
		(s.rows == 0 || p.Batch*p.NumHeads*p.SeqQ <= s.rows)
}

func format(p *Problem) dtype.DType { return p.DType }

// fwdRows is searched in order; the first feasible match of a path wins.
// TUNING.md has the runs behind the numbers.
func fwdRows() []fwdRow {
	words := table.Must[Config]
	return []fwdRow{
		// Hopper, measured on an H200. Two workgroups of 4 subgroups share a
		// multiprocessor if registers allow. Problems with few blocks take 16 rows per
		// subgroup, so that more multiprocessors have work.
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 64, causal: true, seqKV: 512, rows: 4096}, Config: words("coopmat2 sg4 rt1 bn32 stripes4")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 64, causal: true, seqKV: 256}, Fill: 1.5, Config: words("coopmat2 sg8 rt1 bn64 prefetch keysfirst")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 64, quant: true}, Fill: 1.5, Config: words("coopmat2 sg4 rt2 bn64 prefetch peel loadahead4")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 64}, Fill: 1.5, Config: words("coopmat2 sg4 rt2 bn64 prefetch peel")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 64, causal: true}, Config: words("coopmat2 sg4 rt1 bn64 prefetch keysfirst peel")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 64}, Config: words("coopmat2 sg4 rt1 bn128 prefetch keysfirst peel")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 96}, Fill: 1.5, Config: words("coopmat2 sg4 rt2 bn32 prefetch peel loadahead6")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 128, causal: true, seqKV: 1024}, Fill: 1.5, Config: words("coopmat2 sg8 rt1 bn64 prefetch peel")},
		{Family: "hopper", Formats: table.OfFloat16, Shape: shape{headDim: 128, causal: true, seqKV: 2048}, Fill: 1.5, Config: words("coopmat2 sg8 rt1 bn64 prefetch peel")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 128}, Fill: 1.5, Config: words("coopmat2 sg8 rt2 bn32 prefetch peel loadahead4")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 128, seqQ: 16}, Config: words("coopmat2 sg4 rt1 bn32 prefetch peel")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 128}, Config: words("coopmat2 sg4 rt1 bn64 prefetch peel")},
		{Family: "hopper", Formats: table.OfBFloat16, Shape: shape{headDim: 192}, Config: words("coopmat2 sg8 rt1 bn32 prefetch peel loadahead6")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 192}, Config: words("coopmat2 sg8 rt1 bn32 prefetch peel")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 256}, Config: words("coopmat2 sg8 rt1 bn16 prefetch peel loadahead8")},

		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 64}, Fill: 1.5, Config: words("coopmat sg4 rt2 bn64 prefetch peel")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 64, causal: true}, Config: words("coopmat sg4 rt1 bn64 prefetch peel")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 64}, Config: words("coopmat sg4 rt1 bn128 prefetch peel")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 96}, Fill: 1.5, Config: words("coopmat sg4 rt2 bn32 prefetch peel loadahead6")},
		{Family: "hopper", Formats: table.OfFloat16, Shape: shape{headDim: 128, causal: true, seqKV: 2048}, Fill: 1.5, Config: words("coopmat sg8 rt1 bn64 prefetch peel")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 128}, Fill: 1.5, Config: words("coopmat sg8 rt2 bn32 prefetch peel loadahead4")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 128}, Config: words("coopmat sg4 rt1 bn64 prefetch peel")},
		{Family: "hopper", Formats: table.OfBFloat16, Shape: shape{headDim: 192}, Config: words("coopmat sg8 rt1 bn32 prefetch peel loadahead6")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 192}, Config: words("coopmat sg8 rt1 bn32 prefetch peel")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{headDim: 256}, Config: words("coopmat sg8 rt1 bn16 prefetch peel loadahead8")},

		{Family: "hopper", Shape: shape{headDim: 128}, Config: words("scalar 64x32 t16x8 depth16 rows16")},

		// No row from here to lavapipe's has been measured. They follow from the
		// registers of a subgroup of r rows, in 32-bit words,
		//
		//	Q  r*head_dim/2    S  r*block_n      next K, V  block_n*head_dim/subgroups
		//	O  r*head_dim      P  r*block_n/2
		//
		// of which NVIDIA has 32*255, and from the shared memory of a workgroup,
		// 2*block_n rows of 2*head_dim + 16 bytes.

		// NVIDIA before Hopper, and the small chips after Hopper. These chips have Hopper's
		// instruction (mma.sync, native here), compiler and 255 registers. The sizes are Hopper's,
		// where Hopper's agree with FlashAttention-2's for these chips: four subgroups of 32
		// rows at head_dim 64 and 128, and of 16 at 256. Tiles of keys are shorter than
		// FlashAttention-2's, because a workgroup has 48 KiB of shared memory here. At
		// 18 KiB and less two workgroups share a multiprocessor, even if all workgroups of
		// a multiprocessor have 48 KiB together, as on Hopper.
		{Family: "ampere ampere-rtx ada blackwell-rtx", Formats: table.Of16Bits, Shape: shape{headDim: 64}, Fill: 1.5, Config: words("coopmat2 sg4 rt2 bn64 prefetch peel")},
		{Family: "ampere ampere-rtx ada blackwell-rtx", Formats: table.Of16Bits, Shape: shape{headDim: 64}, Config: words("coopmat2 sg4 rt1 bn64 prefetch peel")},
		{Family: "ampere ampere-rtx ada blackwell-rtx", Formats: table.Of16Bits, Shape: shape{headDim: 96}, Fill: 1.5, Config: words("coopmat2 sg4 rt2 bn32 prefetch peel loadahead6")},
		{Family: "ampere ampere-rtx ada blackwell-rtx", Formats: table.Of16Bits, Shape: shape{headDim: 128}, Fill: 1.5, Config: words("coopmat2 sg4 rt2 bn16 prefetch peel loadahead4")},
		{Family: "ampere ampere-rtx ada blackwell-rtx", Formats: table.Of16Bits, Shape: shape{headDim: 128}, Config: words("coopmat2 sg4 rt1 bn32 prefetch peel")},
		{Family: "ampere ampere-rtx ada blackwell-rtx", Formats: table.Of16Bits, Shape: shape{headDim: 192}, Config: words("coopmat2 sg8 rt1 bn32 prefetch peel")},
		{Family: "ampere ampere-rtx ada blackwell-rtx", Formats: table.Of16Bits, Shape: shape{headDim: 256}, Config: words("coopmat2 sg8 rt1 bn16 prefetch peel loadahead8")},

		// The same on VK_KHR_cooperative_matrix, which takes up to 14 KiB more with
		// eight subgroups.
		{Family: "ampere ampere-rtx ada blackwell-rtx", Formats: table.Of16Bits, Shape: shape{headDim: 64}, Fill: 1.5, Config: words("coopmat sg4 rt2 bn64 prefetch peel")},
		{Family: "ampere ampere-rtx ada blackwell-rtx", Formats: table.Of16Bits, Shape: shape{headDim: 128}, Fill: 1.5, Config: words("coopmat sg8 rt2 bn16 prefetch peel loadahead4")},
		{Family: "ampere ampere-rtx ada blackwell-rtx", Formats: table.Of16Bits, Shape: shape{headDim: 128}, Config: words("coopmat sg4 rt1 bn32 prefetch peel")},
		{Family: "ampere ampere-rtx ada blackwell-rtx", Formats: table.Of16Bits, Shape: shape{headDim: 256}, Config: words("coopmat sg8 rt1 bn16 prefetch peel loadahead8")},

		// AMD: 16x16x16, subgroups of 64. RDNA3 keeps each left matrix twice, 8
		// registers for each 16 columns of Q, so a subgroup has one tile of rows, as in
		// llama.cpp. RDNA4 keeps it once and has registers for two tiles up to head_dim 128.
		// A workgroup has 64 KiB of LDS on RADV and 32 KiB on the other drivers, and two
		// compute units share 128 KiB: block_n keeps a workgroup below 26 KiB, or 32 at
		// head_dim 192. Of 210 configurations, the rows of rdna3 spill least in RADV's compiler,
		// and run the most waves among configurations that spill equally: TUNING.md.
		{Family: "rdna3", Formats: table.Of16Bits, Shape: shape{headDim: 64}, Config: words("coopmat sg4 rt1 bn64 prefetch peel")},
		{Family: "rdna3", Formats: table.Of16Bits, Shape: shape{headDim: 192}, Config: words("coopmat sg4 rt1 bn32 prefetch peel")},
		{Family: "rdna3", Formats: table.Of16Bits, Shape: shape{headDim: 256}, Config: words("coopmat sg4 rt1 bn16 peel")},
		{Family: "rdna4", Formats: table.Of16Bits, Shape: shape{headDim: 64}, Fill: 1, Config: words("coopmat sg4 rt2 bn64 peel")},
		{Family: "rdna4", Formats: table.Of16Bits, Shape: shape{headDim: 128}, Fill: 1, Config: words("coopmat sg4 rt2 bn32 peel")},
		{Family: "rdna4", Formats: table.Of16Bits, Shape: shape{headDim: 64}, Config: words("coopmat sg4 rt1 bn64 peel")},
		{Family: "rdna4", Formats: table.Of16Bits, Shape: shape{headDim: 128}, Config: words("coopmat sg4 rt1 bn32 peel")},
		{Family: "rdna4", Formats: table.Of16Bits, Shape: shape{headDim: 256}, Config: words("coopmat sg4 rt1 bn16 peel")},

		// Intel: 8x16x16. A subgroup has 8 KiB of registers (128 of 64 bytes), or twice
		// that with half the subgroups. 8 rows take 4.5 KiB with block_n 32 at head_dim 64,
		// 6.8 KiB with block_n 16 at 128, and do not fit at 256. More rows per subgroup
		// spill (llama.cpp found the same), so eight subgroups share a tile of keys.
		{Family: "xe2", Formats: table.Of16Bits, Shape: shape{headDim: 64}, Config: words("coopmat sg8 rt1 bn32 peel")},
		{Family: "xe2", Formats: table.Of16Bits, Shape: shape{headDim: 256}, Config: words("coopmat sg8 rt1 bn16 peel")},

		// An invocation has 4 x 4 scores and 4 x head_dim/8 elements of O: about 110
		// registers at head_dim 128. NVIDIA and AMD have 255. Intel has 64 to 128, and
		// takes the row for any device.
		{Family: "ampere ampere-rtx ada blackwell-rtx rdna3 rdna4", Shape: shape{headDim: 128}, Config: words("scalar 64x32 t16x8 depth16 rows16")},

		// Small tiles: lavapipe compiles for seconds, in proportion to block_n * head_dim.
		{Family: "lavapipe", Formats: table.Of16Bits, Shape: shape{headDim: 256}, Config: words("coopmat2 sg2 rt1 bn8")},
		{Family: "lavapipe", Formats: table.Of16Bits, Shape: shape{headDim: 256}, Config: words("coopmat sg2 rt1 bn8")},
		{Family: "lavapipe", Shape: shape{headDim: 24}, Config: words("scalar 16x16 t8x8 depth8 rows4")},
		{Family: "lavapipe", Shape: shape{headDim: 24}, Config: words("unfused 16x8 t8x8 depth8")},

		// Any device with matrices, with less and less shared memory: 2 * BlockN
		// rows of head_dim.
		{Formats: table.Of16Bits, Shape: shape{headDim: 128}, Config: words("coopmat2 sg4 rt1 bn64 peel")},
		{Formats: table.Of16Bits, Shape: shape{headDim: 256}, Config: words("coopmat2 sg4 rt1 bn32 peel")},
		{Formats: table.Of16Bits, Shape: shape{headDim: 256}, Config: words("coopmat2 sg2 rt1 bn16 peel")},
		{Formats: table.Of16Bits, Shape: shape{headDim: 128}, Config: words("coopmat sg4 rt1 bn64 peel")},
		{Formats: table.Of16Bits, Shape: shape{headDim: 256}, Config: words("coopmat sg4 rt1 bn32 peel")},
		{Formats: table.Of16Bits, Shape: shape{headDim: 256}, Config: words("coopmat sg2 rt1 bn16 peel")},

		// Any device. These fit Vulkan's guaranteed 16 KiB and 128 invocations for
		// every head_dim.
		{Shape: shape{headDim: 256}, Config: words("scalar 32x32 t8x16 depth32 rows8")},
		{Shape: shape{headDim: 128}, Config: words("unfused 32x16 t8x8 depth32")},
		{Shape: shape{headDim: 256}, Config: words("unfused 32x8 t8x8 depth32")},
	}
}

// fwdF32x2Rows are the rows for float32 tensors on matrices. Tiles take twice the
// shared memory of 16-bit ones: 4 * BlockN rows of head_dim.
func fwdF32x2Rows() []fwdRow {
	words := table.Must[Config]
	return []fwdRow{
		{Family: "hopper", Formats: table.OfFloat32, Shape: shape{headDim: 64}, Fill: 1, Config: words("coopmat2 sg8 rt1 bn64 prefetch peel")},
		{Family: "hopper", Formats: table.OfFloat32, Shape: shape{headDim: 64}, Config: words("coopmat2 sg4 rt1 bn64 prefetch peel")},
		{Family: "hopper", Formats: table.OfFloat32, Shape: shape{headDim: 128}, Fill: 1, Config: words("coopmat2 sg8 rt1 bn32 prefetch peel loadahead2")},
		{Family: "hopper", Formats: table.OfFloat32, Shape: shape{headDim: 128}, Config: words("coopmat2 sg4 rt1 bn32 prefetch peel loadahead2")},
		{Family: "hopper", Formats: table.OfFloat32, Shape: shape{headDim: 256}, Config: words("coopmat2 sg8 rt1 bn16 peel loadahead2")},
		{Family: "hopper", Formats: table.OfFloat32, Shape: shape{headDim: 64}, Config: words("coopmat sg4 rt2 bn32 prefetch peel")},
		{Family: "hopper", Formats: table.OfFloat32, Shape: shape{headDim: 128}, Config: words("coopmat sg8 rt1 bn16 prefetch peel loadahead2")},

		// RADV's compiler, as in fwdRows: beyond head_dim 64 every tile spills 170 bytes or more.
		{Family: "rdna3", Formats: table.OfFloat32, Shape: shape{headDim: 64}, Config: words("coopmat sg4 rt1 bn16 peel")},

		// Small tiles, as in fwdRows.
		{Family: "lavapipe", Formats: table.OfFloat32, Shape: shape{headDim: 256}, Config: words("coopmat2 sg2 rt1 bn8")},
		{Family: "lavapipe", Formats: table.OfFloat32, Shape: shape{headDim: 256}, Config: words("coopmat sg2 rt1 bn8")},

		// Any device with matrices, with less and less shared memory.
		{Formats: table.OfFloat32, Shape: shape{headDim: 64}, Config: words("coopmat2 sg4 rt1 bn32 peel")},
		{Formats: table.OfFloat32, Shape: shape{headDim: 256}, Config: words("coopmat2 sg4 rt1 bn16 peel")},
		{Formats: table.OfFloat32, Shape: shape{headDim: 64}, Config: words("coopmat sg4 rt1 bn32 peel")},
		{Formats: table.OfFloat32, Shape: shape{headDim: 256}, Config: words("coopmat sg4 rt1 bn16 peel")},
		{Formats: table.OfFloat32, Shape: shape{headDim: 256}, Config: words("coopmat sg2 rt1 bn16 peel")},
	}
}

// forwardConfig returns the configuration of Forward's own kernels for p on a device, and its origin.
// The error wraps vk.ErrUnsupported if no path, or not the forced one, handles p.
func forwardConfig(caps *vk.Caps, p *Problem, opt *Options) (Config, table.Origin, error) {
	if opt.Config != nil {
		return *opt.Config, table.Origin{}, opt.Config.Feasible(caps, *p)
	}
	return fwdTable.Choose(caps, p, query[Config](*opt, autoPaths(caps, p, kit.Forward)))
}

// query returns the question of a call to a table.
func query[C any](opt Options, auto []string) table.Query[C] {
	q := table.Query[C]{Auto: auto, Tuning: opt.Tuning}
	if opt.Impl != Auto {
		q.Path = opt.Impl.String()
	}
	return q
}

// autoPaths returns the paths in the order in which Auto tries them.
//
// Matrices pay on a device with matrix units. On a CPU device they are loops: on lavapipe
// scalar is about as fast for float16 and 3 to 6 times as fast for float32. It compiles in a
// tenth of a second, matrices in seconds, or in a minute at head_dim 256. On RDNA3 they do not
// pay where every tile spills more than 100 bytes of an invocation.
func autoPaths(caps *vk.Caps, p *Problem, pass kit.Pass) []string {
	if caps.Type == vk.CPU {
		return scalarOnly
	}
	most := 256 // head_dim
	if chips.Family(caps) == "rdna3" {
		switch half := p.DType != dtype.Float32; {
		case pass == kit.Forward && !half:
			most = 64
		case pass == kit.Backward && half:
			most = 128
		case pass == kit.Backward:
			most = 32
		}
	}
	if max(p.HeadDim, p.ValueHeadDim()) > most {
		return scalarOnly
	}
	return fastestFirst
}

var (
	pathNames    = []string{CoopMat2.String(), CoopMat.String(), Scalar.String(), Unfused.String()}
	fastestFirst = pathNames[:3]
	scalarOnly   = pathNames[2:3]
)
