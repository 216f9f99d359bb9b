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

// A Tunable is a pass of a problem with configurations to choose from. Choices makes it.
type Tunable struct {
	Op   Op
	Pass Pass
	// Path returns the path of a candidate, as in --impl.
	Path func(c Candidate) string
	// Candidates and Variants are those of table.Space.
	Candidates func(caps *vk.Caps, impl string) ([]Candidate, error)
	Variants   func(caps *vk.Caps, c Candidate) []Candidate
	// With returns the Op with configuration c.
	With func(c Candidate) Op
	// Row returns the row that gives c to problems like this one, as Go source, or "" if no table
	// has such rows. It has a fill unless that is 0. Fill is how much of a device the problem
	// fills with c, 0 if that is not known. Order returns numbers that sort rows as the table
	// needs them. Rows of equal numbers differ in fill only.
	Row   func(caps *vk.Caps, c Candidate, fill float64) string
	Fill  func(caps *vk.Caps, c Candidate) float64
	Order func(c Candidate) []int
	// Keep adds c to the tuning of the device, with the device time of a call.
	Keep func(t *kit.Tuning, c Candidate, ns float64) error
}

// Choices are configurations of type C of a pass of a problem of type P. Of the Space, Source and
// Fill may be nil.
type Choices[P any, C Candidate] struct {
	table.Space[P, C]
	Of   Op
	Side Pass // of Of, which is measured

	// The table and the problem that rows are kept for.
	Kernel     string
	KernelPass kit.Pass
	Problem    P

	Use  func(c C) Op    // returns Of with c
	Sort func(c C) []int // nil: by path
}

// ChoicesOf returns the choices that the table of a kernel has for a pass of op, whose problem is p.
// Use returns op with a configuration.
func ChoicesOf[P any, C Candidate](kernel string, op Op, side Pass, p P, use func(c C) Op) *Choices[P, C] {
	return &Choices[P, C]{
		Space: *table.SpaceOf[P, C](kernel, side.Kit()), Of: op, Side: side, Kernel: kernel, KernelPass: side.Kit(), Problem: p, Use: use,
	}
}

// Tunable returns the choices without their types.
func (x *Choices[P, C]) Tunable() Tunable {
	return Tunable{
		Op: x.Of, Pass: x.Side,
		Path: func(c Candidate) string { return x.Path(c.(C)) },
		Candidates: func(caps *vk.Caps, impl string) ([]Candidate, error) {
			list, err := x.Candidates(caps, x.Problem, impl)
			return candidates(list), err
		},
		Variants: func(caps *vk.Caps, c Candidate) []Candidate { return candidates(x.Variants(caps, x.Problem, c.(C))) },
		With:     func(c Candidate) Op { return x.Use(c.(C)) },
		Row: func(caps *vk.Caps, c Candidate, fill float64) string {
			if x.Source == nil {
				return ""
			}
			return x.Source(caps, x.Problem, c.(C), fill)
		},
		Fill: func(caps *vk.Caps, c Candidate) float64 {
			if x.Fill == nil {
				return 0
			}
			return x.Fill(caps, x.Problem, c.(C))
		},
		Order: func(c Candidate) []int {
			if x.Sort == nil {
				return nil
			}
			return x.Sort(c.(C))
		},
		Keep: func(t *kit.Tuning, c Candidate, ns float64) error {
			if err := t.Add(x.Kernel, x.KernelPass, x.Problem, c.(C), ns); err != nil {
				return fmt.Errorf("bench: %v: %w", c, err)
			}
			return nil
		},
	}
}

// candidates returns configurations of any type as Candidates.
func candidates[C Candidate](list []C) []Candidate {
	all := make([]Candidate, len(list))
	for i, c := range list {
		all[i] = c
	}
	return all
}
