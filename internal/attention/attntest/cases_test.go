package attntest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/vk/kit"
)

// TestSets: each case is valid and has a name of its own, and the cases of a set cost what Set says.
func TestSets(t *testing.T) {
	for set, most := range []struct{ each, all float64 }{Short: {0.2e9, 1.4e9}, Full: {1e10, 1e11}} {
		for _, pass := range []kit.Pass{kit.Forward, kit.Backward} {
			names, all := map[string]bool{}, 0.0
			for _, c := range Cases(Set(set), pass) {
				require.NoError(t, c.Validate(), c.Name)
				require.False(t, names[c.Name], "%s twice", c.Name)
				require.LessOrEqual(t, c.FLOPs(), most.each, c.Name)
				names[c.Name] = true
				all += c.FLOPs()
			}
			require.LessOrEqual(t, all, most.all)
		}
	}
}
