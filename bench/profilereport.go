package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/flashvk/flashvk/bench/sheet"
)

// Sheet shows p: the call, its kernels, and what the device can do at most.
func (p *Profile) Sheet() sheet.Sheet {
	s := sheet.Sheet{Facts: []sheet.Fact{{Name: "device", Text: p.Env.String()}}}
	if p.Env.CPU {
		s.Facts = append(s.Facts, sheet.Fact{Name: "WARNING", Text: CPUWarning})
	}
	s.Sections = []sheet.Section{p.kernelSection(), CeilingSection(p.Ceilings)}
	return s
}

func (p *Profile) kernelSection() sheet.Section {
	var s sheet.Section
	peak := PeakOf(p.Ceilings, p.Impl, p.Result.Problem.DType)
	pass := passOf(p.Result.Kernel)
	s.Add("problem", "attention %v, %s\n%s, checked against a float64 reference on %s: max|Δ| %s, limit %s",
		pass, Describe(p.Result.Problem), p.Result.Choice, rowsChecked(p.Result.Check), formatError(p.Result.Check.MaxAbs), formatError(p.Result.Check.Limit))
	s.Add("time", "device time in one call, median of %d; the call as bench times it: %s", profileCalls, FormatTime(p.Result.NS()))
	s.Add("kernel", "registers and spilled bytes per invocation, shared memory per workgroup, as the driver says")
	s.Add("fits", "estimate: workgroups in a compute unit (part of its invocations), and what keeps more out")
	note := ""
	if peak.Note != "" {
		note = ", " + peak.Note
	}
	s.Add("peak", "rate by that of the loop %q%s; B/s by that of the loop \"copy\"", peak.Name, note)
	for i, name := range []string{"kernel", "time", "±", "share", "rate", "of peak", "traffic", "of copy", "workgroups", "size", "registers", "spilled", "shared", "fits"} {
		s.Columns = append(s.Columns, sheet.Column{Name: name, Number: i > 0 && i < 13})
	}
	total := 0.0
	for i := range p.Kernels {
		total += Summarize(p.Kernels[i].NS).Median
	}
	for i := range p.Kernels {
		s.Rows = append(s.Rows, p.Kernels[i].row(total, peak))
	}
	if len(p.Kernels) > 1 {
		all := Work{pass.flops(p.Result.Problem), pass.bytes(p.Result.Problem)}
		s.Rows = append(s.Rows, append(append([]string{"all", FormatTime(total), "", "100%"}, all.cells(total, peak)...), "", "", "", "", "", ""))
	}
	return s
}

// row shows a kernel; total is the device time of all.
func (k *KernelProfile) row(total float64, peak Peak) []string {
	sum := Summarize(k.NS)
	name := k.Name
	if k.Dispatches > 1 {
		name += fmt.Sprintf(" (%d dispatches)", k.Dispatches)
	}
	row := []string{name, FormatTime(sum.Median), fmt.Sprintf("%.0f%%", 100*sum.Spread()), percent(sum.Median, total)}
	row = append(row, k.Work.cells(sum.Median, peak)...)
	row = append(row, sizes(k.Groups), sizes(k.Workgroup))
	if st := k.Stats; st.Available {
		row = append(row, fmt.Sprint(st.Registers), fmt.Sprint(st.SpillBytes), fmt.Sprint(st.SharedBytes))
	} else {
		row = append(row, "-", "-", "-")
	}
	return append(row, k.Occupancy.String())
}

// cells shows rates and the part of the peak that they are.
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

// percent returns x as a part of all.
func percent(x, all float64) string {
	if all == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", 100*x/all)
}

// sizes returns 4x2x1 as 4x2.
func sizes(n [3]uint32) string {
	switch {
	case n[0] == 0:
		return "-"
	case n[2] > 1:
		return fmt.Sprintf("%dx%dx%d", n[0], max(n[1], 1), n[2])
	case n[1] > 1:
		return fmt.Sprintf("%dx%d", n[0], n[1])
	}
	return fmt.Sprint(n[0])
}

// CeilingSection shows what a device can do at most.
func CeilingSection(list []Ceiling) sheet.Section {
	var s sheet.Section
	s.Add("ceilings", "loops that do one thing only, checked, then timed on this device in this run")
	s.Columns = []sheet.Column{{Name: "loop"}, {Name: "rate", Number: true}, {Name: "±", Number: true}, {Name: "check"}}
	for i := range list {
		c := &list[i]
		switch {
		case c.Reason != "":
			s.Note("%s: %s", c.Name, c.Reason)
		case c.Wrong != nil:
			s.Rows = append(s.Rows, []string{c.Name, "-", "-", "FAIL"})
			s.Note("%s is WRONG and was not timed: %v", c.Name, c.Wrong)
		default:
			s.Rows = append(s.Rows, []string{c.Name, FormatSI(c.Rate(), c.Unit), fmt.Sprintf("%.0f%%", 100*Summarize(c.Timing.DeviceNS).Spread()), "pass"})
		}
	}
	return s
}

// WriteTrace writes the events of p in the trace event format, which
// chrome://tracing and ui.perfetto.dev open.
func (p *Profile) WriteTrace(w io.Writer) error {
	type event struct {
		Name  string         `json:"name"`
		Phase string         `json:"ph"`
		Begin float64        `json:"ts"` // µs
		Dur   float64        `json:"dur,omitempty"`
		PID   int            `json:"pid"`
		TID   int            `json:"tid"`
		Args  map[string]any `json:"args,omitempty"`
	}
	const host, device = 1, 2
	list := []event{
		{Name: "thread_name", Phase: "M", PID: 1, TID: host, Args: map[string]any{"name": "host"}},
		{Name: "thread_name", Phase: "M", PID: 1, TID: device, Args: map[string]any{"name": "device: " + oneLine(p.Env.Device)}},
	}
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	for _, e := range p.Events {
		thread := host
		if e.Device {
			thread = device
		}
		list = append(list, event{e.Name, "X", us(e.Begin), us(e.Length), 1, thread, e.Args})
	}
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	return out.Encode(map[string]any{
		"traceEvents": list, "displayTimeUnit": "ns",
		"otherData": map[string]string{
			"device": p.Env.String(), "problem": p.Result.Problem.String(), "runs": p.Result.Choice, "version": strings.TrimSpace(p.Env.Version + " " + p.Env.Commit),
			"clocks": "host and device are not synchronized: the end of the last kernel is put to the end of the wait",
		},
	})
}
