package bench

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/bench/chart"
)

// Errors of files that cannot be drawn.
var (
	errNoResults = errors.New("it has no results")
	errNoTimes   = errors.New("no result of it has a time")
)

// A Drawing is a chart with the name of its file, without ending.
type Drawing struct {
	Name string
	chart.Chart
}

// Charts draws the results of a sweep against the size that differs: latency, speedup over a
// baseline, and rate. Baseline "" is the unfused path, or the first implementation if there is
// none. It is an error if two problems have the same size.
func Charts(x *Records, baseline string) ([]Drawing, error) {
	if x.Len() == 0 {
		return nil, errNoResults
	}
	axis, err := x.axis()
	if err != nil {
		return nil, err
	}
	lines, err := sweepLines(x, axis)
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

	what := kernelWords(x.Text(0, "kernel"))
	latency := drawing(x, axis, "latency", "Latency of "+what+", median of samples", lines)
	latency.LogY = true
	scale := latency.fill(lines, milliseconds, func(p linePoint) (float64, bool) { return p.ns / 1e6, true })
	latency.Y = string(scale) + " per call"
	speedup := drawing(x, axis, "speedup", "Speedup over "+baseline, lines)
	speedup.fill(lines, "", func(p linePoint) (float64, bool) {
		i := slices.IndexFunc(base.points, func(b linePoint) bool { return b.size == p.size })
		if i < 0 {
			return 0, false
		}
		return base.points[i].ns / p.ns, true
	})
	speedup.Y = "times as fast as " + baseline
	flops := drawing(x, axis, "rate", "Rate of "+what, lines)
	flops.Y = string(flops.fill(lines, teraflops, func(p linePoint) (float64, bool) { return p.flops / p.ns * 1e9 / 1e12, true }))
	return []Drawing{latency, speedup, flops}, nil
}

// A sweepLine has the results of an implementation, by ascending size.
type sweepLine struct {
	name   string
	peer   bool
	points []linePoint
}

type linePoint struct{ size, ns, flops, lo, hi float64 } // lo and hi are the interval of ns, ns where there is none

// kernelWords returns a kernel of results in words, as in attention forward.
func kernelWords(kernel string) string {
	for _, p := range []Pass{Both, Backward, Forward} {
		if name, ok := strings.CutSuffix(kernel, p.suffix()); ok {
			return name + " " + p.String()
		}
	}
	return kernel
}

// lengthKey is the size of attention's charts.
const lengthKey = "seq_q"

// axis returns the key whose values tell the problems apart: the length of attention, or the
// first size that differs. Other sizes may differ with it.
func (x *Records) axis() (string, error) {
	if err := x.oneOf(deviceColumns, "a chart is of one kernel on one device"); err != nil {
		return "", err
	}
	var sizes, differ []string
	for _, name := range x.keys() {
		if _, err := x.Number(0, name); err == nil && x.Text(0, name) != "" {
			sizes = append(sizes, name)
		}
		if line, _ := x.different(name, x.Text(0, name)); line > 0 {
			differ = append(differ, name)
		}
	}
	axis := ""
	for _, name := range sizes {
		if axis == "" && slices.Contains(differ, name) || name == lengthKey && (len(differ) == 0 || slices.Contains(differ, name)) {
			axis = name
		}
	}
	if axis == "" && len(sizes) > 0 {
		axis = sizes[0]
	}
	if axis == "" {
		return "", fmt.Errorf("it has no size to draw against")
	}
	first := map[string]int{} // result of each size
	for i := range x.Len() {
		size := x.Text(i, axis)
		at, ok := first[size]
		if !ok {
			first[size] = i
			continue
		}
		for _, name := range differ {
			if a, b := x.Text(at, name), x.Text(i, name); a != b {
				return "", fmt.Errorf("%s is %q in line %d and %q in line %d, where %s is %s: a chart is of problems that differ in one size", name, a, x.line(at), b, x.line(i), axis, size)
			}
		}
	}
	return axis, nil
}

