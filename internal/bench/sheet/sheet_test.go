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
	return &Sheet{Facts: []Fact{{"device", "GPU (x)"}}, Sections: []Section{x, empty}}
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
