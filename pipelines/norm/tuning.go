package norm

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// The tables of the passes have a rule instead of rows: the best configuration follows from the
// length of a row and from the device.
var (
	fwdTable = newTable(kit.Forward)
	bwdTable = newTable(kit.Backward, "sum_rows")
)

// onlyPath is the name of norm's single path.
const onlyPath = "auto"

// manyRows are enough for any device.
const manyRows = 1 << 16

func newTable(pass kit.Pass, more ...string) *table.Table[Problem, Config, anyShape] {
	return table.New(table.Table[Problem, Config, anyShape]{
		Kernel: "norm", Pass: pass, Paths: []string{onlyPath}, Family: chips.Family, Rule: rule,
		Format:     func(p *Problem) dtype.DType { return p.DType },
		Path:       func(*Config) string { return onlyPath },
		Feasible:   func(c *Config, caps *vk.Caps, p *Problem) error { return c.Feasible(caps, *p) },
		Candidates: candidates, Variants: func(_ *vk.Caps, _ Problem, c Config) []Config { return variants(pass, c) },
		Likeness: func(p *Problem) table.Likeness {
			kind := *p // the length of a row decides: rows of other lengths are not alike
			kind.Rows, kind.Eps = 0, 0
			return table.Likeness{Kind: kind, Sizes: [4]table.Size{{N: float64(p.Rows), Enough: manyRows}}}
		},
		Module: func(p *Problem, _ *Config) string {
			return shaders.Hash(p.DType.Short(), append([]string{p.kernel(pass)}, more...)...)
		},
		Validate: func(p *Problem) error { return p.Validate() },
	})
}

// anyShape is the shape of rows of a table without rows.
type anyShape struct{}

// Has implements table.Shape.
func (anyShape) Has(*Problem) bool { return true }

// rule returns how rows are shared: in the registers of a subgroup if they fit, else in the registers of
// the smallest workgroup that holds them, else from memory.
func rule(caps *vk.Caps, p *Problem, _ string) (Config, error) {
	n := vecs(p)
	size := max(int(caps.SubgroupSize), 1) // Feasible refuses a device without
	c := Config{Threads: max(threads, size), SubgroupTeam: true, Loads: min((n+size-1)/size, maxLoads), Rows: 1, Ahead: true, Groups: 4}
	if c.Feasible(caps, *p) == nil {
		return c, nil
	}
	c.SubgroupTeam = false
	for c.Threads = leastThreads; ; c.Threads *= 2 {
		c.Groups = 4 * max(threads/c.Threads, 1)
		c.Loads = min((n+c.Threads-1)/c.Threads, maxLoads)
		if c.Feasible(caps, *p) == nil {
			return c, nil
		}
		larger := c
		if larger.Threads, larger.Loads = 2*c.Threads, 0; larger.Feasible(caps, *p) != nil {
			break
		}
	}
	c.Loads = 0
	return c, c.Feasible(caps, *p)
}

// candidates returns configurations that are worth measuring for p on a device: workgroups of other
// sizes, rows for a subgroup or for a workgroup, and rows kept in registers or read again. Function
// variants returns more.
func candidates(caps *vk.Caps, p Problem, start Config) (all []Config) {
	n := vecs(&p)
	for _, threads := range []int{64, 128, 256, 512, 1024} {
		for _, c := range []Config{
			{Threads: threads, SubgroupTeam: true, Rows: 1}, {Threads: threads, SubgroupTeam: true, Rows: 2},
			{Threads: threads, SubgroupTeam: true, Rows: 4}, {Threads: threads, Rows: 1},
		} {
			c.Ahead, c.Groups = start.Ahead, 4*max(256/threads, 1)
			if c.Loads = (n + c.team(caps) - 1) / c.team(caps); c.Loads > maxLoads {
				c.Loads = 0
			}
			all = append(all, c)
			if !c.SubgroupTeam {
				c.Loads = 0
				all = append(all, c)
			}
		}
	}
	return all
}

// variants returns the configurations that differ from c in one choice that candidates does not
// vary: whether weights stay in registers and, in the backward pass, whether the next row is loaded
// ahead and how many workgroups there are.
func variants(pass kit.Pass, c Config) []Config {
	all := table.Changed(c, "")
	for i := range all {
		if pass == kit.Forward {
			all[i].Ahead, all[i].Groups = c.Ahead, c.Groups
		}
	}
	return all
}
