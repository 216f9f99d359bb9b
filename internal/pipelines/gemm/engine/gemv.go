package engine

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
)

// Path gemv (shaders/gemm_gemv.comp) is bound by the bytes of op(B) where rows are few. Memory delivers
// what is on its way: at 4.8 TB/s and 0.8 µs, 3.8 MB of a whole H200, or 29 KB of each compute unit.
const (
	fewRows     = 16       // Auto takes the path for up to this many rows with TransB, and for half as many without: 16 rows of 4096x4096 take 240 us there
	flightBytes = 24 << 10 // bytes of op(B) that a compute unit should have on their way
	leastSteps  = 2        // steps of k of a split
	mostSums    = 128      // sums of an invocation, which are in registers
	mostLoads   = 16       // vectors of op(B) of an invocation, likewise

	// On matrices, of a subgroup, as sums and operands are in the registers of all its invocations.
	piece        = 32 // elements of k that four invocations load
	mostVectors  = 32 // vectors of an invocation that are on their way
	mostMatrices = 8  // of sums
)

// gemvTiles are what follows from a configuration for a problem.
type gemvTiles struct {
	vector   int // elements of 16 bytes
	rows     int // of a block
	columns  int // of an invocation
	steps    int // vectors of k that are loaded at once
	loads    int // vectors of op(B) for each of them
	together int // sums of an invocation that meet at a time
}

func (c *Config) gemvTiles(p *Problem) gemvTiles {
	t := gemvTiles{vector: 16 / p.DType.Size(), rows: c.gemvRows(p), columns: c.BlockN / (c.Threads / c.ThreadsX)}
	t.steps = c.BlockK / (c.ThreadsX * t.vector)
	if t.loads = t.vector; p.TransB {
		t.loads = t.columns
	}
	t.together = min(8, c.ThreadsX)
	return t
}

// gemvRows returns the rows of a block: no more than there are, of matrices half of them or all.
func (c *Config) gemvRows(p *Problem) int {
	switch {
	case c.Matrix && p.M <= 8:
		return 8
	case c.Matrix:
		return c.BlockM
	}
	return min(c.BlockM, max(p.M, 1))
}

// gemvBytes is the shared memory of the kernel.
func (c *Config) gemvBytes(t gemvTiles) int {
	return 4 * t.together * (c.Threads + c.ThreadsX/t.together)
}

// feasibleGEMV is Feasible for path gemv.
func (c Config) feasibleGEMV(caps *vk.Caps, p *Problem) error {
	if c.Threads < 1 || c.ThreadsX < 1 || c.BlockM < 1 || c.BlockN < 1 {
		return Unsupported("gemv: a tile size of %v is not positive", c)
	}
	teams := c.Threads / c.ThreadsX
	switch {
	case p.TransA:
		return Unsupported("gemv: a is transposed")
	case c.ThreadsX&(c.ThreadsX-1) != 0 || c.Threads%c.ThreadsX != 0:
		return Unsupported("gemv: %d invocations are not rows of %d, a power of two", c.Threads, c.ThreadsX)
	case c.BlockN%teams != 0:
		return Unsupported("gemv: %d columns do not divide among %d rows of invocations", c.BlockN, teams)
	}
	if c.Matrix {
		return c.feasibleGEMVMatrix(caps, p)
	}
	t := c.gemvTiles(p)
	switch {
	case t.steps < 1 || c.BlockK%(c.ThreadsX*t.vector) != 0:
		return Unsupported("gemv: k%d is not a multiple of %d vectors of %d elements", c.BlockK, c.ThreadsX, t.vector)
	case !p.TransB && t.columns != t.vector:
		return Unsupported("gemv: an invocation has %d columns, and 16 bytes of op(B) have %d", t.columns, t.vector)
	case t.rows*t.columns > mostSums || t.steps*t.loads > mostLoads:
		return Unsupported("gemv: %d sums and %d vectors of an invocation are more than %d and %d", t.rows*t.columns, t.steps*t.loads, mostSums, mostLoads)
	}
	if err := argument.FitsWorkgroup("gemm", caps, c.Impl, c.Threads); err != nil {
		return err
	}
	return argument.FitsShared("gemm", caps, c.Impl, c.gemvBytes(t))
}

// gemvMatrixTiles are what follows from a configuration on matrices.
type gemvMatrixTiles struct {
	subgroups int // of a workgroup
	team      int // subgroups that share columns
	rows      int // of a block
	columns   int // of a subgroup
	loads     int // vectors of an invocation for a piece
	bytes     int // of shared memory
}

