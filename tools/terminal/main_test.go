package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPicture: the picture of the first page shows the text beside it.
func TestPicture(t *testing.T) {
	text, err := os.ReadFile("../../docs/pictures/terminal.txt")
	require.NoError(t, err)
	picture, err := os.ReadFile("../../docs/pictures/terminal.svg")
	require.NoError(t, err)
	require.Equal(t, draw(text), string(picture), "go run ./tools/terminal < docs/pictures/terminal.txt > docs/pictures/terminal.svg")
}
