package sheet

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSheet has a table that is too wide for a terminal, cells that are too long, and text of
// drivers and peers that would forge rows, move the cursor, or be markup.
func TestSheet(t *testing.T) {
	file, err := os.ReadFile("testdata/sheets.txt")
	require.NoError(t, err)
	sheets := strings.Split(string(file), "====\n")
	type row struct{ size, impl, time, more, runs string }
	x := Section{Keys: 2}
	Fill(&x, []row{{"8", "a_<b>", "1 ms", "wide", "tiles of 64x64, and of much more than that"}, {"512", "p\nscalar  0.001 ms", "\x1b[2J", "", ""}},
		Cell[row]{Name: "size", Of: func(x row) string { return x.size }}, Cell[row]{Name: "impl\n", Text: true, Of: func(x row) string { return x.impl }},
		Cell[row]{Name: "max|Δ|", Of: func(x row) string { return x.time }}, Cell[row]{Name: "more", Wide: true, Of: func(x row) string { return x.more }},
		Cell[row]{Name: "runs", Text: true, Of: func(x row) string { return x.runs }})
	x.Add("problem", "one\n%s", "two")
	x.Facts = append(x.Facts, Fact{Name: "more", Text: "of the column", Wide: true})
	x.Note("%d note that is so long that it stands on two lines\r\n| forged |", 1)
	alone := Section{}
	alone.Note("alone")
	s := &Sheet{Facts: []Fact{{Name: "device", Text: "GPU\x1b]0;x\x07 of a name and its driver"}, {Name: Warning, Text: "loud"}}, Sections: []Section{x, alone}}
	text := func(width int) string {
		var b strings.Builder
		s.Width = width
		require.NoError(t, s.Text(&b))
		return b.String()
	}
	require.Equal(t, sheets[0], text(34))
	require.Contains(t, text(0), "\nsize  impl                max|Δ|  more  runs\n   8  a_<b>                 1 ms  wide  tiles of 64x64, and of much more than that\n 512  p scalar  0.001 ms")
	require.Contains(t, text(0), "\nmore     of the column\n")
	var b strings.Builder
	require.NoError(t, s.Markdown(&b))
	require.Equal(t, sheets[1], b.String())
	s.Quiet()
	require.True(t, strings.HasPrefix(text(0), "WARNING  loud\n\nsize"), text(0))
}
