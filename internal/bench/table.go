package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/bench/sheet"
	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/vk"
)

// Sheet returns r for people: what ran where, then a section for each problem, or one for a whole
// suite.
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
	if r.Suite != nil {
		s.Sections = append(s.Sections, r.suiteSection())
		return s
	}
	for _, group := range r.groups() {
		s.Sections = append(s.Sections, r.groupSection(group))
	}
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

// A cell is a column of a table of results. A row has results of one problem, and is about the
// first.
type cell = sheet.Cell[[]Result]

// number returns a column of the first result, which has no number before it is timed.
func number(name string, wide bool, of func(x Result) string) cell {
	return cell{Name: name, Wide: wide, Of: func(g []Result) string { return g[0].timed(of) }}
}

// timed returns what a function says of a result that was timed, or -.
func (r Result) timed(of func(x Result) string) string {
	if r.Status != StatusOK {
		return "-"
	}
	return of(r)
}

func plusMinus(x Result) string { return Summarize(x.Timing.DeviceNS).PlusMinus() }

// rates returns the columns of what is handled a second: operations, bytes, and amounts of an Op.
func (r Report) rates(of *Subject) []cell {
	list := []cell{
		number("rate", false, func(x Result) string { return FormatSI(x.FLOPRate(), "FLOP/s") }),
		number("traffic", true, func(x Result) string { return FormatSI(x.ByteRate(), "B/s") }),
	}
	for _, a := range of.amounts {
		list = append(list, number(a.Name, false, func(x Result) string { return FormatSI(x.rate(a.N), a.Unit+"/s") }))
	}
	if r.Copy > 0 && len(of.amounts) > 0 {
		list = append(list, number("of copy", false, func(x Result) string { return fmt.Sprintf("%.1f%%", 100*r.CopyShare(x)) }))
	}
	return list
}

// verdicts returns the columns of errors and of what ran. The part of the limit compares rows whose
// worst outputs are different tensors.
func verdicts() []cell {
	checked := func(name string, wide bool, of func(c Check) string) cell {
		return cell{Name: name, Wide: wide, Of: func(g []Result) string {
			if g[0].Check.Rows == 0 {
				return "-"
			}
			return of(g[0].Check)
		}}
	}
	return []cell{
		checked("max|Δ|", false, func(c Check) string { return formatError(c.MaxAbs) }),
		checked("Δ/limit", true, func(c Check) string {
			return orDash(func(part float64) string { return fmt.Sprintf("%.2f", part) }, c.MaxAbs/c.Limit)
		}),
		checked("mean|Δ|", true, func(c Check) string { return formatError(c.MeanAbs) }),
		{Name: "check", Text: true, Of: func(g []Result) string {
			switch {
			case g[0].Status == StatusFailed || g[0].Peer && g[0].Status == StatusOK && g[0].Reason != "":
				return "FAIL"
			case g[0].Check.Rows == 0:
				return "-"
			}
			return "pass"
		}},
		{Name: "runs", Text: true, Of: func(g []Result) string { return g[0].Choice }},
	}
}

// facts says what the columns of both tables are. Ours is what ratios are to; "": there are none.
func (r Report) facts(s *sheet.Section, of *Subject, ours, check string) {
	if r.Copy > 0 && len(of.amounts) > 0 {
		s.Add("of copy", "bytes a second by the %s of a copy in the same run", FormatSI(r.Copy, "B/s"))
	}
	if ours != "" {
		s.Add("ratio", "time/%s is the time by that of %s: above 1 is slower than it", ours, ours)
	}
	s.Add("check", "against a float64 reference, on %s", check)
}

// groupSection shows the results of one problem, a row each.
func (r Report) groupSection(results []Result) sheet.Section {
	of := results[0].Subject
	var s sheet.Section
	s.Add("problem", "%s\n%s and at least %s of memory traffic per call", of.title, FormatSI(of.flops, "FLOP"), FormatSI(of.bytes, "B"))
	var rows [][]Result
	var ours Result
	peers := ""
	for _, x := range results {
		if text := x.complaint(""); text != "" {
			s.Notes = append(s.Notes, text)
		}
		if x.Status == StatusOK || x.Status == StatusFailed {
			rows = append(rows, []Result{x})
		}
		if ours.Impl == "" && x.Status == StatusOK && !x.Peer {
			ours = x
		}
	}
	cells := []cell{
		{Name: "impl", Text: true, Of: func(g []Result) string { return g[0].Impl }},
		number("time", false, func(x Result) string { return FormatTime(x.NS()) }),
		number("±", false, plusMinus),
	}
	if slices.ContainsFunc(results, func(x Result) bool { return x.Peer }) {
		peers = ours.Impl
		cells = append(cells, number("time/"+peers, false, func(x Result) string { return ratio(x.NS(), ours.NS()) }))
	}
	cells = append(append(cells, r.rates(of)...),
		number("replayed", true, func(x Result) string { return orDash(FormatTime, Summarize(x.Timing.ReplayNS).Median) }),
		number("recorded", true, func(x Result) string { return orDash(FormatTime, Summarize(x.Timing.FreshNS).Median) }))
	sheet.Fill(&s, rows, append(cells, verdicts()...)...)
	if ours.Impl == "" {
		return s
	}
	s.Add("time", "device time per call, median of %d samples; %s", len(ours.Timing.DeviceNS), IntervalWords)
	s.Add("wall", "replayed, recorded: wall clock per call, submitting a recorded call or recording it, too")
	s.Facts[len(s.Facts)-1].Wide = true
	r.facts(&s, of, peers, checked(ours.Check))
	return s
}

