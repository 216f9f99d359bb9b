package chart

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write what the charts of testdata/charts.txt make")

// TestCharts draws the charts of the file, and compares them with the drawings or errors there, but for
// their style. With -update it writes these.
func TestCharts(t *testing.T) {
	const path = "testdata/charts.txt"
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	got, parts := "", strings.Split(strings.TrimSpace(string(want)), "\n== ")
	for i, part := range parts {
		input, _, _ := strings.Cut(part, "\n--\n")
		if got += "\n== " + strings.TrimSpace(input); i == 0 {
			continue // what the file is
		}
		var list []*Chart
		_, charts, _ := strings.Cut(input, "\n")
		for d := json.NewDecoder(strings.NewReader(charts)); d.More(); {
			list = append(list, new(Chart))
			require.NoError(t, d.Decode(list[len(list)-1]))
		}
		var b strings.Builder
		if err := SVG(&b, list...); err != nil {
			got += "\n--\n" + err.Error()
			continue
		}
		wellFormed(t, b.String())
		got += "\n--\n" + strings.TrimSpace(strings.Replace(b.String(), style, "", 1))
	}
	if got = strings.TrimPrefix(got, "\n== ") + "\n"; *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
		return
	}
	require.Equal(t, string(want), got)
}

// wellFormed says that a drawing is XML, and that its points are numbers within it.
func wellFormed(t *testing.T, svg string) {
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else {
			require.NoError(t, err)
		}
	}
	require.NotRegexp(t, regexp.MustCompile(`NaN|Inf|translate\(-|translate\([\d.]+ -`), svg)
}

func TestNaN(t *testing.T) {
	c := Chart{Series: []Series{{Name: "coopmat", X: []float64{1}, Y: []float64{math.NaN()}}}}
	require.EqualError(t, c.SVG(io.Discard), "chart: coopmat: point 0 has NaN: what can be drawn is 0, or from 1e-100 to 1e+100")
}
