package attention

import (
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/vk"
)

func family(caps *vk.Caps) string { return chips.Family(caps) }

func lavapipe(caps *vk.Caps) bool { return chips.Lavapipe(caps) }
