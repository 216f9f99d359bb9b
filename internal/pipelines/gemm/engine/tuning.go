package engine

import (
	"errors"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/chips"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// tableRow is one row of the tuning table: the problems that it matches, and what to
// run for them.
type tableRow struct {
	family string // "" matches any; several are separated by spaces

	// parts rows of path coopmat are for float32 operands, parts.go, the others for 16-bit ones.
	parts bool

	// fill is how many workgroups the problem makes at least for each compute unit of the
	// device, those that share a block counted; 0 matches any. Large blocks share more work,
	// but a problem that makes few of them leaves units idle. A driver that does not tell the
	// number of its units is taken to be full.
	fill float64

	trans string // "" matches any; else nn, nt, tn or tt
	k     int    // k up to this; 0 matches any

	Config
}

// table is searched in order; the first feasible match of a path wins.
var table = []tableRow{
	// Hopper, measured on an H200. One workgroup of eight subgroups has the 48 KiB of a
	// multiprocessor: for slabs of 128-byte lines of k, and for as large a block as fits
	// where both operands have lines along m and n. With op(B) in fragments two workgroups of
	// four subgroups do, which hide each other's loads, and way to C. Blocks of 128 rows are
	// for short k alone: they leave too few registers.
	{family: "hopper", fill: 1, trans: "tn", Config: Config{Impl: CoopMat, SubgroupsM: 4, SubgroupsN: 2, TilesM: 4, TilesN: 4, BlockK: 48, Pack: true, GroupM: 8}},
	{family: "hopper", fill: 12, k: 1024, Config: Config{Impl: CoopMat, SubgroupsM: 2, SubgroupsN: 2, TilesM: 4, TilesN: 4, BlockK: 64, Pack: true, Fragments: true, GroupM: 10}},
	{family: "hopper", fill: 2, Config: Config{Impl: CoopMat, SubgroupsM: 2, SubgroupsN: 2, TilesM: 3, TilesN: 4, BlockK: 64, Pack: true, Fragments: true, GroupM: 22}},
	{family: "hopper", fill: 1, Config: Config{Impl: CoopMat, SubgroupsM: 4, SubgroupsN: 2, TilesM: 3, TilesN: 4, BlockK: 64, Pack: true, GroupM: 10}},
	{family: "hopper", fill: 1, Config: Config{Impl: CoopMat, SubgroupsM: 2, SubgroupsN: 2, TilesM: 4, TilesN: 4, BlockK: 32, Pack: true, GroupM: 16}}, // for kernels that have more in shared memory
	{family: "hopper", Config: Config{Impl: CoopMat, SubgroupsM: 2, SubgroupsN: 2, TilesM: 2, TilesN: 2, BlockK: 32, Pack: true, GroupM: 8}},

	// Parts: half of the sums, as hi and lo of A wait in registers for their products, and
	// products are summed before they meet the sums. Without the fence it is 12 % slower.
	{family: "hopper", parts: true, fill: 1, Config: Config{Impl: CoopMat, SubgroupsM: 2, SubgroupsN: 2, TilesM: 4, TilesN: 4, BlockK: 16, Fence: 1, GroupM: 16}},
	{family: "hopper", parts: true, Config: Config{Impl: CoopMat, SubgroupsM: 2, SubgroupsN: 2, TilesM: 2, TilesN: 2, BlockK: 16, GroupM: 8}},

	// Small tiles: what lavapipe compiles grows with them, and takes seconds.
	{family: "lavapipe", Config: Config{Impl: CoopMat, SubgroupsM: 2, SubgroupsN: 1, TilesM: 1, TilesN: 2, BlockK: 16, GroupM: 4}},
	{family: "lavapipe", parts: true, Config: Config{Impl: CoopMat, SubgroupsM: 2, SubgroupsN: 1, TilesM: 1, TilesN: 2, BlockK: 16, GroupM: 4}},

	// Any device with matrices: 32 x 32 sums of a subgroup, 10 KiB.
	{Config: Config{Impl: CoopMat, SubgroupsM: 2, SubgroupsN: 2, TilesM: 2, TilesN: 2, BlockK: 32, GroupM: 8}},
	{parts: true, Config: Config{Impl: CoopMat, SubgroupsM: 2, SubgroupsN: 2, TilesM: 2, TilesN: 2, BlockK: 16, GroupM: 8}},

	// Any device. These fit Vulkan's guaranteed 16 KiB and 128 invocations.
	{fill: 1, Config: Config{Impl: Scalar, Threads: 128, ThreadsX: 16, BlockM: 64, BlockN: 64, BlockK: 16, GroupM: 8}},
	{Config: Config{Impl: Scalar, Threads: 64, ThreadsX: 8, BlockM: 32, BlockN: 32, BlockK: 32, GroupM: 8}},
}

// matches reports whether the row is for p on a device, which makes so many workgroups with
// a configuration.
func (r *tableRow) matches(caps *vk.Caps, family string, p *Problem, workgroups func(*Config) int) bool {
	if !MatchesFamily(r.family, family) || r.trans != "" && r.trans != p.Transposes() || r.k != 0 && p.K > r.k {
		return false
	}
	return r.fill == 0 || caps.ComputeUnits == 0 || float64(workgroups(&r.Config)) >= r.fill*float64(caps.ComputeUnits)
}

// MatchesFamily reports whether the families of a row are any, or one of them is that of the device.
func MatchesFamily(families, family string) bool {
	return families == "" || slices.Contains(strings.Fields(families), family)
}

// blocks returns how many workgroups a problem makes before k is split.
func (c *Config) blocks(caps *vk.Caps, p *Problem) int {
	m, n := c.Block(caps, p.DType)
	return p.Batches() * ((p.M + m - 1) / m) * ((p.N + n - 1) / n)
}

// leastSplitK is the k of a workgroup that counts as one where blocks are few.
const leastSplitK = 512

// filling returns how many workgroups a problem makes if those of few blocks are divided to
// fill a device.
func (c *Config) filling(caps *vk.Caps, p *Problem) int {
	blocks := c.blocks(caps, p)
	return blocks * max(min(c.Slots(caps, p)/blocks, p.K/leastSplitK), 1)
}

// leastRows is of how many rows op(A) must be for the copy of op(B) into fragments to pay,
// which takes about 200/m of the product's time where that gains a tenth.
const leastRows = 2048

// Choose returns the configuration that Multiply takes for p on a device. Its error
// wraps ErrUnsupported if no path, or not the forced one, handles p.
func Choose(caps *vk.Caps, p Problem, opt Options) (Config, error) {
	if err := p.Validate(); err != nil {
		return Config{}, err
	}
	if opt.Config != nil {
		return *opt.Config, opt.Config.Feasible(caps, p)
	}
	return ChooseBeside(caps, p, opt.Impl, nil)
}

// Supports returns nil if path impl can compute p on a device, and otherwise why not.
func Supports(caps *vk.Caps, impl Impl, p Problem) error {
	_, err := Choose(caps, p, Options{Impl: impl})
	return err
}

// ChooseBeside is Choose for kernels that have some bytes of shared memory, which may be
// nil, besides those of a product.
func ChooseBeside(caps *vk.Caps, p Problem, impl Impl, bytes func(*Config) int) (Config, error) {
	c, err := search(caps, impl, &p, bytes, func(c *Config) int { return c.filling(caps, &p) })
	if err == nil && c.Splits == 0 {
		c = c.withSplits(caps, &p, c.costs(caps, &p))
	}
	return c, err
}

// search returns the configuration for a problem on a path, or with Auto on the first
// that has one.
func search(caps *vk.Caps, impl Impl, p *Problem, bytes, workgroups func(*Config) int) (Config, error) {
	if impl != Auto {
		return searchPath(caps, impl, p, bytes, workgroups)
	}
	var errs []error
	for _, impl := range autoPaths(caps, p) {
		c, err := searchPath(caps, impl, p, bytes, workgroups)
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return Config{}, errors.Join(errs...)
}

// autoPaths returns the paths in the order in which Auto asks them.
//
// Matrices pay where they have units of their own, which CPU devices have not, and parts of
// float32 operands where the product is large enough.
func autoPaths(caps *vk.Caps, p *Problem) []Impl {
	small := min(p.M, p.N) < leastParts || p.FLOPs() < leastPartsFLOPs
	if caps.Type == vk.CPU || p.DType == dtype.Float32 && small {
		return []Impl{Scalar, CoopMat}
	}
	return Impls()
}

// searchPath returns the configuration of the first row of a path that matches and is
// feasible, or the reason why the last one that matches is not.
func searchPath(caps *vk.Caps, impl Impl, p *Problem, bytes, workgroups func(*Config) int) (Config, error) {
	family := chips.Family(caps)
	err := Unsupported("impl %v is not a path", impl)
	for i := range table {
		row := &table[i]
		if row.Impl != impl || row.parts != row.inParts(p) || !row.matches(caps, family, p, workgroups) {
			continue
		}
		if row.Fragments && (bytes != nil || p.K == 0 || p.M < leastRows) { // kernels of other kinds and of groups have none
			continue
		}
		err = row.Feasible(caps, *p)
		if err == nil && bytes != nil {
			err = row.FitsBeside(caps, p, bytes(&row.Config))
		}
		if err == nil {
			return row.Config, nil
		}
	}
	return Config{}, err
}
