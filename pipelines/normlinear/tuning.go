package normlinear

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A Config says how rows of W are divided.
type Config struct {
	Threads int `word:"t%dx%d /Team" tune:"64 128 256 512"` // of a workgroup; the first number are its teams
	Team    int `tune:"16 32 64 128 256 512"`               // invocations that share rows of W, a power of two
	Loads   int `word:"rows%d" tune:"1 2 4 8"`              // rows of W of a team, half of them gates with GLU
	Steps   int `word:"steps%d" tune:"1 2 3 4 8"`           // vectors of 16 bytes of each that an invocation loads at once
}

// String names the choices in a few words, which ParseConfig reads.
func (c Config) String() string { return table.Text(c) }

// ParseConfig reads what Config.String writes, as in "t4x32 rows4 steps3".
func ParseConfig(text string) (Config, error) { return table.Parse[Config]("normlinear", text) }

const (
	vecBytes  = 16  // of a vector of shaders/lib/vec16.glsl
	mostSums  = 128 // of an invocation, which are in registers
	mostLoads = 16  // vectors of W of an invocation, likewise
)

// together returns how many sums of an invocation meet at a time.
func (c *Config) together() int { return min(8, c.Team) }

// blocks returns how many workgroups have something to do.
func (c *Config) blocks(p *Problem) int {
	of := c.Threads / c.Team * c.Loads
	return (p.WRows() + of - 1) / of
}

// Feasible returns nil if the device can run c for p, and otherwise an error that wraps vk.ErrUnsupported.
func (c Config) Feasible(caps *vk.Caps, p Problem) error {
	unsupported := func(format string, args ...any) error { return argument.Unsupported("normlinear", format, args...) }
	sums := p.Rows * (c.Loads + 1)
	switch {
	case c.Threads < 1 || c.Team < 1 || c.Loads < 1 || c.Steps < 1:
		return unsupported("a tile size of %v is not positive", c)
	case c.Team&(c.Team-1) != 0 || c.Threads%c.Team != 0:
		return unsupported("%d invocations are not teams of %d, a power of two", c.Threads, c.Team)
	case p.GLU && c.Loads%2 != 0:
		return unsupported("rows=%d of W are not gates and as many others", c.Loads)
	case sums > mostSums || c.Steps*c.Loads > mostLoads:
		return unsupported("%d sums and %d vectors of an invocation are more than %d and %d", sums, c.Steps*c.Loads, mostSums, mostLoads)
	}
	if err := argument.Storage("normlinear", caps, p.DType, p.YDType()); err != nil {
		return err
	}
	if err := argument.FitsWorkgroup("normlinear", caps, path, c.Threads); err != nil {
		return err
	}
	shared := c.together()*(c.Threads+c.Team/c.together()) + c.Threads/c.Team*sums
	return argument.FitsShared("normlinear", caps, path, 4*shared)
}

// onlyPath is the single path.
type onlyPath struct{}

func (onlyPath) String() string { return "auto" }

var path onlyPath

func query(tuning *kit.Tuning) table.Query[Config] {
	return table.Query[Config]{Path: path.String(), Tuning: tuning}
}

// A shape has the sizes that a row matches.
type shape struct {
	in int // up to this; 0 matches any
}

// Has implements table.Shape.
func (s shape) Has(p *Problem) bool { return s.in == 0 || p.In <= s.in }

var configs = table.New(table.Table[Problem, Config, shape]{
	Kernel: "normlinear", Pass: kit.Forward, Paths: []string{path.String()}, Family: chips.Family, Rows: rows,
	Format:   func(p *Problem) dtype.DType { return p.DType },
	Path:     func(*Config) string { return path.String() },
	Feasible: func(c *Config, caps *vk.Caps, p *Problem) error { return c.Feasible(caps, *p) },
	Blocks:   func(c *Config, _ *vk.Caps, p *Problem) int { return c.blocks(p) },
	None: func(string, *Problem) error {
		return argument.Unsupported("normlinear", "no tile sizes fit")
	},
	Candidates: func(_ *vk.Caps, _ Problem, start Config) []Config {
		return table.ByDistance(table.Grid(start, path.String()), start)
	},
	Variants: func(*vk.Caps, Problem, Config) []Config { return nil },
	Likeness: func(p *Problem) table.Likeness {
		kind := *p
		kind.In, kind.Out, kind.Eps = 0, 0, 0
		return table.Likeness{Kind: kind, Sizes: [4]table.Size{{N: float64(p.In), Enough: 1 << 13}, {N: float64(p.Out), Enough: 1 << 16}}}
	},
	Module:   func(p *Problem, _ *Config) string { return shaders.Hash(p.DType.Short(), "normlinear") },
	Validate: func(p *Problem) error { return p.Validate() },
})

// rows are searched in order; the first feasible match wins. They were measured on an H200 (bench/results/h200/2026_11_29): one vector of
// each row of W at a time is fastest, since the kernel has more teams then; short rows have a subgroup each where there are
// many, and eight rows of a team, not four, read x less often where that makes enough workgroups.
func rows() []table.Row[shape, Config] {
	words := table.Must[Config]
	return []table.Row[shape, Config]{
		{Fill: 8, Shape: shape{1024}, Config: words("t4x32 rows8 steps1")},
		{Fill: 4, Shape: shape{}, Config: words("t1x128 rows8 steps1")},
		{Config: words("t1x128 rows4 steps1")},
	}
}
