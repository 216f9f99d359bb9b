// Package table has what kernel packages choose their configurations from: tables of rows, and what
// a user measured on a device.
package table

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// A Table says which configuration a pass of a kernel takes: rows that are built in, or a rule,
// and before them the rows of the user's [Tuning]. Kernel packages have one for each pass; P is
// their problem, C their configuration, and S what rows say of problems beside family, format
// and fill. New makes one.
//
//	                        a row matches if
//	Row.Family              the device is of one of these families
//	Row.Formats             the problem is of one of these formats
//	Row.Shape               its sizes and options are those of the row
//	Row.Fill                it makes so many blocks for each compute unit
//
// Rows are searched in order; the first of a path that matches and is feasible wins.
type Table[P, C comparable, S Shape[P]] struct {
	Kernel string       // as the program names it: attention
	Pass   fmt.Stringer // a kit.Pass
	Paths  []string     // those that rows and Options.Impl name
	Manual string       // the one of them that is never taken unless it is asked for; "": none
	Family func(caps *vk.Caps) string

	Rows []Row[S, C]
	Rule func(caps *vk.Caps, p *P, path string) (C, error) // instead of Rows

	Format   func(p *P) dtype.DType
	Path     func(c *C) string
	Feasible func(c *C, caps *vk.Caps, p *P) error // the only statement of what kernels demand
	Blocks   func(c *C, caps *vk.Caps, p *P) int   // that c divides p into, for Row.Fill; nil where no row has one
	None     func(path string, p *P) error         // says that no row of a path matches

	EveryReason bool // errors have the reasons of all paths, not only of the last

	// Fit returns c with what follows from the sizes of p, as among how many workgroups a block
	// is divided. Measured says that c was measured on other sizes, so that its own number is
	// not for p. Nil: nothing does.
	Fit func(c C, caps *vk.Caps, p *P, measured bool) C

	// What a Tuning must know. Likeness says which problems a measurement is for; Same reports
	// whether two are one but for what no kernel depends on (nil: ==). Module is a hash of the
	// kernels: one that has changed since has to be measured anew. Large names the fields of C
	// that may be above 65536, Former those that C had, which files may have still and which say nothing.
	// Encode and Decode are the JSON of a problem (nil: its fields by name).
	Likeness func(p *P) Likeness
	Same     func(a, b *P) bool
	Module   func(p *P, c *C) string
	Large    []string
	Former   []string
	Encode   func(p *P) any
	Decode   func(data []byte) (P, error)
	Validate func(p *P) error
}

// A Shape is what a row says of the problems that it is for: the zero value is any of them.
type Shape[P any] interface{ Has(p *P) bool }

// A Row is a row of a Table: the problems that it matches, and what runs for them.
type Row[S, C any] struct {
	Family  string  // "" matches any; several are separated by spaces
	Formats Formats // 0 matches any
	Shape   S

	// Fill is how many blocks the problem makes at least for each compute unit of the device;
	// 0 matches any. Large blocks share more work, but a problem that makes few of them leaves
	// units idle. A driver that does not tell the number of its units is taken to be full.
	Fill float64

	Config C
}

// Formats is a set of formats of elements.
type Formats uint8

// Those that rows speak of.
const (
	OfFloat16  Formats = 1 << dtype.Float16
	OfBFloat16 Formats = 1 << dtype.BFloat16
	OfFloat32  Formats = 1 << dtype.Float32
	Of16Bits   Formats = OfFloat16 | OfBFloat16
)

// New registers t, so that [Load] reads its rows, and returns it. Packages call it as they are
// initialized.
func New[P, C comparable, S Shape[P]](t Table[P, C, S]) *Table[P, C, S] {
	register(t.Kernel, t.Pass, &t)
	return &t
}

// A Query is what a call asks of a Table.
type Query[C any] struct {
	Path   string           // the one path that is asked for; "": the first of Auto that has a configuration
	Auto   []string         // paths in their order
	Tuning *Tuning          // nil is none
	More   func(c *C) error // what the call demands beside Table.Feasible; nil: nothing
	Blocks func(c *C) int   // instead of Table.Blocks; nil: those
	NoFit  bool             // what is built in is wanted as rows have it, without Table.Fit
}

// An Origin is a kit.Origin.
type Origin struct {
	Tuned  bool
	Passed error
}

// Choose returns the configuration that a call takes for p on a device, and where it comes from.
//
// With a path it is the nearest row of q.Tuning, or else what is built in. Without, the first
// path of q.Auto counts for which something is built in, and the order of paths changes only for
// one that was measured beside that, on the same problem, and was faster.
//
// An error says why nothing built in does: of the last path, or of all if t.EveryReason.
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
// one that matches is not.
func (t *Table[P, C, S]) Find(caps *vk.Caps, p *P, q *Query[C], path string) (*Row[S, C], error) {
	family, format := t.Family(caps), t.Format(p)
	var err error
	for i := range t.Rows {
		row := &t.Rows[i]
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
	if name == "" {
		return false
	}
	for word := ""; list != ""; {
		if word, list, _ = strings.Cut(list, " "); word == name {
			return true
		}
	}
	return false
}

// fills reports whether p makes as many blocks as the row wants.
func (t *Table[P, C, S]) fills(row *Row[S, C], caps *vk.Caps, p *P, q *Query[C]) bool {
	if row.Fill == 0 || caps.ComputeUnits == 0 {
		return true
	}
	blocks := 0
	if q.Blocks != nil {
		blocks = q.Blocks(&row.Config)
	} else {
		blocks = t.Blocks(&row.Config, caps, p)
	}
	return float64(blocks) >= row.Fill*float64(caps.ComputeUnits)
}

// check returns why a configuration cannot run for p, nil if it can: the one rule for rows that
// are built in and for those of users.
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

// has reports whether rows may name a path.
func (t *Table[P, C, S]) has(path string) bool { return slices.Contains(t.Paths, path) }

// SourceRow returns a row of a Table as Go source, up to its configuration. Family, formats and
// shape are left out if they are empty, and so is a fill of 0, which is rounded down: the row is
// for the problem that it was measured on, too.
func SourceRow(family, formats, shape string, fill float64) string {
	var b strings.Builder
	b.WriteString("{")
	if family != "" {
		fmt.Fprintf(&b, "Family: %q, ", family)
	}
	if formats != "" {
		fmt.Fprintf(&b, "Formats: %s, ", formats)
	}
	if shape != "" {
		fmt.Fprintf(&b, "Shape: %s, ", shape)
	}
	if fill != 0 {
		fmt.Fprintf(&b, "Fill: %v, ", math.Floor(fill*100)/100)
	}
	b.WriteString("Config: ")
	return b.String()
}
