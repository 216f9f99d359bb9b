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
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/flashvk/flashvk/internal/text"
)

// A Sheet is what is said about a whole run, then sections with a table each.
type Sheet struct {
	Facts    []Fact
	Sections []Section
	// Width is that of a terminal, which Text keeps to; 0: any. Columns that are Wide are left
	// out then, the rest of a table that is too wide is one table below the other, and
	// lines are broken, those of cells, too. Where keys are too many, each part has row numbers.
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

// nameWidth is that of the names of facts in text, the space after them
// included.
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
			for i, line := range s.wrap(text.Printable(n), 2) {
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
			for _, line := range s.wrap(text.Printable(paragraph), nameWidth) {
				fmt.Fprintf(b, "%-*s%s\n", nameWidth, name, line)
				name = ""
			}
		}
	}
}

// wrap breaks a line that is too long where it has spaces. Indent is what stands before the
// parts.
func (s *Sheet) wrap(line string, indent int) (parts []string) {
	most := s.Width - indent
	for s.Width > 0 && utf8.RuneCountInString(line) > most {
		at, n := -1, 0 // the last space that fits, or the first there is
		for i, r := range line {
			if r == ' ' && i > 0 && (n <= most || at < 0) {
				at = i
			}
			n++
		}
		if at < 0 {
			break
		}
		parts = append(parts, line[:at])
		line = line[at+1:]
	}
	return append(parts, line)
}

// align writes the table as columns two spaces apart, in several parts if it is wider than
// width, which is 0 for any.
func (s *Section) align(b *bytes.Buffer, width int) {
	if width > 0 && s.crowded(width) {
		s = s.numbered()
	}
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
			if blank(row, part) {
				continue
			}
			var line strings.Builder
			for _, i := range part {
				cell := row[i]
				pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
				if line.Len() > 0 || i != part[0] {
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
}

// crowded reports whether the keys are so many that their part of the width leaves text no more than
// a few letters.
func (s *Section) crowded(width int) bool {
	const letters = 4
	room := width / 2
	for i, c := range s.Columns[:max(s.Keys, 1)] {
		if !c.Number {
			room -= letters
			continue
		}
		most := utf8.RuneCountInString(c.Name)
		for _, row := range s.Rows {
			most = max(most, utf8.RuneCountInString(row[i]))
		}
		room -= most + 2
	}
	return room < 0
}

// numbered returns the table with a number of each row as its key. The keys are columns like the
// others.
func (s *Section) numbered() *Section {
	n := &Section{Columns: append([]Column{{Name: "row", Number: true}}, s.Columns...), Keys: 1}
	for i, row := range s.Rows {
		n.Rows = append(n.Rows, append([]string{strconv.Itoa(i + 1)}, row...))
	}
	return n
}

// breakCells breaks text that is too long for its column: the first columns have half of the
// width, another what they leave. What does not fit is in rows of its own below. It corrects
// widths.
func (s *Section) breakCells(rows [][]string, widths []int, width int) (broken [][]string) {
	keys := max(s.Keys, 1)
	half, words := width/2, 0
	for i, c := range s.Columns[:keys] {
		if c.Number {
			half -= widths[i] + 2
		} else {
			words++
		}
	}
	used := 0
	for i, c := range s.Columns {
		switch {
		case !c.Number && i < keys:
			widths[i] = min(widths[i], max(half/words, 1))
		case !c.Number:
			widths[i] = min(widths[i], max(width-used, 1))
		}
		if i < keys {
			used += widths[i] + 2
		}
	}
	for _, row := range rows {
		first := len(broken)
		for i, cell := range row {
			for n, line := range cellLines(cell, widths[i]) {
				if first+n == len(broken) {
					broken = append(broken, make([]string, len(row)))
				}
				broken[first+n][i] = line
			}
		}
	}
	return broken
}

// cellLines breaks a cell behind a space, slash or comma, or else where it has to.
func cellLines(cell string, most int) (lines []string) {
	runes := []rune(cell)
	for len(runes) > most {
		at := most
		for i := most; i > most/2; i-- {
			if strings.ContainsRune(" /,", runes[i-1]) {
				at = i
				break
			}
		}
		lines = append(lines, strings.TrimRight(string(runes[:at]), " "))
		runes = runes[at:]
	}
	return append(lines, string(runes))
}

// blank reports whether a row has nothing in the columns of a part.
func blank(row []string, part []int) bool {
	return !slices.ContainsFunc(part, func(i int) bool { return row[i] != "" })
}

// parts returns the columns of each part of the table, the keys in each.
func (s *Section) parts(widths []int, width int) (parts [][]int) {
	var keys []int
	used := 0
	for i := range max(s.Keys, 1) {
		keys = append(keys, i)
		used += widths[i] + 2
	}
	part, at := slices.Clone(keys), used
	for i := len(keys); i < len(s.Columns); i++ {
		if width > 0 && s.Columns[i].Wide {
			continue
		}
		if width > 0 && at+widths[i] > width && len(part) > len(keys) {
			parts = append(parts, part)
			part, at = slices.Clone(keys), used
		}
		part = append(part, i)
		at += widths[i] + 2
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
