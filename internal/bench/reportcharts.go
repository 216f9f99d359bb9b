package bench

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench/chart"
)

// minSizes is the number of sizes that make a line.
const minSizes = 3

// Charts draws the results of r. Where problems differ in one size only, it draws speedup and
// rate against that size. The others are bars of rates.
func (r Report) Charts() []Drawing {
	if len(r.Results) == 0 {
		return nil
	}
	lines := r.csvLines()
	x := &Records{names: lines[0], rows: lines[1:]}
	var list []Drawing
	families, rest := x.families()
	for i, f := range families {
		drawings, err := Charts(f, "")
		if err != nil {
			continue // nothing has a time: the table says why
		}
		list = append(list, Numbered(drawings[1:], i, len(families))...)
	}
	if bars, err := rest.bars(); err == nil && len(bars.Series) > 0 {
		list = append(list, bars)
	}
	return list
}

// Plots draws the results in a CSV file. If they are of no suite and differ in one size, it draws
// what Charts does. Otherwise each part that differs in one size has a family of charts, and the
// rest are bars of rates. It is an error if the results are of several devices.
func Plots(x *Records, baseline string) ([]Drawing, error) {
	if x.Len() == 0 {
		return nil, errNoResults
	}
	_, err := x.axis()
	if err == nil && x.Text(0, "suite") == "" {
		return Charts(x, baseline)
	}
	if wrong := x.oneOf(deviceColumns, "a chart is of one device", "kernel"); wrong != nil {
		return nil, wrong
	}
	families, rest := x.families()
	if len(families) == 0 && rest.Len() == 0 {
		return nil, err
	}
	var list []Drawing
	for i, f := range families {
		drawings, err := Charts(f, baseline)
		if errors.Is(err, errNoTimes) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, Numbered(drawings, i, len(families))...)
	}
	bars, err := rest.bars()
	if err != nil {
		return nil, err
	}
	if len(bars.Series) > 0 {
		list = append(list, bars)
	}
	if len(list) == 0 {
		return nil, errNoTimes
	}
	return list, nil
}

// Numbered names the drawings of family i of n.
func Numbered(drawings []Drawing, i, n int) []Drawing {
	if n > 1 {
		for j := range drawings {
			drawings[j].Name += "-" + strconv.Itoa(i+1)
		}
	}
	return drawings
}

// groups returns the results, those of one kernel and problem together.
func (x *Records) groups() (groups [][]int) {
	same := func(i, j int) bool {
		return x.Text(i, "kernel") == x.Text(j, "kernel") && !slices.ContainsFunc(x.keys(), func(k string) bool { return x.Text(i, k) != x.Text(j, k) })
	}
	for i := range x.Len() {
		if last := len(groups) - 1; last >= 0 && same(groups[last][0], i) {
			groups[last] = append(groups[last], i)
		} else {
			groups = append(groups, []int{i})
		}
	}
	return groups
}

// pick returns some of the results.
func (x *Records) pick(of []int) *Records {
	y := &Records{names: x.names, lines: make([]int, len(of))}
	for i, at := range of {
		y.rows, y.lines[i] = append(y.rows, x.rows[at]), x.line(at)
	}
	return y
}

// families divides x into results whose problems differ in one size only, and the rest.
func (x *Records) families() (families []*Records, rest *Records) {
	var lists [][][]int // families of groups
	var axes []string   // of each family, "" while it has one group
	for _, g := range x.groups() {
		at := slices.IndexFunc(lists, func(l [][]int) bool { return x.oneSize(l[0][0], g[0]) != "" })
		for ; at >= 0 && at < len(lists); at++ {
			if axis := x.oneSize(lists[at][0][0], g[0]); axis != "" && (axes[at] == "" || axes[at] == axis) {
				axes[at] = axis
				break
			}
		}
		if at < 0 || at == len(lists) {
			at, lists, axes = len(lists), append(lists, nil), append(axes, "")
		}
		lists[at] = append(lists[at], g)
	}
	var left []int
	for _, l := range lists {
		if len(l) < minSizes {
			left = append(left, slices.Concat(l...)...)
			continue
		}
		families = append(families, x.pick(slices.Concat(l...)))
	}
	return families, x.pick(left)
}

