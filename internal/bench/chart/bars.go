package chart

import (
	"fmt"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// groupWidth is the fraction of a category's place that its bars take.
const groupWidth = 0.8

// addBars adds series i as bars.
func (c *Chart) addBars(p *drawing, i int, s Series) error {
	for j, x := range s.X {
		if at := int(x); at < 0 || at >= len(c.Categories) || float64(at) != x {
			return fmt.Errorf("chart: %s: bar %d is at %g, which is none of %d categories", s.Name, j, x, len(c.Categories))
		}
	}
	width := groupWidth / float64(len(c.Series))
	b := bars{s: s, width: width, offset: -groupWidth/2 + width*float64(i), color: colors[i%len(colors)], from: make([]float64, len(s.X))}
	if c.Stacked {
		b.width, b.offset = groupWidth, -groupWidth/2
		for j, x := range s.X {
			if s.Y[j] < 0 {
				return fmt.Errorf("chart: %s: bar %d is %g: what is stacked is not negative", s.Name, j, s.Y[j])
			}
			b.from[j] = p.tops[int(x)]
			p.tops[int(x)] += s.Y[j]
		}
	}
	p.Add(b)
	p.legend.Add(s.Name, b)
	return nil
}

// nominal gives the x axis the names of the categories, and both axes the
// ranges of bars.
func (c *Chart) nominal(p *drawing) {
	p.NominalX(c.Categories...)
	p.X.Min, p.X.Max = -0.5, float64(len(c.Categories))-0.5
	p.Y.Min = min(p.Y.Min, 0)
}

// bars are the bars of a series. Their width is a fraction of the axis, unlike gonum's, so that any
// number of bars fits.
type bars struct {
	s             Series
	width, offset float64 // of a category's place
	color         color.Color
	from          []float64 // where each begins
}

// Plot implements plot.Plotter.
func (b bars) Plot(c draw.Canvas, p *plot.Plot) {
	toX, toY := p.Transforms(&c)
	for i := range b.s.X {
		left := b.s.X[i] + b.offset
		b.fill(c, toX(left), toX(left+b.width), toY(b.from[i]), toY(b.from[i]+b.s.Y[i]))
	}
}

func (b bars) fill(c draw.Canvas, left, right, bottom, top vg.Length) {
	c.FillPolygon(b.color, []vg.Point{{X: left, Y: bottom}, {X: right, Y: bottom}, {X: right, Y: top}, {X: left, Y: top}})
}

// DataRange implements plot.DataRanger.
func (b bars) DataRange() (xmin, xmax, ymin, ymax float64) {
	return plotter.XYRange(plotter.XYs(b.points()))
}

func (b bars) points() (list []plotter.XY) {
	for i := range b.s.X {
		list = append(list, plotter.XY{X: b.s.X[i], Y: b.from[i] + b.s.Y[i]})
	}
	return list
}

// Thumbnail implements plot.Thumbnailer.
func (b bars) Thumbnail(c *draw.Canvas) {
	b.fill(*c, c.Min.X, c.Max.X, c.Min.Y, c.Max.Y)
}
