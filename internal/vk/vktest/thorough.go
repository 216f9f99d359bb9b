package vktest

import (
	"os"
	"testing"

	"github.com/flashvk/flashvk/vk"
)

// allEnv, if it is not empty, has tests run on a CPU device what they run on a GPU.
const allEnv = "FLASHVK_ALL"

// Thorough reports whether a test runs all that it has: on every GPU, and on a CPU device
// if FLASHVK_ALL is set, as make test-all does. Lavapipe compiles a kernel on matrices for
// seconds; make test runs there what stands for the rest.
func Thorough(d *vk.Device) bool { return ThoroughWith(d.Caps()) }

// ThoroughWith is Thorough of a device with these capabilities.
func ThoroughWith(caps *vk.Caps) bool { return caps.Type != vk.CPU || os.Getenv(allEnv) != "" }

// Sequential skips a test under go test -short, as make test runs it with -race: one without
// goroutines of its own, which the race detector would only slow down.
func Sequential(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: nothing here is concurrent")
	}
}
