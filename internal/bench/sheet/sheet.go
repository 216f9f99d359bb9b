// Package sheet holds reports as people read them and writes them as text for a
// terminal, as Markdown, and in a page of HTML.
//
//	device   Some GPU                      Sheet.Facts
//
//	problem  attention forward             Section.Facts
//	time     median of 10 samples
//
//	impl         time                      Section.Columns
//	coopmat2  1.772 ms                     Section.Rows
//	scalar is not supported: …             Section.Notes
package sheet

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/flashvk/flashvk/internal/text"
)

// A Sheet is what is said about a whole run, then sections with a table each.
type Sheet struct {
	Facts    []Fact
	Sections []Section
	// Width is the width of a terminal, which Text keeps to; 0: any. Text then leaves out Wide
	// columns, puts the rest of a table that is too wide into further tables below it, and
	// breaks lines, also inside cells.
	Width int
}

// A Fact is a named statement. Its text may have several lines.
type Fact struct {
	Name, Text string
	Wide       bool // about columns that are Wide
}

// A Section is a table with what belongs to it.
type Section struct {
	Facts   []Fact
	Columns []Column
	Rows    [][]string // as long as Columns; none: the table is left out
	Keys    int        // the first columns, which tell rows apart; one at least
	Notes   []string   // a line each, below the table
}

// A Column is the head of a column.
type Column struct {
	Name   string
	Number bool // aligned to the right
	Wide   bool // for who has room: see Sheet.Width
}

// Columns returns columns of numbers; the columns that text names hold text.
func Columns(names []string, text ...string) (list []Column) {
	for _, name := range names {
		list = append(list, Column{Name: name, Number: !slices.Contains(text, name)})
	}
	return list
}

// A Cell is a column, and how its text follows from a row of type T.
type Cell[T any] struct {
	Name string
	Of   func(row T) string
	Text bool // aligned to the left; else to the right, as numbers are
	Wide bool
}

// Fill makes the table of s: a row of rows each.
func Fill[T any](s *Section, rows []T, cells ...Cell[T]) {
	for _, c := range cells {
		s.Columns = append(s.Columns, Column{Name: c.Name, Number: !c.Text, Wide: c.Wide})
	}
	for _, x := range rows {
		var row []string
		for _, c := range cells {
			row = append(row, c.Of(x))
		}
		s.Rows = append(s.Rows, row)
	}
}

// Quiet leaves the facts out, but for warnings.
func (s *Sheet) Quiet() {
	loud := func(facts []Fact) []Fact {
		return slices.DeleteFunc(facts, func(f Fact) bool { return f.Name != Warning })
	}
	s.Facts = loud(s.Facts)
	for i := range s.Sections {
		s.Sections[i].Facts = loud(s.Sections[i].Facts)
	}
}

// Warning is the name of a fact that readers must see.
const Warning = "WARNING"

// Add appends a fact to s.
func (s *Section) Add(name, format string, args ...any) {
	s.Facts = append(s.Facts, Fact{Name: name, Text: fmt.Sprintf(format, args...)})
}

// Note appends a line below the table.
func (s *Section) Note(format string, args ...any) {
	s.Notes = append(s.Notes, fmt.Sprintf(format, args...))
}

// nameWidth is the width of the names of facts in text, with the space after them.
const nameWidth = 9

