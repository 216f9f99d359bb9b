package attention

import (
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// fwdRow is one row of the tuning table: the problems that it matches, and
// what to run for them.
type fwdRow struct {
	family  string // "" matches any; several are separated by spaces
	headDim int    // matches problems with HeadDim and ValueDim <= headDim
	causal  bool   // causal problems only; false matches any
	seqQ    int    // matches problems with SeqQ <= seqQ; 0 matches any
	seqKV   int    // matches problems with SeqKV <= seqKV; 0 matches any

	// fill is how many blocks of rows the problem makes at least for each
	// compute unit of the device; 0 matches any. Large blocks share more work, but
	// a problem that makes few of them leaves units idle. A driver that does not
	// tell the number of its units is taken to be full.
	fill float64

	Config
}

// matches reports whether the row is for a problem on a device of a family.
func (r *fwdRow) matches(caps *vk.Caps, family string, p *Problem) bool {
	if max(p.HeadDim, p.ValueHeadDim()) > r.headDim || r.causal && !p.Causal || r.seqQ > 0 && p.SeqQ > r.seqQ || r.seqKV > 0 && p.SeqKV > r.seqKV {
		return false
	}
	if r.family != "" && !isOneOf(family, r.family) {
		return false
	}
	return r.fill == 0 || caps.ComputeUnits == 0 || r.Fill(caps, *p) >= r.fill
}

// isOneOf reports whether name is in a list separated by spaces.
func isOneOf(name, list string) bool {
	if name == "" {
		return false
	}
	for word := range strings.SplitSeq(list, " ") {
		if word == name {
			return true
		}
	}
	return false
}

// fwdTable is searched in order; the first feasible match of a path wins.
// TUNING.md has the runs behind the numbers.
var fwdTable = []fwdRow{
	// Hopper, measured on an H200. Two workgroups of 4 subgroups share a
	// multiprocessor where registers allow; problems of few blocks take 16 rows
	// for each subgroup, so that more multiprocessors have work.
	{family: "hopper", headDim: 64, causal: true, seqKV: 256, fill: 1.5, Config: Config{Impl: CoopMat2, Subgroups: 8, RowTiles: 1, BlockN: 64, Prefetch: true, KeysFirst: true}},
	{family: "hopper", headDim: 64, fill: 1.5, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 2, BlockN: 64, Prefetch: true, SplitLoop: true}},
	{family: "hopper", headDim: 64, causal: true, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 1, BlockN: 64, Prefetch: true, KeysFirst: true, SplitLoop: true}},
	{family: "hopper", headDim: 64, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 1, BlockN: 128, Prefetch: true, KeysFirst: true, SplitLoop: true}},
	{family: "hopper", headDim: 96, fill: 1.5, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 2, BlockN: 32, Prefetch: true, SplitLoop: true, Fence: 6}},
	{family: "hopper", headDim: 128, fill: 1.5, Config: Config{Impl: CoopMat2, Subgroups: 8, RowTiles: 2, BlockN: 32, Prefetch: true, SplitLoop: true, Fence: 4}},
	{family: "hopper", headDim: 128, seqQ: 16, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 1, BlockN: 32, Prefetch: true, SplitLoop: true}},
	{family: "hopper", headDim: 128, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 1, BlockN: 64, Prefetch: true, SplitLoop: true}},
	{family: "hopper", headDim: 192, Config: Config{Impl: CoopMat2, Subgroups: 8, RowTiles: 1, BlockN: 32, Prefetch: true, SplitLoop: true}},
	{family: "hopper", headDim: 256, Config: Config{Impl: CoopMat2, Subgroups: 8, RowTiles: 1, BlockN: 16, Prefetch: true, SplitLoop: true, Fence: 8}},

	{family: "hopper", headDim: 64, fill: 1.5, Config: Config{Impl: CoopMat, Subgroups: 4, RowTiles: 2, BlockN: 64, Prefetch: true, SplitLoop: true}},
	{family: "hopper", headDim: 64, causal: true, Config: Config{Impl: CoopMat, Subgroups: 4, RowTiles: 1, BlockN: 64, Prefetch: true, SplitLoop: true}},
	{family: "hopper", headDim: 64, Config: Config{Impl: CoopMat, Subgroups: 4, RowTiles: 1, BlockN: 128, Prefetch: true, SplitLoop: true}},
	{family: "hopper", headDim: 96, fill: 1.5, Config: Config{Impl: CoopMat, Subgroups: 4, RowTiles: 2, BlockN: 32, Prefetch: true, SplitLoop: true, Fence: 6}},
	{family: "hopper", headDim: 128, fill: 1.5, Config: Config{Impl: CoopMat, Subgroups: 8, RowTiles: 2, BlockN: 32, Prefetch: true, SplitLoop: true, Fence: 4}},
	{family: "hopper", headDim: 128, Config: Config{Impl: CoopMat, Subgroups: 4, RowTiles: 1, BlockN: 64, Prefetch: true, SplitLoop: true}},
	{family: "hopper", headDim: 192, Config: Config{Impl: CoopMat, Subgroups: 8, RowTiles: 1, BlockN: 32, Prefetch: true, SplitLoop: true}},
	{family: "hopper", headDim: 256, Config: Config{Impl: CoopMat, Subgroups: 8, RowTiles: 1, BlockN: 16, Prefetch: true, SplitLoop: true, Fence: 8}},

	{family: "hopper", headDim: 128, Config: Config{Impl: Scalar, Threads: 128, ThreadsX: 8, BlockM: 64, BlockN: 32, Depth: 16, ValueRows: 16}},

	// No row from here to lavapipe's has been measured. They are argued from what
	// a subgroup of r rows keeps in registers, in 32-bit words,
	//
	//	Q  r*head_dim/2    S  r*block_n      next K, V  block_n*head_dim/subgroups
	//	O  r*head_dim      P  r*block_n/2
	//
	// of which NVIDIA has 32*255, and from the shared memory of a workgroup,
	// 2*block_n rows of 2*head_dim + 16 bytes.

	// NVIDIA before Hopper, and after it in small chips: the same instruction
	// (mma.sync, native there), compiler and 255 registers as on Hopper, so the sizes
	// measured there, where they agree with FlashAttention-2's for these chips: four
	// subgroups of 32 rows at head_dim 64 and 128, and of 16 at 256. Tiles of keys are
	// shorter than its own, for a workgroup sees 48 KiB of shared memory here; at
	// 18 KiB and less two of them share a multiprocessor even if that holds for all
	// its workgroups together, as on Hopper.
	{family: "ampere ampere-rtx ada blackwell-rtx", headDim: 64, fill: 1.5, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 2, BlockN: 64, Prefetch: true, SplitLoop: true}},
	{family: "ampere ampere-rtx ada blackwell-rtx", headDim: 64, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 1, BlockN: 64, Prefetch: true, SplitLoop: true}},
	{family: "ampere ampere-rtx ada blackwell-rtx", headDim: 96, fill: 1.5, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 2, BlockN: 32, Prefetch: true, SplitLoop: true, Fence: 6}},
	{family: "ampere ampere-rtx ada blackwell-rtx", headDim: 128, fill: 1.5, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 2, BlockN: 16, Prefetch: true, SplitLoop: true, Fence: 4}},
	{family: "ampere ampere-rtx ada blackwell-rtx", headDim: 128, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 1, BlockN: 32, Prefetch: true, SplitLoop: true}},
	{family: "ampere ampere-rtx ada blackwell-rtx", headDim: 192, Config: Config{Impl: CoopMat2, Subgroups: 8, RowTiles: 1, BlockN: 32, Prefetch: true, SplitLoop: true}},
	{family: "ampere ampere-rtx ada blackwell-rtx", headDim: 256, Config: Config{Impl: CoopMat2, Subgroups: 8, RowTiles: 1, BlockN: 16, Prefetch: true, SplitLoop: true, Fence: 8}},

	// The same on VK_KHR_cooperative_matrix, which takes up to 14 KiB more for
	// eight subgroups.
	{family: "ampere ampere-rtx ada blackwell-rtx", headDim: 64, fill: 1.5, Config: Config{Impl: CoopMat, Subgroups: 4, RowTiles: 2, BlockN: 64, Prefetch: true, SplitLoop: true}},
	{family: "ampere ampere-rtx ada blackwell-rtx", headDim: 128, fill: 1.5, Config: Config{Impl: CoopMat, Subgroups: 8, RowTiles: 2, BlockN: 16, Prefetch: true, SplitLoop: true, Fence: 4}},
	{family: "ampere ampere-rtx ada blackwell-rtx", headDim: 128, Config: Config{Impl: CoopMat, Subgroups: 4, RowTiles: 1, BlockN: 32, Prefetch: true, SplitLoop: true}},
	{family: "ampere ampere-rtx ada blackwell-rtx", headDim: 256, Config: Config{Impl: CoopMat, Subgroups: 8, RowTiles: 1, BlockN: 16, Prefetch: true, SplitLoop: true, Fence: 8}},

	// AMD: 16x16x16, subgroups of 64. RDNA3 keeps each left matrix twice, 8
	// registers for each 16 columns of Q, so a subgroup has one tile of rows, as in
	// llama.cpp; RDNA4 keeps it once and has registers for two up to head_dim 128.
	// LDS is 64 KiB of a workgroup on RADV and 32 KiB on the other drivers, and two
	// compute units share 128 KiB: block_n keeps a workgroup below 26 KiB.
	{family: "rdna4", headDim: 64, fill: 1, Config: Config{Impl: CoopMat, Subgroups: 4, RowTiles: 2, BlockN: 64, SplitLoop: true}},
	{family: "rdna4", headDim: 128, fill: 1, Config: Config{Impl: CoopMat, Subgroups: 4, RowTiles: 2, BlockN: 32, SplitLoop: true}},
	{family: "rdna3 rdna4", headDim: 64, Config: Config{Impl: CoopMat, Subgroups: 4, RowTiles: 1, BlockN: 64, SplitLoop: true}},
	{family: "rdna3 rdna4", headDim: 128, Config: Config{Impl: CoopMat, Subgroups: 4, RowTiles: 1, BlockN: 32, SplitLoop: true}},
	{family: "rdna3 rdna4", headDim: 256, Config: Config{Impl: CoopMat, Subgroups: 4, RowTiles: 1, BlockN: 16, SplitLoop: true}},

	// Intel: 8x16x16. A subgroup has 8 KiB of registers (128 of 64 bytes), or
	// twice that with half the subgroups: 8 rows take 4.5 KiB with block_n 32 at
	// head_dim 64, 6.8 KiB with 16 at 128, and do not fit at 256. More rows of a subgroup
	// spill (llama.cpp found the same), so eight subgroups share a tile of keys.
	{family: "xe2", headDim: 64, Config: Config{Impl: CoopMat, Subgroups: 8, RowTiles: 1, BlockN: 32, SplitLoop: true}},
	{family: "xe2", headDim: 256, Config: Config{Impl: CoopMat, Subgroups: 8, RowTiles: 1, BlockN: 16, SplitLoop: true}},

	// 4 x 4 scores and 4 x head_dim/8 elements of O of an invocation: about 110
	// registers at head_dim 128, where NVIDIA and AMD have 255. Intel has 64 to 128:
	// the row for any device.
	{family: "ampere ampere-rtx ada blackwell-rtx rdna3 rdna4", headDim: 128, Config: Config{Impl: Scalar, Threads: 128, ThreadsX: 8, BlockM: 64, BlockN: 32, Depth: 16, ValueRows: 16}},

	// Small tiles: what lavapipe compiles grows with block_n * head_dim, and
	// takes seconds.
	{family: "lavapipe", headDim: 256, Config: Config{Impl: CoopMat2, Subgroups: 2, RowTiles: 1, BlockN: 8}},
	{family: "lavapipe", headDim: 256, Config: Config{Impl: CoopMat, Subgroups: 2, RowTiles: 1, BlockN: 8}},

	// Any device with matrices, with less and less shared memory: 2 * BlockN
	// rows of head_dim.
	{headDim: 128, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 1, BlockN: 64, SplitLoop: true}},
	{headDim: 256, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 1, BlockN: 32, SplitLoop: true}},
	{headDim: 256, Config: Config{Impl: CoopMat2, Subgroups: 2, RowTiles: 1, BlockN: 16, SplitLoop: true}},
	{headDim: 128, Config: Config{Impl: CoopMat, Subgroups: 4, RowTiles: 1, BlockN: 64, SplitLoop: true}},
	{headDim: 256, Config: Config{Impl: CoopMat, Subgroups: 4, RowTiles: 1, BlockN: 32, SplitLoop: true}},
	{headDim: 256, Config: Config{Impl: CoopMat, Subgroups: 2, RowTiles: 1, BlockN: 16, SplitLoop: true}},

	// Any device. These fit Vulkan's guaranteed 16 KiB and 128 invocations for
	// every head_dim.
	{headDim: 256, Config: Config{Impl: Scalar, Threads: 128, ThreadsX: 16, BlockM: 32, BlockN: 32, Depth: 32, ValueRows: 8}},
	{headDim: 128, Config: Config{Impl: Unfused, Threads: 64, ThreadsX: 8, BlockM: 32, BlockN: 16, Depth: 32}},
	{headDim: 256, Config: Config{Impl: Unfused, Threads: 64, ThreadsX: 8, BlockM: 32, BlockN: 8, Depth: 32}},
}

