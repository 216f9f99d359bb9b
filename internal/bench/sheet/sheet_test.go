package sheet

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func sample() *Sheet {
	x := Section{
		Columns: []Column{{Name: "impl"}, {Name: "max|Δ|", Number: true}},
		Rows:    [][]string{{"a", "1.50"}, {"long_name", "±10"}},
	}
	x.Add("problem", "one\n%s", "two")
	x.Note("%d <b> note", 1)
	empty := Section{}
	empty.Note("alone")
	return &Sheet{Facts: []Fact{{Name: "device", Text: "GPU (x)"}}, Sections: []Section{x, empty}}
}

// TestControl has text of drivers and peers that would forge rows, or move the cursor.
func TestControl(t *testing.T) {
	x := Section{Columns: []Column{{Name: "impl\n"}, {Name: "a"}}, Rows: [][]string{{"p\nscalar  0.001 ms", "\x1b[2J"}}, Notes: []string{"n\r\n| forged |"}}
	s := &Sheet{Facts: []Fact{{Name: "device", Text: "GPU\x1b]0;x\x07\nsecond line"}}, Sections: []Section{x}}
	var b strings.Builder
	require.NoError(t, s.Text(&b))
	require.NotContains(t, b.String(), "\x1b")
	require.Equal(t, "device   GPU ]0;x \n         second line\n\nimpl                a\np scalar  0.001 ms   [2J\nn  | forged |\n", b.String())
	b.Reset()
	require.NoError(t, s.Markdown(&b))
	require.NotContains(t, b.String(), "\x1b")
	require.Contains(t, b.String(), "\n| p scalar  0.001 ms |  [2J |\n")
	require.Contains(t, b.String(), "\nn  \\| forged \\|\n")
}

// TestWidth keeps to the width of a terminal.
func TestWidth(t *testing.T) {
	x := Section{
		Columns: []Column{{Name: "size", Number: true}, {Name: "impl"}, {Name: "time", Number: true}, {Name: "more", Wide: true}, {Name: "rate", Number: true}, {Name: "runs"}},
		Rows:    [][]string{{"8", "a", "1 ms", "x", "12 GB/s", "tiles of 64x64 and more"}, {"512", "bcd", "1.25 ms", "y", "-", "short"}},
		Notes:   []string{"a note that is so long that it stands on two lines"},
		Keys:    2,
	}
	s := &Sheet{Facts: []Fact{{Name: "device", Text: "a name of a device and its driver\nsecond"}, {Name: "more", Text: "of the column", Wide: true}}, Sections: []Section{x}, Width: 36}
	var b strings.Builder
	require.NoError(t, s.Text(&b))
	require.Equal(t, `device   a name of a device and its
         driver
         second

size  impl     time     rate
   8  a        1 ms  12 GB/s
 512  bcd   1.25 ms        -

size  impl  runs
   8  a     tiles of 64x64 and more
 512  bcd   short
a note that is so long that it
  stands on two lines
`, b.String())
	for line := range strings.SplitSeq(b.String(), "\n") {
		require.LessOrEqual(t, len(line), 36, line)
	}
	s.Width = 0
	b.Reset()
	require.NoError(t, s.Text(&b))
	require.Contains(t, b.String(), "more     rate  runs")
	require.Contains(t, b.String(), "\nmore     of the column\n")
}

// TestLongCells: text that is longer than its column goes on in the next line.
func TestLongCells(t *testing.T) {
	x := Section{
		Columns: []Column{{Name: "benchmark"}, {Name: "old", Number: true}, {Name: "new", Number: true}, {Name: "runs"}},
		Rows: [][]string{
			{"Attention/heads=8/seq_q=4096/seq_kv=4096", "1 ms", "2 ms", "tiles of 64x64, and of much more than that"},
			{"Norm/of/ααααααααααααααααααα", "", "3 ms", ""},
		},
	}
	s := &Sheet{Sections: []Section{x}, Width: 36}
	var b strings.Builder
	require.NoError(t, s.Text(&b))
	require.Equal(t, `benchmark            old   new
Attention/heads=8/  1 ms  2 ms
seq_q=4096/
seq_kv=4096
Norm/of/αααααααααα        3 ms
ααααααααα

benchmark           runs
Attention/heads=8/  tiles of 64x64,
seq_q=4096/         and of much
seq_kv=4096         more than that
Norm/of/αααααααααα
ααααααααα
`, b.String())
}

// TestCrowded: rows that many keys tell apart have numbers, instead of keys of a letter a line.
func TestCrowded(t *testing.T) {
	x := Section{
		Columns: []Column{{Name: "keys", Number: true}, {Name: "batch", Number: true}, {Name: "page", Number: true}, {Name: "window"}, {Name: "sinks"}, {Name: "time", Number: true}, {Name: "runs"}},
		Rows:    [][]string{{"4096", "16", "0", "off", "false", "1 ms", "tiles"}, {"512", "1", "16", "512", "true", "2 ms", "-"}},
		Keys:    5,
	}
	s := &Sheet{Sections: []Section{x}, Width: 38}
	var b strings.Builder
	require.NoError(t, s.Text(&b))
	require.Equal(t, `row  keys  batch  page  window  sinks
  1  4096     16     0  off     false
  2   512      1    16  512     true

row  time  runs
  1  1 ms  tiles
  2  2 ms  -
`, b.String())
	s.Width = 80
	b.Reset()
	require.NoError(t, s.Text(&b))
	require.True(t, strings.HasPrefix(b.String(), "keys  batch  page  window  sinks  time  runs\n"), b.String())
}

func TestText(t *testing.T) {
	var b strings.Builder
	require.NoError(t, sample().Text(&b))
	require.Equal(t, `device   GPU (x)

problem  one
         two

impl       max|Δ|
a            1.50
long_name     ±10
1 <b> note

alone
`, b.String())
}

// TestQuiet: tables, notes and warnings stay.
func TestQuiet(t *testing.T) {
	s := Sheet{Facts: []Fact{{Name: "device", Text: "x"}, {Name: Warning, Text: "loud"}}}
	one := Section{Columns: []Column{{Name: "impl"}}, Rows: [][]string{{"scalar"}}}
	one.Add("time", "median")
	one.Note("a note")
	s.Sections = []Section{one}
	s.Quiet()
	var b strings.Builder
	require.NoError(t, s.Text(&b))
	require.Equal(t, "WARNING  loud\n\nimpl\nscalar\na note\n", b.String())
}

func TestMarkdown(t *testing.T) {
	var b strings.Builder
	require.NoError(t, sample().Markdown(&b))
	require.Equal(t, `- **device** GPU (x)

- **problem** one<br>two

| impl | max\|Δ\| |
| --- | ---: |
| a | 1.50 |
| long\_name | ±10 |

1 &lt;b> note

alone
`, b.String())
}
