package bench

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/bench/chart"
)

// A Drawing is a chart with the name of its file, without ending.
type Drawing struct {
	Name string
	chart.Chart
}

// Charts draws the results of r as Plots does, none where nothing has a time: the table says why.
func (r Report) Charts() []Drawing {
	if len(r.Results) == 0 {
		return nil
	}
	lines := r.csvLines()
	list, _ := Plots(&Records{names: lines[0], rows: lines[1:]}, "")
	return list
}

// Plots draws results of one device. Where problems differ in one size only, it draws latency,
// speedup over a baseline, and rate against that size. The others are bars of rates. Baseline "" is
// the unfused path, or the first implementation if there is none.
func Plots(x *Records, baseline string) (list []Drawing, err error) {
	if x.Len() == 0 {
		return nil, errors.New("it has no results")
	}
	if err := x.oneOf(deviceColumns[:3], "a chart is of one device"); err != nil {
		return nil, err
	}
	var impls []string
	for i := range x.Len() {
		if impl := x.Text(i, "impl"); !slices.Contains(impls, impl) {
			impls = append(impls, impl)
		}
	}
	if baseline != "" && !slices.Contains(impls, baseline) {
		return nil, fmt.Errorf("the baseline %s is not one of %s", baseline, strings.Join(impls, ", "))
	}
	families, rest := x.families()
	for i, f := range families {
		drawings, err := f.draw(cmp.Or(baseline, attention.Unfused.String()))
		if err != nil {
			return nil, err
		}
		for _, d := range drawings {
			if len(families) > 1 {
				d.Name += "-" + strconv.Itoa(i+1)
			}
			list = append(list, d)
		}
	}
	if rest.Len() > 0 {
		bars, err := rest.bars()
		if err != nil {
			return nil, err
		}
		if len(bars.Series) > 0 {
			list = append(list, bars)
		}
	}
	if len(list) == 0 {
		return nil, errors.New("no result of it has a time")
	}
	return list, nil
}

// A family has results whose problems differ in one size only.
type family struct {
	*Records
	axis string
}

// minSizes is the number of sizes that make a line.
const minSizes = 3

// families divides x into families and the rest. The size with the most values comes first.
func (x *Records) families() (families []family, rest *Records) {
	left := make([]int, x.Len())
	for i := range left {
		left[i] = i
	}
	for {
		var best [][]int
		axis, most := "", minSizes-1
		for _, key := range x.keys() {
			list, sizes := x.kinds(left, key)
			if sizes > most {
				best, axis, most = list, key, sizes
			}
		}
		if best == nil {
			slices.SortStableFunc(families, func(a, b family) int { return cmp.Compare(a.line(0), b.line(0)) })
			return families, x.pick(left)
		}
		for _, of := range best {
			families = append(families, family{x.pick(of), axis})
			left = slices.DeleteFunc(left, func(i int) bool { return slices.Contains(of, i) })
		}
	}
}

// kinds returns the lines over a size that some results make, each as a list of results, and the
// number of sizes of the longest line.
func (x *Records) kinds(of []int, axis string) (list [][]int, most int) {
	at, sizes := map[string]int{}, []map[string]bool(nil)
	for _, i := range of {
		if _, err := strconv.Atoi(x.Text(i, axis)); err != nil {
			continue
		}
		kind := x.kind(i, axis)
		if _, ok := at[kind]; !ok {
			at[kind], list, sizes = len(list), append(list, nil), append(sizes, map[string]bool{})
		}
		list[at[kind]] = append(list[at[kind]], i)
		sizes[at[kind]][x.Text(i, axis)] = true
	}
	var lines [][]int
	for n := range list {
		if len(sizes[n]) >= minSizes {
			lines, most = append(lines, list[n]), max(most, len(sizes[n]))
		}
	}
	return lines, most
}

// lengthKey is the size of attention's charts.
const lengthKey = "seq_q"

// kind returns what tells the kernel and problem of result i from others, without a size and what
// follows from it: of squares of attention the other length, of its head_dim the other sizes.
func (x *Records) kind(i int, axis string) string {
	kind := x.Text(i, "kernel")
	square := x.Text(i, lengthKey) == x.Text(i, "seq_kv") && x.Text(i, "varlen") == "off"
	for _, k := range x.keys() {
		if k == axis || axis == "head_dim" && (k == "value_dim" || k == "scale") || axis == lengthKey && k == "seq_kv" && square {
			continue
		}
		kind += "\n" + k + " " + x.Text(i, k)
	}
	return kind
}

