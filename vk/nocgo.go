//go:build !cgo

package vk

import _ "embed"

// No file has this name: a build without cgo ends here, with one line, before the compiler sees
// packages that then lack half of their files.
//
//go:embed "flashvk needs cgo, as Vulkan is called through C (set CGO_ENABLED=1, and CC to a C compiler for the target)"
var _ string
