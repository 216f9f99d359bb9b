package train

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/sheet"
	"github.com/flashvk/flashvk/pipelines/tnp"
)

// A Report is what flashvk bench train found.
type Report struct {
	Made    time.Time `json:"-"`
	Wide    bool      `json:"-"` // a table as wide as it gets; else bench.TerminalWidth
	Env     bench.Environment
	Results []*BenchResult
}

// Failed returns what is wrong with our own results, "" if nothing is. What the device lacks is, if
// there is no other result.
func (r *Report) Failed() string {
	measured := slices.ContainsFunc(r.Results, func(x *BenchResult) bool { return x.Timings[0].Failed == "" })
	for _, x := range r.Results {
		if t := x.Timings[0]; t.Failed != "" && !(t.Absent && measured) {
			return x.Case.Name + r.wayWords(x) + ": " + t.Failed
		}
	}
	return ""
}

// Write writes r in a format.
func (r *Report) Write(w io.Writer, f bench.Format) error {
	switch f {
	case bench.CSV:
		return r.writeCSV(w)
	case bench.JSON:
		return bench.WriteDocument(w, "train", r.Made, r)
	case bench.Benchfmt:
		return r.writeBenchfmt(w)
	}
	return bench.WriteSheet(w, r.Sheet(), f, r.Wide)
}

// Sheet returns a table for each model and shape, with a row for each way to compute its step and
// each peer, and one of the stages of each way.
func (r *Report) Sheet() sheet.Sheet {
	s := sheet.Sheet{Facts: []sheet.Fact{{Name: "device", Text: r.Env.String()}}}
	if r.Env.CPU {
		s.Facts = append(s.Facts, sheet.Fact{Name: sheet.Warning, Text: bench.CPUWarning})
	}
	for _, g := range r.groups() {
		s.Sections = append(s.Sections, r.section(g))
		for _, x := range g {
			if len(x.Stages) > 0 {
				s.Sections = append(s.Sections, r.stages(x))
			}
		}
	}
	return s
}

// groups returns the results, those of one model, shape and format together.
func (r *Report) groups() (groups [][]*BenchResult) {
	for _, x := range r.Results {
		last := len(groups) - 1
		if last >= 0 && groups[last][0].Case.Preset == x.Case.Preset && groups[last][0].Case.DType == x.Case.DType {
			groups[last] = append(groups[last], x)
		} else {
			groups = append(groups, []*BenchResult{x})
		}
	}
	return groups
}

// ways are what cases of one shape may differ in.
var ways = []struct {
	name string
	of   func(c *Case) string
}{
	{"variant", func(c *Case) string { return c.Variant.String() }},
	{"checkpoint", func(c *Case) string { return c.Asked.String() }},
	{"recording", func(c *Case) string {
		if c.Fresh {
			return "fresh"
		}
		return "once"
	}},
}

// way returns what tells the case of x from others of the report, and what that is of, as in
// variant and unfused.
func (r *Report) way(x *BenchResult) (names, values []string) {
	for _, w := range ways {
		if slices.ContainsFunc(r.Results, func(o *BenchResult) bool { return w.of(&o.Case) != w.of(&x.Case) }) {
			names, values = append(names, w.name), append(values, w.of(&x.Case))
		}
	}
	return names, values
}

// wayWords returns that as a text behind the name of a shape, as in ", checkpoint off".
func (r *Report) wayWords(x *BenchResult) (text string) {
	names, values := r.way(x)
	for i, name := range names {
		text += ", " + name + " " + values[i]
	}
	return text
}

// name returns that of a row.
func (r *Report) name(x *BenchResult, t *Timing) string {
	if _, values := r.way(x); t.Impl == ourName && len(values) > 0 {
		return t.Impl + " " + strings.Join(values, ", ")
	}
	return t.Impl
}

// reference returns what ratios are to: the first peer that has times, or our first result.
func (r *Report) reference(group []*BenchResult) (name string, ns float64) {
	for _, ours := range []bool{false, true} {
		for _, x := range group {
			for _, t := range x.Timings {
				if (t.Impl == ourName) == ours && t.Failed == "" {
					return r.name(x, &t), t.Summary().Median
				}
			}
		}
	}
	return "", 0
}

