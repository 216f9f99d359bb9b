// Package table has the tables from which kernel packages choose their configurations: built-in
// rows, and rows that a user measured on a device.
package table

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// A Table says which configuration a pass of a kernel takes: the rows of the user's [Tuning], then
// the built-in rows or a rule. Kernel packages have one table for each pass. P is their problem, C
// their configuration, and S the sizes and options that rows match besides family, format and fill.
// New makes one.
//
//	                        a row matches if
//	Row.Family              the device is of one of these families
//	Row.Formats             the problem has one of these formats
//	Row.Shape               the problem has these sizes and options
//	Row.Fill, Row.Most      the problem has at least, and at most, this many blocks per compute unit
//
// Rows are searched in order; the first of a path that matches and is feasible wins.
type Table[P, C comparable, S Shape[P]] struct {
	Kernel string       // as the program names it: attention
	Pass   fmt.Stringer // a kit.Pass
	Paths  []string     // the names of paths in rows and in Options.Impl
	Manual string       // the path that is taken only if it is asked for; "": none
	Family func(caps *vk.Caps) string

	Rows func() []Row[S, C]
	Rule func(caps *vk.Caps, p *P, path string) (C, error) // instead of Rows

	Format   func(p *P) dtype.DType
	Path     func(c *C) string
	Feasible func(c *C, caps *vk.Caps, p *P) error // the only statement of what kernels demand
	Blocks   func(c *C, caps *vk.Caps, p *P) int   // the blocks of p with c, for Row.Fill; nil if no row has one
	None     func(path string, p *P) error         // the error if no row of a path matches

	EveryReason bool // errors have the reasons of all paths, not only of the last

	// Fit returns c with the choices that follow from the sizes of p, such as the number of
	// workgroups that divide a block. Measured says that c was measured on other sizes, so that its
	// own number does not hold for p. Nil: there are none.
	Fit func(c C, caps *vk.Caps, p *P, measured bool) C

	// For a Space. Candidates returns configurations of the path of start, which the table takes,
	// the likeliest first, and Variants some that differ from c in one choice; they may be
	// infeasible, and occur twice.
	Candidates func(caps *vk.Caps, p P, start C) []C
	Variants   func(caps *vk.Caps, p P, c C) []C

	// For a Tuning. Likeness says which problems a measurement stands for. Same reports whether two
	// problems differ only in ways that no kernel depends on (nil: ==). Module is a hash of the
	// kernels; a row with another hash must be measured again. Large names the fields of C that may
	// be above 65536.
	Likeness func(p *P) Likeness
	Same     func(a, b *P) bool
	Module   func(p *P, c *C) string
	Large    []string
	Validate func(p *P) error
}

// A Shape is the sizes and options that a row matches; the zero value matches all.
type Shape[P any] interface{ Has(p *P) bool }

// A Row is a row of a Table: the problems that it matches, and their configuration.
type Row[S, C any] struct {
	Family  string  // "" matches any; several are separated by spaces
	Formats Formats // 0 matches any
	Shape   S

	// Fill is the least number of blocks per compute unit of the device; 0 matches any. Large
	// blocks share more work, but few blocks leave units idle. A device that does not report its
	// number of units counts as full.
	Fill float64
	// Most is the most blocks per compute unit; 0 matches any. Blocks that just fill a device once win there.
	Most float64

	Config C
}

// Formats is a set of element formats.
type Formats uint8

// The sets that rows use.
const (
	OfFloat16  Formats = 1 << dtype.Float16
	OfBFloat16 Formats = 1 << dtype.BFloat16
	OfFloat32  Formats = 1 << dtype.Float32
	Of16Bits   Formats = OfFloat16 | OfBFloat16
)

var formatNames = map[Formats]string{OfFloat16: "OfFloat16", OfBFloat16: "OfBFloat16", OfFloat32: "OfFloat32", Of16Bits: "Of16Bits"}

// New returns t and makes it known to [Load] and [SpaceOf]. Packages call it in their
// initialization. Rows is called once, when they are needed first.
func New[P, C comparable, S Shape[P]](t Table[P, C, S]) *Table[P, C, S] {
	t.Rows = sync.OnceValue(t.Rows)
	register(t.Kernel, t.Pass, &t)
	return &t
}

// A Query is the question of a call to a Table.
type Query[C any] struct {
	Path   string           // the one path that is asked for; "": the first of Auto that has a configuration
	Auto   []string         // paths in their order
	Tuning *Tuning          // nil is none
	More   func(c *C) error // further demands of the call; nil: none
	Blocks func(c *C) int   // replaces Table.Blocks, unless nil
	NoFit  bool             // do not call Table.Fit for a built-in row
}

