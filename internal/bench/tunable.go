package bench

import (
	"fmt"

	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A Tuner is an Op with configurations to choose from.
type Tuner interface {
	Op
	// Use returns the Op with the rows of tuning, which may be nil, before those of the built-in
	// tables.
	Use(tuning *kit.Tuning) Op
	// Tunables returns what a pass has to choose: itself, or products that it is made of, which
	// follow from the device. An error says what cannot be tuned; it comes without a device, too,
	// whose caps are nil then.
	Tunables(caps *vk.Caps, p Pass) ([]Tunable, error)
}

// A Candidate is a configuration that a search tries: an attention.Config, or the like of
// another kernel. Those that are == are the same.
type Candidate interface{ String() string }

// A Tunable is a pass of a problem with configurations to choose from. Choices is the one there is.
type Tunable interface {
	Op() Op
	Pass() Pass
	// Path returns that of a candidate, as --impl has it.
	Path(c Candidate) string
	// Candidates returns what is worth measuring of a path, what the table takes first, then
	// the most likely. The error wraps vk.ErrUnsupported if the device does not have the path.
	Candidates(caps *vk.Caps, impl string) ([]Candidate, error)
	// Variants returns configurations that are like c, but for what Candidates does not vary.
	Variants(caps *vk.Caps, c Candidate) []Candidate
	// With returns the same with configuration c instead of the table's.
	With(c Candidate) Op
	// Row returns the row that gives c to problems like this one, as Go source, with a fill
	// unless that is 0; "" if no table has such rows. Fill is how much of a device this one fills
	// with c, 0 if that is not known. Order is a number for each column, which sorts rows as the
	// table wants them: those of equal numbers differ in fill only.
	Row(caps *vk.Caps, c Candidate, fill float64) string
	Fill(caps *vk.Caps, c Candidate) float64
	Order(c Candidate) []int
	// Keep adds c to what the device is tuned to, with the device time of a call.
	Keep(t *kit.Tuning, c Candidate, ns float64) error
}

// Choices are configurations of type C of a pass of a problem of type P.
type Choices[P any, C Candidate] struct {
	Of   Op
	Side Pass // of Of, which is measured

	// What rows are kept for: a table, and the problem that it is asked about.
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

// Op implements Tunable, as all that follow.
func (x *Choices[P, C]) Op() Op { return x.Of }

// Pass returns the pass.
func (x *Choices[P, C]) Pass() Pass { return x.Side }

// Path returns the path of c.
func (x *Choices[P, C]) Path(c Candidate) string { return x.PathOf(c.(C)) }

// Candidates returns what is worth measuring.
func (x *Choices[P, C]) Candidates(caps *vk.Caps, impl string) ([]Candidate, error) {
	list, err := x.List(caps, impl)
	return candidates(list), err
}

// Variants returns what is like c.
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
