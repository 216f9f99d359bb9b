package selftest

import (
	"fmt"
	"time"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/sheet"
	"github.com/flashvk/flashvk/internal/text"
)

// Sheet shows r.
func (r *Report) Sheet() sheet.Sheet {
	s := sheet.Sheet{Facts: []sheet.Fact{{Name: "device", Text: r.Env.String()}}}
	if r.Env.CPU {
		s.Facts = append(s.Facts, sheet.Fact{Name: sheet.Warning, Text: bench.CPUWarning})
	}
	s.Sections = []sheet.Section{bench.CeilingSection(r.Ceilings), r.pathSection()}
	return s
}

func (r *Report) pathSection() sheet.Section {
	var s sheet.Section
	s.Add("cases", "of the conformance suite: right; wrong; that the path refuses; that there was no time for")
	s.Add("error", "the largest, by what is allowed: twice that of the plain formula in the same format")
	s.Add("speed", "time of the scalar path by that of this one")
	for i, name := range []string{"path", "pass", "type", "verdict", "right", "wrong", "refused", "left", "error", "speed"} {
		s.Columns = append(s.Columns, sheet.Column{Name: name, Number: i > 3})
	}
	for _, p := range r.Paths {
		row := []string{p.Impl.String(), p.What(), p.DType.String(), string(p.Verdict)}
		if p.Verdict == Unsupported {
			row = append(row, "-", "-", "-", "-", "-", "-")
		} else {
			row = append(row, fmt.Sprint(p.Right), fmt.Sprint(p.Bad), fmt.Sprint(p.Refused), fmt.Sprint(p.Left), number("%.2f", p.Worst), number("%.2fx", p.Speed))
		}
		s.Rows = append(s.Rows, row)
		if p.Why != "" && (p.Verdict != NotRun || p.Left == 0) { // rows without time are one line below
			s.Note("%v %v, %v: %s: %s", p.Impl, p.What(), p.DType, p.Verdict, text.Line(p.Why))
		}
	}
	for _, c := range r.Ceilings {
		if c.Wrong != nil {
			s.Note("the device multiplies wrongly: see the loop %q above; a path on such matrices cannot be right", c.Name)
		}
	}
	if left := r.left(); left > 0 {
		text := fmt.Sprintf("there was no time for %d cases", left)
		if none := r.notRun(); none > 0 {
			text += fmt.Sprintf(", all those of %d paths among them", none)
		}
		s.Note("%s: a larger --budget runs them", text)
	}
	s.Note("took %v", r.Took.Round(time.Second/10))
	return s
}

// Summary says in a line how many cases were wrong.
func (r *Report) Summary() string {
	wrong, all := 0, 0
	for _, p := range r.Paths {
		wrong += p.Bad
		all += p.Right + p.Bad
	}
	s := fmt.Sprintf("%d wrong of %d cases", wrong, all)
	if left := r.left(); left > 0 {
		s += fmt.Sprintf(", no time for %d", left)
	}
	return s
}

// notRun returns the number of rows for which there was no time.
func (r *Report) notRun() (n int) {
	for _, p := range r.Paths {
		if p.Verdict == NotRun && p.Left > 0 {
			n++
		}
	}
	return n
}

// left returns the number of cases for which there was no time.
func (r *Report) left() (n int) {
	for _, p := range r.Paths {
		n += p.Left
	}
	return n
}

// number formats x, 0 as a dash.
func number(format string, x float64) string {
	if x == 0 {
		return "-"
	}
	return fmt.Sprintf(format, x)
}
