package chart

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

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

// marks and dashes tell lines apart without color. Lines of ours are solid until the colors begin
// again.
var (
	marks = []string{
		"M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "M-4-4h8v8h-8z", "M0-5L5 4H-5z", "M0-5L5 0L0 5L-5 0z", "M0 5L5-4H-5z", "M-5 0H5M0-5V5", "M-4-4L4 4M-4 4L4-4",
	}
	dashes = []string{"none", "9 4", "2 3", "9 3 2 3"}
)

// lookOf returns the color, dash and mark that tell series i from the others.
func lookOf(i int, peer bool) (color int, dash, mark string) {
	n := i / colors
	if peer {
		n += 1 + i%(len(dashes)-1)
	}
	return i % colors, dashes[n%len(dashes)], fmt.Sprintf(`<path class="mark" d="%s"`, marks[i%len(marks)])
}

// open begins the group of series i.
func (d *drawing) open(i int, peer bool) {
	class := "ours"
	if peer {
		class = "peer"
	}
	color, dash, _ := lookOf(i, peer)
	d.put(`<g class="%s c%d" stroke-dasharray="%s">`, class, color, dash)
}

// A drawing is a chart on its way to SVG.
type drawing struct {
	*Chart
	b      strings.Builder
	x, y   axis
	labels []label
}

// A label names a series at the right. Its line ends at (x, y), nowhere if y is NaN.
type label struct {
	name, sample string
	i            int
	peer         bool
	x, y         float64
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
	side := 0.0
	for _, s := range slices.Concat(d.Series, d.Dots) {
		side = max(side, textWidth(s.Name, textSize))
	}
	for _, b := range d.Bands {
		side = max(side, textWidth(b.Name, textSize))
	}
	right := max(width-edge-side-2*sample, width/2)
	lines := 0
	for _, c := range d.Categories {
		lines = max(lines, 1+strings.Count(c, "\n"))
	}
	bottom := height - edge - textSize*lineHeight*float64(max(lines, 1)+1)
	d.x, d.y = axis{from: edge + leftRoom, to: right}, axis{from: bottom, to: top}
	d.span()
	d.axes()
	if len(d.Categories) > 0 {
		d.bars()
	} else {
		d.lines()
	}
	d.side(right+sample/2, top, bottom)
}

// span sets the ends of the axes.
func (d *drawing) span() {
	var xs, ys []float64
	sums := make([]float64, len(d.Categories))
	for _, s := range slices.Concat(d.Series, d.Dots) {
		xs, ys = append(xs, s.X...), slices.Concat(ys, s.Y, s.Low, s.High)
		for j, x := range s.X {
			if d.Stacked {
				sums[int(x)] += s.Y[j]
			}
		}
	}
	for _, b := range d.Bands {
		xs, ys = append(xs, b.X...), slices.Concat(ys, b.Low, b.High)
	}
	ys = append(ys, sums...)
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

// lines draws bands, lines from the last to the first, and dots.
func (d *drawing) lines() {
	nowhere := math.NaN()
	for i, b := range d.Bands {
		x, high := slices.Clone(b.X), slices.Clone(b.High)
		slices.Reverse(x)
		slices.Reverse(high)
		d.open(i, false)
		d.put(`<path class="band" d="M%sL%sz"/></g>`, d.path(b.X, b.Low), d.path(x, high))
		d.labels = append(d.labels, label{b.Name, `<path class="band" d="M0-6h20v12h-20z"/>`, i, false, 0, nowhere})
	}
	for i, s := range slices.Backward(d.Series) {
		_, _, mark := lookOf(i, s.Peer)
		class, sample := "line", `<path class="line" d="M0 0h20"/><g transform="translate(10)">`+mark+"/></g>"
		if d.Plain {
			class, sample = "line plain", `<path class="line plain" d="M0 0h20"/>`
		}
		d.open(i, s.Peer)
		d.put(`<path class="%s" d="M%s"/>`, class, d.path(s.X, s.Y))
		if !d.Plain {
			d.marks(s, mark)
		}
		d.put("</g>")
		last := len(s.X) - 1
		d.labels = append(d.labels, label{s.Name, sample, i, s.Peer, d.x.at(s.X[last]), d.y.at(s.Y[last])})
	}
	for i, s := range d.Dots {
		i += len(d.Series)
		_, _, mark := lookOf(i, false)
		d.open(i, false)
		d.marks(s, mark)
		d.put("</g>")
		d.labels = append(d.labels, label{s.Name, `<g transform="translate(10)">` + mark + "/></g>", i, false, 0, nowhere})
	}
}

// marks draws the points of a series with their intervals. A point says its numbers under a pointer.
func (d *drawing) marks(s Series, mark string) {
	for j, x := range s.X {
		if s.Low != nil && s.Low[j] < s.High[j] {
			low, high := d.y.at(s.Low[j]), d.y.at(s.High[j])
			d.put(`<path class="interval" d="M%v %vV%vm-4 0h8M%v %vh8"/>`, d.x.at(x), low, high, d.x.at(x)-4, low)
		}
		d.put(`<g transform="translate(%v %v)">%s><title>%s: %s, %s</title></path></g>`,
			d.x.at(x), d.y.at(s.Y[j]), mark, escape(s.Name), number(x), number(s.Y[j]))
	}
}

// bars draws the series as bars.
func (d *drawing) bars() {
	tops := make([]float64, len(d.Categories))
	for i, s := range d.Series {
		wide := groupWidth / float64(len(d.Series))
		offset := wide*float64(i) - groupWidth/2
		if d.Stacked {
			wide, offset = groupWidth, -groupWidth/2
		}
		d.open(i, s.Peer)
		for j, x := range s.X {
			from, to := 0.0, s.Y[j]
			if d.Stacked {
				from = tops[int(x)]
				to += from
				tops[int(x)] = to
			}
			left, right := d.x.at(x+offset), d.x.at(x+offset+wide)
			d.put(`<path class="bar" d="M%v %vV%vH%vV%vz"><title>%s: %s</title></path>`,
				left, d.y.at(from), d.y.at(to), right, d.y.at(from), escape(s.Name), number(s.Y[j]))
		}
		d.put("</g>")
		d.labels = append(d.labels, label{s.Name, `<path class="bar" d="M4-6h12v12h-12z"/>`, i, s.Peer, 0, math.NaN()})
	}
}

// side writes the names at the right, those of lines at their ends as far as there is room.
func (d *drawing) side(x, top, bottom float64) {
	step := min(lineHeight*textSize, (bottom-top)/float64(len(d.labels)))
	slices.SortStableFunc(d.labels, func(a, b label) int { return cmp.Compare(a.y, b.y) }) // NaN is first
	places := make([]float64, len(d.labels))
	next := top
	for i, l := range d.labels {
		if places[i] = next; l.y > next {
			places[i] = l.y
		}
		next = places[i] + step
	}
	last := bottom
	for i, l := range slices.Backward(d.labels) {
		places[i] = min(places[i], last)
		last = places[i] - step
		d.open(l.i, l.peer)
		if !math.IsNaN(l.y) {
			d.put(`<path class="lead" d="M%v %vL%v %v"/>`, l.x, l.y, x, places[i])
		}
		d.put(`<g transform="translate(%v %v)">%s</g></g>`, x, places[i], l.sample)
		d.text(x+sample, places[i]+textSize/3, "", l.name)
	}
}