// gemvMatrixTiles is for a feasible path. Without places that NVIDIA's matrices have, pieces pass
// through shared memory, and rows fill matrices.
func (c *Config) gemvMatrixTiles(caps *vk.Caps, p *Problem, inPlace bool) gemvMatrixTiles {
	shape, _ := chips.MatrixShape(caps, p.DType)
	lanes := int(caps.SubgroupSize)
	t := gemvMatrixTiles{subgroups: c.Threads / lanes, team: c.ThreadsX / lanes, rows: c.gemvRows(p), columns: c.BlockN / (c.Threads / c.ThreadsX)}
	full := (t.rows + int(shape.M) - 1) / int(shape.M) * int(shape.M)
	loaded, staged := t.rows, 0
	if !inPlace {
		loaded = full
		staged = (t.columns + full) * (piece/8 + 1)
	}
	t.loads = (loaded*4+lanes-1)/lanes + t.columns*4/lanes
	t.bytes = 16 * t.subgroups * max(full*(t.columns/4+1), staged)
	return t
}

// feasibleGEMVMatrix is Feasible for path gemv on matrices.
func (c Config) feasibleGEMVMatrix(caps *vk.Caps, p *Problem) error {
	shape, lack := chips.MatrixShape(caps, p.DType)
	lanes := int(caps.SubgroupSize)
	switch {
	case p.DType == dtype.Float32:
		return Unsupported("gemv: float32 operands do not go into matrices")
	case lack != "":
		return Unsupported("gemv: %s", lack)
	case p.Ones || !p.TransB:
		return Unsupported("gemv: on matrices a is no ones, and b is transposed")
	case c.BlockM != 8 && c.BlockM != 16:
		return Unsupported("gemv: a block on matrices has 8 or 16 rows, not %d", c.BlockM)
	case c.ThreadsX%lanes != 0 || c.BlockK%(c.ThreadsX/lanes*piece) != 0:
		return Unsupported("gemv: k%d does not divide among the subgroups of %d invocations, %d elements at a time", c.BlockK, c.ThreadsX, piece)
	}
	t := c.gemvMatrixTiles(caps, p, chips.Quads(caps))
	matrices := (t.rows + int(shape.M) - 1) / int(shape.M) * t.columns / int(shape.N)
	switch pieces := c.BlockK / (t.team * piece); {
	case t.columns%int(shape.N) != 0 || t.columns*4%lanes != 0:
		return Unsupported("gemv: %d columns of a subgroup are not whole matrices of %d", t.columns, shape.N)
	case matrices > mostMatrices || pieces*t.loads > mostVectors:
		return Unsupported("gemv: %d matrices of sums and %d vectors of an invocation are more than %d and %d", matrices, pieces*t.loads, mostMatrices, mostVectors)
	}
	if err := argument.FitsWorkgroup("gemm", caps, c.Impl, c.Threads); err != nil {
		return err
	}
	return argument.FitsShared("gemm", caps, c.Impl, c.gemvMatrixTiles(caps, p, false).bytes)
}

// splitRows returns c with enough splits to have flightBytes of op(B) on their way on each compute unit.
func (c Config) splitRows(caps *vk.Caps, p *Problem) Config {
	flight := c.blocks(caps, p) * c.BlockN * c.BlockK * p.DType.Size()
	c.Splits = max(1, min(flightBytes*int(caps.ComputeUnits)/flight, p.K/(leastSteps*c.BlockK), c.mostSplits(caps, p)))
	return c.Fit(p)
}

// gemvCandidates are the candidates of path gemv, the nearest to start first.
func gemvCandidates(caps *vk.Caps, p *Problem, start Config) (all []Config) {
	add := func(c Config) {
		if c.Feasible(caps, *p) == nil {
			if c = c.splitRows(caps, p); c != start {
				all = append(all, c)
			}
		}
	}
	vector := 16 / p.DType.Size()
	columns := []int{vector}
	if p.TransB {
		columns = []int{1, 2, 4, 8}
	}
	lanes := max(int(caps.SubgroupSize), 1)
	for _, threads := range []int{64, 128, 256, 512} {
		for team := 16; team <= threads; team *= 2 {
			for _, n := range columns {
				for steps := 1; steps <= 2; steps++ {
					for _, rows := range []int{8, 16} {
						c := start
						c.Matrix = false
						c.BlockM, c.BlockN, c.Threads, c.ThreadsX, c.BlockK = rows, threads/team*n, threads, team, steps*team*vector
						if rows != 8 || p.M > 8 {
							add(c)
						}
					}
				}
			}
			for pieces := 1; pieces <= 8 && team%lanes == 0; pieces *= 2 {
				for _, n := range []int{16, 32, 64} {
					c := start
					c.Matrix = true
					c.BlockM, c.BlockN, c.Threads, c.ThreadsX, c.BlockK = fewRows, threads/team*n, threads, team, team/lanes*pieces*piece
					add(c)
				}
			}
		}
	}
	return table.ByDistance(all, start)
}

