package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/internal/bench/sheet"
	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/vk"
)

// Sheet returns r for people: what ran where, then a table with a row for each result.
func (r Report) Sheet() sheet.Sheet {
	s := r.Env.Sheet()
	if text := r.Drift.String(); text != "" {
		name := "drift"
		if r.Drift.Large() && !r.Env.CPU {
			name = sheet.Warning
		}
		s.Facts = append(s.Facts, sheet.Fact{Name: name, Text: text})
	}
	if text := memoryWords(r.Memory); text != "" {
		s.Facts = append(s.Facts, sheet.Fact{Name: "memory", Text: text})
	}
	if len(r.Results) > 0 {
		s.Sections = append(s.Sections, r.section())
	}
	s.Sections = append(s.Sections, r.More...)
	return s
}

// Sheet returns a sheet that says what the device is.
func (e Environment) Sheet() sheet.Sheet {
	s := sheet.Sheet{Facts: []sheet.Fact{{Name: "device", Text: e.String()}}}
	if e.CPU {
		s.Facts = append(s.Facts, sheet.Fact{Name: sheet.Warning, Text: CPUWarning})
	}
	return s
}

// memoryWords names the peak of all buffers and the largest ones; "" if nothing was counted.
func memoryWords(m vk.Memory) string {
	if m.Peak == 0 {
		return ""
	}
	const names = 3
	var largest []string
	for _, x := range m.Buffers[:min(names, len(m.Buffers))] {
		largest = append(largest, x.Name+" "+FormatSI(float64(x.Peak), "B"))
	}
	if len(m.Buffers) > names {
		largest = append(largest, "…")
	}
	return text.Line(fmt.Sprintf("%s of buffers at the most, with all sets that calls rotate through: %s", FormatSI(float64(m.Peak), "B"), strings.Join(largest, ", ")))
}

// String returns the device in words.
func (e Environment) String() string {
	return text.Line(fmt.Sprintf("%s (%s), driver %s", e.Device, e.DeviceType, e.Driver))
}

// A row is a result, with the time that its ratio is to: of the first of ours of its problem.
type row struct {
	Result
	ours float64 // 0: there is none
}

// rows returns a row for each result, and the subjects of the problems.
func (r Report) rows() (rows []row, subjects []*Subject) {
	ours := map[*Subject]float64{}
	for _, x := range r.Results {
		last := len(subjects) - 1
		if last < 0 || x.Kernel != subjects[last].kernel || !slices.Equal(x.Subject.keys, subjects[last].keys) {
			subjects = append(subjects, x.Subject)
			last++
		}
		of := subjects[last]
		if ours[of] == 0 && !x.Peer {
			ours[of] = x.NS()
		}
		rows = append(rows, row{x, ours[of]})
	}
	return rows, subjects
}

// A cell is a column of the table.
type cell = sheet.Cell[row]

// number returns a column that has no number before the result is timed.
func number(name string, wide bool, of func(x row) string) cell {
	return cell{Name: name, Wide: wide, Of: func(x row) string {
		if x.Status != StatusOK {
			return "-"
		}
		return of(x)
	}}
}

// section shows the results. Columns of sizes tell problems apart.
func (r Report) section() (s sheet.Section) {
	rows, subjects := r.rows()
	of, many := subjects[0], len(subjects) > 1
	passes := slices.ContainsFunc(subjects, func(x *Subject) bool { return x.pass != of.pass })
	if r.Suite != nil {
		s.Add("suite", "%s: %s", r.Suite.Name, r.Suite.About)
		if r.Suite.Small {
			s.Add("small", "smaller cases of its kind: this is not the suite, but runs the same code")
		}
	}
	if many {
		s.Add("first", "%s", of.title)
	} else {
		s.Add("problem", "%s\n%s and at least %s of memory traffic per call", of.title, FormatSI(of.flops, "FLOP"), FormatSI(of.bytes, "B"))
	}
	shown := noted(&s, rows, many)
	if slices.ContainsFunc(rows, func(x row) bool { return x.Host != nil }) {
		overheadTable(&s, shown)
		return s
	}
	var cells []cell
	for _, name := range differing(subjects) {
		_, number := of.key(name).(int)
		cells = append(cells, cell{Name: name, Text: !number, Of: func(x row) string { return fmt.Sprint(x.Subject.key(name)) }})
	}
	if passes {
		cells = append(cells, cell{Name: "pass", Text: true, Of: func(x row) string { return x.Subject.pass.String() }})
	}
	cells = append(cells, cell{Name: "impl", Text: true, Of: func(x row) string { return x.Impl }})
	s.Keys = len(cells)
	several := slices.ContainsFunc(rows, func(x row) bool { return x.Impl != rows[0].Impl })
	sheet.Fill(&s, shown, slices.Concat(cells, r.numbers(of, several), verdicts())...)
	at := slices.IndexFunc(rows, func(x row) bool { return x.ours > 0 })
	if at < 0 {
		return s
	}
	timed := rows[at].Result
	clock := map[bool]string{false: "device time per call", true: "wall clock of a call"}[of.wall]
	s.Add("time", "%s, median of %d samples; %s", clock, len(timed.Timing.DeviceNS), IntervalWords)
	if several {
		s.Add("ratio", "the time over the time of the problem's first path: above 1 is slower")
	}
	if r.Copy > 0 && len(of.amounts) > 0 {
		s.Add("of copy", "bytes a second by the %s of a copy in the same run", FormatSI(r.Copy, "B/s"))
	}
	if of.wall {
		return s
	}
	s.Add("wall", "replayed, recorded: wall clock per call, submitting a recorded call or recording it, too")
	s.Facts[len(s.Facts)-1].Wide = true
	check := "all rows or elements, or where there are many on a sample"
	if !many {
		check = checked(timed.Check)
	}
	s.Add("check", "against a float64 reference, on %s", check)
	return s
}