// section returns the table of a shape.
func (r *Report) section(group []*BenchResult) (s sheet.Section) {
	c := &group[0].Case
	s.Add("step", "%s, %v: %v; %v\n%d parameters, %s", c.Name, c.DType, c.Config, c.Shape, c.NumParams(), bench.FormatSI(c.StepFLOPs(c.Shape), "FLOP"))
	said := map[string]bool{}
	for _, x := range group {
		if x.Memory == nil {
			continue
		}
		if words := x.Case.MemoryWords(x.Memory); !said[words] {
			s.Add("memory", "%s", words)
			said[words] = true
		}
	}
	s.Add("time", "wall clock of forward, backward and AdamW, median of %d steps; %s", c.Samples, bench.IntervalWords)
	reference, ns := r.reference(group)
	if names, _ := r.way(group[0]); len(names) > 0 {
		s.Add("impl", "ours with its %s", strings.Join(names, ", "))
	}
	if reference != "" {
		s.Add("ratio", "the time of %s by a row's: above 1 is faster than it", reference)
	}
	s.Add("host", "what the host works on a step, until its recording is submitted: median")
	s.Add("loss", "of the first step, and of the last: they warm up for as long a time, not as many steps")
	s.Add("check", "ours: gradients against the slope of the loss along them; a peer's against ours, as a part of their norm")
	s.Columns = []sheet.Column{{Name: "impl"}, {Name: "step", Number: true}, {Name: "±", Number: true}, {Name: "tokens/s", Number: true}, {Name: "rate", Number: true, Wide: true},
		{Name: "memory", Number: true}, {Name: "ratio", Number: true}, {Name: "host", Number: true}, {Name: "loss", Number: true}, {Name: "last", Number: true}, {Name: "check", Number: true}}
	for _, x := range group {
		for _, a := range x.About {
			s.Add("peer", "%s", a)
		}
		for _, t := range x.Timings {
			r.row(&s, x, &t, ns)
		}
	}
	return s
}

// MemoryWords says what the model of a case and its activations take.
func (c *Case) MemoryWords(m *tnp.Memory) string {
	return fmt.Sprintf("variant %v, checkpoint %v: %v", c.Variant, m.Checkpoint, m)
}

// row adds a row, and what there is to say of it.
func (r *Report) row(s *sheet.Section, x *BenchResult, t *Timing, reference float64) {
	name, c := r.name(x, t), &x.Case
	if t.Failed != "" {
		if t.Absent {
			s.Rows = append(s.Rows, append([]string{name}, slices.Repeat([]string{"–"}, len(s.Columns)-1)...))
		}
		s.Note("%s: %s", name, t.Failed)
		return
	}
	m, host := t.Summary(), "-"
	if len(t.HostNS) > 0 {
		host = bench.FormatTime(bench.Summarize(t.HostNS).Median)
	}
	seconds := m.Median / 1e9
	s.Rows = append(s.Rows, []string{name, bench.FormatTime(m.Median), m.PlusMinus(),
		bench.FormatSI(float64(c.Tokens())/seconds, ""), bench.FormatSI(c.StepFLOPs(c.Shape)/seconds, "FLOP/s"), bench.FormatSI(float64(t.Bytes), "B"),
		fmt.Sprintf("%.2f", reference/m.Median), host, fmt.Sprintf("%.4f", t.First), fmt.Sprintf("%.4f", t.Last), fmt.Sprintf("%.1e", t.Slope)})
	if t.Wrong != "" {
		s.Note("%s has a wrong output: %s", name, t.Wrong)
	}
	if t.Note != "" {
		s.Note("%s: %s", name, t.Note)
	}
}

