package attention

import (
	"github.com/flashvk/flashvk/chips"
	"github.com/flashvk/flashvk/vk"
)

// Family names the group of devices that the rows of the tuning table speak of, or
// returns "". It is chips.Family.
func Family(caps *vk.Caps) string { return chips.Family(caps) }

func family(caps *vk.Caps) string { return chips.Family(caps) }

func lavapipe(caps *vk.Caps) bool { return chips.Lavapipe(caps) }
