package text

import (
	"strings"
	"unicode"
)

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