// An Origin says where a configuration comes from.
type Origin struct {
	// Tuned says that the configuration is of Options.Tuning; otherwise it is built in.
	Tuned bool
	// Passed is the reason why the nearest row of Options.Tuning for the path did not count: the
	// device or the call cannot run it. Nil if there was no such row.
	Passed error
}

// Choose returns the configuration of a call for p on a device, and its origin.
//
// With a path the configuration is the nearest row of q.Tuning, or else the built-in one. Without a
// path the first path of q.Auto with a built-in configuration decides; another path comes before
// that path only if both were measured on the same problem, and the other was faster.
//
// The error says why no built-in configuration is feasible: the reason of the last path, or of all
// paths if t.EveryReason.
func (t *Table[P, C, S]) Choose(caps *vk.Caps, p *P, q Query[C]) (C, Origin, error) {
	if q.Path != "" {
		row, origin := t.nearest(caps, p, &q, q.Path)
		if row != nil {
			return t.fit(row, caps, p), origin, nil
		}
		c, err := t.builtIn(caps, p, &q, q.Path)
		return c, origin, err
	}
	var errs []error
	for _, path := range q.Auto {
		c, err := t.builtIn(caps, p, &q, path)
		if err == nil && q.Tuning == nil {
			return c, Origin{}, nil
		}
		if err == nil {
			c, origin := t.reorder(caps, p, &q, c)
			return c, origin, nil
		}
		if !t.EveryReason {
			errs = errs[:0]
		}
		errs = append(errs, err)
	}
	var none C
	if len(errs) == 1 {
		return none, Origin{}, errs[0]
	}
	return none, Origin{}, errors.Join(errs...)
}

// builtIn returns the configuration of a path without q.Tuning.
func (t *Table[P, C, S]) builtIn(caps *vk.Caps, p *P, q *Query[C], path string) (C, error) {
	if t.Rule != nil {
		return t.Rule(caps, p, path)
	}
	row, err := t.Find(caps, p, q, path)
	if err != nil {
		var none C
		return none, err
	}
	c := row.Config
	if t.Fit != nil && !q.NoFit {
		c = t.Fit(c, caps, p, false)
	}
	return c, nil
}

// Find returns the first row of a path that matches and is feasible, or the reason why the last
// matching row is not feasible.
func (t *Table[P, C, S]) Find(caps *vk.Caps, p *P, q *Query[C], path string) (*Row[S, C], error) {
	family, format := t.Family(caps), t.Format(p)
	var err error
	rows := t.Rows()
	for i := range rows {
		row := &rows[i]
		if t.Path(&row.Config) != path || !row.matches(family, format) || !row.Shape.Has(p) || !t.fills(row, caps, p, q) {
			continue
		}
		if err = t.check(&row.Config, caps, p, q); err == nil {
			return row, nil
		}
	}
	if err == nil {
		err = t.None(path, p)
	}
	return nil, err
}

// matches reports whether the row is for devices of a family and problems of a format.
func (r *Row[S, C]) matches(family string, format dtype.DType) bool {
	return (r.Formats == 0 || r.Formats&(1<<format) != 0) && (r.Family == "" || OneOf(family, r.Family))
}

// OneOf reports whether name is in a list separated by spaces.
func OneOf(name, list string) bool {
	for word := range strings.SplitSeq(list, " ") {
		if word == name {
			return true
		}
	}
	return false
}

// fills reports whether p makes as many blocks as the row wants, and no more.
func (t *Table[P, C, S]) fills(row *Row[S, C], caps *vk.Caps, p *P, q *Query[C]) bool {
	if row.Fill == 0 && row.Most == 0 || caps.ComputeUnits == 0 {
		return row.Most == 0
	}
	blocks := 0
	if q.Blocks != nil {
		blocks = q.Blocks(&row.Config)
	} else {
		blocks = t.Blocks(&row.Config, caps, p)
	}
	fill := Fill(caps, blocks)
	return fill >= row.Fill && (row.Most == 0 || fill <= row.Most)
}

// check returns why a configuration cannot run for p, nil if it can: the one rule for built-in rows
// and for rows of users.
func (t *Table[P, C, S]) check(c *C, caps *vk.Caps, p *P, q *Query[C]) error {
	if err := t.Feasible(c, caps, p); err != nil || q.More == nil {
		return err
	}
	return q.More(c)
}

// Fill returns how many of some blocks each compute unit of a device has, 0 if the driver does not
// tell their number: what a row wants as its Fill.
func Fill(caps *vk.Caps, blocks int) float64 {
	if caps.ComputeUnits == 0 {
		return 0
	}
	return float64(blocks) / float64(caps.ComputeUnits)
}
