package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/bench/chart"
)

// A Drawing is a chart with the name of its file, without ending.
type Drawing struct {
	Name string
	chart.Chart
}

// Charts draws the results of a sweep against the sequence length: latency,
// speedup over a baseline, and rate. Baseline "" stands for the unfused path, or
// the first implementation if there is none. It is an error if the results
// differ in more than length and implementation.
func Charts(x *Records, baseline string) ([]Drawing, error) {
	lines, err := sweepLines(x)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(lines))
	for i, l := range lines {
		names[i] = l.name
	}
	switch {
	case baseline == "" && slices.Contains(names, attention.Unfused.String()):
		baseline = attention.Unfused.String()
	case baseline == "":
		baseline = names[0]
	case !slices.Contains(names, baseline):
		return nil, fmt.Errorf("the baseline %s is not one of %s", baseline, strings.Join(names, ", "))
	}
	base := lines[slices.Index(names, baseline)]

	pass := passOf(x.Text(0, "kernel")).String()
	time, rate := []unit{milliseconds, "µs"}, []unit{teraflops, "GFLOP/s"}
	latency := drawing(x, "latency", "Latency of attention "+pass+", median of samples", lines)
	latency.LogY = true
	scale := latency.fill(lines, time, func(p linePoint) (float64, bool) { return p.ns / 1e6, true })
	latency.Y = string(scale) + " per call"
	speedup := drawing(x, "speedup", "Speedup over "+baseline, lines)
	speedup.fill(lines, nil, func(p linePoint) (float64, bool) {
		i := slices.IndexFunc(base.points, func(b linePoint) bool { return b.seq == p.seq })
		if i < 0 {
			return 0, false
		}
		return base.points[i].ns / p.ns, true
	})
	speedup.Y = "times as fast as " + baseline
	flops := drawing(x, "rate", "Rate of attention "+pass, lines)
	flops.Y = string(flops.fill(lines, rate, func(p linePoint) (float64, bool) { return p.flops / p.ns * 1e9 / 1e12, true }))
	return []Drawing{latency, speedup, flops}, nil
}

// A sweepLine has the results of an implementation, by ascending length.
type sweepLine struct {
	name   string
	points []linePoint
}

type linePoint struct{ seq, ns, flops float64 }

// sweepLines collects the results that have a time.
func sweepLines(x *Records) ([]sweepLine, error) {
	if x.Len() == 0 {
		return nil, fmt.Errorf("it has no results")
	}
	for _, name := range sweepColumns {
		if name == "version" || name == "commit" {
			continue
		}
		if line, got := x.different(name, x.Text(0, name)); line > 0 {
			return nil, fmt.Errorf("%s is %q in line 2 and %q in line %d: a chart is of results that differ in length and implementation only", name, x.Text(0, name), got, line)
		}
	}
	var lines []sweepLine
	for i := range x.Len() {
		if Status(x.Text(i, "status")) != StatusOK {
			continue
		}
		var p linePoint
		for _, c := range []struct {
			name   string
			target *float64
		}{{"seq_q", &p.seq}, {"device_ns", &p.ns}, {"flops", &p.flops}} {
			var err error
			if *c.target, err = x.Number(i, c.name); err != nil {
				return nil, err
			}
			if !(*c.target > 0) {
				return nil, fmt.Errorf("line %d: %s=%g is not positive", i+2, c.name, *c.target)
			}
		}
		impl := x.Text(i, "impl")
		at := slices.IndexFunc(lines, func(l sweepLine) bool { return l.name == impl })
		if at < 0 {
			at = len(lines)
			lines = append(lines, sweepLine{name: impl})
		}
		l := &lines[at]
		if slices.ContainsFunc(l.points, func(q linePoint) bool { return q.seq == p.seq }) {
			return nil, fmt.Errorf("line %d is a second result of %s at seq_q=%g", i+2, impl, p.seq)
		}
		l.points = append(l.points, p)
	}
	if len(lines) == 0 {
		return nil, fmt.Errorf("no result of it has a time")
	}
	for _, l := range lines {
		slices.SortFunc(l.points, func(a, b linePoint) int { return cmp.Compare(a.seq, b.seq) })
	}
	return lines, nil
}

// logRange is the ratio of lengths from which their axis is logarithmic.
const logRange = 8

// drawing returns a chart of x without lines.
func drawing(x *Records, name, title string, lines []sweepLine) Drawing {
	d := Drawing{name, chart.Chart{Title: title, X: "sequence length"}}
	least, most := lines[0].points[0].seq, 0.0
	for _, l := range lines {
		least, most = min(least, l.points[0].seq), max(most, l.points[len(l.points)-1].seq)
	}
	d.LogX = most/least >= logRange
	d.Subtitle = fmt.Sprintf("%s (%s), driver %s\n%s: batch %s, heads %s, kv-heads %s, headdim %s", x.Text(0, "gpu"), x.Text(0, "gpu_type"), x.Text(0, "driver"),
		x.Text(0, "dtype"), x.Text(0, "batch"), x.Text(0, "heads"), x.Text(0, "kv_heads"), x.Text(0, "head_dim"))
	if x.Text(0, "causal") == "true" {
		d.Subtitle += ", causal (" + x.Text(0, "causal_align") + ")"
	}
	if w := x.Text(0, "window"); w != "" && w != "off" {
		d.Subtitle += ", window " + w
	}
	if x.Text(0, "cpu_device") == "true" {
		d.Subtitle += "\n" + CPUWarning
	}
	return d
}

// fill adds the lines with what value returns for their points; false leaves a
// point out. The second unit, a thousandth of the first, is taken if all values
// are below 1 of the first. It returns the unit.
func (d *Drawing) fill(lines []sweepLine, units []unit, value func(linePoint) (float64, bool)) (u unit) {
	most := 0.0
	for _, l := range lines {
		s := chart.Series{Name: l.name}
		for _, p := range l.points {
			if y, ok := value(p); ok {
				s.X, s.Y = append(s.X, p.seq), append(s.Y, y)
				most = max(most, y)
			}
		}
		if len(s.X) > 0 {
			d.Series = append(d.Series, s)
		}
	}
	if len(units) == 0 {
		return ""
	}
	return d.rescale(most, units[0], units[1])
}

// rescale multiplies all values by 1000 if the largest is below 1, and returns
// the unit that they then have.
func (d *Drawing) rescale(most float64, unit, thousandth unit) unit {
	if most >= 1 {
		return unit
	}
	for _, s := range d.Series {
		for i := range s.Y {
			s.Y[i] *= 1000
		}
	}
	return thousandth
}
