// Package text makes what others wrote, as drivers, peers and files, fit to stand on a
// terminal, in a table and in a line, and has the folds of issues.
package text

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable returns s with a space for each rune that does not print: line breaks, escapes
// that a terminal obeys, marks that turn the direction of writing, bytes that are no UTF-8.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
}

// Line returns s as one line: Printable, with one space between words.
func Line(s string) string { return strings.Join(strings.Fields(Printable(s)), " ") }

// Short returns Line(s), cut to n runes, the last of which then is an ellipsis.
func Short(s string, n int) string {
	s = Line(s)
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

// Bytes returns a number of bytes with a decimal prefix, as "402.7 MB".
func Bytes(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.2f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.1f kB", float64(n)/1e3)
}

// Snake returns a name in snake_case: api_version of APIVersion, max_abs of MaxAbs.
func Snake(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if unicode.IsUpper(r) && i > 0 && runes[i-1] != '_' {
			end := i+1 < len(runes) && unicode.IsLower(runes[i+1]) // of a run of capitals
			if !unicode.IsUpper(runes[i-1]) || end {
				b.WriteByte('_')
			}
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// The titles of the folds of an issue that tools/proven reads.
const (
	FoldDevice = "Device" // the capabilities, a vk.Caps
	FoldRecord = "Record" // of flashvk selftest --share
	FoldRows   = "Rows"   // of flashvk tune show --share
)

// Fold returns the Markdown of a fold: a title, and a block of whole lines in a language.
func Fold(title, language, block string) string {
	return fmt.Sprintf("\n<details><summary>%s</summary>\n\n```%s\n%s```\n\n</details>\n", title, language, block)
}

// Unfold returns the block of the fold with a title in an issue, "" if not all of it is there.
func Unfold(issue, title string) string {
	_, rest, _ := strings.Cut(strings.ReplaceAll(issue, "\r\n", "\n"), "<summary>"+title+"</summary>\n\n```")
	_, rest, _ = strings.Cut(rest, "\n")
	block, _, found := strings.Cut(rest, "\n```\n")
	if !found {
		return ""
	}
	return block + "\n"
}
