package engine

import (
	"cmp"
	"slices"

	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/vk"
)

// Candidates returns configurations of a path that are worth measuring for p on a device, all
// feasible, with the splits of Choose. The tuning table's configuration is the first. The others
// follow by their estimated time, so that a search that runs out of time has seen the most likely
// ones. Candidates differ in tile sizes; Variants has the other choices. The error is Choose's.
func Candidates(caps *vk.Caps, p Problem, impl Impl) ([]Config, error) {
	start, err := Choose(caps, p, Options{Impl: impl})
	if err != nil {
		return nil, err
	}
	return append([]Config{start}, candidates(caps, p, start)...), nil
}

// candidates returns the candidates after the first, start.
func candidates(caps *vk.Caps, p Problem, start Config) []Config {
	all := scalarCandidates(start)
	switch start.Impl {
	case CoopMat:
		all = matrixCandidates(caps, &p, start)
	case GEMV:
		return gemvCandidates(caps, &p, start)
	}
	type guessed struct {
		Config
		time float64
	}
	var list []guessed
	for _, c := range all {
		if c.Feasible(caps, p) != nil {
			continue
		}
		if c = c.withSplits(caps, &p, c.costs(caps, &p)); c != start {
			list = append(list, guessed{c, c.guess(caps, &p)})
		}
	}
	slices.SortStableFunc(list, func(a, b guessed) int { return cmp.Compare(a.time, b.time) })
	var best []Config
	for _, x := range list {
		best = append(best, x.Config)
	}
	return best
}

// Registers of NVIDIA's GPUs, which have the fewest per compute unit of all GPUs with matrices.
const (
	mostRegisters  = 255     // of an invocation
	otherRegisters = 55      // estimated: operands, addresses, temporaries
	unitRegisters  = 1 << 16 // of a compute unit
)

// registers returns about how many registers an invocation of the matrix path has: for its sums,
// for the next k-tile, which is being loaded, and for the rest.
func (c *Config) registers(caps *vk.Caps, p *Problem) int {
	m, n := c.Block(caps, p.DType)
	return (m*n+c.tileElements(p, m, n)/2)/c.threads(caps) + otherRegisters
}

// threads returns the invocations of a workgroup of the matrix path.
func (c *Config) threads(caps *vk.Caps) int {
	return c.SubgroupsM * c.SubgroupsN * int(caps.SubgroupSize)
}

func matrixCandidates(caps *vk.Caps, p *Problem, start Config) []Config {
	shape, _ := chips.MatrixShape(caps, p.DType)
	var all []Config
	for _, grid := range [][2]int{{1, 2}, {2, 1}, {1, 4}, {2, 2}, {4, 1}, {2, 4}, {4, 2}, {4, 4}} {
		for tilesM := 1; tilesM <= 4; tilesM++ {
			for tilesN := 1; tilesN <= 5; tilesN++ {
				for _, depth := range []int{1, 2, 3, 4, 6} {
					for _, packed := range []bool{false, true} {
						c := start
						c.SubgroupsM, c.SubgroupsN, c.TilesM, c.TilesN = grid[0], grid[1], tilesM, tilesN
						c.BlockK, c.PackB = depth*int(shape.N), packed
						c.Splits, c.Rows = 0, 0
						if c.registers(caps, p) <= min(mostRegisters, unitRegisters/c.threads(caps)) {
							all = append(all, c)
						}
					}
				}
			}
		}
	}
	return all
}

// tileElements returns how many 16-bit elements of both operands a k-tile has. A float32 element
// counts as two.
func (c *Config) tileElements(p *Problem, m, n int) int {
	if c.isF32x2(p) {
		return 2 * (m + n) * c.BlockK
	}
	return (m + n) * c.BlockK
}

// scalarCandidates varies the workgroup and how many rows and columns an invocation has.
func scalarCandidates(start Config) []Config {
	var all []Config
	for _, threads := range []int{64, 128, 256} {
		for _, threadsX := range []int{8, 16} {
			for _, rows := range []int{4, 8} {
				for _, columns := range []int{4, 8} {
					c := start
					c.Threads, c.ThreadsX = threads, threadsX
					c.BlockM, c.BlockN = threads/threadsX*rows, threadsX*columns
					c.Splits, c.Rows = 0, 0
					all = append(all, c)
				}
			}
		}
	}
	return all
}

// The time of a k-tile of the matrix path on an H200, for the order of candidates. The estimate is
// within 10 % of eight of ten times of prototypes at 4608 x 4608 x 4032 in TUNING.md.
const (
	peakFLOPs  = 640e12 / 132 // operations a second of a compute unit, operands in registers
	cacheBytes = 6.2e12 / 132 // bytes a second of operands from the L2 cache
	tileTime   = 2.5e-7       // barriers and stores to shared memory
	pieceBytes = 64           // memory is read in pieces of this size
)

