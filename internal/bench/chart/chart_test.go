package chart

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func example() Chart {
	return Chart{
		Title: "Latency", Subtitle: "Some GPU, driver 1.2\nfloat16 <a & b>", X: "sequence length", Y: "ms per call", LogX: true, LogY: true,
		Series: []Series{
			{Name: "coopmat2", X: []float64{128, 256, 512, 1024}, Y: []float64{0.02, 0.06, 0.3, 1.4}},
			{Name: "torch:flash", Peer: true, X: []float64{128, 1024}, Y: []float64{0.03, 5.4}},
		},
	}
}

func svg(t *testing.T, c Chart) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, c.SVG(&b))
	require.NotContains(t, b.String(), "NaN")
	require.NotContains(t, b.String(), "Inf")
	return b.String()
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
		case xml.EndElement:
			inside = false
		case xml.CharData:
			if inside {
				list = append(list, string(x))
			}
		}
	}
}

// numbers returns the numbers that a pattern captures in each of its matches.
func numbers(t *testing.T, pattern, text string) (list [][]float64) {
	t.Helper()
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		var row []float64
		for _, word := range m[1:] {
			x, err := strconv.ParseFloat(word, 64)
			require.NoError(t, err)
			row = append(row, x)
		}
		list = append(list, row)
	}
	return list
}

func TestSVG(t *testing.T) {
	text := svg(t, example())
	list := texts(t, text)
	for _, want := range []string{"Latency", "Some GPU, driver 1.2", "float16 <a & b>", "sequence length", "ms per call", "coopmat2", "torch:flash", "128", "256", "512", "1024", "0.01", "0.1", "1", "10"} {
		require.Contains(t, list, want)
	}
	require.Contains(t, text, `viewBox="0 0 720 430"`)
	require.Contains(t, text, "@media screen and (prefers-color-scheme: dark)")
	require.Contains(t, text, "<title>coopmat2: 512, 0.3</title>")
	// No point lies outside the drawing, and larger values are higher.
	points := numbers(t, `translate\(([\d.]+) ([\d.]+)\)"><path class="mark"[^>]*><title>coopmat2`, text)
	require.Len(t, points, 4)
	for i, p := range points {
		require.True(t, p[0] > 0 && p[0] < width && p[1] > 0 && p[1] < height, p)
		require.True(t, i == 0 || p[0] > points[i-1][0] && p[1] < points[i-1][1], points)
	}
}

// TestStack: charts of one file stand one below the other.
func TestStack(t *testing.T) {
	a, b := example(), example()
	b.Title = "Rate"
	var text strings.Builder
	require.NoError(t, SVG(&text, &a, &b))
	require.Contains(t, text.String(), `viewBox="0 0 720 860"`)
	require.Contains(t, text.String(), `<g transform="translate(0 430)" role="img" aria-label="Rate">`)
	require.Subset(t, texts(t, text.String()), []string{"Latency", "Rate"})
	require.Equal(t, 1, strings.Count(text.String(), "<style>"))
}

// TestLooks: no two of many series look alike, in color, dash and mark, and none of ours like a
// peer's. Ten have colors of their own.
func TestLooks(t *testing.T) {
	seen := map[string]bool{}
	for i := range 70 {
		color, dash, mark := lookOf(i, false)
		look := fmt.Sprint(color, dash, mark)
		require.False(t, seen[look], "series %d looks like another", i)
		seen[look] = true
		require.True(t, i >= colors || dash == "none", "ours is dashed")
		_, other, _ := lookOf(i%colors, true)
		require.NotEqual(t, "none", other)
	}
	found := map[string]int{}
	for _, m := range regexp.MustCompile(`\.c\d \{ color: (#\w+)`).FindAllStringSubmatch(style, -1) {
		found[m[1]]++
	}
	require.Len(t, found, 2*colors, "light and dark")
	text := svg(t, example())
	require.Contains(t, text, `<g class="ours c0" stroke-dasharray="none">`)
	require.Contains(t, text, `<g class="peer c1" stroke-dasharray="2 3">`)
	require.Regexp(t, `\.line \{[^}]*stroke-width: 3;`, style)
	require.Regexp(t, `\.peer \.line[^}]*stroke-width: 1\.5;`, style)
}

