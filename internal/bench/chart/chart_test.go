package chart

import (
	"bytes"
	"encoding/xml"
	"image/png"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/plot"
)

func sample() Chart {
	return Chart{
		Title: "Latency", Subtitle: "Some GPU, driver 1.2\nfloat16 <a & b>", X: "sequence length", Y: "ms per call", LogX: true, LogY: true,
		Series: []Series{
			{Name: "coopmat2", X: []float64{128, 256, 512, 1024}, Y: []float64{0.02, 0.06, 0.3, 1.4}},
			{Name: "torch:flash", X: []float64{128, 1024}, Y: []float64{0.03, 5.4}},
		},
	}
}

// texts returns the texts of an SVG, which must be well-formed.
func texts(t *testing.T, svg string) []string {
	t.Helper()
	var list []string
	inside := false
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		tok, err := d.Token()
		if err == io.EOF {
			return list
		}
		require.NoError(t, err)
		switch x := tok.(type) {
		case xml.StartElement:
			inside = x.Name.Local == "text"
		case xml.CharData:
			if inside && strings.TrimSpace(string(x)) != "" {
				list = append(list, strings.TrimSpace(string(x)))
			}
		}
	}
}

func TestSVG(t *testing.T) {
	c := sample()
	var b bytes.Buffer
	require.NoError(t, c.SVG(&b))
	list := texts(t, b.String())
	for _, want := range []string{"Latency", "Some GPU, driver 1.2", "float16 <a & b>", "sequence length", "ms per call", "coopmat2", "torch:flash", "128", "256", "1024", "0.01", "0.1", "1", "10"} {
		require.Contains(t, list, want)
	}
	require.NotContains(t, b.String(), "font-family:Liberation Sans;")
	require.Contains(t, b.String(), ",sans-serif;")
	// No part of the first line lies outside the drawing.
	require.Regexp(t, regexp.MustCompile(`viewBox="0 0 576 360"`), b.String())
}

func TestPNG(t *testing.T) {
	c := sample()
	var b bytes.Buffer
	require.NoError(t, c.PNG(&b))
	image, err := png.Decode(&b)
	require.NoError(t, err)
	require.Equal(t, 1200, image.Bounds().Dx())
	require.Equal(t, 750, image.Bounds().Dy())
	count := map[[3]uint32]int{}
	for y := range 750 {
		for x := range 1200 {
			r, g, b, _ := image.At(x, y).RGBA()
			count[[3]uint32{r >> 8, g >> 8, b >> 8}]++
		}
	}
	for i := range c.Series {
		at := colors[i]
		require.Greater(t, count[[3]uint32{uint32(at.R), uint32(at.G), uint32(at.B)}], 300, "line %d is not there", i)
	}
	require.Greater(t, count[[3]uint32{255, 255, 255}], 600_000)
}

// TestOne draws a single point, for which both axes have no length.
func TestOne(t *testing.T) {
	c := Chart{Title: "One", X: "x", Y: "y", Series: []Series{{Name: "a", X: []float64{128}, Y: []float64{3}}}}
	for _, log := range []bool{false, true} {
		c.LogX, c.LogY = log, log
		require.NoError(t, c.SVG(io.Discard))
		require.NoError(t, c.PNG(io.Discard))
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		change func(c *Chart)
		want   string
	}{
		{func(c *Chart) { c.Series = nil }, "chart: Latency: there is nothing to draw"},
		{func(c *Chart) { c.Series[1].X = c.Series[1].X[:1] }, "chart: torch:flash: 1 x, 2 y"},
		{func(c *Chart) { c.Series[0].Y[2] = 0 }, "chart: coopmat2: point 2 is not positive: (512, 0)"},
		{func(c *Chart) { c.Series[0].X, c.Series[0].Y = nil, nil }, "chart: coopmat2: 0 x, 0 y"},
		{func(c *Chart) { c.Series[0].Y[1] = math.NaN() }, "chart: coopmat2: point 1 is (256, NaN): what can be drawn is 0, or from 1e-100 to 1e+100"},
		{func(c *Chart) { c.Series[0].Y[1] = math.Inf(1) }, "chart: coopmat2: point 1 is (256, +Inf)"},
		{func(c *Chart) { c.Series[0].Y[0] = 5e-324 }, "chart: coopmat2: point 0 is (128, 5e-324)"},
		{func(c *Chart) { c.Series[0].X[2] = math.Inf(1) }, "chart: coopmat2: point 2 is (+Inf, "},
	} {
		x := sample()
		c.change(&x)
		require.ErrorContains(t, x.SVG(io.Discard), c.want)
		require.ErrorContains(t, x.PNG(io.Discard), c.want)
	}
}

