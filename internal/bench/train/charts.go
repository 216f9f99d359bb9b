package train

import (
	"strings"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/chart"
)

// Charts draws the results of each shape: bars of time and of tokens a second, of each
// implementation, and of each case what its stages take, and who holds its memory.
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
			{"tokens", "Tokens a second of a training step", "thousands a second", false, func(x *BenchResult, add func(string, float64)) {
				for _, t := range x.Timings {
					if ns := t.Summary().Median; ns > 0 {
						add(t.Impl, float64(x.Case.Tokens())*1e6/ns)
					}
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
