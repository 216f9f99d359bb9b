package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench/sheet"
	"github.com/flashvk/flashvk/internal/text"
)

// Sheet shows each call, its dispatches, and the ceilings of the device.
func (p *Profile) Sheet() sheet.Sheet {
	s := p.Env.Sheet()
	for i := range p.Calls {
		t := profileTable{CallProfile: &p.Calls[i], ceilings: p.Ceilings}
		s.Sections = append(s.Sections, t.dispatches())
		if kernels := t.Kernels(); len(kernels) < len(t.Dispatches) {
			s.Sections = append(s.Sections, t.kernels(kernels))
		}
	}
	s.Sections = append(s.Sections, CeilingSection(p.Ceilings))
	return s
}

// profileTable is what the tables of a call share.
type profileTable struct {
	*CallProfile
	ceilings []Ceiling
}

// dispatches shows the dispatches of a call one by one.
func (t *profileTable) dispatches() sheet.Section {
	var s sheet.Section
	x := &t.Result
	of := x.Subject
	s.Add("problem", "%s", of.title)
	if text := x.complaint(); text != "" {
		s.Note("%s", text)
		return s
	}
	s.Facts[0].Text += fmt.Sprintf("\n%s, checked against a float64 reference on %s: max|Δ| %s, limit %s",
		x.Choice, checked(x.Check), formatError(x.Check.MaxAbs), formatError(x.Check.Limit))
	whole := Summarize(t.WholeNS).Median
	text := fmt.Sprintf("on the device, median of %d calls, %s\nthe call as bench times it, without timestamps in it: %s", profileCalls, IntervalWords, FormatTime(x.NS()))
	if len(t.Dispatches) > 1 {
		text += fmt.Sprintf("\nbegin counts from the first dispatch, share is of the whole time; in %s no dispatch runs", FormatTime(Summarize(t.IdleNS).Median))
	}
	s.Add("time", "%s", text)
	if slices.ContainsFunc(t.Dispatches, func(x DispatchProfile) bool { return x.Beside }) {
		s.Add(besideMark, "no barrier before it: it may have begun earlier, beside those above; its time is what was left when they had ended")
	}
	s.Add("kernel", "registers and spilled bytes per invocation, shared memory per workgroup, as the driver says")
	s.Add("peak", "%s", t.peakWords())
	s.Keys = 2
	s.Columns = sheet.Columns([]string{"#", "kernel", "does", "begin", "time", "±", "share", "rate", "of peak", "traffic", "of copy", "workgroups", "size", "registers", "spilled", "shared"}, "kernel", "does")
	for i := range t.Dispatches {
		s.Rows = append(s.Rows, t.row(i, whole))
	}
	if len(t.Dispatches) > 1 {
		all := append([]string{"", "all", "", ""}, timeCells(t.WholeNS, whole)...)
		all = append(all, Work{of.flops, of.bytes}.cells(whole, t.peak(t.matrices()))...)
		s.Rows = append(s.Rows, append(all, "", "", "", "", ""))
	}
	return s
}

// besideMark stands before the begin of a dispatch that may run beside the one before.
const besideMark = "∥"

// row shows a dispatch; whole is the device time of the call.
func (t *profileTable) row(i int, whole float64) []string {
	x := &t.Dispatches[i]
	begin := FormatTime(Summarize(x.BeginNS).Median)
	if x.Beside {
		begin = besideMark + " " + begin
	}
	row := append([]string{fmt.Sprint(i + 1), x.Kernel, x.Note.Text, begin}, timeCells(x.NS, whole)...)
	row = append(row, Work{x.Note.FLOPs, x.Note.Bytes}.cells(Summarize(x.NS).Median, t.peak(x.Note.Matrices))...)
	row = append(row, sizes(x.Groups), sizes(x.Workgroup))
	if st := x.Stats; st.Available {
		return append(row, fmt.Sprint(st.Registers), fmt.Sprint(st.SpillBytes), fmt.Sprint(st.SharedBytes))
	}
	return append(row, "-", "-", "-")
}

// kernels shows the kernels of a call, the dispatches of one together.
func (t *profileTable) kernels(list []KernelProfile) sheet.Section {
	var s sheet.Section
	s.Add("kernels", "the same by kernel: its dispatches together")
	s.Columns = sheet.Columns([]string{"kernel", "dispatches", "time", "±", "share", "rate", "of peak", "traffic", "of copy"}, "kernel")
	whole := Summarize(t.WholeNS).Median
	for _, k := range list {
		matrices := slices.ContainsFunc(t.Dispatches, func(x DispatchProfile) bool { return x.Kernel == k.Name && x.Note.Matrices })
		row := append([]string{k.Name, fmt.Sprint(k.Dispatches)}, timeCells(k.NS, whole)...)
		s.Rows = append(s.Rows, append(row, k.Work.cells(Summarize(k.NS).Median, t.peak(matrices))...))
	}
	return s
}

// matrices reports whether a dispatch of the call is on matrices.
func (t *profileTable) matrices() bool {
	return slices.ContainsFunc(t.Dispatches, func(x DispatchProfile) bool { return x.Note.Matrices })
}