// TestOneValue draws series with one value on logarithmic axes and wants the drawing to end. The
// values are 1, whose logarithm is 0, and the largest and smallest numbers.
func TestOneValue(t *testing.T) {
	for _, v := range []float64{1, 2, 0.001, 1e-100, 1e100} {
		c := Chart{Title: "One", LogX: true, LogY: true, Series: []Series{{Name: "one", X: []float64{v}, Y: []float64{v}}, {Name: "again", X: []float64{v, v}, Y: []float64{v, v}}}}
		require.NoError(t, c.SVG(io.Discard), v)
		require.NoError(t, c.PNG(io.Discard), v)
		c.LogX, c.LogY = false, false
		require.NoError(t, c.SVG(io.Discard), v)
	}
}

func labels(ticks []plot.Tick) string {
	var list []string
	for _, t := range ticks {
		if t.Label != "" {
			list = append(list, t.Label)
		}
	}
	return strings.Join(list, " ")
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		ticker      plot.Ticker
		least, most float64
		want        string
	}{
		{linear{}, 0, 5.4, "0 1 2 3 4 5"},
		{linear{}, 128, 2048, "200 400 600 800 1000 1200 1400 1600 1800 2000"},
		{linear{}, 0, 0.0041, "0 0.001 0.002 0.003 0.004"},
		{linear{}, -3, 310, "0 50 100 150 200 250 300"},
		{linear{}, 7, 7, "7"},
		{powersOfTwo{}, 100, 1024, "128 256 512 1024"},
		{decades{}, 0.1, 10, "0.1 1 10"},
		{decades{}, 0.001, 0.01, "0.001 0.01"},
	} {
		require.Equal(t, c.want, labels(c.ticker.Ticks(c.least, c.most)))
	}
	require.Len(t, decades{}.Ticks(1, 10), 10) // 1 to 9, and 10
}

func TestWrap(t *testing.T) {
	require.Equal(t, []string{"one two", "three", "ä four"}, wrap("one two three\nä  four", 9))
	require.Equal(t, []string{"averylongword", "b"}, wrap("averylongword b", 5))
}

func TestBars(t *testing.T) {
	c := Chart{Title: "Rates", Y: "TFLOP/s", Categories: []string{"one", "two\nlines"}, Series: []Series{{Name: "a", X: []float64{0, 1}, Y: []float64{3, 4}}, {Name: "b", X: []float64{1}, Y: []float64{2}}}}
	var b bytes.Buffer
	require.NoError(t, c.SVG(&b))
	for _, want := range []string{"one", "two", "lines", "a", "b", "TFLOP/s", "4"} {
		require.Contains(t, texts(t, b.String()), want)
	}
	b.Reset()
	require.NoError(t, c.PNG(&b))
	image, err := png.Decode(&b)
	require.NoError(t, err)
	// tall counts the pixels of each bar's color.
	tall := map[int]int{}
	for y := range 750 {
		for x := range 1200 {
			for i := range c.Series {
				if image.At(x, y) == colors[i] {
					tall[i]++
				}
			}
		}
	}
	// Areas are as 3+4 to 2; the legend adds a little.
	require.InDelta(t, 3.5, float64(tall[0])/float64(tall[1]), 0.2)
	for _, x := range []float64{-1, 2, 0.5} {
		c.Series[1].X[0] = x
		require.ErrorContains(t, c.SVG(io.Discard), "which is none of 2 categories")
	}
}

// TestStacked wants the bars of a category to stand on each other, and those of the next category
// to begin at 0.
func TestStacked(t *testing.T) {
	c := Chart{Title: "Stages", Y: "ms", Categories: []string{"one", "two"}, Stacked: true, Series: []Series{{Name: "a", X: []float64{0, 1}, Y: []float64{3, 1}}, {Name: "b", X: []float64{1}, Y: []float64{2}}, {Name: "c", X: []float64{0, 1}, Y: []float64{2, 2}}}}
	var b bytes.Buffer
	require.NoError(t, c.SVG(&b))
	require.Contains(t, texts(t, b.String()), "5", "the axis reaches the sum")
	b.Reset()
	require.NoError(t, c.PNG(&b))
	image, err := png.Decode(&b)
	require.NoError(t, err)
	// The colors above the axis, down the middle of each category, with their heights.
	column := func(at int) (order []int, dots map[int]int) {
		dots = map[int]int{}
		for y := range 750 {
			for i := range c.Series {
				if image.At(at, y) != colors[i] {
					continue
				}
				if dots[i]++; dots[i] == 1 {
					order = append(order, i)
				}
			}
		}
		return order, dots
	}
	var seen [][]int
	for x := 200; x < 1000; x++ {
		order, dots := column(x)
		if len(order) < 2 || len(seen) > 0 && slices.Equal(seen[len(seen)-1], order) {
			continue
		}
		seen = append(seen, order)
		if len(order) == 2 {
			require.InDelta(t, 1.5, float64(dots[0])/float64(dots[2]), 0.05)
		} else {
			require.InDelta(t, 2, float64(dots[1])/float64(dots[0]), 0.05)
			require.InDelta(t, 1, float64(dots[1])/float64(dots[2]), 0.05)
		}
	}
	require.Equal(t, [][]int{{2, 0}, {2, 1, 0}}, seen, "from the top")
	c.Series[1].Y[0] = -1
	require.EqualError(t, c.SVG(io.Discard), "chart: b: bar 0 is -1: what is stacked is not negative")
}

