package enum

import (
	"testing"

	"github.com/stretchr/testify/require"
)

type colour uint8

func TestNames(t *testing.T) {
	names := Names[colour]{"red", "green"}
	require.Equal(t, "green", names.Of(1))
	require.Equal(t, "colour(2)", names.Of(2))
	require.Equal(t, []colour{0, 1}, names.All())
	for _, want := range names.All() {
		got, err := names.Parse("paint: colour", names.Of(want))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, name := range []string{"", "Red", "colour(2)"} {
		_, err := names.Parse("paint: colour", name)
		require.ErrorContains(t, err, `paint: colour "`+name+`" is not one of red, green`)
	}
}