// chooseForward returns the configuration that Forward takes for p on a device. Its
// error wraps ErrUnsupported if no path, or not the forced one, handles p.
func chooseForward(caps *vk.Caps, p Problem, opt Options) (Config, error) {
	if err := p.Validate(); err != nil {
		return Config{}, err
	}
	if opt.Config != nil {
		return *opt.Config, opt.Config.Feasible(caps, p)
	}
	if opt.Impl != Auto {
		if row := opt.Tuning.find(caps, &p, opt.Impl); row != nil {
			return row.configFor(caps, &p), nil
		}
		return search(caps, p, opt.Impl)
	}
	var err error
	for _, impl := range autoPaths(caps) {
		var c Config
		if c, err = search(caps, p, impl); err == nil {
			return opt.Tuning.auto(caps, &p, c), nil
		}
	}
	return Config{}, err
}

// autoPaths returns the paths in the order in which Auto asks them.
//
// Matrices pay where they have units of their own. On a CPU device they are loops: on
// lavapipe scalar is about as fast for float16 and 3 to 6 times as fast for float32, and
// compiled in a tenth of a second instead of seconds, or a minute at head_dim 256.
func autoPaths(caps *vk.Caps) []Impl {
	if caps.Type == vk.CPU {
		return scalarOnly
	}
	return fastestFirst
}

