package steps

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/vk"
)

// TestList has the lists of the package's documentation, and one whose second step fails.
func TestList(t *testing.T) {
	var done []string
	call := func(name string, list ...string) (l List) {
		for _, step := range list {
			l = append(l, func(*vk.Cmd) error {
				if done = append(done, name+" "+step); step == "fails" {
					return errors.New(name)
				}
				return nil
			})
		}
		return l
	}
	x, y, z := call("a", "product", "sums"), call("b", "copies", "product"), call("c", "product")
	for _, l := range []struct {
		list List
		want string
	}{
		{slices.Concat(x, Together(y, z)), "a product, a sums, b copies, c product, b product"},
		{slices.Concat(Together(x, y), z), "a product, b copies, a sums, b product, c product"},
		{Together(nil, z, nil), "c product"},
		{Together(), ""},
		{Together(x, call("d", "fails"), y), "a product, d fails"},
		{x, "a product, a sums"}, // Together changes none of its lists
	} {
		done = nil
		require.Equal(t, strings.Contains(l.want, "fails"), l.list.Record(nil) != nil)
		require.Equal(t, l.want, strings.Join(done, ", "))
	}
}
