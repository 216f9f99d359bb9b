package bench

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/flashvk/flashvk/attention/problem"
)

// writeTable writes r for people: what ran where, then a line per result,
// grouped by problem.
func (r Report) writeTable(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "device   %s\n", r.Env)
	if r.Env.CPU {
		fmt.Fprintf(&b, "WARNING  %s\n", CPUWarning)
	}
	for first := 0; first < len(r.Results); {
		end := first + 1
		for end < len(r.Results) && r.Results[end].Problem == r.Results[first].Problem {
			end++
		}
		b.WriteByte('\n')
		writeGroup(&b, r.Results[first:end])
		first = end
	}
	_, err := w.Write(b.Bytes())
	return err
}

// String returns the device in words.
func (e Environment) String() string {
	return oneLine(fmt.Sprintf("%s (%s), driver %s", e.Device, e.DeviceType, e.Driver))
}

// writeGroup writes the results of one problem.
func writeGroup(b *bytes.Buffer, results []Result) {
	p := results[0].Problem
	fmt.Fprintf(b, "problem  attention forward, %s\n", Describe(p))
	fmt.Fprintf(b, "         %s and at least %s of memory traffic per call\n", FormatSI(flops(p), "FLOP"), FormatSI(p.Bytes(), "B"))
	rows := [][]string{{"impl", "time", "±", "rate", "traffic", "replayed", "recorded", "max|Δ|", "limit", "mean|Δ|", "check", "runs"}}
	var notes []string
	for _, x := range results {
		switch x.Status {
		case StatusUnsupported:
			notes = append(notes, fmt.Sprintf("%s is not supported: %s", x.Impl, oneLine(x.Reason)))
			continue
		case StatusFailed:
			notes = append(notes, fmt.Sprintf("%s FAILED and was not timed: %s", x.Impl, oneLine(x.Reason)))
		}
		rows = append(rows, tableRow(x))
	}
	for _, x := range results {
		if x.Status == StatusOK {
			writeLegend(b, x)
			break
		}
	}
	b.WriteByte('\n')
	if len(rows) > 1 {
		// All columns but the first and the last two hold numbers.
		align(b, rows, func(column int) bool { return column > 0 && column < len(rows[0])-2 })
	}
	for _, n := range notes {
		fmt.Fprintln(b, n)
	}
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

// writeLegend says what the columns mean.
func writeLegend(b *bytes.Buffer, x Result) {
	which := fmt.Sprintf("all %d rows", x.Check.OfRows)
	if x.Check.Rows < x.Check.OfRows {
		which = fmt.Sprintf("%d of %d rows", x.Check.Rows, x.Check.OfRows)
	}
	fmt.Fprintf(b, "time     device time per call, median of %d samples; ± its 95 %% confidence interval\n", len(x.Timing.DeviceNS))
	b.WriteString("         replayed, recorded: wall clock per call, submitting a recorded call or recording it, too\n")
	fmt.Fprintf(b, "check    against a float64 reference, on %s\n", which)
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

// align writes rows as columns two spaces apart, those for which right holds
// aligned to the right.
func align(w io.Writer, rows [][]string, right func(column int) bool) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i > 0 {
				line.WriteString("  ")
			}
			if right(i) {
				cell = pad + cell
			} else {
				cell += pad
			}
			line.WriteString(cell)
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
}