var (
	fastestFirst = []Impl{CoopMat2, CoopMat, Scalar}
	scalarOnly   = []Impl{Scalar}
)

// search returns the configuration of the first row of a path that matches and
// is feasible, or the reason why the last one that matches is not.
func search(caps *vk.Caps, p Problem, impl Impl) (Config, error) {
	row, err := findRow(caps, &p, impl)
	if err != nil {
		return Config{}, err
	}
	return row.configFor(caps, &p), nil
}

// configFor returns the row's configuration with as many splits as p needs,
// unless the row has its own opinion.
func (r *fwdRow) configFor(caps *vk.Caps, p *Problem) Config {
	c := r.Config
	if c.Splits == 0 {
		c.Splits = c.splitsToFill(caps, *p)
	}
	return c
}

func findRow(caps *vk.Caps, p *Problem, impl Impl) (*fwdRow, error) {
	fam := family(caps)
	table := fwdTable
	if p.DType == dtype.Float32 && (impl == CoopMat2 || impl == CoopMat) {
		table = f32x2Table
	}
	var err error
	for i := range table {
		row := &table[i]
		if row.Impl != impl || !row.matches(caps, fam, p) {
			continue
		}
		if err = row.Feasible(caps, *p); err == nil {
			return row, nil
		}
	}
	if err == nil {
		err = unsupported("impl %v is not a path", impl)
	}
	return nil, err
}