// TestBand wants an area, and points without a line, to be drawn and named, and wrong ones to be
// refused.
func TestBand(t *testing.T) {
	c := Chart{
		Title: "Predictions", X: "x", Y: "y", Plain: true,
		Series: []Series{{Name: "mean", X: []float64{0, 1, 2}, Y: []float64{0, 1, 0}}},
		Bands:  []Band{{"2 deviations", []float64{0, 1, 2}, []float64{-1, 0.5, -2}, []float64{1, 1.5, 2}}},
		Dots:   []Series{{Name: "context", X: []float64{0.5}, Y: []float64{0.25}}},
	}
	var svg, picture bytes.Buffer
	require.NoError(t, c.SVG(&svg))
	require.NoError(t, c.PNG(&picture))
	list := texts(t, svg.String())
	for _, want := range []string{"mean", "2 deviations", "context"} {
		require.Contains(t, list, want)
	}
	require.Contains(t, svg.String(), "fill-opacity", "the area hides what is behind it")
	c.Bands[0].High = c.Bands[0].High[1:]
	require.EqualError(t, c.SVG(io.Discard), "chart: 2 deviations: 3 x, 2 y")
	c.Bands, c.Dots[0].Y[0] = nil, math.NaN()
	require.ErrorContains(t, c.SVG(io.Discard), "chart: context: point 0 is (0.5, NaN)")
}

// TestIntervals wants intervals to be drawn as bars with caps, and wrong ones to be refused.
func TestIntervals(t *testing.T) {
	lines := func(c Chart) int {
		var b bytes.Buffer
		require.NoError(t, c.SVG(&b))
		return strings.Count(b.String(), "<path ")
	}
	c := sample()
	without := lines(c)
	c.Series[0].Low, c.Series[0].High = []float64{0.01, 0.05, 0.2, 1.4}, []float64{0.03, 0.07, 0.4, 1.4}
	require.Greater(t, lines(c), without+4)
	for _, bad := range [][2][]float64{
		{{0.01}, {0.03}},
		{{0.03, 0.05, 0.2, 1.4}, {0.03, 0.07, 0.4, 1.4}},
		{{0.01, 0.05, 0.2, 1.4}, {0.03, 0.07, 0.4, 1.3}},
		{{0.01, 0.05, 0.2, math.Inf(-1)}, {0.03, 0.07, 0.4, math.Inf(1)}},
		{{0, 0.05, 0.2, 1.4}, {0.03, 0.07, 0.4, 1.4}}, // has no logarithm
	} {
		c.Series[0].Low, c.Series[0].High = bad[0], bad[1]
		require.Error(t, c.SVG(io.Discard))
	}
}

// TestHardlyASpan wants a tick, and an end, for an axis whose ends differ only in their last
// digits.
func TestHardlyASpan(t *testing.T) {
	for _, x := range []float64{8838834764831842, 1e15, 1e-90, -1e99, 128} {
		require.Len(t, linear{}.Ticks(x, math.Nextafter(math.Nextafter(x, math.Inf(1)), math.Inf(1))), 1)
	}
	require.NotEmpty(t, linear{}.Ticks(1e9, 1e9+1))
	require.Less(t, len(linear{}.Ticks(1e9, 1e9+1)), 20)
}

// TestDataTicks wants ticks at sizes that are not powers of two, too.
func TestDataTicks(t *testing.T) {
	var values []float64
	for _, x := range (powersOfTwo{[]float64{100, 128, 304, 1e9}}).Ticks(100, 304) {
		values = append(values, x.Value)
		require.Equal(t, x.Label != "", x.Value == 128 || x.Value == 256)
	}
	require.ElementsMatch(t, []float64{128, 256, 100, 304}, values)
}