// gemvSpec is the specialization of gemm_gemv.comp.
type gemvSpec struct {
	WorkgroupSize uint32       `glsl:"WORKGROUP_SIZE"`
	Team          uint32       `glsl:"TEAM"`
	BlockM        uint32       `glsl:"BLOCK_M"`
	BlockN        uint32       `glsl:"BLOCK_N"`
	BlockK        uint32       `glsl:"BLOCK_K"`
	GroupM        uint32       `glsl:"GROUP_M"`
	Together      uint32       `glsl:"TOGETHER"`
	BByK          bool         `glsl:"B_BY_K"`
	Aligned       bool         `glsl:"ALIGNED"`
	Whole         bool         `glsl:"WHOLE"`
	Ones          bool         `glsl:"ONES"`
	Partial       bool         `glsl:"PARTIAL"`
	Epilogue      EpilogueSpec `glsl:"epilogue"`
}

func newGEMVSpec(args Args, p Problem, config Config) gemvSpec {
	t := config.gemvTiles(&p)
	aligned := argument.Aligned(t.vector, args.A, args.B)
	return gemvSpec{
		WorkgroupSize: uint32(config.Threads),
		Team:          uint32(config.ThreadsX),
		BlockM:        uint32(t.rows),
		BlockN:        uint32(config.BlockN),
		BlockK:        uint32(config.BlockK),
		GroupM:        uint32(config.GroupM),
		Together:      uint32(t.together),
		BByK:          p.TransB,
		Aligned:       aligned,
		Whole:         aligned && p.K%t.vector == 0 && (p.TransB || p.N%t.vector == 0),
		Ones:          p.Ones,
		Partial:       config.Splits > 1,
		Epilogue:      NewEpilogueSpec(args, p),
	}
}

// gemvMatrixSpec is the specialization of gemm_gemv_coopmat.comp.
type gemvMatrixSpec struct {
	WorkgroupSize uint32       `glsl:"WORKGROUP_SIZE"`
	Subgroups     uint32       `glsl:"SUBGROUPS"`
	Team          uint32       `glsl:"TEAM"`
	MatM          uint32       `glsl:"MAT_M"`
	MatN          uint32       `glsl:"MAT_N"`
	BlockM        uint32       `glsl:"BLOCK_M"`
	BlockN        uint32       `glsl:"BLOCK_N"`
	BlockK        uint32       `glsl:"BLOCK_K"`
	Tail          bool         `glsl:"TAIL"`
	GroupM        uint32       `glsl:"GROUP_M"`
	Alone         bool         `glsl:"ALONE"`
	InPlace       bool         `glsl:"IN_PLACE"`
	Aligned       bool         `glsl:"ALIGNED"`
	Whole         bool         `glsl:"WHOLE"`
	Partial       bool         `glsl:"PARTIAL"`
	Epilogue      EpilogueSpec `glsl:"epilogue"`
}

func newGEMVMatrixSpec(caps *vk.Caps, args Args, p Problem, config Config, inPlace bool) gemvMatrixSpec {
	shape, _ := chips.MatrixShape(caps, p.DType)
	t := config.gemvMatrixTiles(caps, &p, inPlace)
	aligned := argument.Aligned(8, args.A, args.B)
	return gemvMatrixSpec{
		WorkgroupSize: uint32(config.Threads),
		Subgroups:     uint32(t.subgroups),
		Team:          uint32(t.team),
		MatM:          shape.M,
		MatN:          shape.N,
		BlockM:        uint32(t.rows),
		BlockN:        uint32(config.BlockN),
		BlockK:        uint32(config.BlockK),
		Tail:          p.K%config.BlockK != 0,
		GroupM:        uint32(config.GroupM),
		Alone:         p.M <= t.rows && config.Splits <= 1,
		InPlace:       inPlace,
		Aligned:       aligned,
		Whole:         aligned && p.K%8 == 0,
		Partial:       config.Splits > 1,
		Epilogue:      NewEpilogueSpec(args, p),
	}
}

// multiplyGEMV records the kernel of config. Whether operands of matrices are in their places, only the
// device can tell.
func multiplyGEMV(c *vk.Cmd, args Args, p Problem, config Config) error {
	d, name, options := c.Device(), "gemm_gemv", vk.KernelOptions{}
	var spec any = newGEMVSpec(args, p, config)
	if config.Matrix {
		shape, _ := chips.MatrixShape(d.Caps(), p.DType)
		inPlace, err := chips.AsksQuads(d, p.DType, shape)
		if err != nil {
			return err
		}
		name, options = "gemm_gemv_coopmat", chips.MatrixOptions(d.Caps())
		spec = newGEMVMatrixSpec(d.Caps(), args, p, config, inPlace)
	}
	kernel := chips.Kernel[Params](c, name, p.DType.Short(), spec, options)
	config.BlockM = config.gemvRows(&p)
	return Dispatch(c, kernel, args, p, config)
}