// pick returns some of the results.
func (x *Records) pick(of []int) *Records {
	y := &Records{names: x.names, lines: make([]int, len(of))}
	for i, at := range of {
		y.rows, y.lines[i] = append(y.rows, x.rows[at]), x.line(at)
	}
	return y
}

// A point is a result that has a time, in seconds. Its interval is the time where it has none.
type point struct{ size, time, flops, low, high float64 }

// point reads result i.
func (x *Records) point(i int, axis string) (p point, err error) {
	for _, c := range []struct {
		name   string
		target *float64
		by     float64
	}{{axis, &p.size, 1}, {"flops", &p.flops, 1}, {"device_ns", &p.time, 1e-9}, {"device_ns_lo", &p.low, 1e-9}, {"device_ns_hi", &p.high, 1e-9}} {
		value := x.Text(i, c.name)
		if c.name == "" || value == "" && strings.HasPrefix(c.name, "device_ns_") {
			*c.target = p.time
			continue
		}
		n, err := x.Number(i, c.name)
		if err == nil && !(n > 0) {
			err = fmt.Errorf("line %d: %s=%g is not positive", x.line(i), c.name, n)
		}
		if err != nil {
			return p, err
		}
		*c.target = n * c.by
	}
	p.low, p.high = min(p.low, p.time), max(p.high, p.time)
	return p, nil
}

// draw draws latency, speedup and rate of a family, nothing where nothing has a time.
func (f family) draw(baseline string) ([]Drawing, error) {
	var names []string
	points, peers := map[string][]point{}, map[string]bool{}
	for i := range f.Len() {
		if Status(f.Text(i, "status")) != StatusOK {
			continue
		}
		p, err := f.point(i, f.axis)
		if err != nil {
			return nil, err
		}
		impl := f.Text(i, "impl")
		if slices.ContainsFunc(points[impl], func(q point) bool { return q.size == p.size }) {
			return nil, fmt.Errorf("line %d is a second result of %s at %s=%g", f.line(i), impl, f.axis, p.size)
		}
		if points[impl] == nil {
			names = append(names, impl)
		}
		points[impl], peers[impl] = append(points[impl], p), f.Text(i, "peer") == "true"
	}
	if len(names) == 0 {
		return nil, nil
	}
	if points[baseline] == nil {
		baseline = names[0]
	}
	what := kernelWords(f.Text(0, "kernel"))
	base := func(p point) float64 { // 0: the baseline has no such size
		i := slices.IndexFunc(points[baseline], func(b point) bool { return b.size == p.size })
		if i < 0 {
			return 0
		}
		return points[baseline][i].time
	}
	var list []Drawing
	for _, d := range []struct {
		name, title, y, unit string
		of                   func(p point, time float64) float64
	}{
		{"latency", "Latency of " + what + ", median of samples", "%s per call", "s", func(_ point, time float64) float64 { return time }},
		{"speedup", "Speedup over " + baseline, "times as fast as " + baseline, "", func(p point, time float64) float64 { return base(p) / time }},
		{"rate", "Rate of " + what, "%s", "FLOP/s", func(p point, time float64) float64 { return p.flops / time }},
	} {
		c := Drawing{d.name, chart.Chart{Title: d.title, Subtitle: f.head(), X: f.axis, Y: d.y, LogY: d.name == "latency"}}
		if f.axis == lengthKey {
			c.X = "sequence length"
		}
		for _, name := range names {
			s := chart.Series{Name: name, Peer: peers[name]}
			slices.SortFunc(points[name], func(a, b point) int { return cmp.Compare(a.size, b.size) })
			for _, p := range points[name] {
				if y, a, b := d.of(p, p.time), d.of(p, p.low), d.of(p, p.high); y > 0 {
					s.X, s.Y, s.Low, s.High = append(s.X, p.size), append(s.Y, y), append(s.Low, min(a, b)), append(s.High, max(a, b))
				}
			}
			if len(s.X) > 0 {
				c.Series = append(c.Series, s)
			}
		}
		if d.unit != "" {
			c.Y = fmt.Sprintf(d.y, c.scale(d.unit))
		}
		c.LogX = logarithmic(c.Series)
		list = append(list, c)
	}
	return list, nil
}

