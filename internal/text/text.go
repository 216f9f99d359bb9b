// Package text makes what others wrote, as drivers, peers and files, fit to stand on a
// terminal, in a table and in a line.
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
