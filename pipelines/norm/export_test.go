package norm

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// Most returns how many columns a configuration can take, at most cols. It is three less than a
// multiple of vectors: the sum of a power of two equal elements would be exact.
func (c *Config) Most(caps *vk.Caps, format dtype.DType, cols int) int {
	if c.Loads == 0 {
		return cols
	}
	return min(cols, c.Loads*c.team(caps)*vecBytes/format.Size()-3)
}
