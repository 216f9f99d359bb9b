package page

import (
	"flag"
	"html/template"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/bench/sheet"
)

var update = flag.Bool("update", false, "write testdata/page.txt")

// TestPage compares what follows the style of a page with a file.
func TestPage(t *testing.T) {
	s := sheet.Section{Columns: []sheet.Column{{Name: "impl"}, {Name: "ours ms", Number: true}}, Rows: [][]string{{"a<b>", "1.5"}}}
	s.Add("time", "one\ntwo")
	s.Note("note & more")
	p := Page{
		Title: "Attention on <GPU>", Made: time.Date(2026, 11, 20, 13, 5, 0, 0, time.FixedZone("", 3600)), Program: "flashvk v1",
		Command: "flashvk bench --peer 'x=</code><script>'", Device: "0  GPU\n   driver  x",
		Sheet:    sheet.Sheet{Facts: []sheet.Fact{{Name: "WARNING", Text: "a CPU"}}, Sections: []sheet.Section{s}},
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