// Text writes s for a terminal. What does not print is a space.
func (s *Sheet) Text(w io.Writer) error {
	var b bytes.Buffer
	s.textFacts(&b, s.Facts)
	for i := range s.Sections {
		x := &s.Sections[i]
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		s.textFacts(&b, x.Facts)
		if len(x.Facts) > 0 && len(x.Rows)+len(x.Notes) > 0 {
			b.WriteByte('\n')
		}
		if len(x.Rows) > 0 {
			x.align(&b, s.Width)
		}
		for _, n := range x.Notes {
			for i, line := range lines(text.Printable(n), max(s.Width-2, 0), " ") {
				fmt.Fprintf(&b, "%*s%s\n", 2*min(i, 1), "", line)
			}
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

func (s *Sheet) textFacts(b *bytes.Buffer, facts []Fact) {
	for _, f := range facts {
		name := f.Name
		if f.Wide && s.Width > 0 {
			continue
		}
		for paragraph := range strings.SplitSeq(f.Text, "\n") {
			for _, line := range lines(text.Printable(paragraph), max(s.Width-nameWidth, 0), " ") {
				fmt.Fprintf(b, "%-*s%s\n", nameWidth, name, line)
				name = ""
			}
		}
	}
}

// lines breaks a text that is longer than most letters, 0 for any: behind one of some letters if
// there is one in the second half, or else where it has to.
func lines(line string, most int, behind string) (parts []string) {
	runes := []rune(line)
	for most > 0 && len(runes) > most {
		at := most
		for i := min(most+1, len(runes)); i > most/2; i-- {
			if strings.ContainsRune(behind, runes[i-1]) && (i <= most || runes[i-1] == ' ') {
				at = i
				break
			}
		}
		parts = append(parts, strings.TrimRight(string(runes[:at]), " "))
		runes = runes[at:]
	}
	return append(parts, string(runes))
}

// align writes the table as columns two spaces apart, in several parts if it is wider than
// width, which is 0 for any.
func (s *Section) align(b *bytes.Buffer, width int) {
	widths := make([]int, len(s.Columns))
	var rows [][]string
	for _, row := range append([][]string{s.names()}, s.Rows...) {
		rows = append(rows, make([]string, len(row)))
		for i, cell := range row {
			cell = text.Printable(cell)
			rows[len(rows)-1][i] = cell
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	if width > 0 {
		rows = s.breakCells(rows, widths, width)
	}
	for n, part := range s.parts(widths, width) {
		if n > 0 {
			b.WriteByte('\n')
		}
		for _, row := range rows {
			if !slices.ContainsFunc(part, func(i int) bool { return row[i] != "" }) {
				continue // it goes on in another part
			}
			line := ""
			for _, i := range part {
				pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(row[i]))
				if s.Columns[i].Number {
					line += pad + row[i] + "  "
				} else {
					line += row[i] + pad + "  "
				}
			}
			fmt.Fprintln(b, strings.TrimRight(line, " "))
		}
	}
}

// breakCells breaks text that is too long for its column: the keys have half of the width, another
// column the rest. Further lines of a text stand in rows below. breakCells corrects widths.
func (s *Section) breakCells(rows [][]string, widths []int, width int) (broken [][]string) {
	keys := max(s.Keys, 1)
	numbers, words, used := 0, 0, 0
	for i, c := range s.Columns[:keys] {
		if c.Number {
			numbers += widths[i] + 2
		} else {
			words++
		}
	}
	for i, c := range s.Columns {
		switch {
		case !c.Number && i < keys:
			widths[i] = min(widths[i], max((width/2-numbers)/words, keyLetters))
		case !c.Number:
			widths[i] = min(widths[i], max(width-used, keyLetters))
		}
		if i < keys {
			used += widths[i] + 2
		}
	}
	for _, row := range rows {
		first := len(broken)
		for i, cell := range row {
			for n, line := range lines(cell, widths[i], " /,") {
				if first+n == len(broken) {
					broken = append(broken, make([]string, len(row)))
				}
				broken[first+n][i] = line
			}
		}
	}
	return broken
}

// keyLetters are the letters that a column of text has at least, however many keys there are.
const keyLetters = 8

// parts returns the columns of each part of the table, the keys in each.
func (s *Section) parts(widths []int, width int) (parts [][]int) {
	keys := max(s.Keys, 1)
	part, at, used := []int{}, 0, 0
	for i, c := range s.Columns {
		if width > 0 && c.Wide {
			continue
		}
		if width > 0 && at+widths[i] > width && len(part) > keys {
			parts = append(parts, part)
			part, at = slices.Clone(part[:keys]), used
		}
		part = append(part, i)
		at += widths[i] + 2
		if i < keys {
			used = at
		}
	}
	return append(parts, part)
}

func (s *Section) names() []string {
	names := make([]string, len(s.Columns))
	for i, c := range s.Columns {
		names[i] = c.Name
	}
	return names
}

// Markdown writes s as Markdown with tables as GitHub has them.
func (s *Sheet) Markdown(w io.Writer) error {
	var b bytes.Buffer
	markdownFacts(&b, s.Facts)
	for i := range s.Sections {
		x := &s.Sections[i]
		markdownFacts(&b, x.Facts)
		if len(x.Rows) > 0 {
			separate(&b)
			x.markdownTable(&b)
		}
		for _, n := range x.Notes {
			separate(&b)
			fmt.Fprintln(&b, escape(n))
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

// separate begins a new paragraph.
func separate(b *bytes.Buffer) {
	if b.Len() > 0 {
		b.WriteByte('\n')
	}
}

func markdownFacts(b *bytes.Buffer, facts []Fact) {
	if len(facts) > 0 {
		separate(b)
	}
	for _, f := range facts {
		var list []string
		for line := range strings.SplitSeq(f.Text, "\n") {
			list = append(list, escape(line))
		}
		fmt.Fprintf(b, "- **%s** %s\n", escape(f.Name), strings.Join(list, "<br>"))
	}
}

func (s *Section) markdownTable(b *bytes.Buffer) {
	rule := ""
	for _, c := range s.Columns {
		if c.Number {
			rule += "| ---: "
		} else {
			rule += "| --- "
		}
	}
	for i, row := range append([][]string{s.names()}, s.Rows...) {
		for _, cell := range row {
			fmt.Fprintf(b, "| %s ", escape(cell))
		}
		b.WriteString("|\n")
		if i == 0 {
			b.WriteString(rule + "|\n")
		}
	}
}

// escape keeps what Markdown and HTML would take for markup, and what prints.
func escape(s string) string {
	return strings.NewReplacer(`\`, `\\`, "|", `\|`, "*", `\*`, "_", `\_`, "`", "\\`", "<", "&lt;", "&", "&amp;").Replace(text.Printable(s))
}

// A Page is a report as one HTML file that needs nothing else: no network, no script, no font. It reads
// well on a telephone and on paper.
type Page struct {
	Title    string
	Made     time.Time
	Program  string // version and commit
	Command  string // as typed
	Device   string // its capabilities, as lines of text
	Sheet    Sheet
	Drawings []template.HTML // SVG of our own making, whose texts are escaped
	Files    []string        // names of files beside this one, to link to
}

//go:embed page.html
var source string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"lines": func(text string) []string { return strings.Split(text, "\n") },
	"words": strings.Fields,
	"class": func(s Section, i int) string { // of the cell in column i
		if s.Columns[i].Number {
			return "number"
		}
		return "text"
	},
	"utc": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 MST") },
}).Parse(source))

// Write writes the file.
func (p *Page) Write(w io.Writer) error { return page.Execute(w, p) }