// guess returns an estimate of the seconds of p with c: the estimate of splits.go, with the steps
// of the matrix path by tileTime and the rates above.
func (c *Config) guess(caps *vk.Caps, p *Problem) float64 {
	if caps.ComputeUnits == 0 {
		one := *caps
		one.ComputeUnits, caps = 1, &one
	}
	t := c.costs(caps, p)
	if c.Impl == CoopMat {
		m, n := c.Block(caps, p.DType)
		if units := int(caps.ComputeUnits); t.slots > units && 2*c.threads(caps)*c.registers(caps, p) > unitRegisters {
			t.slots = units
		}
		workgroups := float64(t.slots) / float64(caps.ComputeUnits)
		products := 2 * float64(m) * float64(n) * float64(c.BlockK)
		bytes := float64(c.lineBytes(p, m, !p.TransA) + c.lineBytes(p, n, p.TransB))
		if c.isF32x2(p) {
			products *= 3
		}
		t.step = (workgroups*max(products/peakFLOPs, bytes/cacheBytes) + tileTime) / float64(c.BlockK)
	}
	pieces, rows := c.pieces(caps, p)
	shared := 0
	if c.Splits > 1 {
		shared = t.blocks - c.Rows/rows*(t.blocks/pieces)
	}
	copied := 0.0
	if c.PackB { // op(B), read and written
		copied = 2 * float64(c.rightBytes(caps, p)) / (unitBytes * float64(caps.ComputeUnits))
	}
	return copied + t.estimate(shared, c.Splits, c.splitK(p.K))
}

// lineBytes returns the bytes that are read for a k-tile of that many rows of an operand. Its
// lines are along k or across it. Panels of f32x2 have no gaps.
func (c *Config) lineBytes(p *Problem, rows int, byK bool) int {
	if c.isF32x2(p) {
		return 4 * rows * c.BlockK
	}
	lines, length := rows, c.BlockK
	if !byK {
		lines, length = length, lines
	}
	return lines * ((2*length + pieceBytes - 1) / pieceBytes * pieceBytes)
}

// Variants returns the feasible configurations that differ from c in one choice that Candidates
// does not vary: how far ahead operands are loaded, whether operands are aligned and op(B) is
// packed, how many rows of blocks go together, how many workgroups divide k, and for path scalar
// the depth of a k-tile.
func Variants(caps *vk.Caps, p Problem, c Config) []Config {
	var all []Config
	add := func(v Config) {
		if v != c && !slices.Contains(all, v) && v.Feasible(caps, p) == nil {
			all = append(all, v)
		}
	}
	v := c
	if c.Impl == CoopMat {
		v.LoadAhead = 1 - min(c.LoadAhead, 1)
		add(v)
		v = c
		v.AlignRows = true
		if a, b := v.aligns(&p, &Options{}); a || b {
			v.AlignRows = !c.AlignRows
			add(v)
		}
		v = c
		v.PackB = !c.PackB
		add(v)
	} else {
		depths := []int{8, 16, 32}
		if c.Impl == GEMV {
			depths = []int{c.BlockK / 2, 2 * c.BlockK}
		}
		for _, v.BlockK = range depths {
			add(v)
		}
	}
	if c.Impl == GEMV {
		for _, v.Splits = range []int{1, 2, 3, 4, 6, 8} {
			if v.Fit(&p) == v {
				add(v)
			}
		}
		return all
	}
	v = c
	for _, v.GroupM = range []int{1, 4, 8, 16, 32} {
		add(v)
	}
	for _, v := range c.splitChoices(caps, &p) {
		add(v)
	}
	return all
}

// splitChoices returns c without splits, and with several numbers of splits: for the rows of c, and
// for the rows after all full waves, or after all full waves but one.
func (c Config) splitChoices(caps *vk.Caps, p *Problem) []Config {
	var all []Config
	add := func(splits, rows int) {
		v := c
		v.Splits, v.Rows = splits, rows
		if v.Fit(p) == v {
			all = append(all, v)
		}
	}
	add(1, 0)
	if c.Splits > 1 {
		add(c.Splits-1, c.Rows)
		add(c.Splits+1, c.Rows)
	}
	t := c.costs(caps, p)
	if t.slots == 0 {
		return all
	}
	pieces, rows := c.pieces(caps, p)
	for less := 1; less <= 2 && less <= t.rounds(t.blocks); less++ {
		kept := (t.rounds(t.blocks) - less) * t.slots / (t.blocks / pieces)
		for _, splits := range []int{2, 3, 4, 6, 8} {
			add(splits, kept*rows)
		}
	}
	return all
}
