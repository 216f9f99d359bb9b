// Terminal draws the text of a terminal session as SVG, for a page that is light or dark:
//
//	go run ./tools/terminal < session.txt > session.svg
//
// A line that begins with "$ " is a command. Its output follows.
package main

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"log"
	"os"
	"strings"
	"unicode/utf8"
)

// Sizes of a letter and of the room around all lines, in pixels. The font of a reader may be any
// monospaced one: textLength makes its letters as wide.
const (
	letter = 7.8
	line   = 18
	edge   = 16
)

const style = `<style>
rect { fill: #f6f8fa; stroke: #d1d9e0 }
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace; fill: #1f2328; white-space: pre }
.command { font-weight: bold; fill: #0550ae }
@media (prefers-color-scheme: dark) {
rect { fill: #161b22; stroke: #3d444d }
text { fill: #e6edf3 }
.command { fill: #79c0ff }
}
</style>
`

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err == nil {
		_, err = os.Stdout.WriteString(draw(text))
	}
	if err != nil {
		log.Fatal(err)
	}
}

func draw(text []byte) string {
	lines := strings.Split(strings.TrimRight(string(bytes.ToValidUTF8(text, nil)), "\n"), "\n")
	columns := 0
	body := ""
	for i, s := range lines {
		s = strings.TrimRight(s, " \r")
		n := utf8.RuneCountInString(s)
		columns = max(columns, n)
		class := ""
		if strings.HasPrefix(s, "$ ") {
			class = ` class="command"`
		}
		body += fmt.Sprintf("<text%s x=\"%d\" y=\"%d\" textLength=\"%.1f\" xml:space=\"preserve\">%s</text>\n",
			class, edge, edge+line*i+line*3/4, letter*float64(n), html.EscapeString(s))
	}
	width, height := letter*float64(columns)+2*edge, line*len(lines)+2*edge
	return fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%d\" viewBox=\"0 0 %.0f %d\">\n%s<rect x=\"0.5\" y=\"0.5\" width=\"%.0f\" height=\"%d\" rx=\"6\"/>\n%s</svg>\n",
		width, height, width, height, style, width-1, height-1, body)
}