// logarithmic reports whether sizes need an axis of their logarithms: they are powers of two, or
// far apart.
func logarithmic(list []chart.Series) bool {
	const far = 8
	least, most, powers := math.Inf(1), 0.0, true
	for _, s := range list {
		for _, x := range s.X {
			f, _ := math.Frexp(x)
			least, most, powers = min(least, x), max(most, x), powers && f == 0.5
		}
	}
	return powers || most/least >= far
}

// scale divides all values, which are in a unit, by the power of 1000 that fits the largest, and
// returns the unit with its prefix.
func (d *Drawing) scale(unit string) string {
	prefixes := []string{"n", "µ", "m", "", "k", "M", "G", "T", "P"}
	most := 0.0
	for _, s := range d.Series {
		most = max(most, slices.Max(s.Y))
	}
	n := min(max(int(math.Floor(math.Log10(most)/3)), -3), 5)
	for _, s := range d.Series {
		for _, list := range [][]float64{s.Y, s.Low, s.High} {
			for i := range list {
				list[i] /= math.Pow10(3 * n)
			}
		}
	}
	return prefixes[n+3] + unit
}

// bars draws the rates of x, a category for each problem: no series where nothing has one. The names
// of categories are the values that differ.
func (x *Records) bars() (d Drawing, err error) {
	d.Name = "rates"
	differ := slices.DeleteFunc(slices.Clone(x.keys()), func(k string) bool {
		line, _ := x.different(k, x.Text(0, k))
		return line == 0
	})
	ways := len(differ) == 0 && x.Text(0, "kernel") == "train_step" // of one step: a category for each variant
	switch {
	case slices.Contains(differ, "shape"): // the others follow from it
		differ = []string{"shape"}
	case ways:
		differ = []string{"variant"}
	}
	at := map[string]int{}
	for i := range x.Len() {
		impl, variant := x.Text(i, "impl"), ""
		if ways {
			variant, impl, _ = strings.Cut(strings.Replace(impl, ":", ",", 1), ",")
		}
		kind := x.kind(i, "") + variant
		if _, ok := at[kind]; !ok {
			var values []string
			for _, k := range differ {
				values = append(values, cmp.Or(variant, x.Text(i, k)))
			}
			at[kind], d.Categories = len(d.Categories), append(d.Categories, strings.Join(values, "\n"))
		}
		if Status(x.Text(i, "status")) != StatusOK {
			continue
		}
		p, err := x.point(i, "")
		if err != nil {
			return d, err
		}
		d.Bar(impl, x.Text(i, "peer") == "true", at[kind], p.flops/p.time)
	}
	if len(d.Series) > 0 {
		d.Title, d.Subtitle, d.X = "Rate of "+kernelWords(x.Text(0, "kernel")), x.head(), strings.Join(differ, ", ")
		d.Y = d.scale("FLOP/s")
	}
	return d, nil
}

// kernelWords returns a kernel of results in words, as in attention forward.
func kernelWords(kernel string) string {
	for _, p := range []Pass{Both, Backward, Forward} {
		if name, ok := strings.CutSuffix(kernel, p.suffix()); ok {
			return name + " " + p.String()
		}
	}
	return kernel
}

// head says on what device x was measured, and the keys and values that the problems have in common,
// without features that are off.
func (x *Records) head() string {
	var list []string
	for _, name := range x.keys() {
		value := x.Text(0, name)
		if line, _ := x.different(name, value); line > 0 || slices.Contains([]string{"", "0", "off", "none", "false"}, value) {
			continue
		}
		list = append(list, strings.TrimSuffix(strings.ReplaceAll(name, "_", "-")+" "+value, " true"))
	}
	text := fmt.Sprintf("%s (%s), driver %s\n%s", x.Text(0, "gpu"), x.Text(0, "gpu_type"), x.Text(0, "driver"), strings.Join(list, ", "))
	if x.Text(0, "cpu_device") == "true" {
		text += "\n" + CPUWarning
	}
	return text
}
