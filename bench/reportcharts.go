package bench

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/flashvk/flashvk/bench/chart"
)

// minLengths is the number of sequence lengths that make a line.
const minLengths = 3

// Charts draws the results of r: where problems differ in their length only,
// speedup and rate against it; bars of the rates of the others.
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

// families divides r into reports whose problems differ in the length only, and
// what is left.
func (r Report) families() (families []Report, rest Report) {
	var lists [][][]Result // families of groups
	for _, g := range r.groups() {
		at := slices.IndexFunc(lists, func(l [][]Result) bool { return differInLength(l[0][0], g[0]) })
		if at < 0 {
			at, lists = len(lists), append(lists, nil)
		}
		lists[at] = append(lists[at], g)
	}
	rest.Env = r.Env
	for _, l := range lists {
		results := slices.Concat(l...)
		if len(l) < minLengths {
			rest.Results = append(rest.Results, results...)
			continue
		}
		families = append(families, Report{Env: r.Env, Results: results})
	}
	return families, rest
}

// differInLength reports whether the results are of one kernel on squares that
// differ in the length and nothing else.
func differInLength(a, b Result) bool {
	p, q := a.Problem, b.Problem
	square := p.SeqQ == p.SeqKV && q.SeqQ == q.SeqKV && !p.Varlen.On && !q.Varlen.On
	q.SeqQ, q.SeqKV = p.SeqQ, p.SeqKV
	return square && a.Kernel == b.Kernel && p == q
}

// bars draws the rates of r, a category for each problem; false if there are
// none.
func (r Report) bars() (Drawing, bool) {
	groups := r.groups()
	pass := Forward
	if len(groups) > 0 {
		pass = passOf(groups[0][0].Kernel)
	}
	d := Drawing{"rates", chart.Chart{Title: fmt.Sprintf("Rate of attention %v", pass), Subtitle: r.Env.String()}}
	if r.Env.CPU {
		d.Subtitle += "\n" + CPUWarning
	}
	most := 0.0
	for i, g := range groups {
		d.Categories = append(d.Categories, shortName(g[0]))
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

// shortName names a problem in short lines.
func shortName(x Result) string {
	p := x.Problem
	heads, length, mask := strconv.Itoa(p.NumHeads), strconv.Itoa(p.SeqQ), ""
	if p.NumKVHeads != p.NumHeads {
		heads += "/" + strconv.Itoa(p.NumKVHeads)
	}
	if p.SeqKV != p.SeqQ {
		length += "x" + strconv.Itoa(p.SeqKV)
	}
	if p.Causal {
		mask = "\ncausal"
	}
	return fmt.Sprintf("B%d H%s\nS%s\nD%d\n%s%s", p.Batch, heads, length, p.HeadDim, p.DType.Short(), mask)
}
