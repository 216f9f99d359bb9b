// Package sheet holds reports as people read them and writes them as text for a
// terminal and as Markdown.
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
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/flashvk/flashvk/internal/text"
)

// A Sheet is what is said about a whole run, then sections with a table each.
type Sheet struct {
	Facts    []Fact
	Sections []Section
}

// A Fact is a named statement. Its text may have several lines.
type Fact struct{ Name, Text string }

// A Section is a table with what belongs to it.
type Section struct {
	Facts   []Fact
	Columns []Column
	Rows    [][]string // as long as Columns; none: the table is left out
	Notes   []string   // a line each, below the table
}

// A Column is the head of a column.
type Column struct {
	Name   string
	Number bool // aligned to the right
}

// Add appends a fact to s.
func (s *Section) Add(name, format string, args ...any) {
	s.Facts = append(s.Facts, Fact{name, fmt.Sprintf(format, args...)})
}

// Note appends a line below the table.
func (s *Section) Note(format string, args ...any) {
	s.Notes = append(s.Notes, fmt.Sprintf(format, args...))
}

// nameWidth is that of the names of facts in text, the space after them
// included.
const nameWidth = 9

// Text writes s for a terminal. What does not print is a space.
func (s *Sheet) Text(w io.Writer) error {
	var b bytes.Buffer
	textFacts(&b, s.Facts)
	for i := range s.Sections {
		x := &s.Sections[i]
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		textFacts(&b, x.Facts)
		if len(x.Facts) > 0 && len(x.Rows)+len(x.Notes) > 0 {
			b.WriteByte('\n')
		}
		if len(x.Rows) > 0 {
			x.align(&b)
		}
		for _, n := range x.Notes {
			fmt.Fprintln(&b, text.Printable(n))
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

func textFacts(b *bytes.Buffer, facts []Fact) {
	for _, f := range facts {
		name := f.Name
		for line := range strings.SplitSeq(f.Text, "\n") {
			fmt.Fprintf(b, "%-*s%s\n", nameWidth, name, text.Printable(line))
			name = ""
		}
	}
}

// align writes the table as columns two spaces apart.
func (s *Section) align(b *bytes.Buffer) {
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
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i > 0 {
				line.WriteString("  ")
			}
			if s.Columns[i].Number {
				cell = pad + cell
			} else {
				cell += pad
			}
			line.WriteString(cell)
		}
		fmt.Fprintln(b, strings.TrimRight(line.String(), " "))
	}
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
		fmt.Fprintf(b, "- **%s** %s\n", escape(f.Name), markdownLines(f.Text))
	}
}

func markdownLines(lines string) string {
	var list []string
	for line := range strings.SplitSeq(lines, "\n") {
		list = append(list, escape(line))
	}
	return strings.Join(list, "<br>")
}

func (s *Section) markdownTable(b *bytes.Buffer) {
	markdownRow(b, s.names())
	rule := make([]string, len(s.Columns))
	for i, c := range s.Columns {
		rule[i] = "---"
		if c.Number {
			rule[i] = "---:"
		}
	}
	fmt.Fprintf(b, "| %s |\n", strings.Join(rule, " | "))
	for _, row := range s.Rows {
		markdownRow(b, row)
	}
}

func markdownRow(b *bytes.Buffer, cells []string) {
	for _, cell := range cells {
		fmt.Fprintf(b, "| %s ", escape(cell))
	}
	b.WriteString("|\n")
}

// escape keeps what Markdown and HTML would take for markup, and what prints.
func escape(s string) string {
	return strings.NewReplacer(`\`, `\\`, "|", `\|`, "*", `\*`, "_", `\_`, "`", "\\`", "<", "&lt;", "&", "&amp;").Replace(text.Printable(s))
}
