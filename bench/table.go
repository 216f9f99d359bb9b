package bench

import (
	"fmt"
	"strings"

	"github.com/flashvk/flashvk/attention/problem"
	"github.com/flashvk/flashvk/bench/sheet"
)

// Sheet returns r for people: what ran where, then a section for each problem,
// or one for a whole suite.
func (r Report) Sheet() sheet.Sheet {
	s := sheet.Sheet{Facts: []sheet.Fact{{Name: "device", Text: r.Env.String()}}}
	if r.Env.CPU {
		s.Facts = append(s.Facts, sheet.Fact{Name: "WARNING", Text: CPUWarning})
	}
	if r.Suite != nil {
		s.Sections = append(s.Sections, r.suiteSection())
		return s
	}
	for _, group := range r.groups() {
		s.Sections = append(s.Sections, groupSection(group))
	}
	return s
}

// groups returns the results, those of one kernel and problem together.
func (r Report) groups() [][]Result {
	var groups [][]Result
	for first := 0; first < len(r.Results); {
		end := first + 1
		for end < len(r.Results) && r.Results[end].Problem == r.Results[first].Problem && r.Results[end].Kernel == r.Results[first].Kernel {
			end++
		}
		groups = append(groups, r.Results[first:end])
		first = end
	}
	return groups
}

// String returns the device in words.
func (e Environment) String() string {
	return oneLine(fmt.Sprintf("%s (%s), driver %s", e.Device, e.DeviceType, e.Driver))
}

// groupSection shows the results of one problem, a row each.
func groupSection(results []Result) sheet.Section {
	p := results[0].Problem
	var s sheet.Section
	s.Add("problem", "attention forward, %s\n%s and at least %s of memory traffic per call",
		Describe(p), FormatSI(flops(p), "FLOP"), FormatSI(p.Bytes(), "B"))
	s.Columns = []sheet.Column{
		{Name: "impl"}, {Name: "time", Number: true}, {Name: "±", Number: true}, {Name: "rate", Number: true}, {Name: "traffic", Number: true},
		{Name: "replayed", Number: true}, {Name: "recorded", Number: true},
		{Name: "max|Δ|", Number: true}, {Name: "limit", Number: true}, {Name: "mean|Δ|", Number: true}, {Name: "check"}, {Name: "runs"},
	}
	for _, x := range results {
		switch x.Status {
		case StatusUnsupported:
			s.Note("%s is not supported: %s", x.Impl, oneLine(x.Reason))
			continue
		case StatusFailed:
			s.Note("%s FAILED and was not timed: %s", x.Impl, oneLine(x.Reason))
		}
		s.Rows = append(s.Rows, tableRow(x))
	}
	for _, x := range results {
		if x.Status == StatusOK {
			s.Add("time", "device time per call, median of %d samples; ± its 95 %% confidence interval\n"+
				"replayed, recorded: wall clock per call, submitting a recorded call or recording it, too", len(x.Timing.DeviceNS))
			s.Add("check", "against a float64 reference, on %s", rowsChecked(x.Check))
			break
		}
	}
	return s
}

func tableRow(x Result) []string {
	errors := []string{formatError(x.Check.MaxAbs), formatError(x.Check.Limit), formatError(x.Check.MeanAbs)}
	if x.Status == StatusFailed {
		return append(append([]string{x.Impl, "-", "", "-", "-", "-", "-"}, errors...), "FAIL", x.Choice)
	}
	s := Summarize(x.Timing.DeviceNS)
	return append(append([]string{
		x.Impl,
		FormatTime(s.Median),
		fmt.Sprintf("%.0f%%", 100*s.Spread()),
		FormatSI(x.FLOPRate(), "FLOP/s"),
		FormatSI(x.ByteRate(), "B/s"),
		FormatTime(Summarize(x.Timing.ReplayNS).Median),
		FormatTime(Summarize(x.Timing.FreshNS).Median),
	}, errors...), "pass", x.Choice)
}

// rowsChecked says which rows of O were compared.
func rowsChecked(c Check) string {
	if c.Rows < c.OfRows {
		return fmt.Sprintf("%d of %d rows", c.Rows, c.OfRows)
	}
	return fmt.Sprintf("all %d rows", c.OfRows)
}

// formatError writes an error as 1.2e-04.
func formatError(x float64) string { return fmt.Sprintf("%.1e", x) }

// Describe returns p in words.
func Describe(p problem.Problem) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: batch %d, heads %d, kv-heads %d, seqlen %d", p.DType, p.Batch, p.NumHeads, p.NumKVHeads, p.SeqQ)
	if p.SeqKV != p.SeqQ {
		fmt.Fprintf(&b, ", seqlen-kv %d", p.SeqKV)
	}
	fmt.Fprintf(&b, ", headdim %d", p.HeadDim)
	if p.Causal {
		fmt.Fprintf(&b, ", causal (%v)", p.CausalAlign)
	}
	if p.Scale != 0 {
		fmt.Fprintf(&b, ", scale %g", p.Scale)
	}
	for _, f := range p.FeatureKeys() {
		fmt.Fprintf(&b, ", %s", f)
	}
	return b.String()
}