// noted adds a note for each thing that is wrong with results, and returns the rows of the table.
// Of one problem, results that have neither times nor errors have a note only.
func noted(s *sheet.Section, rows []row, many bool) (shown []row) {
	for _, x := range rows {
		if text := x.complaint(); text != "" && !slices.Contains(s.Notes, text) {
			s.Notes = append(s.Notes, text)
		}
		if many || x.Status == StatusOK || x.Status == StatusFailed {
			shown = append(shown, x)
		}
	}
	return shown
}

// differing returns the keys that tell problems apart, without those that repeat another, or mostly
// follow from it.
func differing(subjects []*Subject) (names []string) {
	seen, from := map[string]bool{}, map[string]string{"scale": "head_dim", "causal_align": "causal"}
	for _, k := range subjects[0].keys {
		values, differ := "", false
		for _, of := range subjects {
			value := of.key(k.Name)
			values += fmt.Sprintln(value)
			differ = differ || value != k.Value
		}
		if differ && !seen[values] && !slices.Contains(names, cmp.Or(from[k.Name], "shape")) {
			names = append(names, k.Name)
		}
		seen[values] = true
	}
	return names
}

// numbers returns the columns of times, and of what is handled a second: operations, bytes, and
// amounts of an Op.
func (r Report) numbers(of *Subject, several bool) []cell {
	list := []cell{
		number("time", false, func(x row) string { return FormatTime(x.NS()) }),
		number("±", false, func(x row) string { return Summarize(x.Timing.DeviceNS).PlusMinus() }),
	}
	if several {
		list = append(list, number("ratio", false, func(x row) string {
			if x.ours == 0 {
				return "-"
			}
			return fmt.Sprintf("%.2fx", x.NS()/x.ours)
		}))
	}
	list = append(list, number("rate", false, func(x row) string { return FormatSI(x.FLOPRate(), "FLOP/s") }),
		number("traffic", true, func(x row) string { return FormatSI(x.ByteRate(), "B/s") }))
	for _, a := range of.amounts {
		list = append(list, number(a.Name, false, func(x row) string { return FormatSI(x.rate(a.N), a.Unit+"/s") }))
	}
	if r.Copy > 0 && len(of.amounts) > 0 {
		list = append(list, number("of copy", false, func(x row) string { return fmt.Sprintf("%.1f%%", 100*r.CopyShare(x.Result)) }))
	}
	for i, f := range r.facts() {
		list = append(list, number(f.Name, false, func(x row) string { return x.fact(i).Text }))
	}
	return append(list,
		number("replayed", true, func(x row) string { return orDash(FormatTime, Summarize(x.Timing.ReplayNS).Median) }),
		number("recorded", true, func(x row) string { return orDash(FormatTime, Summarize(x.Timing.FreshNS).Median) }))
}

// verdicts returns the columns of errors and of what ran. The part of the limit compares rows whose
// worst outputs are different tensors.
func verdicts() []cell {
	checked := func(name string, wide bool, of func(c Check) string) cell {
		return cell{Name: name, Wide: wide, Of: func(x row) string {
			if x.Check.Rows == 0 {
				return "-"
			}
			return of(x.Check)
		}}
	}
	return []cell{
		checked("max|Δ|", false, func(c Check) string { return formatError(c.MaxAbs) }),
		checked("Δ/limit", true, func(c Check) string {
			return orDash(func(part float64) string { return fmt.Sprintf("%.2f", part) }, c.MaxAbs/c.Limit)
		}),
		checked("mean|Δ|", true, func(c Check) string { return formatError(c.MeanAbs) }),
		{Name: "check", Text: true, Of: func(x row) string {
			switch {
			case x.Status == StatusFailed || x.Peer && x.Status == StatusOK && x.Reason != "":
				return "FAIL"
			case x.Check.Rows == 0:
				return "-"
			}
			return "pass"
		}},
		{Name: "runs", Text: true, Of: func(x row) string { return x.Choice }},
	}
}

// complaint says what is wrong with a result, or "".
func (r Result) complaint() string {
	reason := text.Line(r.Reason)
	switch {
	case r.Status == StatusUnsupported:
		return fmt.Sprintf("%s is not supported: %s", r.Impl, reason)
	case r.Status == StatusFailed:
		return fmt.Sprintf("%s FAILED and was not timed: %s", r.Impl, reason)
	case r.Status == StatusNoAnswer:
		return fmt.Sprintf("%s has no times: %s", r.Impl, reason)
	case reason != "":
		return fmt.Sprintf("%s has a wrong output: %s", r.Impl, reason)
	}
	return ""
}

// orDash returns - for a number that is not there.
func orDash(format func(float64) string, x float64) string {
	if x == 0 || x != x {
		return "-"
	}
	return format(x)
}

// checked says how many of what a Check counts were compared.
func checked(c Check) string {
	if c.Rows < c.OfRows {
		return fmt.Sprintf("%d of %d %s", c.Rows, c.OfRows, c.Counted)
	}
	return fmt.Sprintf("all %d %s", c.OfRows, c.Counted)
}

// formatError writes an error as 1.2e-04.
func formatError(x float64) string { return fmt.Sprintf("%.1e", x) }