// oneSize returns the one size in which the problems of two results of a kernel differ, or "" if
// they differ in anything else. For squares of attention it is their length.
func (x *Records) oneSize(a, b int) string {
	if x.Text(a, "kernel") != x.Text(b, "kernel") {
		return ""
	}
	var differ []string
	for _, k := range x.keys() {
		if x.Text(a, k) == x.Text(b, k) {
			continue
		}
		if !x.size(a, k) || !x.size(b, k) {
			return ""
		}
		differ = append(differ, k)
	}
	square := func(i int) bool {
		return x.Text(i, "seq_q") == x.Text(i, "seq_kv") && x.Text(i, "varlen") == "off"
	}
	switch {
	case slices.Equal(differ, []string{"seq_q", "seq_kv"}) && square(a) && square(b):
		return lengthKey
	case len(differ) == 1 && x.Text(a, lengthKey) == "":
		return differ[0]
	}
	return ""
}

// size reports whether a key of result i is a whole number.
func (x *Records) size(i int, key string) bool {
	_, err := strconv.Atoi(x.Text(i, key))
	return err == nil
}

// bars draws the rates of x, a category for each problem: no series where nothing has one.
func (x *Records) bars() (Drawing, error) {
	groups := x.groups()
	if len(groups) == 0 {
		return Drawing{}, nil
	}
	d := Drawing{"rates", chart.Chart{Title: "Rate of " + kernelWords(x.Text(0, "kernel")), Subtitle: x.device() + x.warning()}}
	most := 0.0
	for i, g := range groups {
		d.Categories = append(d.Categories, x.shortName(g[0]))
		for _, j := range g {
			at := slices.IndexFunc(d.Series, func(s chart.Series) bool { return s.Name == x.Text(j, "impl") })
			if at < 0 { // also without a time, so that the order is that of the implementations
				at, d.Series = len(d.Series), append(d.Series, chart.Series{Name: x.Text(j, "impl"), Peer: x.peer(j)})
			}
			if Status(x.Text(j, "status")) != StatusOK {
				continue
			}
			ns, err := x.positive(j, "device_ns")
			if err != nil {
				return d, err
			}
			flops, err := x.positive(j, "flops")
			if err != nil {
				return d, err
			}
			s, rate := &d.Series[at], flops/ns*1e9/1e12
			s.X, s.Y = append(s.X, float64(i)), append(s.Y, rate)
			most = max(most, rate)
		}
	}
	d.Series = slices.DeleteFunc(d.Series, func(s chart.Series) bool { return len(s.X) == 0 })
	d.Y = string(d.rescale(most, teraflops))
	return d, nil
}

// peer reports whether result i is a peer's.
func (x *Records) peer(i int) bool { return x.Text(i, "peer") == "true" }

// device says on what device x was measured, for the head of a chart; see warning.
func (x *Records) device() string {
	return fmt.Sprintf("%s (%s), driver %s", x.Text(0, "gpu"), x.Text(0, "gpu_type"), x.Text(0, "driver"))
}

// warning is that of a CPU device, on a line of its own.
func (x *Records) warning() string {
	if x.Text(0, "cpu_device") == "true" {
		return "\n" + CPUWarning
	}
	return ""
}

// shortName names the problem of a result in short lines: attention by its sizes, other
// kernels by all keys that are numbers.
func (x *Records) shortName(i int) string {
	size := func(name string) string { return x.Text(i, name) }
	if size(lengthKey) == "" {
		var lines []string
		for _, k := range x.keys() {
			if x.size(i, k) {
				lines = append(lines, k+" "+size(k))
			}
		}
		return strings.Join(lines, "\n")
	}
	heads, length, mask := size("heads"), size("seq_q"), ""
	if kv := size("kv_heads"); kv != heads {
		heads += "/" + kv
	}
	if kv := size("seq_kv"); kv != length {
		length += "x" + kv
	}
	if size("causal") == "true" {
		mask = "\ncausal"
	}
	format, _ := dtype.Parse(size("dtype"))
	return fmt.Sprintf("B%s H%s\nS%s\nD%s\n%s%s", size("batch"), heads, length, size("head_dim"), format.Short(), mask)
}
