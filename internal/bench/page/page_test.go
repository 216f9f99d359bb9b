package page

import (
	"html/template"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/bench/sheet"
)

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
	text := b.String()
	for _, want := range []string{
		"<title>Attention on &lt;GPU&gt;</title>", `<meta name="viewport"`, "2026-11-20 12:05 UTC", "<td class=\"text\">a&lt;b&gt;</td><td class=\"number\">1.5</td>",
		`<th class="number">ours<br>ms</th>`, "<dd>one<br>two</dd>", "note &amp; more", `<dd class="loud">a CPU</dd>`, "0  GPU\n   driver  x</pre>",
	} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, "<script")
	require.Equal(t, 1, strings.Count(text, "<svg "))
	require.Equal(t, 1, strings.Count(text, "<!DOCTYPE"))

	// Nothing is loaded: no address but links to the files beside it and the names of SVG's own
	// namespaces.
	var links []string
	for _, m := range regexp.MustCompile(`href="([^"]*)"`).FindAllStringSubmatch(text, -1) {
		links = append(links, m[1])
	}
	require.Equal(t, p.Files, links)
	require.NotRegexp(t, regexp.MustCompile(`(?i)src=|url\(|@import`), text)
	// Both schemes have every color, and nothing but the drawings has one of its own.
	require.Contains(t, text, "@media (prefers-color-scheme: dark) { :root {")
	require.Contains(t, text, "color-scheme: light dark;")
	style, _, _ := strings.Cut(text, "</style>")
	for _, m := range regexp.MustCompile(`var\((--[a-z]+)\)`).FindAllStringSubmatch(style, -1) {
		require.GreaterOrEqual(t, strings.Count(style, m[1]+": #"), 2, "%s is not set in both schemes", m[1])
	}
	for _, m := range regexp.MustCompile(`https?://[^"]*`).FindAllString(text, -1) {
		require.Contains(t, []string{"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}, m)
	}
}
