package table

import (
	"fmt"

	"github.com/flashvk/flashvk/vk"
)

// A Space is what a tuner searches: the configurations of a Table that are worth measuring for a
// problem. All are feasible.
type Space[P, C any] struct {
	// Candidates returns configurations of a path. The first is the table's choice; the likeliest
	// follow, so that a search that runs out of time has seen them. The error wraps
	// vk.ErrUnsupported if the device does not have the path.
	Candidates func(caps *vk.Caps, p P, path string) ([]C, error)

	// Variants returns configurations that differ from c in a choice that Candidates does not
	// vary.
	Variants func(caps *vk.Caps, p P, c C) []C

	// Source returns the row of the table that gives c to problems like p on devices like caps, as
	// Go source. If fill is not 0, the row has it. Nil: the table has no rows.
	Source func(caps *vk.Caps, p P, c C, fill float64) string

	// Path and Fill are those of the Table, which sets them: the path of c, and the blocks of p
	// with c per compute unit, 0 if the driver does not report the number of units. Fill is nil if
	// the table does not count blocks.
	Path func(c C) string
	Fill func(caps *vk.Caps, p P, c C) float64
}

// spaces has a *Space for each table that has one.
var spaces = map[[2]string]any{}

// AddSpace makes the Space of t known to SpaceOf, and returns it. Packages call it in their
// initialization.
func (t *Table[P, C, S]) AddSpace(s Space[P, C]) *Space[P, C] {
	s.Path = func(c C) string { return t.Path(&c) }
	if t.Blocks != nil {
		s.Fill = func(caps *vk.Caps, p P, c C) float64 { return Fill(caps, t.Blocks(&c, caps, &p)) }
	}
	spaces[[2]string{t.Kernel, t.Pass.String()}] = &s
	return &s
}

// SpaceOf returns the Space of a pass of a kernel, whose package must be linked. It panics if there
// is none with problems P and configurations C.
func SpaceOf[P, C any](kernel string, pass fmt.Stringer) *Space[P, C] {
	return spaces[[2]string{kernel, pass.String()}].(*Space[P, C])
}