// TestLabels: each name stands at the end of its line, but apart from the others and inside of the
// chart.
func TestLabels(t *testing.T) {
	for _, end := range []float64{0, 25, 50} {
		c := Chart{Title: "Rates", X: "x", Y: "y"}
		for i := range 12 {
			c.Series = append(c.Series, Series{Name: fmt.Sprint("line", i), X: []float64{1, 2}, Y: []float64{5, end}})
		}
		alone := 40 - 0.6*end
		c.Series = append(c.Series, Series{Name: "alone", X: []float64{1, 2}, Y: []float64{50, alone}})
		text := svg(t, c)
		places := numbers(t, `y="([\d.]+)" class="">(?:line|alone)`, text)
		require.Len(t, places, 13)
		for i := range places[1:] {
			require.GreaterOrEqual(t, places[i][0]-places[i+1][0], textSize, "from below")
		}
		ends := numbers(t, `class="grid" d="M[\d.]+ ([\d.]+)V([\d.]+)"`, text)[0]
		require.GreaterOrEqual(t, places[12][0], ends[0])
		require.Less(t, places[0][0], ends[1]+textSize)
		lead := numbers(t, `M[\d.]+ ([\d.]+)L[\d.]+ ([\d.]+)"/>\n<g [^\n]*\n<text [^\n]*alone`, text)[0]
		if end == 0 {
			require.Equal(t, lead[0], lead[1], "nothing pushes it away from its line")
		}
	}
}

// TestOneValue draws series with one value, whose axes have no length. The values are 1, whose
// logarithm is 0, and the largest and smallest numbers.
func TestOneValue(t *testing.T) {
	for _, v := range []float64{1, 2, 0.001, 1e-100, 1e100} {
		c := Chart{Title: "One", LogX: true, LogY: true, Series: []Series{{Name: "one", X: []float64{v}, Y: []float64{v}}, {Name: "again", X: []float64{v, v}, Y: []float64{v, v}}}}
		svg(t, c)
		c.LogX, c.LogY = false, false
		svg(t, c)
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
		x := example()
		c.change(&x)
		require.ErrorContains(t, x.SVG(io.Discard), c.want)
	}
}

func labels(ticks []tick) string {
	var list []string
	for _, t := range ticks {
		if t.label != "" {
			list = append(list, t.label)
		}
	}
	return strings.Join(list, " ")
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		least, most float64
		want        string
	}{
		{0, 5.4, "0 1 2 3 4 5"},
		{128, 2048, "200 400 600 800 1000 1200 1400 1600 1800 2000"},
		{0, 0.0041, "0 0.001 0.002 0.003 0.004"},
		{-3, 310, "0 50 100 150 200 250 300"},
		{7, 7, "7"},
	} {
		require.Equal(t, c.want, labels(axis{low: c.least, high: c.most}.linear()))
	}
	require.Equal(t, "0.1 1 10", labels(axis{low: 0.1, high: 10}.decades()))
	require.Equal(t, "0.001 0.01", labels(axis{low: 0.001, high: 0.01}.decades()))
	require.Less(t, len(axis{low: 1e-100, high: 1e100}.decades()), 10)
	// An axis whose ends differ only in their last digits has a tick, and no end of them.
	for _, x := range []float64{8838834764831842, 1e15, 1e-90, -1e99, 128} {
		require.Len(t, axis{low: x, high: math.Nextafter(math.Nextafter(x, math.Inf(1)), math.Inf(1))}.linear(), 1)
	}
	require.NotEmpty(t, axis{low: 1e9, high: 1e9 + 1}.linear())
	require.Less(t, len(axis{low: 1e9, high: 1e9 + 1}.linear()), 20)
}

// TestMeasured wants ticks at the sizes that were measured, with numbers where there is room:
// those of powers of two first.
func TestMeasured(t *testing.T) {
	doubling := axis{low: 32, high: 128, to: 400}
	require.Equal(t, "32 64 128", labels(doubling.measured([]float64{32, 128, 64, 64})))
	crowded := axis{log: true, low: 120, high: 1024, to: 400}
	ticks := crowded.measured([]float64{120, 128, 130, 304, 1000, 1024})
	require.Equal(t, "128 1024 304", labels(ticks))
	require.Len(t, ticks, 6)
}

