// Package page writes a report as one HTML file that needs nothing else: no
// network, no script, no font. It reads well on a telephone and on paper.
package page

import (
	_ "embed"
	"html/template"
	"io"
	"strings"
	"time"

	"github.com/flashvk/flashvk/internal/bench/sheet"
)

// A Page is what the file says.
type Page struct {
	Title    string
	Made     time.Time
	Program  string // version and commit
	Command  string // as typed
	Device   string // its capabilities, as lines of text
	Sheet    sheet.Sheet
	Drawings []template.HTML // SVG of our own making, whose texts are escaped
	Files    []string        // names of files beside this one, to link to
}

//go:embed page.html
var source string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"lines": func(text string) []string { return strings.Split(text, "\n") },
	"words": strings.Fields,
	"class": func(s sheet.Section, i int) string { // of the cell in column i
		if s.Columns[i].Number {
			return "number"
		}
		return "text"
	},
	"utc": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 MST") },
}).Parse(source))

// Write writes the file.
func (p *Page) Write(w io.Writer) error { return page.Execute(w, p) }
