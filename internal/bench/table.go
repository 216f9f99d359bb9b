package bench

import (
	"fmt"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/internal/bench/sheet"
	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/vk"
)

// Sheet returns r for people: what ran where, then a section for each problem, or one for a whole
// suite.
func (r Report) Sheet() sheet.Sheet {
	s := sheet.Sheet{Facts: []sheet.Fact{{Name: "device", Text: r.Env.String()}}}
	if r.Env.CPU {
		s.Facts = append(s.Facts, sheet.Fact{Name: sheet.Warning, Text: CPUWarning})
	}
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
	if r.Suite != nil {
		s.Sections = append(s.Sections, r.suiteSection())
		return s
	}
	for _, group := range r.groups() {
		s.Sections = append(s.Sections, r.groupSection(group))
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

// groups returns the results, those of one kernel and problem together.
func (r Report) groups() [][]Result {
	var groups [][]Result
	for first := 0; first < len(r.Results); {
		end := first + 1
		of := r.Results[first].Subject
		for end < len(r.Results) && r.Results[end].Kernel == of.kernel && slices.Equal(r.Results[end].Subject.keys, of.keys) {
			end++
		}
		groups = append(groups, r.Results[first:end])
		first = end
	}
	return groups
}

// String returns the device in words.
func (e Environment) String() string {
	return text.Line(fmt.Sprintf("%s (%s), driver %s", e.Device, e.DeviceType, e.Driver))
}

// groupSection shows the results of one problem, a row each.
func (r Report) groupSection(results []Result) sheet.Section {
	of := results[0].Subject
	var s sheet.Section
	s.Add("problem", "%s\n%s and at least %s of memory traffic per call", of.title, FormatSI(of.flops, "FLOP"), FormatSI(of.bytes, "B"))
	s.Columns = []sheet.Column{
		{Name: "impl"}, {Name: "time", Number: true}, {Name: "±", Number: true}, {Name: "rate", Number: true}, {Name: "traffic", Number: true, Wide: true},
		{Name: "replayed", Number: true, Wide: true}, {Name: "recorded", Number: true, Wide: true},
		{Name: "max|Δ|", Number: true}, {Name: "Δ/limit", Number: true, Wide: true}, {Name: "mean|Δ|", Number: true, Wide: true}, {Name: "check"}, {Name: "runs"},
	}
	t := groupTable{results: results, copy: r.Copy}
	for i, c := range t.amountColumns() {
		s.Columns = slices.Insert(s.Columns, 5+i, c)
	}
	for _, x := range results {
		t.peers = t.peers || x.Peer
		if t.ours == nil && x.Status == StatusOK && !x.Peer {
			t.ours = &x
		}
	}
	if t.peers {
		s.Columns = slices.Insert(s.Columns, 3, sheet.Column{Name: t.ratio(), Number: true})
	}
	for _, x := range results {
		if text := x.complaint(""); text != "" {
			s.Notes = append(s.Notes, text)
		}
		if x.Status == StatusOK || x.Status == StatusFailed {
			s.Rows = append(s.Rows, t.row(x))
		}
	}
	if t.ours == nil {
		return s
	}
	s.Add("time", "device time per call, median of %d samples; %s", len(t.ours.Timing.DeviceNS), IntervalWords)
	s.Add("wall", "replayed, recorded: wall clock per call, submitting a recorded call or recording it, too")
	s.Facts[len(s.Facts)-1].Wide = true
	if r.Copy > 0 && len(of.amounts) > 0 {
		s.Add("of copy", "bytes a second by the %s of a copy in the same run", FormatSI(r.Copy, "B/s"))
	}
	if t.peers {
		s.Add("ratio", "%s is the time by that of %s: above 1 is slower than it", t.ratio(), t.ours.Impl)
	}
	s.Add("check", "against a float64 reference, on %s", checked(t.ours.Check))
	return s
}

// complaint says what is wrong with a result, or "". Where follows the name, as in ", row 3".
func (r Result) complaint(where string) string {
	reason := text.Line(r.Reason)
	switch {
	case r.Status == StatusUnsupported:
		return fmt.Sprintf("%s is not supported%s: %s", r.Impl, where, reason)
	case r.Status == StatusFailed:
		return fmt.Sprintf("%s FAILED and was not timed%s: %s", r.Impl, where, reason)
	case r.Status == StatusNoAnswer:
		return fmt.Sprintf("%s has no times%s: %s", r.Impl, where, reason)
	case reason != "":
		return fmt.Sprintf("%s has a wrong output%s: %s", r.Impl, where, reason)
	}
	return ""
}

// groupTable is what the rows of a problem share.
type groupTable struct {
	results []Result
	ours    *Result // what ratios are to
	peers   bool
	copy    float64 // Report.Copy
}

// ratio names the column of ratios.
func (t *groupTable) ratio() string {
	if t.ours == nil {
		return "ratio"
	}
	return "time/" + t.ours.Impl
}

// amountColumns returns the columns of what is counted beside operations and bytes.
func (t *groupTable) amountColumns() (list []sheet.Column) {
	for _, a := range t.results[0].Subject.amounts {
		list = append(list, sheet.Column{Name: a.Name, Number: true})
	}
	if len(list) > 0 && t.copy > 0 {
		list = append(list, sheet.Column{Name: "of copy", Number: true})
	}
	return list
}

// amounts returns what stands in them.
func (t *groupTable) amounts(x Result) (cells []string) {
	for range t.amountColumns() {
		cells = append(cells, "-")
	}
	if x.Status != StatusOK {
		return cells
	}
	for i, a := range x.Subject.amounts {
		cells[i] = FormatSI(x.rate(a.N), a.Unit+"/s")
	}
	if len(cells) > len(x.Subject.amounts) {
		cells[len(cells)-1] = fmt.Sprintf("%.1f%%", 100*Report{Copy: t.copy}.CopyShare(x))
	}
	return cells
}

func (t *groupTable) row(x Result) []string {
	row := []string{x.Impl, "-", "", "-", "-", "-", "-"}
	if x.Status == StatusOK {
		row = []string{
			x.Impl,
			FormatTime(x.NS()),
			Summarize(x.Timing.DeviceNS).PlusMinus(),
			FormatSI(x.FLOPRate(), "FLOP/s"),
			FormatSI(x.ByteRate(), "B/s"),
			orDash(FormatTime, Summarize(x.Timing.ReplayNS).Median),
			orDash(FormatTime, Summarize(x.Timing.FreshNS).Median),
		}
	}
	row = slices.Insert(row, 5, t.amounts(x)...)
	if t.peers {
		cell := "-"
		if t.ours != nil {
			cell = ratio(x.NS(), t.ours.NS())
		}
		row = slices.Insert(row, 3, cell)
	}
	return append(append(row, checkCells(x)...), x.Choice)
}

// checkCells returns max|Δ|, its part of its limit, mean|Δ| and the verdict. The part of the limit
// compares rows whose worst outputs are different tensors.
func checkCells(x Result) []string {
	verdict := "pass"
	switch {
	case x.Status == StatusFailed || x.Reason != "":
		verdict = "FAIL"
	case x.Check.Rows == 0:
		return []string{"-", "-", "-", "-"}
	}
	part := "-"
	if x.Check.Limit > 0 {
		part = fmt.Sprintf("%.2f", x.Check.MaxAbs/x.Check.Limit)
	}
	return []string{formatError(x.Check.MaxAbs), part, formatError(x.Check.MeanAbs), verdict}
}

// orDash returns - for a number that is not there.
func orDash(format func(float64) string, x float64) string {
	if x == 0 {
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
