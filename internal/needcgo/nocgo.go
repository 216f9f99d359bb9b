//go:build !cgo

package needcgo

var _ = flashvk_needs_cgo__set_CGO_ENABLED_1_and_have_a_C_compiler // Vulkan's functions are called through C
