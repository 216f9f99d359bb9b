package train

import (
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/sheet"
)

// A Report is what flashvk bench train found.
type Report struct {
	Made    time.Time `json:"-"`
	Wide    bool      `json:"-"` // a table as wide as it gets; else bench.TerminalWidth
	Env     bench.Environment
	Results []*BenchResult
}

// Failed returns what is wrong with our own results, "" if nothing is.
func (r *Report) Failed() string {
	for _, x := range r.Results {
		if t := x.Timings[0]; t.Failed != "" {
			return x.Case.Name + ": " + t.Failed
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
	return bench.WriteSheet(w, r.sheet(), f, r.Wide)
}

// sheet returns a table for each case, and one of its stages.
func (r *Report) sheet() sheet.Sheet {
	s := sheet.Sheet{Facts: []sheet.Fact{{Name: "device", Text: r.Env.String()}}}
	if r.Env.CPU {
		s.Facts = append(s.Facts, sheet.Fact{Name: "WARNING", Text: bench.CPUWarning})
	}
	for _, x := range r.Results {
		s.Sections = append(s.Sections, x.section())
		if len(x.Stages) > 0 {
			s.Sections = append(s.Sections, x.stages())
		}
	}
	return s
}

// section returns the table of a case.
func (x *BenchResult) section() (s sheet.Section) {
	c := &x.Case
	s.Add("step", "%s, %v, variant %v, checkpoint %v: %v; %v\n%d parameters, %s", c.Name, c.DType, c.Variant, c.Checkpoint, c.Config, c.Shape, c.NumParams(), bench.FormatSI(c.StepFLOPs(c.Shape), "FLOP"))
	if x.Memory != nil {
		s.Add("memory", "%v", x.Memory)
	}
	s.Add("time", "wall clock of forward, backward and AdamW, median of %d steps; %s; ratio is a peer's time by ours", c.Samples, bench.IntervalWords)
	if ours := x.Timings[0]; len(ours.HostNS) > 0 {
		s.Add("host", "%s of our step, until its recording is submitted: median", bench.FormatTime(bench.Summarize(ours.HostNS).Median))
	}
	s.Add("check", "ours: gradients against the slope of the loss along them; a peer's against ours, as a part of their norm")
	for _, a := range x.About {
		s.Add("peer", "%s", a)
	}
	s.Columns = []sheet.Column{{Name: "impl"}, {Name: "step", Number: true}, {Name: "±", Number: true}, {Name: "tokens/s", Number: true}, {Name: "rate", Number: true},
		{Name: "memory", Number: true}, {Name: "ratio", Number: true}, {Name: "loss", Number: true}, {Name: "last", Number: true}, {Name: "check", Number: true}}
	ours := x.Timings[0].Summary().Median
	for _, t := range x.Timings {
		if t.Failed != "" {
			s.Note("%s: %s", t.Impl, t.Failed)
			continue
		}
		m := t.Summary()
		seconds := m.Median / 1e9
		s.Rows = append(s.Rows, []string{t.Impl, bench.FormatTime(m.Median), m.PlusMinus(),
			bench.FormatSI(float64(c.Tokens())/seconds, ""), bench.FormatSI(c.StepFLOPs(c.Shape)/seconds, "FLOP/s"), bench.FormatSI(float64(t.Bytes), "B"),
			ratio(m.Median, ours), fmt.Sprintf("%.4f", t.First), fmt.Sprintf("%.4f", t.Last), fmt.Sprintf("%.1e", t.Slope)})
		if t.Note != "" {
			s.Note("%s: %s", t.Impl, t.Note)
		}
	}
	return s
}

// ratio returns a time by ours, if there is one.
func ratio(ns, ours float64) string {
	if ours == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", ns/ours)
}

// stages returns the table of what a step consists of.
func (x *BenchResult) stages() (s sheet.Section) {
	sum := 0.0
	for _, g := range x.Stages {
		sum += g.NS
	}
	s.Add("stages", "%s: device time of all blocks, each dispatch by itself; %s in all, a step takes %s: %+.1f %% beside kernels, less than nothing where they overlap",
		x.Case.Name, bench.FormatTime(sum), bench.FormatTime(x.Timings[0].Summary().Median), 100*(1-sum/x.Timings[0].Summary().Median))
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
		"impl", "step_ns", "low_ns", "high_ns", "tokens_per_s", "memory_bytes", "loss", "last", "check", "failed"}}
	number := func(v float64) string {
		if math.IsInf(v, 0) { // no interval of so few samples
			return ""
		}
		return strconv.FormatFloat(v, 'g', 7, 64)
	}
	for _, x := range r.Results {
		c := &x.Case
		for _, t := range x.Timings {
			m := t.Summary()
			rate := 0.0
			if m.Median > 0 {
				rate = float64(c.Tokens()) * 1e9 / m.Median
			}
			lines = append(lines, []string{r.Env.Device, r.Env.Driver, r.Env.Commit, c.Name, c.DType.String(), c.Variant.String(), c.Checkpoint.String(),
				strconv.Itoa(c.Batch), strconv.Itoa(c.Context), strconv.Itoa(c.Targets), strconv.Itoa(c.Layers), strconv.Itoa(c.DModel), strconv.Itoa(c.DFF),
				strconv.Itoa(c.Heads), strconv.Itoa(c.HeadDim), strconv.Itoa(c.Components),
				t.Impl, number(m.Median), number(m.Lo), number(m.Hi), number(rate), strconv.FormatInt(t.Bytes, 10), number(t.First), number(t.Last), number(t.Slope), t.Failed})
		}
	}
	return out.WriteAll(lines)
}

// writeBenchfmt writes a line for each sample, in the Go benchmark format.
func (r *Report) writeBenchfmt(w io.Writer) error {
	text := fmt.Sprintf("pkg: github.com/flashvk/flashvk/internal/bench/train\ngpu: %s\ndriver: %s\ncommit: %s\nUnit tokens/s better=higher\n", r.Env.Device, r.Env.Driver, r.Env.Commit)
	for _, x := range r.Results {
		c := &x.Case
		for _, t := range x.Timings {
			for _, ns := range t.NS {
				text += fmt.Sprintf("BenchmarkTrainStep/shape=%s/dtype=%v/variant=%v/checkpoint=%v/batch=%d/context=%d/targets=%d/impl=%s 1 %.0f ns/op %.6g tokens/s\n",
					c.Name, c.DType, c.Variant, c.Checkpoint, c.Batch, c.Context, c.Targets, t.Impl, ns, float64(c.Tokens())*1e9/ns)
			}
		}
	}
	_, err := io.WriteString(w, text)
	return err
}