// suiteSection shows a suite: a row for each problem, a column for each implementation. Ratios are
// to the first implementation of a problem.
func (r Report) suiteSection() sheet.Section {
	suite, groups := *r.Suite, r.groups()
	var s sheet.Section
	s.Add("suite", "%s: %s", suite.Name, suite.About)
	if suite.small {
		s.Add("small", "smaller cases of its kind: this is not the suite, but runs the same code")
	}
	if len(groups) == 0 {
		return s
	}
	of, ours := groups[0][0].Subject, groups[0][0].Impl
	s.Add("kernel", "%s", of.name)
	if suite.sizes == nil {
		suite.sizes = differing(groups)
	}
	var cells []cell
	for _, name := range suite.sizes {
		_, number := of.key(name).(int)
		cells = append(cells, cell{Name: name, Text: !number, Of: func(g []Result) string { return fmt.Sprint(g[0].Subject.key(name)) }})
	}
	if slices.ContainsFunc(groups, func(g []Result) bool { return g[0].Subject.pass != of.pass }) {
		cells = append(cells, cell{Name: "pass", Text: true, Of: func(g []Result) string { return g[0].Subject.pass.String() }})
	} else {
		s.Add("pass", "%v", of.pass)
	}
	s.Keys = len(cells)
	paths, ratios := suite.paths(groups)
	cells = append(cells, paths...)
	if ours == "auto" {
		s.Add(ours, "the path that flashvk takes by itself, named under runs; other paths are forced")
	}
	if slices.ContainsFunc(groups[0], func(x Result) bool { return x.Impl == attention.Unfused.String() }) {
		s.Add("unfused", "GEMM, softmax, GEMM with all scores in memory: what PyTorch calls MATH")
	}
	shown := map[show]string{rates: "operations a second, from the median of samples", perSequence: "device time per sequence, median of samples"}[suite.show]
	if shown == "" {
		shown = "device time per call, median of samples"
	}
	s.Add("paths", "%s; of %s, %s", shown, ours, IntervalWords)
	if !ratios {
		ours = ""
	}
	r.facts(&s, of, ours, "all rows or elements, or where there are many on a sample")
	if suite.show == rates {
		cells = append(cells, number("time", false, func(x Result) string { return FormatTime(x.NS()) }))
		cells = append(cells, r.rates(of)[1:]...)
	} else {
		cells = append(cells, r.rates(of)...)
	}
	cells = append(cells, number("±", false, plusMinus))
	sheet.Fill(&s, groups, append(cells, verdicts()...)...)
	suiteNotes(&s, groups)
	return s
}

// differing returns the keys that tell the problems apart.
func differing(groups [][]Result) (names []string) {
	for _, g := range groups {
		for _, k := range g[0].Subject.keys {
			if !slices.Contains(names, k.Name) && k.Value != groups[0][0].Subject.key(k.Name) {
				names = append(names, k.Name)
			}
		}
	}
	return names
}

// paths returns a column for each implementation, and one of ratios behind each peer and the
// unfused formula, and reports whether there are any.
func (suite *Suite) paths(groups [][]Result) (cells []cell, ratios bool) {
	ours := groups[0][0].Impl
	find := func(g []Result, impl string) Result {
		if i := slices.IndexFunc(g, func(x Result) bool { return x.Impl == impl }); i >= 0 {
			return g[i]
		}
		return Result{}
	}
	var impls []string
	for _, g := range groups {
		for _, x := range g {
			peer := x.Peer && strings.Contains(x.Impl, ":") // else a whole peer without times, which a note has
			if slices.Contains(impls, x.Impl) || x.Peer && x.Status == StatusNoAnswer && !peer {
				continue
			}
			impls = append(impls, x.Impl)
			cells = append(cells, cell{Name: x.Impl, Of: func(g []Result) string {
				y := find(g, x.Impl)
				if y.Status == StatusFailed {
					return "FAIL"
				}
				return y.timed(suite.show.of)
			}})
			if x.Impl != ours && (x.Peer || x.Impl == attention.Unfused.String()) {
				ratios = true
				cells = append(cells, cell{Name: "time/" + ours, Of: func(g []Result) string { return ratio(find(g, x.Impl).NS(), g[0].NS()) }})
			}
		}
	}
	return cells, ratios
}

// suiteNotes says why cells are empty, once for each implementation and reason.
func suiteNotes(s *sheet.Section, groups [][]Result) {
	var order []Result
	rows := map[string][]int{}
	for i, g := range groups {
		for _, x := range g {
			why := x.complaint("")
			if why != "" && rows[why] == nil {
				order = append(order, x)
			}
			rows[why] = append(rows[why], i+1)
		}
	}
	for _, x := range order {
		s.Notes = append(s.Notes, x.complaint(", "+ranges(rows[x.complaint("")])))
	}
}

// ranges writes ascending numbers as rows 1-3, 5.
func ranges(list []int) string {
	text := "row "
	if len(list) > 1 {
		text = "rows "
	}
	for i, n := range list {
		before, after := i > 0 && list[i-1] == n-1, i+1 < len(list) && list[i+1] == n+1
		switch {
		case before && after:
			continue
		case before:
			text += "-"
		case i > 0:
			text += ", "
		}
		text += strconv.Itoa(n)
	}
	return text
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

// ratio returns other/ours as 1.23x.
func ratio(other, ours float64) string {
	if other == 0 || ours == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2fx", other/ours)
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
