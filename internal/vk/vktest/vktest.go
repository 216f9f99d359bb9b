// Package vktest opens Vulkan devices for tests.
//
//	d := vktest.Open(t)                  // skips the test where there is no device
//	err := kernel.Feasible(d.Caps())
//	vktest.Require(t, "coopmat", err)    // skips the test with err as the reason
//
// and Main leaves out the examples of a package there.
//
// A machine that is known to have something says so in the environment
// variable FLASHVK_REQUIRE, a list with commas between, such as
// "coopmat2,coopmat,scalar": what is named there fails instead of being
// skipped, and so does a missing device if the list is not empty.
package vktest

import (
	"errors"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// Variables of the environment that tests look at.
const (
	requireEnv = "FLASHVK_REQUIRE"
	deviceEnv  = "FLASHVK_DEVICE" // vk.Options.Device for tests
	leastEnv   = "FLASHVK_LEAST"  // tests open devices with the least limits
)

func required() []string {
	return strings.FieldsFunc(os.Getenv(requireEnv), func(r rune) bool { return r == ',' || r == ' ' })
}

// Open opens a device for the test, with the validation layer if that is
// installed, and closes it when the test ends. Objects that the test left open
// then, and error messages of the validation layer at any time, fail the test.
//
// Each option may change what is opened. FLASHVK_DEVICE in the environment
// chooses the device, and FLASHVK_LEAST makes it one with the least limits
// that Vulkan 1.2 allows. Without a device the test is skipped, or fails if
// FLASHVK_REQUIRE is not empty.
func Open(t testing.TB, options ...func(*vk.Options)) *vk.Device {
	t.Helper()
	o := vk.Options{Name: t.Name(), Device: os.Getenv(deviceEnv), Validate: vk.HaveValidation() == nil}
	if os.Getenv(leastEnv) != "" {
		o.Lower = least
	}
	for _, f := range options {
		f(&o)
	}
	d, err := vk.Open(o)
	if errors.Is(err, vk.ErrNoLoader) || errors.Is(err, vk.ErrNoDevice) {
		if len(required()) > 0 {
			t.Fatalf("%s is set, but: %v", requireEnv, err)
		}
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return d
}

// least lowers the limits of a device to the least that Vulkan 1.2 allows, but for the number of storage
// buffers: with 4 of them few kernels run, and no device has so few.
func least(c *vk.Caps) {
	c.MaxSharedMemoryBytes, c.MaxWorkgroupInvocations, c.MaxWorkgroupSize = 16<<10, 128, [3]uint32{128, 128, 64}
	c.MaxPushConstantsBytes, c.MaxStorageBufferRange = 128, 1<<27
	c.MaxWorkgroupCount, c.MaxAllocationBytes = [3]uint32{65535, 65535, 65535}, 1<<30
}

// NoValidation is an option of Open for tests that measure time.
func NoValidation(o *vk.Options) { o.Validate = false }

// WholeBuffers is an option of Open for suites that look at the memory beside a kernel's tensors.
func WholeBuffers(o *vk.Options) { o.WholeBuffers = true }

// Require does nothing if err is nil. Otherwise it skips the test with err as
// the reason, or fails it if FLASHVK_REQUIRE names path.
func Require(t testing.TB, path string, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if slices.Contains(required(), path) {
		t.Fatalf("%s requires %s, but: %v", requireEnv, path, err)
	}
	t.Skipf("%s: %v", path, err)
}

// Main runs the tests of a package whose examples use a device. Without one
// the examples are left out, unless FLASHVK_REQUIRE is not empty:
//
//	func TestMain(m *testing.M) { vktest.Main(m) }
func Main(m *testing.M) {
	flag.Parse()
	list, _ := vk.List() // an error is the same as no device: the examples say it, if they must run
	usable := slices.ContainsFunc(list, func(c vk.Caps) bool { return c.Unusable == "" })
	if !usable && len(required()) == 0 {
		if err := flag.Set("test.skip", skipExamples(flag.Lookup("test.skip").Value.String())); err != nil {
			panic("vktest: " + err.Error())
		}
	}
	os.Exit(m.Run())
}

// skipExamples adds the examples to a pattern of go test's -skip.
func skipExamples(pattern string) string {
	if pattern == "" {
		return "^Example"
	}
	return "^Example|" + pattern
}

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

// Tensor makes a tensor, which is closed when the test ends. What it holds is undefined.
func Tensor(t testing.TB, d *vk.Device, format dtype.DType, shape ...int) vk.Tensor {
	t.Helper()
	x, err := d.NewTensor("x", format, shape...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.Close)
	return x
}

// Values is Tensor with values, all of which are 0 if there are none.
func Values[F float32 | float64](t testing.TB, d *vk.Device, format dtype.DType, values []F, shape ...int) vk.Tensor {
	t.Helper()
	x := Tensor(t, d, format, shape...)
	if values == nil {
		if err := x.Zero(t.Context()); err != nil {
			t.Fatal(err)
		}
		return x
	}
	narrow := make([]float32, len(values))
	for i, v := range values {
		narrow[i] = float32(v)
	}
	if err := x.Upload(t.Context(), narrow); err != nil {
		t.Fatal(err)
	}
	return x
}