func TestWrap(t *testing.T) {
	require.Equal(t, []string{"one two", "three", "ä four"}, wrap("one two three\nä  four", 9))
	require.Equal(t, []string{"averylongword", "b"}, wrap("averylongword b", 5))
}

// barsOf returns left, bottom, top and right of the bars of an SVG.
func barsOf(t *testing.T, c Chart) [][]float64 {
	return numbers(t, `class="bar" d="M([\d.]+) ([\d.]+)V([\d.]+)H([\d.]+)V[\d.]+z"><title>`, svg(t, c))
}

func TestBars(t *testing.T) {
	c := Chart{Title: "Rates", Y: "TFLOP/s", Categories: []string{"one", "two\nlines"}, Series: []Series{{Name: "a", X: []float64{0, 1}, Y: []float64{3, 4}}, {Name: "b", Peer: true, X: []float64{1}, Y: []float64{2}}}}
	require.Subset(t, texts(t, svg(t, c)), []string{"one", "two", "lines", "a", "b", "TFLOP/s", "4"})
	bars := barsOf(t, c)
	require.Len(t, bars, 3)
	tall := func(i int) float64 { return bars[i][1] - bars[i][2] }
	require.InDelta(t, 3./4, tall(0)/tall(1), 0.01)
	require.InDelta(t, 2./4, tall(2)/tall(1), 0.01)
	require.Less(t, bars[0][3], bars[1][0])
	require.InDelta(t, bars[1][3], bars[2][0], 0.11, "side by side")
	for _, x := range []float64{-1, 2, 0.5} {
		c.Series[1].X[0] = x
		require.ErrorContains(t, c.SVG(io.Discard), "which is none of 2 categories")
	}
}

// TestStacked wants the bars of a category to stand on each other, and those of the next category
// to begin at 0.
func TestStacked(t *testing.T) {
	c := Chart{Title: "Stages", Y: "ms", Categories: []string{"one", "two"}, Stacked: true, Series: []Series{{Name: "a", X: []float64{0, 1}, Y: []float64{3, 1}}, {Name: "b", X: []float64{1}, Y: []float64{2}}, {Name: "c", X: []float64{0, 1}, Y: []float64{2, 2}}}}
	require.Contains(t, texts(t, svg(t, c)), "5", "the axis reaches the sum")
	bars := barsOf(t, c)
	require.Len(t, bars, 5)
	ground := bars[0][1]
	require.Equal(t, []float64{ground, ground}, []float64{bars[0][1], bars[1][1]})
	require.Equal(t, []float64{bars[1][2], bars[0][2], bars[2][2]}, []float64{bars[2][1], bars[3][1], bars[4][1]}, "each begins where the one below ends")
	require.InDelta(t, bars[3][2], bars[4][2], 0.11, "both sums are 5")
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
	text := svg(t, c)
	require.Subset(t, texts(t, text), []string{"mean", "2 deviations", "context"})
	require.Regexp(t, `class="band" d="M(\S+ \S+L){5}\S+ \S+z"`, text)
	require.Contains(t, style, ".band { fill: currentColor; fill-opacity: .2; }", "the area hides what is behind it")
	require.Equal(t, 1, strings.Count(text, "<title>"), "a line of many points has no marks")
	c.Bands[0].High = c.Bands[0].High[1:]
	require.EqualError(t, c.SVG(io.Discard), "chart: 2 deviations: 3 x, 2 y")
	c.Bands, c.Dots[0].Y[0] = nil, math.NaN()
	require.ErrorContains(t, c.SVG(io.Discard), "chart: context: point 0 is (0.5, NaN)")
}

// TestIntervals wants intervals to be drawn as bars with caps, and wrong ones to be refused.
func TestIntervals(t *testing.T) {
	c := example()
	require.NotContains(t, svg(t, c), `class="interval"`)
	c.Series[0].Low, c.Series[0].High = []float64{0.01, 0.05, 0.2, 1.4}, []float64{0.03, 0.07, 0.4, 1.4}
	require.Equal(t, 3, strings.Count(svg(t, c), `class="interval"`), "the last is a point")
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
