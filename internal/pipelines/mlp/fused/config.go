package fused

import (
	"fmt"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
)

// A Config holds the tile sizes of gemm_pair.comp.
type Config struct {
	Subgroups int `word:"s%d"`           // of a workgroup, side by side along the columns of y
	TilesM    int `word:"t%dx%d TilesN"` // accumulators of a subgroup, for y
	TilesN    int
	HiddenM   int `word:"h%dx%d HiddenN"` // and for a chunk of hidden units
	HiddenN   int
	Shared    int  `word:"x%d"`         // columns of matrices of x in shared memory, at most
	Ahead     int  `word:"ahead%d"`     // matrices of the weights that a subgroup loads ahead
	LoadAhead int  `word:"loadahead%d"` // the most steps that left matrices are loaded ahead; 0: the compiler's choice
	Double    bool `word:"double"`      // a second chunk of hidden units in shared memory: one barrier less for each

	Splits int `word:"splits%d" least:"2"` // workgroups that share rows of y, with a part of the hidden units each: 0 leaves it to Choose, 1 is none
	Rows   int `word:"rows%d"`             // with Splits: rows of y from the first on that are not shared
}

// String names every choice, for tables; ParseConfig reads it.
func (c Config) String() string { return "pair " + table.Text(c) }

// ParseConfig reads what String returns.
func ParseConfig(text string) (Config, error) {
	words, ok := strings.CutPrefix(text, "pair ")
	if !ok {
		return Config{}, fmt.Errorf("fused: configuration %q does not begin with pair", text)
	}
	return table.Parse[Config]("fused", words)
}

// rows say which configuration the kernel takes: the first that is feasible of the device's family,
// or of any. A Tuning has no rows of it.
var rows = []struct {
	family string
	config Config
}{
	// Hopper, measured on an H200: 96 registers of an invocation for y, and all the shared
	// memory of a multiprocessor, which runs one such workgroup.
	{"hopper", Config{Subgroups: 8, TilesM: 3, TilesN: 4, HiddenM: 3, HiddenN: 1, Shared: 24, Ahead: 8}},

	// Small tiles: what lavapipe compiles grows with them, and takes seconds.
	{"lavapipe", Config{Subgroups: 2, TilesM: 2, TilesN: 2, HiddenM: 1, HiddenN: 1, Shared: 4, Ahead: 2}},

	// Any device: half of Hopper's rows.
	{"", Config{Subgroups: 8, TilesM: 2, TilesN: 4, HiddenM: 1, HiddenN: 1, Ahead: 4}},
}

// search returns the first row that is feasible, or the reason why the last one is not.
func search(caps *vk.Caps, p Problem) (c Config, err error) {
	for _, row := range rows {
		if row.family != "" && row.family != chips.Family(caps) {
			continue
		}
		if err = row.config.Feasible(caps, p); err == nil {
			return row.config, nil
		}
	}
	return c, err
}

// Feasible returns nil if c can compute p on a device, and otherwise the reason, which wraps
// vk.ErrUnsupported. Forward also asks the device whether left matrices hold elements where
// accumulators do.
func (c Config) Feasible(caps *vk.Caps, p Problem) error {
	if p.DType == dtype.Float32 {
		return unsupported("float32 matrices have no kernel")
	}
	shape, lack := chips.MatrixShape(caps, p.DType)
	m := int(shape.M)
	switch {
	case lack != "":
		return unsupported("%s", lack)
	case !caps.ScalarBlockLayout:
		return unsupported("the device has no scalar block layout")
	case shape.M != shape.N || m*m != 8*int(caps.SubgroupSize):
		return unsupported("matrices of %dx%d are not eight elements for each of %d invocations", shape.M, shape.N, caps.SubgroupSize)
	case c.Subgroups < 1 || c.TilesM < 1 || c.TilesN < 1 || c.HiddenM < 1 || c.HiddenN < 1 || c.Ahead < 1 || c.Shared < 0 || c.LoadAhead < 0:
		return unsupported("a tile size of %v is not positive", c)
	case c.TilesM%c.HiddenM != 0 || c.Subgroups%(c.TilesM/c.HiddenM) != 0:
		return unsupported("%d subgroups with %d rows of matrices are no grid of %d rows each", c.Subgroups, c.TilesM, c.HiddenM)
	case c.Ahead%c.TilesN != 0 || c.Ahead%c.HiddenN != 0:
		return unsupported("ahead%d is not a multiple of %d and %d columns of matrices", c.Ahead, c.TilesN, c.HiddenN)
	case c.chunkSteps()%(c.Ahead/c.TilesN) != 0:
		return unsupported("a chunk of %d steps is not a multiple of the %d that ahead%d is for", c.chunkSteps(), c.Ahead/c.TilesN, c.Ahead)
	case c.Shared%c.inSteps() != 0:
		return unsupported("x%d is not a multiple of the %d steps that ahead%d is for", c.Shared, c.inSteps(), c.Ahead)
	case c.Splits < 0 || c.Splits > engine.MaxSplits:
		return unsupported("splits%d is not from 0 to %d", c.Splits, engine.MaxSplits)
	case c.Rows < 0 || c.Rows%(c.TilesM*m) != 0:
		return unsupported("rows%d is not a multiple of the %d of a block", c.Rows, c.TilesM*m)
	case p.N > c.Subgroups*c.TilesN*m:
		return unsupported("n=%d is more than the %d columns of a workgroup", p.N, c.Subgroups*c.TilesN*m)
	}
	if err := argument.FitsWorkgroup("gemm", caps, engine.CoopMat, c.Subgroups*int(caps.SubgroupSize)); err != nil {
		return err
	}
	return argument.FitsShared("gemm", caps, engine.CoopMat, c.tileBytes(m, p))
}

// chunkSteps returns the columns of matrices of a chunk of hidden units.
func (c *Config) chunkSteps() int { return c.Subgroups / (c.TilesM / c.HiddenM) * c.HiddenN }

// inSteps returns how many steps of the first product are loaded ahead.
func (c *Config) inSteps() int { return c.Ahead / c.HiddenN }

// steps returns the steps of the first product, and how many of them have x in shared memory.
func (c *Config) steps(m int, p Problem) (steps, shared int) {
	unit := c.inSteps()
	steps = ((p.In+m-1)/m + unit - 1) / unit * unit
	return steps, min(steps, c.Shared)
}

// tileBytes is the shared memory of gemm_pair.comp.
func (c *Config) tileBytes(m int, p Problem) int {
	_, columns := c.steps(m, p)
	columns += c.chunkSteps()
	if c.Double {
		columns += c.chunkSteps()
	}
	strip := c.Subgroups * m * (m/4 + 1) * 16
	return max(columns*c.TilesM*m*m*2, strip)
}