// peak returns the peak of kernels on matrices, which have one format in a call, or of others.
func (t *profileTable) peak(matrices bool) Peak {
	format := dtype.Float32
	for _, x := range t.Dispatches {
		if x.Note.Matrices {
			format = x.Note.DType
		}
	}
	return PeakOf(t.ceilings, matrices, format)
}

// peakWords says what rates are compared with.
func (t *profileTable) peakWords() string {
	peak := t.peak(t.matrices())
	words := fmt.Sprintf("rate over the rate of the loop %q", peak.Name)
	if peak.Note != "" {
		words += ", " + peak.Note
	}
	if t.matrices() && slices.ContainsFunc(t.Dispatches, func(x DispatchProfile) bool { return x.Note.FLOPs > 0 && !x.Note.Matrices }) {
		words += fmt.Sprintf(", or without matrices %q", t.peak(false).Name)
	}
	return words + `; B/s over the B/s of the loop "copy"`
}

// timeCells shows times and their share of the call.
func timeCells(ns []float64, whole float64) []string {
	sum := Summarize(ns)
	return []string{FormatTime(sum.Median), sum.PlusMinus(), percent(sum.Median, whole)}
}

// cells shows rates and their share of the peak.
func (w Work) cells(ns float64, peak Peak) []string {
	cells := []string{"-", "-", "-", "-"}
	if ns == 0 {
		return cells
	}
	if w.FLOPs > 0 {
		cells[0], cells[1] = FormatSI(w.FLOPs/ns*1e9, "FLOP/s"), percent(w.FLOPs/ns*1e9, peak.FLOPs)
	}
	if w.Bytes > 0 {
		cells[2], cells[3] = FormatSI(w.Bytes/ns*1e9, "B/s"), percent(w.Bytes/ns*1e9, peak.Bytes)
	}
	return cells
}

// percent returns x in percent of all.
func percent(x, all float64) string {
	if all == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", 100*x/all)
}

// sizes returns 4x2x1 as 4x2.
func sizes(n [3]uint32) string {
	if n[0] == 0 {
		return "-"
	}
	text := fmt.Sprintf("%dx%dx%d", n[0], max(n[1], 1), max(n[2], 1))
	return strings.TrimSuffix(strings.TrimSuffix(text, "x1"), "x1")
}

// CeilingSection shows the ceilings of a device.
func CeilingSection(list []Ceiling) sheet.Section {
	var s sheet.Section
	s.Add("ceilings", "loops that do one thing only, checked, then timed on this device in this run; of the time, %s", IntervalWords)
	s.Columns = sheet.Columns([]string{"loop", "rate", "±", "check"}, "loop", "check")
	for i := range list {
		c := &list[i]
		switch {
		case c.Reason != "":
			s.Note("%s: %s", c.Name, c.Reason)
		case c.Wrong != nil:
			s.Rows = append(s.Rows, []string{c.Name, "-", "-", "FAIL"})
			s.Note("%s is WRONG and was not timed: %v", c.Name, c.Wrong)
		default:
			s.Rows = append(s.Rows, []string{c.Name, FormatSI(c.Rate(), c.Unit), Summarize(c.Timing.DeviceNS).PlusMinus(), "pass"})
		}
	}
	return s
}

// An event is a part of a timeline in the trace event format.
type event struct {
	Name  string         `json:"name"`
	Phase string         `json:"ph"`
	Begin float64        `json:"ts"` // µs
	Dur   float64        `json:"dur,omitempty"`
	PID   int            `json:"pid"`
	TID   int            `json:"tid"`
	Args  map[string]any `json:"args,omitempty"`
}

// The threads of a call.
const host, device = 1, 2

// lasting returns the event of what lasted.
func lasting(name string, thread int, begin, length time.Duration, args map[string]any) event {
	return event{Name: name, Phase: "X", Begin: begin.Seconds() * 1e6, Dur: length.Seconds() * 1e6, TID: thread, Args: args}
}

// WriteTrace writes the events of p in the trace event format, which
// chrome://tracing and ui.perfetto.dev open. Each call has a process of its own.
func (p *Profile) WriteTrace(w io.Writer) error {
	var list []event
	var problems, choices []string
	for i := range p.Calls {
		c := &p.Calls[i]
		of, id := c.Result.Subject, i+1
		problems, choices = append(problems, of.params), append(choices, c.Result.Choice)
		list = append(list,
			event{Name: "process_name", Phase: "M", PID: id, Args: map[string]any{"name": of.title}},
			event{Name: "thread_name", Phase: "M", PID: id, TID: host, Args: map[string]any{"name": "host"}},
			event{Name: "thread_name", Phase: "M", PID: id, TID: device, Args: map[string]any{"name": "device: " + text.Line(p.Env.Device)}})
		for _, e := range c.Events {
			e.PID = id
			list = append(list, e)
		}
	}
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	return out.Encode(map[string]any{
		"traceEvents": list, "displayTimeUnit": "ns",
		"otherData": map[string]string{
			"device": p.Env.String(), "problem": strings.Join(problems, "; "), "runs": strings.Join(choices, "; "),
			"version": strings.TrimSpace(p.Env.Version + " " + p.Env.Commit),
			"clocks":  "host and device are not synchronized: the end of the last kernel is put to the end of the wait",
		},
	})
}
