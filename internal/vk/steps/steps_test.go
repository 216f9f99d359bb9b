package steps

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// TestList has the lists of the package's documentation, and one whose second step fails.
func TestList(t *testing.T) {
	d := vktest.Open(t)
	c, err := d.NewCmd("steps")
	require.NoError(t, err)
	defer c.Close()
	var done []string
	call := func(name string, list ...string) (l List) {
		for _, step := range list {
			l = append(l, func(*vk.Cmd) error {
				done = append(done, name+" "+step)
				if step == "fails" {
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
	} {
		done = nil
		err := l.list.Record(c)
		require.Equal(t, strings.Contains(l.want, "fails"), err != nil)
		require.Equal(t, l.want, strings.Join(done, ", "))
	}
	require.NoError(t, x.Record(c)) // Together changes none of its lists
	require.NoError(t, c.Err())
}
