package main

import (
	"encoding/xml"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDraw: lines are where they were, as wide as they were, and commands stand out.
func TestDraw(t *testing.T) {
	var got struct {
		Texts []struct {
			Class  string  `xml:"class,attr"`
			X      float64 `xml:"x,attr"`
			Y      float64 `xml:"y,attr"`
			Length float64 `xml:"textLength,attr"`
			Text   string  `xml:",chardata"`
		} `xml:"text"`
	}
	require.NoError(t, xml.Unmarshal([]byte(draw([]byte("$ a <b>  \n\n  ± \"1\" & 2\n"))), &got))
	require.Len(t, got.Texts, 3)
	command, output := got.Texts[0], got.Texts[2]
	require.Equal(t, []string{"command", ""}, []string{command.Class, output.Class})
	require.Equal(t, []string{"$ a <b>", "  ± \"1\" & 2"}, []string{command.Text, output.Text})
	require.Equal(t, command.X, output.X)
	require.Equal(t, 2.0*line, output.Y-command.Y)
	require.InDelta(t, command.Length/7, output.Length/11, 0.01)
}

// TestPicture: the picture of the first page is that of the text beside it.
func TestPicture(t *testing.T) {
	text, err := os.ReadFile("../../docs/pictures/terminal.txt")
	require.NoError(t, err)
	picture, err := os.ReadFile("../../docs/pictures/terminal.svg")
	require.NoError(t, err)
	require.Equal(t, draw(text), string(picture), "go run ./tools/terminal < docs/pictures/terminal.txt > docs/pictures/terminal.svg")
}
