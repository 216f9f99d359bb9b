package norm

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// Most returns how many columns a configuration can take, if that is less than cols: 3
// less, as a sum of equal elements may be exact, and so would be its part of a power of two.
func (c *Config) Most(caps *vk.Caps, format dtype.DType, cols int) int {
	if c.Loads == 0 {
		return cols
	}
	return min(cols, c.Loads*c.team(caps)*vecBytes/format.Size()-3)
}
