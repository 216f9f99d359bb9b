package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench/chart"
)

// minSizes is the number of sizes that make a line.
const minSizes = 3

// Charts draws the results of r: where problems differ in one size only, speedup and
// rate against it; bars of the rates of the others.
func (r Report) Charts() []Drawing {
	var list []Drawing
	families, rest := r.families()
	for i, f := range families {
		lines := f.csvLines()
		drawings, err := Charts(&Records{lines[0], lines[1:]}, "")
		if err != nil {
			continue // nothing has a time: the table says why
		}
		for _, d := range drawings[1:] {
			if len(families) > 1 {
				d.Name += "-" + strconv.Itoa(i+1)
			}
			list = append(list, d)
		}
	}
	if bars, ok := rest.bars(); ok {
		list = append(list, bars)
	}
	return list
}

// families divides r into reports whose problems differ in one size only, and what is
// left.
func (r Report) families() (families []Report, rest Report) {
	var lists [][][]Result // families of groups
	var axes []string      // of each family, "" while it has one group
	for _, g := range r.groups() {
		at := slices.IndexFunc(lists, func(l [][]Result) bool { return oneSize(l[0][0], g[0]) != "" })
		for ; at >= 0 && at < len(lists); at++ {
			if axis := oneSize(lists[at][0][0], g[0]); axis != "" && (axes[at] == "" || axes[at] == axis) {
				axes[at] = axis
				break
			}
		}
		if at < 0 || at == len(lists) {
			at, lists, axes = len(lists), append(lists, nil), append(axes, "")
		}
		lists[at] = append(lists[at], g)
	}
	rest.Env = r.Env
	for _, l := range lists {
		results := slices.Concat(l...)
		if len(l) < minSizes {
			rest.Results = append(rest.Results, results...)
			continue
		}
		families = append(families, Report{Env: r.Env, Results: results})
	}
	return families, rest
}

// oneSize returns the size that the problems of results of one kernel differ in, "" if
// they differ in anything else: of attention the length of squares.
func oneSize(a, b Result) string {
	if a.Kernel != b.Kernel || len(a.Subject.keys) != len(b.Subject.keys) {
		return ""
	}
	var differ []string
	for i, k := range a.Subject.keys {
		other := b.Subject.keys[i]
		if k == other {
			continue
		}
		if _, ok := k.Value.(int); !ok || k.Name != other.Name {
			return ""
		}
		differ = append(differ, k.Name)
	}
	square := func(x Result) bool {
		return x.Subject.key("seq_q") == x.Subject.key("seq_kv") && x.Subject.key("varlen") == "off"
	}
	switch {
	case slices.Equal(differ, []string{"seq_q", "seq_kv"}) && square(a) && square(b):
		return lengthKey
	case len(differ) == 1 && a.Subject.key(lengthKey) == nil:
		return differ[0]
	}
	return ""
}

// bars draws the rates of r, a category for each problem; false if there are
// none.
func (r Report) bars() (Drawing, bool) {
	groups := r.groups()
	if len(groups) == 0 {
		return Drawing{}, false
	}
	d := Drawing{"rates", chart.Chart{Title: "Rate of " + kernelWords(groups[0][0].Kernel), Subtitle: r.Env.String()}}
	if r.Env.CPU {
		d.Subtitle += "\n" + CPUWarning
	}
	most := 0.0
	for i, g := range groups {
		d.Categories = append(d.Categories, shortName(g[0].Subject))
		for _, x := range g {
			at := slices.IndexFunc(d.Series, func(s chart.Series) bool { return s.Name == x.Impl })
			if at < 0 { // also without a time, so that the order is that of the implementations
				at, d.Series = len(d.Series), append(d.Series, chart.Series{Name: x.Impl})
			}
			if s := &d.Series[at]; x.Status == StatusOK {
				s.X, s.Y = append(s.X, float64(i)), append(s.Y, teraflops.of(x))
				most = max(most, teraflops.of(x))
			}
		}
	}
	d.Series = slices.DeleteFunc(d.Series, func(s chart.Series) bool { return len(s.X) == 0 })
	d.Y = string(d.rescale(most, teraflops, "GFLOP/s"))
	return d, len(d.Series) > 0
}

// shortName names a problem in short lines: attention by its sizes, other kernels by all
// keys that are numbers.
func shortName(of *Subject) string {
	size := func(name string) string { return fmt.Sprint(of.key(name)) }
	if of.key(lengthKey) == nil {
		var lines []string
		for _, k := range of.keys {
			if n, ok := k.Value.(int); ok {
				lines = append(lines, fmt.Sprintf("%s %d", k.Name, n))
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
	if of.key("causal") == true {
		mask = "\ncausal"
	}
	format, _ := dtype.Parse(size("dtype"))
	return fmt.Sprintf("B%s H%s\nS%s\nD%s\n%s%s", size("batch"), heads, length, size("head_dim"), format.Short(), mask)
}
