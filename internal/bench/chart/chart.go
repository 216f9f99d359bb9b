// Package chart draws lines and bars over a common axis as SVG, which needs nothing else and follows
// the reader's light or dark scheme.
package chart

import (
	"bytes"
	_ "embed"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
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

	// Categories name the places of bars on the x axis. The X of a Series are then indices of
	// categories, from 0, and LogX and LogY have no effect.
	Categories []string
}

// A Series is a line, or the bars of one color. Its points are in the order of x.
type Series struct {
	Name string
	Peer bool // not ours: a thin line of dashes with hollow marks, or pale bars
	Dots bool // points without a line
	X, Y []float64
	// Low and High are the ends of an interval around each Y of a line, of a plain one an area. A Y
	// without an interval has both ends equal to it; nil: no Y has one.
	Low, High []float64
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
		d.Chart = c
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
	for _, s := range c.Series {
		for n, list := range [][]float64{s.X, s.Y, s.Low, s.High} {
			for j, v := range list {
				if v != 0 && !(math.Abs(v) >= smallest && math.Abs(v) <= largest) {
					return fmt.Errorf("chart: %s: point %d has %g: what can be drawn is 0, or from %g to %g", s.Name, j, v, smallest, largest)
				}
				if v <= 0 && (n == 0 && c.LogX || n > 0 && c.LogY) {
					return fmt.Errorf("chart: %s: point %d has %g, which is not positive", s.Name, j, v)
				}
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

// measured returns a tick at each of the sizes, with a label where there is room.
func (a axis) measured(sizes []float64) (ticks []tick) {
	free := math.Inf(-1) // where the next label may begin
	for _, x := range slices.Compact(slices.Sorted(slices.Values(sizes))) {
		t := tick{value: x}
		if half := textWidth(number(x), textSize) / 2; a.at(x)-half >= free {
			t.label, free = number(x), a.at(x)+half+textSize
		}
		ticks = append(ticks, t)
	}
	return ticks
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

// The sizes of a drawing and of its parts.
const (
	width, height = 720, 430
	edge          = 14.0 // around everything
	leftRoom      = 52.0 // for the numbers of the y axis
	sample        = 26.0 // of a line, before its name
	textSize      = 12.0
	titleSize     = 16.0
	lineHeight    = 1.35
	groupWidth    = 0.8 // of a category's place that its bars take
)

// style gives lines, marks and colors their look; colors is the number of its colors.
//
//go:embed style.css
var style string

const colors = 10

// mark is the mark of a point.
const mark = `<circle class="mark" r="4"`

// open begins the group of series i. Dashes tell lines apart where colors begin again.
func (d *drawing) open(i int, peer bool) {
	class, dashes := "ours", []string{"none", "9 4", "9 3 2 3"}
	if peer {
		class, dashes = "peer", []string{"2 3", "5 3", "1 4"}
	}
	d.put(`<g class="%s c%d" stroke-dasharray="%s">`, class, i%colors, dashes[i/colors%len(dashes)])
}

// A drawing is a chart on its way to SVG.
type drawing struct {
	*Chart
	b    strings.Builder
	x, y axis
}

// put writes a line. Numbers are places.
func (d *drawing) put(format string, args ...any) {
	for i, a := range args {
		if x, ok := a.(float64); ok {
			args[i] = strconv.FormatFloat(math.Round(x*10)/10, 'f', -1, 64)
		}
	}
	fmt.Fprintf(&d.b, format+"\n", args...)
}

func (d *drawing) text(x, y float64, class, text string) {
	if text == "" {
		return
	}
	d.put(`<text x="%v" y="%v" class="%s">%s</text>`, x, y, class, escape(text))
}

func escape(text string) string {
	var b bytes.Buffer
	xml.EscapeText(&b, []byte(text)) // a Buffer has no errors
	return b.String()
}

// textWidth returns about how wide a text is, in a font that only the reader knows.
func textWidth(text string, size float64) float64 {
	return 0.58 * size * float64(utf8.RuneCountInString(text))
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

func (d *drawing) draw() {
	top := edge
	for _, t := range []struct {
		class, text string
		size        float64
	}{{"title", d.Title, titleSize}, {"soft", d.Subtitle, textSize}} {
		for _, line := range wrap(t.text, int((width-2*edge)/textWidth("x", t.size))) {
			d.text(edge, top+t.size, t.class, line)
			top += lineHeight * t.size
		}
	}
	d.text(edge, top+2*textSize, "", d.Y)
	top += 3 * textSize
	side, lines := 0.0, 1
	for _, s := range d.Series {
		side = max(side, textWidth(s.Name, textSize))
	}
	right := max(width-edge-side-2*sample, width/2)
	for _, c := range d.Categories {
		lines = max(lines, 1+strings.Count(c, "\n"))
	}
	bottom := height - edge - textSize*lineHeight*float64(lines+1)
	d.x, d.y = axis{from: edge + leftRoom, to: right}, axis{from: bottom, to: top}
	d.span()
	d.axes()
	if len(d.Categories) > 0 {
		d.bars()
	} else {
		d.lines()
	}
	step := min(lineHeight*textSize, (bottom-top)/float64(len(d.Series)))
	for i, s := range d.Series {
		d.open(i, s.Peer)
		d.put(`<g transform="translate(%v %v)">%s</g></g>`, right+sample/2, top+step*float64(i), d.sample(s))
		d.text(right+1.5*sample, top+step*float64(i)+textSize/3, "", s.Name)
	}
}

// sample shows what a series looks like.
func (d *drawing) sample(s Series) string {
	switch {
	case len(d.Categories) > 0:
		return `<path class="bar" d="M4-6h12v12h-12z"/>`
	case s.Dots:
		return `<g transform="translate(10)">` + mark + "/></g>"
	case d.Plain:
		return `<path class="line plain" d="M0 0h20"/>`
	}
	return `<path class="line" d="M0 0h20"/><g transform="translate(10)">` + mark + "/></g>"
}

// span sets the ends of the axes.
func (d *drawing) span() {
	var xs, ys []float64
	for _, s := range d.Series {
		xs, ys = append(xs, s.X...), slices.Concat(ys, s.Y, s.Low, s.High)
	}
	d.x.log, d.y.log = d.LogX, d.LogY
	d.x.low, d.x.high, d.y.low, d.y.high = slices.Min(xs), slices.Max(xs), slices.Min(ys), slices.Max(ys)
	switch {
	case len(d.Categories) > 0:
		d.x, d.y.low = axis{low: -0.5, high: float64(len(d.Categories)) - 0.5, from: d.x.from, to: d.x.to}, min(d.y.low, 0)
		d.y.log = false
	case d.LogY: // whole decades, so that there are at least two labels
		d.y.low, d.y.high = math.Pow10(int(math.Floor(math.Log10(d.y.low)))), math.Pow10(int(math.Ceil(math.Log10(d.y.high))))
	default:
		d.y.low = min(d.y.low, 0)
	}
}

// axes draws the grid and the names of the axes.
func (d *drawing) axes() {
	ticks := d.y.linear()
	if d.y.log {
		ticks = d.y.decades()
	}
	for _, t := range ticks {
		d.put(`<path class="grid" d="M%v %vH%v"/>`, d.x.from, d.y.at(t.value), d.x.to)
		d.text(d.x.from-9, d.y.at(t.value)+textSize/3, "end", t.label)
	}
	d.text((d.x.from+d.x.to)/2, height-edge, "middle", d.X)
	if len(d.Categories) > 0 {
		d.categories()
		return
	}
	ticks = d.x.linear()
	if !d.Plain {
		var sizes []float64
		for _, s := range d.Series {
			sizes = append(sizes, s.X...)
		}
		ticks = d.x.measured(sizes)
	}
	for _, t := range ticks {
		d.put(`<path class="grid" d="M%v %vV%v"/>`, d.x.at(t.value), d.y.to, d.y.from)
		d.text(d.x.at(t.value), d.y.from+textSize*lineHeight, "middle", t.label)
	}
}

// categories writes the names of bars, smaller where they are many.
func (d *drawing) categories() {
	place, size := d.x.at(1)-d.x.at(0), textSize
	for _, line := range strings.Split(strings.Join(d.Categories, "\n"), "\n") {
		size = min(size, place/max(textWidth(line+" ", 1), 1))
	}
	for i, c := range d.Categories {
		for n, line := range strings.Split(c, "\n") {
			at := d.y.from + lineHeight*size*float64(n+1)
			d.put(`<text x="%v" y="%v" class="middle" font-size="%v">%s</text>`, d.x.at(float64(i)), at, max(size, 5), escape(line))
		}
	}
}

func (d *drawing) path(x, y []float64) string {
	var b strings.Builder
	for j := range x {
		fmt.Fprintf(&b, "L%.1f %.1f", d.x.at(x[j]), d.y.at(y[j]))
	}
	return b.String()[1:]
}

// lines draws areas, then lines from the last to the first.
func (d *drawing) lines() {
	for i, s := range d.Series {
		if d.Plain && s.Low != nil {
			x, high := slices.Clone(s.X), slices.Clone(s.High)
			slices.Reverse(x)
			slices.Reverse(high)
			d.open(i, s.Peer)
			d.put(`<path class="band" d="M%sL%sz"/></g>`, d.path(s.X, s.Low), d.path(x, high))
		}
	}
	for i, s := range slices.Backward(d.Series) {
		class := "line"
		if d.Plain {
			class = "line plain"
		}
		d.open(i, s.Peer)
		if !s.Dots {
			d.put(`<path class="%s" d="M%s"/>`, class, d.path(s.X, s.Y))
		}
		if !d.Plain || s.Dots {
			d.marks(s)
		}
		d.put("</g>")
	}
}

// marks draws the points of a series with their intervals. A point says its numbers under a pointer.
func (d *drawing) marks(s Series) {
	for j, x := range s.X {
		if s.Low != nil && s.Low[j] < s.High[j] {
			low, high := d.y.at(s.Low[j]), d.y.at(s.High[j])
			d.put(`<path class="interval" d="M%v %vV%vm-4 0h8M%v %vh8"/>`, d.x.at(x), low, high, d.x.at(x)-4, low)
		}
		d.put(`<g transform="translate(%v %v)">%s><title>%s: %s, %s</title></circle></g>`,
			d.x.at(x), d.y.at(s.Y[j]), mark, escape(s.Name), number(x), number(s.Y[j]))
	}
}

// bars draws the series as bars.
func (d *drawing) bars() {
	for i, s := range d.Series {
		wide := groupWidth / float64(len(d.Series))
		offset := wide*float64(i) - groupWidth/2
		d.open(i, s.Peer)
		for j, x := range s.X {
			left, right := d.x.at(x+offset), d.x.at(x+offset+wide)
			d.put(`<path class="bar" d="M%v %vV%vH%vV%vz"><title>%s: %s</title></path>`,
				left, d.y.at(0), d.y.at(s.Y[j]), right, d.y.at(0), escape(s.Name), number(s.Y[j]))
		}
		d.put("</g>")
	}
}
