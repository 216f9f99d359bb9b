package vk

import (
	"errors"
	"fmt"
)

// A Result is a VkResult that reports a failure. Errors of this package wrap it when a Vulkan call
// fails:
//
//	vk: vkQueueSubmit: VK_ERROR_DEVICE_LOST
type Result int32

// What messages say to those who lack something.
const (
	installLoader = "install it: apt install libvulkan1, dnf install vulkan-loader, pacman -S vulkan-icd-loader, apk add vulkan-loader"
	installDriver = "install the driver of the GPU, or Mesa's, which has one for the CPU, too: apt install mesa-vulkan-drivers; a container of NVIDIA's needs NVIDIA_DRIVER_CAPABILITIES=all"
)

// What errors.Is finds in the errors of this package.
var (
	// ErrDeviceLost: the device stopped working, for example because a
	// dispatch ran too long. Everything on it fails from now on; Close works.
	ErrDeviceLost error = Result(-4)
	// ErrOutOfDeviceMemory: an allocation did not fit.
	ErrOutOfDeviceMemory error = Result(-2)
	// ErrOutOfHostMemory: the driver could not allocate in main memory.
	ErrOutOfHostMemory error = Result(-1)
	// ErrUnsupported: the request is valid, but beyond what the device offers.
	ErrUnsupported = errors.New("unsupported on this device")
	// ErrNoLoader: libvulkan.so.1, on Windows vulkan-1.dll, is not installed or does not load.
	ErrNoLoader = errors.New("no Vulkan loader")
	// ErrNoDevice: no device, or none that was asked for.
	ErrNoDevice = errors.New("no Vulkan device")
)

// Results that recording and waiting handle rather than report.
const (
	resultTimeout         Result = 2
	resultIncomplete      Result = 5
	resultFragmentedPool  Result = -12
	resultOutOfPoolMemory Result = -1000069000
	resultNoLayer         Result = -6
	resultIncompatible    Result = -9
)

var resultNames = map[Result]string{
	1:           "VK_NOT_READY",
	2:           "VK_TIMEOUT",
	5:           "VK_INCOMPLETE",
	-1:          "VK_ERROR_OUT_OF_HOST_MEMORY",
	-2:          "VK_ERROR_OUT_OF_DEVICE_MEMORY",
	-3:          "VK_ERROR_INITIALIZATION_FAILED",
	-4:          "VK_ERROR_DEVICE_LOST",
	-5:          "VK_ERROR_MEMORY_MAP_FAILED",
	-6:          "VK_ERROR_LAYER_NOT_PRESENT",
	-7:          "VK_ERROR_EXTENSION_NOT_PRESENT",
	-8:          "VK_ERROR_FEATURE_NOT_PRESENT",
	-9:          "VK_ERROR_INCOMPATIBLE_DRIVER",
	-10:         "VK_ERROR_TOO_MANY_OBJECTS",
	-11:         "VK_ERROR_FORMAT_NOT_SUPPORTED",
	-12:         "VK_ERROR_FRAGMENTED_POOL",
	-13:         "VK_ERROR_UNKNOWN",
	-1000011001: "VK_ERROR_VALIDATION_FAILED_EXT",
	-1000012000: "VK_ERROR_INVALID_SHADER_NV",
	-1000069000: "VK_ERROR_OUT_OF_POOL_MEMORY",
	-1000161000: "VK_ERROR_FRAGMENTATION",
	-1000174001: "VK_ERROR_NOT_PERMITTED",
	-1000257000: "VK_ERROR_INVALID_OPAQUE_CAPTURE_ADDRESS",
}

// Error returns the name in the Vulkan specification.
func (r Result) Error() string {
	if name, ok := resultNames[r]; ok {
		return name
	}
	return fmt.Sprintf("VkResult(%d)", int32(r))
}

// callError returns nil for a successful result of the named call, and
// otherwise an error that wraps the result.
func callError(call string, r int32) error { return withPrefix(partError(call, r)) }

// partError is callError for an error that another one will wrap: it lacks
// the package's prefix.
func partError(call string, r int32) error {
	if r >= 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", call, Result(r))
}

func withPrefix(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("vk: %w", err)
}
