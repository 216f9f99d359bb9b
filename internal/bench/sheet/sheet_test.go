package sheet

import (
	"flag"
	"html/template"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSheet has a table that is too wide for a terminal, cells that are too long, and text of
// drivers and peers that would forge rows, move the cursor, or be markup.
func TestSheet(t *testing.T) {
	file, err := os.ReadFile("testdata/sheets.txt")
	require.NoError(t, err)
	sheets := strings.Split(string(file), "====\n")
	type row struct{ size, impl, time, more, runs string }
	x := Section{Keys: 2}
	Fill(&x, []row{{"8", "a_<b>", "1 ms", "wide", "tiles of 64x64, and of much more than that"}, {"512", "p\nscalar  0.001 ms", "\x1b[2J", "", ""}},
		Cell[row]{Name: "size", Of: func(x row) string { return x.size }}, Cell[row]{Name: "impl\n", Text: true, Of: func(x row) string { return x.impl }},
		Cell[row]{Name: "max|Δ|", Of: func(x row) string { return x.time }}, Cell[row]{Name: "more", Wide: true, Of: func(x row) string { return x.more }},
		Cell[row]{Name: "runs", Text: true, Of: func(x row) string { return x.runs }})
	x.Add("problem", "one\n%s", "two")
	x.Facts = append(x.Facts, Fact{Name: "more", Text: "of the column", Wide: true})
	x.Note("%d note that is so long that it stands on two lines\r\n| forged |", 1)
	alone := Section{}
	alone.Note("alone")
	s := &Sheet{Facts: []Fact{{Name: "device", Text: "GPU\x1b]0;x\x07 of a name and its driver"}, {Name: Warning, Text: "loud"}}, Sections: []Section{x, alone}}
	text := func(width int) string {
		var b strings.Builder
		s.Width = width
		require.NoError(t, s.Text(&b))
		return b.String()
	}
	require.Equal(t, sheets[0], text(34))
	require.Contains(t, text(0), "\nsize  impl                max|Δ|  more  runs\n   8  a_<b>                 1 ms  wide  tiles of 64x64, and of much more than that\n 512  p scalar  0.001 ms")
	require.Contains(t, text(0), "\nmore     of the column\n")
	var b strings.Builder
	require.NoError(t, s.Markdown(&b))
	require.Equal(t, sheets[1], b.String())
	s.Quiet()
	require.True(t, strings.HasPrefix(text(0), "WARNING  loud\n\nsize"), text(0))
}

var update = flag.Bool("update", false, "write testdata/page.txt")

// TestPage compares what follows the style of a page with a file.
func TestPage(t *testing.T) {
	s := Section{Columns: []Column{{Name: "impl"}, {Name: "ours ms", Number: true}}, Rows: [][]string{{"a<b>", "1.5"}}}
	s.Add("time", "one\ntwo")
	s.Note("note & more")
	p := Page{
		Title: "Attention on <GPU>", Made: time.Date(2026, 11, 20, 13, 5, 0, 0, time.FixedZone("", 3600)), Program: "flashvk v1",
		Command: "flashvk bench --peer 'x=</code><script>'", Device: "0  GPU\n   driver  x",
		Sheet:    Sheet{Facts: []Fact{{Name: "WARNING", Text: "a CPU"}}, Sections: []Section{s}},
		Files:    []string{"results.csv", "results.json"},
		Drawings: []template.HTML{"<svg ></svg>"},
	}
	var b strings.Builder
	require.NoError(t, p.Write(&b))
	style, body, _ := strings.Cut(b.String(), "</style>")
	if *update {
		require.NoError(t, os.WriteFile("testdata/page.txt", []byte(body), 0o644))
	}
	want, err := os.ReadFile("testdata/page.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), body)
	require.Contains(t, style, "<title>Attention on &lt;GPU&gt;</title>")
	// Nothing is loaded, and both schemes have every color.
	require.NotRegexp(t, regexp.MustCompile(`(?i)src=|url\(|@import|https?:|<script`), b.String())
	require.Contains(t, style, "@media (prefers-color-scheme: dark) { :root {")
	for _, m := range regexp.MustCompile(`var\((--[a-z]+)\)`).FindAllStringSubmatch(style, -1) {
		require.GreaterOrEqual(t, strings.Count(style, m[1]+": #"), 2, "%s is not set in both schemes", m[1])
	}
}
