package train

import (
	"cmp"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/chart"
)

// What one chart shows of many results, so that all of it can be read.
const (
	maxRatio  = 30 // of the largest bar to the smallest
	maxCases  = 6
	maxPieces = 7 // of a bar, as there are colors
)

// Charts draws the results: bars of time and of tokens a second, of each implementation, and of
// each case what its stages take, and who holds its memory. Cases whose bars are of different sizes
// are in charts of their own.
func (r *Report) Charts() (list []bench.Drawing) {
	value := func(of func(c *Case, ns float64) float64) func(x *BenchResult) []piece {
		return func(x *BenchResult) (pieces []piece) {
			for _, t := range x.Timings {
				if m := t.Summary(); m.Median > 0 {
					pieces = append(pieces, piece{t.Impl, of(&x.Case, m.Median), strings.Contains(t.Impl, ":")})
				}
			}
			return pieces
		}
	}
	stages := func(x *BenchResult) (pieces []piece) {
		for _, g := range x.Stages {
			pieces = append(pieces, piece{g.Name, g.NS / 1e6, false})
		}
		return pieces
	}
	once := slices.ContainsFunc(r.Results, func(x *BenchResult) bool { return !x.Case.Fresh })
	memory := func(x *BenchResult) (pieces []piece) {
		if x.Memory == nil || x.Case.Fresh && once { // it is the same
			return nil
		}
		for _, h := range x.Memory.ByName() {
			pieces = append(pieces, piece{h.Name, float64(h.Bytes) / 1e6, false})
		}
		return pieces
	}
	for _, d := range []struct {
		name, title, y string
		stacked        bool
		pieces         func(x *BenchResult) []piece
	}{
		{"step", "Time of a training step, median", "ms", false, value(func(_ *Case, ns float64) float64 { return ns / 1e6 })},
		{"tokens", "Tokens a second of a training step", "thousands a second", false, value(func(c *Case, ns float64) float64 { return float64(c.Tokens()) * 1e6 / ns })},
		{"stages", "Stages of a training step, each dispatch by itself", "ms", true, stages},
		{"memory", "Memory of a training step: model, activations where they are most", "MB", true, memory},
	} {
		list = append(list, r.draw(bench.Drawing{Name: d.name, Chart: chart.Chart{Title: d.title, Y: d.y, Stacked: d.stacked}}, d.pieces)...)
	}
	return list
}

// A piece is a bar, or, where they are stacked, a part of one.
type piece struct {
	name  string
	value float64
	peer  bool // of a peer, whose name has a colon
}

// draw fills copies of a drawing with the pieces of the cases.
func (r *Report) draw(d bench.Drawing, pieces func(x *BenchResult) []piece) (list []bench.Drawing) {
	var charts [][]*BenchResult
	var ranges [][2]float64
	for _, x := range r.Results {
		if len(pieces(x)) == 0 {
			continue
		}
		low, high := extent(pieces(x), d.Stacked)
		i := 0
		for i < len(charts) && (len(charts[i]) == maxCases || max(high, ranges[i][1]) > maxRatio*min(low, ranges[i][0])) {
			i++
		}
		if i == len(charts) {
			charts, ranges = append(charts, nil), append(ranges, [2]float64{low, high})
		}
		charts[i] = append(charts[i], x)
		ranges[i] = [2]float64{min(low, ranges[i][0]), max(high, ranges[i][1])}
	}
	for i, cases := range charts {
		one := d
		one.Subtitle = r.Env.String()
		if r.Env.CPU {
			one.Subtitle += "\n" + bench.CPUWarning
		}
		r.fill(&one, cases, pieces)
		list = append(list, bench.Numbered([]bench.Drawing{one}, i, len(charts))...)
	}
	return list
}

// extent returns the smallest and the largest bar.
func extent(pieces []piece, stacked bool) (low, high float64) {
	sum := 0.0
	for i, p := range pieces {
		sum += p.value
		if i == 0 {
			low = p.value
		}
		low, high = min(low, p.value), max(high, p.value)
	}
	if stacked {
		return sum, sum
	}
	return low, high
}

// fill adds the cases and their series.
func (r *Report) fill(d *bench.Drawing, cases []*BenchResult, pieces func(x *BenchResult) []piece) {
	var names []string
	totals := map[string]float64{}
	for _, x := range cases {
		ways, values := r.way(x)
		d.X = strings.Join(append([]string{"shape"}, ways...), ", ")
		d.Categories = append(d.Categories, strings.Join(append([]string{x.Case.Name}, values...), "\n"))
		for _, p := range pieces(x) {
			if !slices.Contains(names, p.name) {
				names = append(names, p.name)
			}
			totals[p.name] += p.value
		}
	}
	others := map[string]bool{}
	if d.Stacked && len(names) > maxPieces {
		smallest := slices.Clone(names)
		slices.SortStableFunc(smallest, func(a, b string) int { return cmp.Compare(totals[a], totals[b]) })
		for _, name := range smallest[:len(names)-maxPieces+1] {
			others[name] = true
		}
	}
	kept := slices.DeleteFunc(names, func(name string) bool { return others[name] })
	if len(others) > 0 {
		kept = append(kept, "others")
	}
	for _, name := range kept {
		s := chart.Series{Name: name}
		for at, x := range cases {
			sum, there := 0.0, false
			for _, p := range pieces(x) {
				if p.name == name || name == "others" && others[p.name] {
					sum, there, s.Peer = sum+p.value, true, p.peer
				}
			}
			if there {
				s.X, s.Y = append(s.X, float64(at)), append(s.Y, sum)
			}
		}
		d.Series = append(d.Series, s)
	}
}
