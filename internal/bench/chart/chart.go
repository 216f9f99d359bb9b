// Package chart draws lines and bars over a common axis, as PNG and as SVG.
package chart

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A Chart is a set of lines, or of bars if it has categories.
type Chart struct {
	Title    string
	Subtitle string // where and with what it was measured; may have several lines
	X, Y     string // names of the axes
	LogX     bool   // powers of two
	LogY     bool   // powers of ten; all values are positive
	Series   []Series
	Plain    bool // lines without marks, for many points

	// Bands are areas behind the lines. Dots are points without a line, in front of them. A
	// chart with categories has neither.
	Bands []Band
	Dots  []Series

	// Categories name the places of bars on the x axis. The X of a Series are then indices of
	// categories, from 0, and LogX and LogY have no effect. Stacked puts the bars of a category
	// on top of each other, in the order of the series, instead of side by side.
	Categories []string
	Stacked    bool
}

// A Series is a line, or the bars of one color. Its points are in the order of
// x.
type Series struct {
	Name string
	X, Y []float64
	// Low and High are the ends of an interval around each Y of a line. A Y without an interval
	// has both ends equal to it; nil: no Y has one.
	Low, High []float64
}

// A Band is the area between two lines.
type Band struct {
	Name         string
	X, Low, High []float64
}

// The size of a drawing, and the dots per inch of PNG.
const (
	width  = 8 * vg.Inch
	height = 5 * vg.Inch
	dpi    = 150
)

// colors are Okabe and Ito's, which people with any color vision tell apart;
// the yellow is left out, since it is faint on white.
var colors = []color.RGBA{
	{0x00, 0x72, 0xb2, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff}, {0xcc, 0x79, 0xa7, 0xff},
	{0x56, 0xb4, 0xe9, 0xff}, {0xe6, 0x9f, 0x00, 0xff}, {0x33, 0x33, 0x33, 0xff},
}

// marks tell lines apart without color.
var marks = []draw.GlyphDrawer{
	draw.CircleGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{}, draw.PyramidGlyph{}, draw.RingGlyph{}, draw.BoxGlyph{}, draw.CrossGlyph{},
}

// PNG writes c as PNG.
func (c *Chart) PNG(w io.Writer) error {
	p, err := c.plot()
	if err != nil {
		return err
	}
	canvas := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(dpi))}
	p.draw(draw.New(canvas))
	_, err = canvas.WriteTo(w)
	return err
}

// SVG writes c as SVG.
func (c *Chart) SVG(w io.Writer) error {
	p, err := c.plot()
	if err != nil {
		return err
	}
	canvas := vgsvg.New(width, height)
	p.draw(draw.New(canvas))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return err
	}
	// The drawing does not contain gonum's font, and the reader may not have it.
	text := strings.ReplaceAll(b.String(), "font-family:Liberation Sans;", "font-family:'Liberation Sans',Arial,Helvetica,sans-serif;")
	_, err = io.WriteString(w, text)
	return err
}

// A drawing is a plot with a legend beside it and titles above it. No line can run through the
// legend, and titles may be wider than the plot.
type drawing struct {
	*plot.Plot
	legend          plot.Legend
	title, subtitle []string
	tops            map[int]float64 // the height of the stacked bars so far, by category
}

func (d *drawing) draw(canvas draw.Canvas) {
	canvas.FillPolygon(color.White, []vg.Point{{}, {X: width}, {X: width, Y: height}, {Y: height}})
	const edge = 8 // points, around everything
	top := height - vg.Points(edge)
	write := func(lines []string, size font.Length, c color.Color) {
		style := d.X.Label.TextStyle
		sans(&style, size)
		style.Color, style.XAlign, style.YAlign = c, draw.XCenter, draw.YTop
		for _, line := range lines {
			canvas.FillText(style, vg.Point{X: width / 2, Y: top}, line)
			top -= 1.3 * style.Height(line)
		}
	}
	write(d.title, 13, color.Black)
	write(d.subtitle, 9, color.Gray{0x44})
	top -= vg.Points(edge)

	side := d.legend.Rectangle(canvas).Size().X + vg.Points(edge)
	d.Draw(draw.Crop(canvas, vg.Points(edge), -side-2*vg.Points(edge), vg.Points(edge), top-height))
	d.legend.Draw(draw.Crop(canvas, width-side, 0, 0, top-height))
}