// sweepLines collects the results that have a time.
func sweepLines(x *Records, axis string) ([]sweepLine, error) {
	var lines []sweepLine
	for i := range x.Len() {
		if Status(x.Text(i, "status")) != StatusOK {
			continue
		}
		var p linePoint
		for _, c := range []struct {
			name   string
			target *float64
		}{{axis, &p.size}, {"device_ns", &p.ns}, {"flops", &p.flops}} {
			var err error
			if *c.target, err = x.positive(i, c.name); err != nil {
				return nil, err
			}
		}
		p.lo, p.hi = p.ns, p.ns
		if x.Text(i, "device_ns_lo") != "" && x.Text(i, "device_ns_hi") != "" {
			lo, errLo := x.positive(i, "device_ns_lo")
			hi, errHi := x.positive(i, "device_ns_hi")
			if err := errors.Join(errLo, errHi); err != nil {
				return nil, err
			}
			p.lo, p.hi = min(lo, p.ns), max(hi, p.ns)
		}
		impl := x.Text(i, "impl")
		at := slices.IndexFunc(lines, func(l sweepLine) bool { return l.name == impl })
		if at < 0 {
			at = len(lines)
			lines = append(lines, sweepLine{name: impl, peer: x.peer(i)})
		}
		l := &lines[at]
		if slices.ContainsFunc(l.points, func(q linePoint) bool { return q.size == p.size }) {
			return nil, fmt.Errorf("line %d is a second result of %s at %s=%g", x.line(i), impl, axis, p.size)
		}
		l.points = append(l.points, p)
	}
	if len(lines) == 0 {
		return nil, errNoTimes
	}
	for _, l := range lines {
		slices.SortFunc(l.points, func(a, b linePoint) int { return cmp.Compare(a.size, b.size) })
	}
	return lines, nil
}

// logRange is the ratio of sizes from which on their axis is logarithmic.
const logRange = 8

// drawing returns a chart of x without lines.
func drawing(x *Records, axis, name, title string, lines []sweepLine) Drawing {
	d := Drawing{name, chart.Chart{Title: title, X: axis}}
	if axis == lengthKey {
		d.X = "sequence length"
	}
	least, most := lines[0].points[0].size, 0.0
	for _, l := range lines {
		least, most = min(least, l.points[0].size), max(most, l.points[len(l.points)-1].size)
	}
	d.LogX = most/least >= logRange || powersOfTwo(lines)
	d.Subtitle = x.device() + "\n" + strings.Join(x.constants(), ", ") + x.warning()
	return d
}

// powersOfTwo reports whether all sizes are.
func powersOfTwo(lines []sweepLine) bool {
	for _, l := range lines {
		for _, p := range l.points {
			if f, _ := math.Frexp(p.size); f != 0.5 {
				return false
			}
		}
	}
	return true
}

// constants returns the keys and values that the problems have in common, without features that
// are off.
func (x *Records) constants() (list []string) {
	for _, name := range x.keys() {
		value := x.Text(0, name)
		if line, _ := x.different(name, value); line > 0 || slices.Contains([]string{"", "0", "off", "none", "false"}, value) {
			continue
		}
		list = append(list, strings.TrimSuffix(strings.ReplaceAll(name, "_", "-")+" "+value, " true"))
	}
	return list
}

// fill adds the lines with the values of their points, in the unit that fits the largest, which it
// returns. A point is left out where value, whose results are in u, returns false.
func (d *Drawing) fill(lines []sweepLine, u unit, value func(linePoint) (float64, bool)) unit {
	most := 0.0
	for _, l := range lines {
		s := chart.Series{Name: l.name, Peer: l.peer}
		for _, p := range l.points {
			y, ok := value(p)
			if !ok {
				continue
			}
			s.X, s.Y = append(s.X, p.size), append(s.Y, y)
			most = max(most, y)
			fast, slow := p, p
			fast.ns, slow.ns = p.lo, p.hi
			a, _ := value(fast)
			b, _ := value(slow)
			s.Low, s.High = append(s.Low, min(a, b, y)), append(s.High, max(a, b, y))
		}
		if len(s.X) > 0 {
			d.Series = append(d.Series, s)
		}
	}
	return d.rescale(most, u)
}

// rescale changes all values to the unit that fits the largest, and returns it.
func (d *Drawing) rescale(most float64, u unit) unit {
	u, by := u.fit(most)
	for _, s := range d.Series {
		for _, list := range [][]float64{s.Y, s.Low, s.High} {
			for i := range list {
				list[i] *= by
			}
		}
	}
	return u
}
