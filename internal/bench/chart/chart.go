// Package chart draws lines and bars over a common axis as SVG, which needs nothing else and follows
// the reader's light or dark scheme.
package chart

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
)

// A Chart is a set of lines, or of bars if it has categories.
type Chart struct {
	Title    string
	Subtitle string // where and with what it was measured; may have several lines
	X, Y     string // names of the axes
	LogX     bool
	LogY     bool // powers of ten; all values are positive
	Series   []Series
	Plain    bool // lines without marks, for many points; else the x axis has ticks at the points

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
	Peer bool // not ours: a thin line of dashes with hollow marks, or pale bars
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

// Bar adds a bar in a category to the series of a name, which is made if there is none.
func (c *Chart) Bar(name string, peer bool, category int, y float64) {
	at := slices.IndexFunc(c.Series, func(s Series) bool { return s.Name == name })
	if at < 0 {
		at, c.Series = len(c.Series), append(c.Series, Series{Name: name, Peer: peer})
	}
	s := &c.Series[at]
	s.X, s.Y = append(s.X, float64(category)), append(s.Y, y)
}

// SVG writes charts, one below the other.
func SVG(w io.Writer, list ...*Chart) error {
	var d drawing
	d.put(`<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 %d %d">`, width, height*len(list))
	d.put("<style>\n%s</style>\n<rect class=\"back\" width=\"100%%\" height=\"100%%\"/>", style)
	for i, c := range list {
		if err := c.check(); err != nil {
			return err
		}
		d.put(`<g transform="translate(0 %d)" role="img" aria-label="%s">`, height*i, escape(c.Title))
		d.Chart, d.labels = c, nil
		d.draw()
		d.put("</g>")
	}
	d.put("</svg>")
	_, err := io.WriteString(w, d.b.String())
	return err
}

// SVG writes c.
func (c *Chart) SVG(w io.Writer) error { return SVG(w, c) }

// Values that are drawn lie between these bounds, or are 0, because axes compute products and
// differences of them.
const smallest, largest = 1e-100, 1e100

// check returns an error if values of c cannot be drawn.
func (c *Chart) check() error {
	if len(c.Series) == 0 {
		return fmt.Errorf("chart: %s: there is nothing to draw", c.Title)
	}
	list := slices.Concat(c.Series, c.Dots)
	for _, b := range c.Bands {
		list = append(list, Series{Name: b.Name, X: b.X, Y: b.Low, Low: b.Low, High: b.High})
	}
	for _, s := range list {
		for j, x := range s.X {
			values := []float64{x, s.Y[j]}
			if s.Low != nil {
				values = append(values, s.Low[j], s.High[j])
			}
			for _, v := range values {
				if v != 0 && !(math.Abs(v) >= smallest && math.Abs(v) <= largest) {
					return fmt.Errorf("chart: %s: point %d is (%g, %g): what can be drawn is 0, or from %g to %g", s.Name, j, x, s.Y[j], smallest, largest)
				}
			}
			if c.LogX && x <= 0 || c.LogY && slices.Min(values[1:]) <= 0 {
				return fmt.Errorf("chart: %s: point %d is not positive: (%g, %g)", s.Name, j, x, s.Y[j])
			}
		}
	}
	return nil
}

// An axis maps values from low to high to places.
type axis struct {
	log       bool
	low, high float64
	from, to  float64
}

// at returns the place of a value, the middle if the axis has one value.
func (a axis) at(x float64) float64 {
	low, high := a.low, a.high
	if a.log {
		x, low, high = math.Log(x), math.Log(low), math.Log(high)
	}
	if low == high {
		return (a.from + a.to) / 2
	}
	return a.from + (a.to-a.from)*(x-low)/(high-low)
}

// A tick is a place on an axis. Its label may be "".
type tick struct {
	value float64
	label string
}

func number(x float64) string { return strconv.FormatFloat(x, 'g', 6, 64) }

// measured returns a tick at each of the sizes, with a label where there is room. Powers of two
// have the first choice.
func (a axis) measured(sizes []float64) (ticks []tick) {
	sizes = slices.Compact(slices.Sorted(slices.Values(sizes)))
	slices.SortStableFunc(sizes, func(x, y float64) int { return cmp.Compare(odd(x), odd(y)) })
	for _, x := range sizes {
		name := number(x)
		crowded := slices.ContainsFunc(ticks, func(t tick) bool {
			return t.label != "" && math.Abs(a.at(x)-a.at(t.value)) < (textWidth(name, textSize)+textWidth(t.label, textSize))/2+textSize
		})
		if crowded {
			name = ""
		}
		ticks = append(ticks, tick{x, name})
	}
	return ticks
}

// odd returns 0 for powers of two, and 1.
func odd(x float64) int {
	if f, _ := math.Frexp(x); f == 0.5 {
		return 0
	}
	return 1
}

// decades returns powers of ten.
func (a axis) decades() (ticks []tick) {
	low, high := math.Round(math.Log10(a.low)), math.Round(math.Log10(a.high))
	const most = 8
	for e := low; e <= high; e += math.Floor((high-low)/most) + 1 {
		ticks = append(ticks, tick{math.Pow(10, e), number(math.Pow(10, e))})
	}
	return ticks
}

// linear returns multiples of 1, 2 or 5 times a power of ten, four of them or more.
func (a axis) linear() (ticks []tick) {
	span := a.high - a.low
	// If the span is only a few units in the last place of the numbers, multiples of the step
	// may be equal.
	if !(span > 1e-12*max(math.Abs(a.low), math.Abs(a.high))) {
		return []tick{{a.low, number(a.low)}}
	}
	step := math.Pow(10, math.Floor(math.Log10(span/4)))
	for _, factor := range []float64{5, 2} {
		if span/(factor*step) >= 4 {
			step *= factor
			break
		}
	}
	for i := math.Ceil(a.low / step); i*step <= a.high+step*1e-9; i++ {
		x := i*step + 0 // + 0 makes 0 of -0
		ticks = append(ticks, tick{x, number(x)})
	}
	return ticks
}
