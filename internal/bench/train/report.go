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
	"github.com/flashvk/flashvk/internal/bench/chart"
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
			return x.Case.Name + ", " + x.Case.way() + ": " + t.Failed
		}
	}
	return ""
}

// Write writes r in a format.
func (r *Report) Write(w io.Writer, f bench.Format) error {
	switch f {
	case bench.CSV:
		return csv.NewWriter(w).WriteAll(bench.CSVLines(r.keys()))
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
	s := r.Env.Sheet()
	for _, g := range r.groups() {
		s.Sections = append(s.Sections, section(g))
		for _, x := range g {
			if len(x.Stages) > 0 {
				s.Sections = append(s.Sections, x.stages())
			}
		}
	}
	return s
}

// groups returns the results in groups, one for each model, shape and format.
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

func (c *Case) recording() string {
	if c.Fresh {
		return "fresh"
	}
	return "once"
}

// way returns what cases of one shape may differ in: variant, checkpoint and recording.
func (c *Case) way() string { return fmt.Sprintf("%v, %v, %s", c.Variant, c.Asked, c.recording()) }

func (x *BenchResult) name(t *Timing) string {
	if t.Impl == ourName {
		return t.Impl + " " + x.Case.way()
	}
	return t.Impl
}

// reference returns the name and the time that ratios divide by: of the first peer that has times,
// or else of our first result.
func reference(group []*BenchResult) (name string, ns float64) {
	for _, ours := range []bool{false, true} {
		for _, x := range group {
			for _, t := range x.Timings {
				if (t.Impl == ourName) == ours && t.Failed == "" {
					return x.name(&t), t.Summary().Median
				}
			}
		}
	}
	return "", 0
}

// section returns the table of a shape.
func section(group []*BenchResult) (s sheet.Section) {
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
	s.Add("impl", "ours with its variant, checkpoint and recording")
	name, ns := reference(group)
	if name != "" {
		s.Add("ratio", "the time of %s by a row's: above 1 is faster than it", name)
	}
	s.Add("host", "what the host works on a step, until its recording is submitted: median")
	s.Add("loss", "of the first step, and of the last: they warm up for as long a time, not as many steps")
	s.Add("check", "ours: gradients against the slope of the loss along them; a peer's against ours, as a part of their norm")
	type row struct {
		x *BenchResult
		t *Timing
	}
	var rows []row
	for _, x := range group {
		for _, a := range x.About {
			s.Add("peer", "%s", a)
		}
		for i := range x.Timings {
			t := &x.Timings[i]
			if t.Failed == "" || t.Absent {
				rows = append(rows, row{x, t})
			}
			for _, text := range []string{t.Failed, t.Wrong, t.Note} {
				if text != "" {
					s.Note("%s: %s", x.name(t), text)
				}
			}
		}
	}
	number := func(name string, of func(r row, seconds float64) string) sheet.Cell[row] {
		return sheet.Cell[row]{Name: name, Wide: name == "rate", Of: func(r row) string {
			if r.t.Failed != "" {
				return "–"
			}
			return of(r, r.t.Summary().Median/1e9)
		}}
	}
	sheet.Fill(&s, rows,
		sheet.Cell[row]{Name: "impl", Text: true, Of: func(r row) string { return r.x.name(r.t) }},
		number("step", func(_ row, s float64) string { return bench.FormatTime(1e9 * s) }),
		number("±", func(r row, _ float64) string { return r.t.Summary().PlusMinus() }),
		number("tokens/s", func(r row, s float64) string { return bench.FormatSI(float64(r.x.Case.Tokens())/s, "") }),
		number("rate", func(r row, s float64) string { return bench.FormatSI(c.StepFLOPs(c.Shape)/s, "FLOP/s") }),
		number("memory", func(r row, _ float64) string { return bench.FormatSI(float64(r.t.Bytes), "B") }),
		number("ratio", func(_ row, s float64) string { return fmt.Sprintf("%.2f", ns/1e9/s) }),
		number("host", func(r row, _ float64) string {
			if len(r.t.HostNS) == 0 {
				return "-"
			}
			return bench.FormatTime(bench.Summarize(r.t.HostNS).Median)
		}),
		number("loss", func(r row, _ float64) string { return fmt.Sprintf("%.4f", r.t.First) }),
		number("last", func(r row, _ float64) string { return fmt.Sprintf("%.4f", r.t.Last) }),
		number("check", func(r row, _ float64) string { return fmt.Sprintf("%.1e", r.t.Slope) }))
	return s
}

// MemoryWords says what the model of a case and its activations take.
func (c *Case) MemoryWords(m *tnp.Memory) string {
	return fmt.Sprintf("variant %v, checkpoint %v: %v", c.Variant, m.Checkpoint, m)
}

// stages returns the table of what a step consists of.
func (x *BenchResult) stages() (s sheet.Section) {
	sum, step := 0.0, x.Timings[0].Summary().Median
	for _, g := range x.Stages {
		sum += g.NS
	}
	s.Add("stages", "%s, %s: device time of all blocks, each dispatch by itself; %s in all, a step takes %s: %+.1f %% beside kernels, less than nothing where they overlap",
		x.Case.Name, x.Case.way(), bench.FormatTime(sum), bench.FormatTime(step), 100*(1-sum/step))
	sheet.Fill(&s, x.Stages,
		sheet.Cell[tnp.Stage]{Name: "stage", Text: true, Of: func(g tnp.Stage) string { return g.Name }},
		sheet.Cell[tnp.Stage]{Name: "dispatches", Of: func(g tnp.Stage) string { return strconv.Itoa(g.Dispatches) }},
		sheet.Cell[tnp.Stage]{Name: "time", Of: func(g tnp.Stage) string { return bench.FormatTime(g.NS) }},
		sheet.Cell[tnp.Stage]{Name: "share", Of: func(g tnp.Stage) string { return fmt.Sprintf("%.1f%%", 100*g.NS/sum) }})
	return s
}

// keys returns what the CSV file has of each implementation of each case.
func (r *Report) keys() (list [][]bench.Key) {
	k := func(name string, value any) bench.Key { return bench.Key{Name: name, Value: value} }
	for _, g := range r.groups() {
		_, reference := reference(g)
		for _, x := range g {
			for _, t := range x.Timings {
				c, m, rate, recorded := &x.Case, t.Summary(), 0.0, ""
				if m.Median > 0 {
					rate = float64(c.Tokens()) * 1e9 / m.Median
				}
				if t.Impl == ourName {
					recorded = c.recording()
				}
				list = append(list, []bench.Key{
					k("device", r.Env.Device), k("driver", r.Env.Driver), k("commit", r.Env.Commit), k("shape", c.Name), k("dtype", c.DType),
					k("variant", c.Variant), k("checkpoint", c.Checkpoint), k("batch", c.Batch), k("context", c.Context), k("targets", c.Targets),
					k("layers", c.Layers), k("d_model", c.DModel), k("d_ff", c.DFF), k("heads", c.Heads), k("head_dim", c.HeadDim),
					k("components", c.Components), k("impl", t.Impl), k("step_ns", m.Median), k("low_ns", m.Lo), k("high_ns", m.Hi),
					k("tokens_per_s", rate), k("memory_bytes", t.Bytes), k("loss", t.First), k("last", t.Last), k("check", t.Slope), k("failed", t.Failed),
					k("recording", recorded), k("host_ns", bench.Summarize(t.HostNS).Median), k("ratio", reference/m.Median),
					k("loss_off", t.LossOff), k("wrong", t.Wrong),
				})
			}
		}
	}
	return list
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

// Charts draws the results of each shape: bars of the time of each implementation, and of each case
// what its stages take, and who holds its memory.
func (r *Report) Charts() (list []bench.Drawing) {
	groups := r.groups()
	for i, g := range groups {
		var drawings []bench.Drawing
		for _, d := range []struct {
			name, title, y string
			stacked        bool
			bars           func(x *BenchResult, add func(name string, y float64))
		}{
			{"step", "Time of a training step, median", "ms", false, func(x *BenchResult, add func(string, float64)) {
				for _, t := range x.Timings {
					add(t.Impl, t.Summary().Median/1e6)
				}
			}},
			{"stages", "Stages of a training step, each dispatch by itself", "ms", true, func(x *BenchResult, add func(string, float64)) {
				for _, s := range x.Stages {
					add(s.Name, s.NS/1e6)
				}
			}},
			{"memory", "Memory of a training step: model, activations where they are most", "MB", true, func(x *BenchResult, add func(string, float64)) {
				if x.Memory != nil {
					for _, h := range x.Memory.ByName() {
						add(h.Name, float64(h.Bytes)/1e6)
					}
				}
			}},
		} {
			c := chart.Chart{Title: d.title, Subtitle: r.Env.String(), X: "shape, variant, checkpoint, recording", Y: d.y, Stacked: d.stacked}
			if r.Env.CPU {
				c.Subtitle += "\n" + bench.CPUWarning
			}
			for at, x := range g {
				c.Categories = append(c.Categories, x.Case.Name+"\n"+strings.ReplaceAll(x.Case.way(), ", ", "\n"))
				sum, small := 0.0, 0.0
				d.bars(x, func(_ string, y float64) { sum += y })
				d.bars(x, func(name string, y float64) {
					switch {
					case d.stacked && y < sum/50: // too thin for a color
						small += y
					case y > 0:
						c.Bar(name, strings.Contains(name, ":"), at, y)
					}
				})
				if small > 0 {
					c.Bar("others", false, at, small)
				}
			}
			if len(c.Series) > 0 {
				drawings = append(drawings, bench.Drawing{Name: d.name, Chart: c})
			}
		}
		list = append(list, bench.Numbered(drawings, i, len(groups))...)
	}
	return list
}