// wrap breaks a text at spaces into lines of at most some letters.
func wrap(text string, letters int) []string {
	var lines []string
	for paragraph := range strings.SplitSeq(text, "\n") {
		line := ""
		for _, word := range strings.Fields(paragraph) {
			if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > letters {
				lines, line = append(lines, line), ""
			}
			line = strings.TrimSpace(line + " " + word)
		}
		lines = append(lines, line)
	}
	return lines
}

// plot returns c as a drawing of gonum.
func (c *Chart) plot() (*drawing, error) {
	if len(c.Series) == 0 {
		return nil, fmt.Errorf("chart: %s: there is nothing to draw", c.Title)
	}
	p := &drawing{Plot: plot.New(), legend: plot.NewLegend(), tops: map[int]float64{}, title: wrap(c.Title, 70), subtitle: wrap(c.Subtitle, 110)}
	p.X.Label.Text, p.Y.Label.Text = c.X, c.Y
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		sans(&axis.Label.TextStyle, 11)
		sans(&axis.Tick.Label, 10)
		axis.Padding = vg.Points(4)
		axis.Tick.Marker = linear{}
	}
	p.legend.Top, p.legend.Left = true, true
	p.legend.Padding = vg.Points(2)
	sans(&p.legend.TextStyle, 10)
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = color.Gray{0xdd}, color.Gray{0xdd}
	p.Add(grid)
	for i, b := range c.Bands {
		if err := addBand(p, i, b); err != nil {
			return nil, err
		}
	}
	for i, s := range c.Series {
		if err := s.check(); err != nil {
			return nil, err
		}
		add := c.add
		if len(c.Categories) > 0 {
			add = c.addBars
		}
		if err := add(p, i, s); err != nil {
			return nil, err
		}
	}
	if len(c.Categories) > 0 {
		c.nominal(p)
		return p, nil
	}
	for i, s := range c.Dots {
		if err := addDots(p, len(c.Series)+i, s); err != nil {
			return nil, err
		}
	}
	if c.LogX {
		p.X.Scale = plot.LogScale{}
		p.X.Tick.Marker = powersOfTwo{c.sizes()}
		widen(&p.X, 2)
	}
	if c.LogY {
		p.Y.Scale = plot.LogScale{}
		p.Y.Tick.Marker = decades{}
		// The axis has whole decades, so that there are at least two labels.
		p.Y.Min, p.Y.Max = math.Pow10(int(math.Floor(math.Log10(p.Y.Min)))), math.Pow10(int(math.Ceil(math.Log10(p.Y.Max))))
		widen(&p.Y, 10)
	} else {
		p.Y.Min = min(p.Y.Min, 0)
	}
	return p, nil
}

