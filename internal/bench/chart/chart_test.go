package chart

import (
	"encoding/xml"
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
func texts(t *testing.T, svg string) (list []string) {
	t.Helper()
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

// TestLines has two charts of one file, one below the other, in both schemes: lines of ours and of a
// peer, intervals, numbers under a pointer.
func TestLines(t *testing.T) {
	a, b := example(), example()
	b.Title = "Rate"
	b.Series[0].Low, b.Series[0].High = []float64{0.01, 0.05, 0.2, 1.4}, []float64{0.03, 0.07, 0.4, 1.4}
	var all strings.Builder
	require.NoError(t, SVG(&all, &a, &b))
	text := all.String()
	require.Subset(t, texts(t, text), []string{"Latency", "Rate", "Some GPU, driver 1.2", "float16 <a & b>", "sequence length", "ms per call", "coopmat2", "torch:flash", "128", "256", "512", "1024", "0.01", "0.1", "1", "10"})
	for want, n := range map[string]int{
		`viewBox="0 0 720 860"`: 1, `<g transform="translate(0 430)" role="img" aria-label="Rate">`: 1, "<style>": 1, "@media screen and (prefers-color-scheme: dark)": 1,
		"<title>coopmat2: 512, 0.3</title>": 2, `class="interval"`: 3, // the last is a point
	} {
		require.Equal(t, n, strings.Count(text, want), want)
	}
	require.Contains(t, text, `<g class="ours c0" stroke-dasharray="none">`)
	require.Contains(t, text, `<g class="peer c1" stroke-dasharray="2 3">`)
	// No point lies outside the drawing, and larger values are higher.
	points := numbers(t, `translate\(([\d.]+) ([\d.]+)\)"><circle class="mark"[^>]*><title>coopmat2`, svg(t, a))
	require.Len(t, points, 4)
	for i, p := range points {
		require.True(t, p[0] > 0 && p[0] < width && p[1] > 0 && p[1] < height, p)
		require.True(t, i == 0 || p[0] > points[i-1][0] && p[1] < points[i-1][1], points)
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

// TestTicks wants ticks at round numbers, or at the sizes that were measured, with numbers where
// there is room. Axes without a length have one.
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
	require.Less(t, len(axis{low: 1e-100, high: 1e100}.decades()), 10)
	for _, x := range []float64{8838834764831842, 1e-90, -1e99, 128} { // ends differ only in their last digits
		require.Len(t, axis{low: x, high: math.Nextafter(math.Nextafter(x, math.Inf(1)), math.Inf(1))}.linear(), 1)
	}
	require.Less(t, len(axis{low: 1e9, high: 1e9 + 1}.linear()), 20)
	ticks := axis{log: true, low: 120, high: 1024, to: 400}.measured([]float64{120, 128, 130, 304, 304, 1000, 1024})
	require.Equal(t, "120 304 1000", labels(ticks))
	require.Len(t, ticks, 6)
	for _, v := range []float64{1, 0.001, 1e-100, 1e100} {
		c := Chart{Title: "One", LogX: true, LogY: true, Series: []Series{{Name: "one", X: []float64{v}, Y: []float64{v}}, {Name: "again", X: []float64{v, v}, Y: []float64{v, v}}}}
		svg(t, c)
		c.LogX, c.LogY = false, false
		svg(t, c)
	}
	require.Equal(t, []string{"one two", "three", "ä four"}, wrap("one two three\nä  four", 9))
	require.Equal(t, []string{"averylongword", "b"}, wrap("averylongword b", 5))
}

// TestBars: bars of a category stand side by side, from 0. An area and points without a line are
// drawn and named.
func TestBars(t *testing.T) {
	c := Chart{Title: "Rates", Y: "TFLOP/s", Categories: []string{"one", "two\nlines"}}
	c.Bar("a", false, 0, 3)
	c.Bar("a", false, 1, 4)
	c.Bar("b", true, 1, 2)
	require.Subset(t, texts(t, svg(t, c)), []string{"one", "two", "lines", "a", "b", "TFLOP/s", "4"})
	side := numbers(t, `class="bar" d="M([\d.]+) ([\d.]+)V([\d.]+)H([\d.]+)V[\d.]+z"><title>`, svg(t, c)) // left, bottom, top, right
	tall := func(i int) float64 { return side[i][1] - side[i][2] }
	require.InDeltaSlice(t, []float64{0.75, 0.5}, []float64{tall(0) / tall(1), tall(2) / tall(1)}, 0.01)
	require.Less(t, side[0][3], side[1][0])
	require.InDelta(t, side[1][3], side[2][0], 0.11, "side by side")

	text := svg(t, Chart{
		Title: "Predictions", X: "x", Y: "y", Plain: true,
		Series: []Series{
			{Name: "mean", X: []float64{0, 1, 2}, Y: []float64{0, 1, 0}, Low: []float64{-1, 0.5, -2}, High: []float64{1, 1.5, 2}},
			{Name: "context", Dots: true, X: []float64{0.5}, Y: []float64{0.25}},
		},
	})
	require.Subset(t, texts(t, text), []string{"mean", "context"})
	require.Regexp(t, `class="band" d="M(\S+ \S+L){5}\S+ \S+z"`, text)
	require.Contains(t, style, ".band { fill: currentColor; fill-opacity: .2; }", "the area hides what is behind it")
	require.Equal(t, 1, strings.Count(text, "<title>"), "a line of many points has no marks")
}

// TestErrors: what cannot be drawn has an error.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		change func(c *Chart)
		want   string
	}{
		{func(c *Chart) { c.Series = nil }, "chart: Latency: there is nothing to draw"},
		{func(c *Chart) { c.Series[0].Y[2] = 0 }, "chart: coopmat2: point 2 has 0, which is not positive"},
		{func(c *Chart) { c.Series[0].X[0] = 0 }, "chart: coopmat2: point 0 has 0, which is not positive"},
		{func(c *Chart) { c.Series[0].Y[1] = math.NaN() }, "chart: coopmat2: point 1 has NaN: what can be drawn is 0, or from 1e-100 to 1e+100"},
		{func(c *Chart) { c.Series[0].Y[0] = 5e-324 }, "chart: coopmat2: point 0 has 5e-324"},
		{func(c *Chart) { c.Series[0].X[2] = math.Inf(1) }, "chart: coopmat2: point 2 has +Inf"},
		{func(c *Chart) { c.Series[1].Low, c.Series[1].High = []float64{0, 5}, []float64{0.03, 6} }, "chart: torch:flash: point 0 has 0, which is not positive"},
	} {
		x := example()
		c.change(&x)
		require.ErrorContains(t, x.SVG(io.Discard), c.want)
	}
}