// stages returns the table of what a step consists of.
func (r *Report) stages(x *BenchResult) (s sheet.Section) {
	sum := 0.0
	for _, g := range x.Stages {
		sum += g.NS
	}
	s.Add("stages", "%s: device time of all blocks, each dispatch by itself; %s in all, a step takes %s: %+.1f %% beside kernels, less than nothing where they overlap",
		x.Case.Name+r.wayWords(x), bench.FormatTime(sum), bench.FormatTime(x.Timings[0].Summary().Median), 100*(1-sum/x.Timings[0].Summary().Median))
	s.Columns = []sheet.Column{{Name: "stage"}, {Name: "dispatches", Number: true}, {Name: "time", Number: true}, {Name: "share", Number: true}}
	for _, g := range x.Stages {
		s.Rows = append(s.Rows, []string{g.Name, strconv.Itoa(g.Dispatches), bench.FormatTime(g.NS), fmt.Sprintf("%.1f%%", 100*g.NS/sum)})
	}
	return s
}

// writeCSV writes a line for each implementation of each case.
func (r *Report) writeCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	lines := [][]string{{"device", "driver", "commit", "shape", "dtype", "variant", "checkpoint", "batch", "context", "targets", "layers", "d_model", "d_ff", "heads", "head_dim", "components",
		"impl", "step_ns", "low_ns", "high_ns", "tokens_per_s", "memory_bytes", "loss", "last", "check", "failed",
		"recording", "host_ns", "ratio", "loss_off", "wrong"}}
	for _, g := range r.groups() {
		_, reference := r.reference(g)
		for _, x := range g {
			for _, t := range x.Timings {
				lines = append(lines, r.line(x, &t, reference))
			}
		}
	}
	return out.WriteAll(lines)
}

// line returns the line of an implementation.
func (r *Report) line(x *BenchResult, t *Timing, reference float64) []string {
	number := func(v float64) string {
		if v-v != 0 { // no interval of so few samples, no ratio without a time
			return ""
		}
		return strconv.FormatFloat(v, 'g', 7, 64)
	}
	c, m, rate := &x.Case, t.Summary(), 0.0
	if m.Median > 0 {
		rate = float64(c.Tokens()) * 1e9 / m.Median
	}
	recorded := ""
	if t.Impl == ourName {
		recorded = ways[2].of(c)
	}
	return []string{r.Env.Device, r.Env.Driver, r.Env.Commit, c.Name, c.DType.String(), c.Variant.String(), c.Checkpoint.String(),
		strconv.Itoa(c.Batch), strconv.Itoa(c.Context), strconv.Itoa(c.Targets), strconv.Itoa(c.Layers), strconv.Itoa(c.DModel), strconv.Itoa(c.DFF),
		strconv.Itoa(c.Heads), strconv.Itoa(c.HeadDim), strconv.Itoa(c.Components),
		t.Impl, number(m.Median), number(m.Lo), number(m.Hi), number(rate), strconv.FormatInt(t.Bytes, 10), number(t.First), number(t.Last), number(t.Slope), t.Failed,
		recorded, number(bench.Summarize(t.HostNS).Median), number(reference / m.Median), number(t.LossOff), t.Wrong}
}

// writeBenchfmt writes a line for each sample, in the Go benchmark format.
func (r *Report) writeBenchfmt(w io.Writer) error {
	text := fmt.Sprintf("pkg: github.com/flashvk/flashvk/internal/bench/train\ngpu: %s\ndriver: %s\ncommit: %s\nUnit tokens/s better=higher\n", r.Env.Device, r.Env.Driver, r.Env.Commit)
	for _, x := range r.Results {
		c, fresh := &x.Case, ""
		if c.Fresh {
			fresh = "/recording=fresh"
		}
		for _, t := range x.Timings {
			for _, ns := range t.NS {
				text += fmt.Sprintf("BenchmarkTrainStep/shape=%s/dtype=%v/variant=%v/checkpoint=%v%s/batch=%d/context=%d/targets=%d/impl=%s 1 %.0f ns/op %.6g tokens/s\n",
					c.Name, c.DType, c.Variant, c.Checkpoint, fresh, c.Batch, c.Context, c.Targets, t.Impl, ns, float64(c.Tokens())*1e9/ns)
			}
		}
	}
	_, err := io.WriteString(w, text)
	return err
}
