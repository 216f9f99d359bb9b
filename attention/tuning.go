package attention

import (
	"strings"

	"github.com/flashvk/flashvk/vk"
)

// fwdRow is one row of the tuning table: the problems that it matches, and
// what to run for them.
type fwdRow struct {
	family  string // "" matches any; several are separated by spaces
	headDim int    // matches problems with HeadDim <= headDim
	causal  bool   // causal problems only; false matches any

	// fill is how many blocks of rows the problem makes at least for each
	// compute unit of the device; 0 matches any. Large blocks share more work, but
	// a problem that makes few of them leaves units idle. A driver that does not
	// tell the number of its units is taken to be full.
	fill float64

	Config
}

// matches reports whether the row is for a problem on a device of a family.
func (r *fwdRow) matches(caps *vk.Caps, family string, p *Problem) bool {
	if p.HeadDim > r.headDim || r.causal && !p.Causal {
		return false
	}
	if r.family != "" && !isOneOf(family, r.family) {
		return false
	}
	if r.fill == 0 || caps.ComputeUnits == 0 {
		return true
	}
	rows := r.blockRows(caps, p.DType)
	blocks := float64(p.Batch) * float64(p.NumHeads) * float64((p.SeqQ+rows-1)/rows)
	return blocks >= r.fill*float64(caps.ComputeUnits)
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
	{family: "hopper", headDim: 64, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 2, BlockN: 64, Prefetch: true, SplitLoop: true}},
	{family: "hopper", headDim: 128, Config: Config{Impl: CoopMat2, Subgroups: 8, RowTiles: 1, BlockN: 64, Prefetch: true, SplitLoop: true}},
	{family: "hopper", headDim: 256, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 1, BlockN: 32, Prefetch: true, SplitLoop: true}},

	{family: "hopper", headDim: 64, Config: Config{Impl: CoopMat, Subgroups: 4, RowTiles: 2, BlockN: 64, SplitLoop: true}},
	{family: "hopper", headDim: 128, Config: Config{Impl: CoopMat, Subgroups: 8, RowTiles: 1, BlockN: 64, Prefetch: true, SplitLoop: true}},

	{family: "hopper", headDim: 128, Config: Config{Impl: Scalar, Threads: 128, ThreadsX: 8, BlockM: 64, BlockN: 32, Depth: 16, ValueRows: 16}},

	// Small tiles: what lavapipe compiles grows with block_n * head_dim, and
	// takes seconds.
	{family: "lavapipe", headDim: 64, Config: Config{Impl: CoopMat2, Subgroups: 2, RowTiles: 1, BlockN: 16}},
	{family: "lavapipe", headDim: 256, Config: Config{Impl: CoopMat2, Subgroups: 2, RowTiles: 1, BlockN: 8}},
	{family: "lavapipe", headDim: 64, Config: Config{Impl: CoopMat, Subgroups: 2, RowTiles: 1, BlockN: 16}},
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

// lavapipe reports whether the device is Mesa's software driver.
func lavapipe(caps *vk.Caps) bool {
	const driverMesaLLVMPipe = 13 // VK_DRIVER_ID_MESA_LLVMPIPE
	return caps.DriverID == driverMesaLLVMPipe
}

// family names the group of devices whose measured rows apply.
func family(caps *vk.Caps) string {
	if lavapipe(caps) {
		return "lavapipe"
	}
	for _, name := range []string{"H100", "H200", "H800", "GH200"} {
		if strings.Contains(caps.Name, name) {
			return "hopper"
		}
	}
	return ""
}

// Choose returns the configuration that Forward takes for p on a device. Its
// error wraps ErrUnsupported if no path, or not the forced one, handles p.
func Choose(caps *vk.Caps, p Problem, opt Options) (Config, error) {
	if err := p.Validate(); err != nil {
		return Config{}, err
	}
	if opt.Config != nil {
		return *opt.Config, opt.Config.Feasible(caps, p)
	}
	if opt.Impl != Auto {
		return search(caps, p, opt.Impl)
	}
	var err error
	for _, impl := range []Impl{CoopMat2, CoopMat, Scalar} {
		var c Config
		if c, err = search(caps, p, impl); err == nil {
			return c, nil
		}
	}
	return Config{}, err
}

// search returns the first row of a path that matches and is feasible, or the
// reason why the last one that matches is not.
func search(caps *vk.Caps, p Problem, impl Impl) (Config, error) {
	fam := family(caps)
	var err error
	for i := range fwdTable {
		row := &fwdTable[i]
		if row.Impl != impl || !row.matches(caps, fam, &p) {
			continue
		}
		if err = row.Feasible(caps, p); err == nil {
			return row.Config, nil
		}
	}
	if err == nil {
		err = unsupported("impl %v is not a path", impl)
	}
	return Config{}, err
}
