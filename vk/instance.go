package vk

import (
	"fmt"
	"slices"
	"strings"

	vulkan "github.com/vulkan-go/vulkan"
)

const validationLayer = "VK_LAYER_KHRONOS_validation"

// instance is a VkInstance and the messages of its validation layer.
type instance struct {
	raw      rawInstance
	messages *messages // nil without validation
}

// openInstance makes an instance; ErrNoLoader and ErrNoDevice tell apart what
// a machine lacks.
func openInstance(validate bool) (*instance, error) {
	if err := loadVulkan(); err != nil {
		return nil, err
	}
	if instanceVersion() < minVersion() {
		return nil, fmt.Errorf("vk: the Vulkan loader has version %v, flashvk needs %v: %w", Version(loader.version), minVersion(), ErrUnsupported)
	}
	in := &instance{}
	layerSettings := false
	if validate {
		extensions, err := validationExtensions()
		if err != nil {
			return nil, err
		}
		layerSettings = slices.Contains(extensions, "VK_EXT_layer_settings")
		in.messages = newMessages()
	}
	var err error
	in.raw, err = createInstance(uint32(instanceVersion()), in.messages, layerSettings)
	if err != nil {
		in.close()
		if isResult(err, resultIncompatible) {
			return nil, fmt.Errorf("vk: %w: no driver is installed (%w): %s", ErrNoDevice, err, installDriver)
		}
		return nil, withPrefix(err)
	}
	return in, nil
}

// validationExtensions returns the extensions of the validation layer, or an
// error that wraps ErrUnsupported if it is not installed.
func validationExtensions() ([]string, error) {
	layers, err := layerNames()
	if err != nil {
		return nil, fmt.Errorf("vk: vkEnumerateInstanceLayerProperties: %w", err)
	}
	if !slices.Contains(layers, validationLayer) {
		return nil, fmt.Errorf("vk: %s is not installed: %w", validationLayer, ErrUnsupported)
	}
	extensions, err := layerExtensions(validationLayer)
	if err != nil {
		return nil, fmt.Errorf("vk: vkEnumerateInstanceExtensionProperties: %w", err)
	}
	return extensions, nil
}

// HaveValidation returns nil if Options.Validate works on this machine, and otherwise the reason.
func HaveValidation() error {
	if err := loadVulkan(); err != nil {
		return err
	}
	_, err := validationExtensions()
	return err
}

func (in *instance) close() {
	in.raw.destroy()
	if in.messages != nil {
		in.messages.free()
	}
	*in = instance{}
}

// physicalDevices lists the devices, in the loader's order.
func (in *instance) physicalDevices() ([]vulkan.PhysicalDevice, error) {
	handle := vulkan.Instance(in.raw.handle)
	var n uint32
	if err := callError("vkEnumeratePhysicalDevices", int32(vulkan.EnumeratePhysicalDevices(handle, &n, nil))); err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, fmt.Errorf("vk: %w: the drivers that are installed have none: %s", ErrNoDevice, installDriver)
	}
	list := make([]vulkan.PhysicalDevice, n)
	err := callError("vkEnumeratePhysicalDevices", int32(vulkan.EnumeratePhysicalDevices(handle, &n, list)))
	return list[:n], err
}

// caps reads the capabilities of every device.
func (in *instance) caps() ([]vulkan.PhysicalDevice, []Caps, error) {
	phys, err := in.physicalDevices()
	if err != nil {
		return nil, nil, err
	}
	caps := make([]Caps, len(phys))
	for i := range phys {
		// A driver that fails must not hide the others.
		if caps[i], err = readCaps(in.raw, phys[i], i); err != nil {
			caps[i].Unusable = strings.TrimPrefix(err.Error(), "vk: ")
		}
	}
	return phys, caps, nil
}
