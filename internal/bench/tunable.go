package bench

import (
	"fmt"

	"github.com/flashvk/flashvk/internal/bench/sheet"
	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk/kit"
)

// A Candidate is a configuration that a search tries, such as an attention.Config. Candidates are
// compared with ==.
type Candidate = table.Config

// A Tunable is a pass of a problem with configurations to choose from.
type Tunable struct {
	table.Space
	Op   Op
	Pass Pass
	With func(c Candidate) Op // returns the Op with c
}

// Keep adds c to the tuning of the device, with the device time of a call.
func (t *Tunable) Keep(to *kit.Tuning, c Candidate, ns float64) error {
	if err := t.Space.Keep(to, c, ns); err != nil {
		return fmt.Errorf("bench: %v: %w", c, err)
	}
	return nil
}

// Sheet returns the trials for people: those that were timed, the best first, then those that
// failed.
func (t *Tuned) Sheet() sheet.Sheet {
	var s sheet.Section
	s.Add("problem", "%s", Title(t.Of.Op, t.Of.Pass))
	s.Add("*", "what the built-in table takes")
	s.Add("time", "device time per call, median; for finalists %s", IntervalWords)
	s.Add("kernel", "registers and spilled bytes per invocation, shared memory per workgroup, as the driver says")
	s.Facts[len(s.Facts)-1].Wide = true
	for i, name := range []string{"configuration", "time", "±", "rate", "registers", "spilled", "shared", "code", "compiled in", "max|Δ|"} {
		s.Columns = append(s.Columns, sheet.Column{Name: name, Number: i > 0, Wide: 4 <= i && i < 9})
	}
	for i := range t.Trials {
		x := &t.Trials[i]
		switch {
		case x.Status == StatusUnsupported:
			s.Note("%s was left out: %s", x.Choice, text.Line(x.Reason))
		case x.Status == StatusFailed:
			s.Note("%s FAILED: %s", x.Choice, text.Line(x.Reason))
		case x.NS() > 0:
			name := x.Choice
			if x.Table {
				name += " *"
			}
			row := []string{name, FormatTime(x.NS()), Summarize(x.Timing.DeviceNS).PlusMinus(), FormatSI(x.Subject.flops/x.NS()*1e9, "FLOP/s"), "-", "-", "-", "-"}
			if s := x.Stats; s.Available {
				row = append(row[:4], fmt.Sprint(s.Registers), fmt.Sprint(s.SpillBytes), fmt.Sprint(s.SharedBytes), FormatBytes(s.CodeBytes))
			}
			s.Rows = append(s.Rows, append(row, FormatTime(float64(x.Stats.Created)), formatError(x.Check.MaxAbs)))
		}
	}
	if t.Untried > 0 {
		s.Note("%d candidates were not tried for lack of time", t.Untried)
	}
	return sheet.Sheet{Sections: []sheet.Section{s}}
}

// Results returns the finalists, for a Report.
func (t *Tuned) Results() []Result {
	var list []Result
	for i := range t.Trials {
		if x := &t.Trials[i]; x.Final() {
			list = append(list, x.Result)
		}
	}
	return list
}
