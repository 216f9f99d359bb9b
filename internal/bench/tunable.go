package bench

import (
	"fmt"

	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A Tuner is an Op with configurations to choose from.
type Tuner interface {
	Op
	// Use returns the Op with the rows of tuning, which may be nil.
	Use(tuning *kit.Tuning) Op
	// Tunables returns what can be tuned of a pass: the pass, or the products that it consists of
	// on the device. An error says what cannot be tuned. Caps are nil where there is no device;
	// the error is the same then.
	Tunables(caps *vk.Caps, p Pass) ([]Tunable, error)
}

// A Candidate is a configuration that a search tries, such as an attention.Config. Candidates are
// compared with ==.
type Candidate interface{ String() string }

// A Tunable is a pass of a problem with configurations to choose from. Choices implements it.
type Tunable interface {
	Op() Op
	Pass() Pass
	// Path returns the path of a candidate, as in --impl.
	Path(c Candidate) string
	// Candidates returns the configurations of a path that are worth measuring: the table's
	// choice first, then the most likely ones. The error wraps vk.ErrUnsupported if the device
	// does not have the path.
	Candidates(caps *vk.Caps, impl string) ([]Candidate, error)
	// Variants returns configurations that differ from c in a choice that Candidates does not
	// vary.
	Variants(caps *vk.Caps, c Candidate) []Candidate
	// With returns the Op with configuration c.
	With(c Candidate) Op
	// Row returns the row that gives c to problems like this one, as Go source, or "" if no table
	// has such rows. It has a fill unless that is 0. Fill is how much of a device the problem
	// fills with c, 0 if that is not known. Order returns numbers that sort rows as the table
	// needs them. Rows of equal numbers differ in fill only.
	Row(caps *vk.Caps, c Candidate, fill float64) string
	Fill(caps *vk.Caps, c Candidate) float64
	Order(c Candidate) []int
	// Keep adds c to the tuning of the device, with the device time of a call.
	Keep(t *kit.Tuning, c Candidate, ns float64) error
}

// Choices are configurations of type C of a pass of a problem of type P.
type Choices[P any, C Candidate] struct {
	Of   Op
	Side Pass // of Of, which is measured

	// The table and the problem that rows are kept for.
	Kernel     string
	KernelPass kit.Pass
	Problem    P

	PathOf func(c C) string
	List   func(caps *vk.Caps, impl string) ([]C, error)
	Vary   func(caps *vk.Caps, c C) []C
	Use    func(c C) Op
	Source func(caps *vk.Caps, c C, fill float64) string // nil: no table has rows
	FillOf func(caps *vk.Caps, c C) float64              // nil: not known
	Sort   func(c C) []int                               // nil: by path
}

// ChoicesOf returns the choices that the table of a kernel has for a pass of op, whose problem is p.
// Use returns op with a configuration.
func ChoicesOf[P any, C Candidate](kernel string, op Op, side Pass, p P, use func(c C) Op) *Choices[P, C] {
	space := table.SpaceOf[P, C](kernel, side.Kit())
	x := &Choices[P, C]{
		Of: op, Side: side, Kernel: kernel, KernelPass: side.Kit(), Problem: p, PathOf: space.Path, Use: use,
		List: func(caps *vk.Caps, impl string) ([]C, error) { return space.Candidates(caps, p, impl) },
		Vary: func(caps *vk.Caps, c C) []C { return space.Variants(caps, p, c) },
	}
	if space.Source != nil {
		x.Source = func(caps *vk.Caps, c C, fill float64) string { return space.Source(caps, p, c, fill) }
	}
	if space.Fill != nil {
		x.FillOf = func(caps *vk.Caps, c C) float64 { return space.Fill(caps, p, c) }
	}
	return x
}

// Op implements Tunable, like the methods that follow.
func (x *Choices[P, C]) Op() Op { return x.Of }

// Pass returns the pass.
func (x *Choices[P, C]) Pass() Pass { return x.Side }

// Path returns the path of c.
func (x *Choices[P, C]) Path(c Candidate) string { return x.PathOf(c.(C)) }

// Candidates returns the configurations that are worth measuring.
func (x *Choices[P, C]) Candidates(caps *vk.Caps, impl string) ([]Candidate, error) {
	list, err := x.List(caps, impl)
	return candidates(list), err
}

// Variants returns the variants of c.
func (x *Choices[P, C]) Variants(caps *vk.Caps, c Candidate) []Candidate {
	return candidates(x.Vary(caps, c.(C)))
}

// With returns the Op with c.
func (x *Choices[P, C]) With(c Candidate) Op { return x.Use(c.(C)) }

// Row returns a row of the built-in table.
func (x *Choices[P, C]) Row(caps *vk.Caps, c Candidate, fill float64) string {
	if x.Source == nil {
		return ""
	}
	return x.Source(caps, c.(C), fill)
}

// Fill returns how much of a device the problem fills.
func (x *Choices[P, C]) Fill(caps *vk.Caps, c Candidate) float64 {
	if x.FillOf == nil {
		return 0
	}
	return x.FillOf(caps, c.(C))
}

// Order sorts rows.
func (x *Choices[P, C]) Order(c Candidate) []int {
	if x.Sort == nil {
		return nil
	}
	return x.Sort(c.(C))
}

// Keep adds c to t.
func (x *Choices[P, C]) Keep(t *kit.Tuning, c Candidate, ns float64) error {
	if err := t.Add(x.Kernel, x.KernelPass, x.Problem, c.(C), ns); err != nil {
		return fmt.Errorf("bench: %v: %w", c, err)
	}
	return nil
}

// candidates returns configurations of any type as Candidates.
func candidates[C Candidate](list []C) []Candidate {
	all := make([]Candidate, len(list))
	for i, c := range list {
		all[i] = c
	}
	return all
}