// sizes returns the X of all lines.
func (c *Chart) sizes() (list []float64) {
	for _, s := range c.Series {
		list = append(list, s.X...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// widen makes room around the only value of a logarithmic axis by a factor. Gonum would subtract,
// which may give 0, and 0 has no logarithm.
func widen(axis *plot.Axis, factor float64) {
	if axis.Min == axis.Max {
		axis.Min, axis.Max = axis.Min/factor, axis.Max*factor
	}
}

// sans gives a text a font without serifs.
func sans(style *draw.TextStyle, size font.Length) {
	style.Font.Variant, style.Font.Size = "Sans", size
}

// Values that are drawn lie between these bounds, or are 0, because axes compute products and
// differences of them.
const smallest, largest = 1e-100, 1e100

func inRange(x float64) bool {
	return x == 0 || math.Abs(x) >= smallest && math.Abs(x) <= largest
}

// check returns an error if s cannot be drawn.
func (s *Series) check() error {
	if len(s.X) != len(s.Y) || len(s.X) == 0 {
		return fmt.Errorf("chart: %s: %d x, %d y", s.Name, len(s.X), len(s.Y))
	}
	for j := range s.X {
		if !inRange(s.X[j]) || !inRange(s.Y[j]) {
			return fmt.Errorf("chart: %s: point %d is (%g, %g): what can be drawn is 0, or from %g to %g", s.Name, j, s.X[j], s.Y[j], smallest, largest)
		}
	}
	if s.Low == nil && s.High == nil {
		return nil
	}
	if len(s.Low) != len(s.Y) || len(s.High) != len(s.Y) {
		return fmt.Errorf("chart: %s: %d y, intervals from %d to %d", s.Name, len(s.Y), len(s.Low), len(s.High))
	}
	for j, y := range s.Y {
		if low, high := s.Low[j], s.High[j]; !inRange(low) || !inRange(high) || low > y || high < y {
			return fmt.Errorf("chart: %s: interval %d is %g to %g around %g", s.Name, j, low, high, y)
		}
	}
	return nil
}

// addBand adds band i, in the color of line i, faint.
func addBand(p *drawing, i int, b Band) error {
	low, high := Series{Name: b.Name, X: b.X, Y: b.Low}, Series{Name: b.Name, X: b.X, Y: b.High}
	if err := errors.Join(low.check(), high.check()); err != nil {
		return err
	}
	var edge plotter.XYs
	for j := range b.X {
		edge = append(edge, plotter.XY{X: b.X[j], Y: b.Low[j]})
	}
	for j := len(b.X) - 1; j >= 0; j-- {
		edge = append(edge, plotter.XY{X: b.X[j], Y: b.High[j]})
	}
	area, err := plotter.NewPolygon(edge)
	if err != nil {
		return fmt.Errorf("chart: %s: %w", b.Name, err)
	}
	of := colors[i%len(colors)]
	area.Color, area.LineStyle.Width = color.NRGBA{of.R, of.G, of.B, 0x40}, 0
	p.Add(area)
	p.legend.Add(b.Name, area)
	return nil
}

// addDots adds points in color i.
func addDots(p *drawing, i int, s Series) error {
	if err := s.check(); err != nil {
		return err
	}
	points := make(plotter.XYs, len(s.X))
	for j := range s.X {
		points[j] = plotter.XY{X: s.X[j], Y: s.Y[j]}
	}
	dots, err := plotter.NewScatter(points)
	if err != nil {
		return fmt.Errorf("chart: %s: %w", s.Name, err)
	}
	dots.Color, dots.Shape, dots.Radius = colors[i%len(colors)], marks[0], vg.Points(3)
	p.Add(dots)
	p.legend.Add(s.Name, dots)
	return nil
}

// intervals are points with the ends of their intervals, in the form that gonum wants.
type intervals struct {
	plotter.XYs
	low, high []float64
}

// YError implements plotter.YErrorer.
func (x intervals) YError(i int) (low, high float64) {
	return x.low[i] - x.XYs[i].Y, x.high[i] - x.XYs[i].Y
}

// add adds line i.
func (c *Chart) add(p *drawing, i int, s Series) error {
	points := make(plotter.XYs, len(s.X))
	for j := range s.X {
		points[j] = plotter.XY{X: s.X[j], Y: s.Y[j]}
		if c.LogX && !(s.X[j] > 0) || c.LogY && !(s.Y[j] > 0 && (s.Low == nil || s.Low[j] > 0)) {
			return fmt.Errorf("chart: %s: point %d is not positive: (%g, %g)", s.Name, j, s.X[j], s.Y[j])
		}
	}
	line, dots, err := plotter.NewLinePoints(points)
	if err != nil {
		return fmt.Errorf("chart: %s: %w", s.Name, err)
	}
	line.Color, line.Width = colors[i%len(colors)], vg.Points(1.5)
	dots.Color, dots.Shape, dots.Radius = line.Color, marks[i%len(marks)], vg.Points(3)
	if s.Low != nil {
		bars, err := plotter.NewYErrorBars(intervals{points, s.Low, s.High})
		if err != nil {
			return fmt.Errorf("chart: %s: %w", s.Name, err)
		}
		bars.Color, bars.Width, bars.CapWidth = line.Color, vg.Points(1), vg.Points(4)
		p.Add(bars)
	}
	if c.Plain {
		p.Add(line)
		p.legend.Add(s.Name, line)
		return nil
	}
	p.Add(line, dots)
	p.legend.Add(s.Name, line, dots)
	return nil
}
