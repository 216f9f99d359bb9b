package vk

import (
	"errors"
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
		if errors.Is(err, resultIncompatible) {
			return nil, fmt.Errorf("vk: %w: no driver is installed (%w): %s", ErrNoDevice, err, installDriver)
		}
		return nil, withPrefix(err)
	}
	return in, nil
}

// validationExtensions returns the extensions of the validation layer, or an
// error that wraps ErrUnsupported if it is not installed.
func validationExtensions() ([]string, error) {
	extensions, err := layerExtensions(validationLayer)
	if errors.Is(err, resultNoLayer) {
		return nil, fmt.Errorf("vk: %s is not installed: %w", validationLayer, ErrUnsupported)
	}
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

// featureStruct is a VkPhysicalDevice...Features structure: after sType and
// pNext it is a row of 32-bit booleans.
type featureStruct struct {
	sType     uint32
	extension string  // that has to be enabled below version core; "" if core since 1.2
	core      Version // 0: never
	bits      []*bool // where each boolean goes; nil for one not wanted, which stays off
}

// features lists every optional feature that kernels may use, with its place
// in c.
func (c *Caps) features() []featureStruct {
	v12, v13 := MakeVersion(1, 2, 0), MakeVersion(1, 3, 0)
	m2 := &c.CoopMat2
	return []featureStruct{
		{1000083000, "", v12, []*bool{&c.Storage16, nil, nil, nil}},
		{1000177000, "", v12, []*bool{&c.Storage8, nil, nil}},
		{1000082000, "", v12, []*bool{&c.Float16, &c.Int8}},
		{1000221000, "", v12, []*bool{&c.ScalarBlockLayout}},
		{1000211000, "", v12, []*bool{&c.VulkanMemoryModel, &c.VulkanMemoryModelDeviceScope, nil}},
		{1000175000, "", v12, []*bool{&c.SubgroupExtendedTypes}},
		{1000257000, "", v12, []*bool{&c.BufferDeviceAddress, nil, nil}},
		{1000180000, "", v12, []*bool{&c.AtomicInt64Buffer, nil}},
		{1000225002, "VK_EXT_subgroup_size_control", v13, []*bool{&c.SubgroupSizeControl, &c.ComputeFullSubgroups}},
		{1000280000, "VK_KHR_shader_integer_dot_product", v13, []*bool{&c.IntegerDotProduct}},
		{1000413000, "VK_KHR_maintenance4", v13, []*bool{&c.Maintenance4}},
		{1000506000, "VK_KHR_cooperative_matrix", 0, []*bool{&c.CoopMat, nil}},
		{1000593000, "VK_NV_cooperative_matrix2", 0, []*bool{&m2.WorkgroupScope, &m2.FlexibleDimensions, &m2.Reductions,
			&m2.Conversions, &m2.PerElement, &m2.TensorAddressing, &m2.BlockLoads}},
		{1000141000, "VK_KHR_shader_bfloat16", 0, []*bool{&c.BFloat16Type, &c.BFloat16Dot, &c.BFloat16CoopMat}},
		{1000567000, "VK_EXT_shader_float8", 0, []*bool{&c.Float8Type, &c.Float8CoopMat}},
		{1000260000, "VK_EXT_shader_atomic_float", 0, []*bool{nil, &c.AtomicFloat32AddBuffer, nil, nil, nil, &c.AtomicFloat32AddShared,
			nil, nil, nil, nil, nil, nil}},
		{1000336000, "VK_KHR_workgroup_memory_explicit_layout", 0, []*bool{&c.WorkgroupMemoryExplicitLayout,
			&c.WorkgroupMemoryExplicitLayoutScalar, nil, &c.WorkgroupMemoryExplicitLayout16Bit}},
		{1000434000, "VK_KHR_shader_maximal_reconvergence", 0, []*bool{&c.MaximalReconvergence}},
		{1000269000, "VK_KHR_pipeline_executable_properties", 0, []*bool{&c.ExecutableStats}},
	}
}

const (
	sTypeFeatures2         = 1000059000
	sTypeTimelineSemaphore = 1000207000

	numCoreFeatures = 55 // VkPhysicalDeviceFeatures
	coreFloat64     = 39 // position of shaderFloat64
	coreInt64       = 40
	coreInt16       = 41
)

// coreFeatures lists the wanted members of VkPhysicalDeviceFeatures. Robust
// buffer access, the first, stays off: bounds checks forbid wide loads.
func (c *Caps) coreFeatures() map[int]*bool {
	return map[int]*bool{coreFloat64: &c.Float64, coreInt64: &c.Int64, coreInt16: &c.Int16}
}

// available returns the feature structures that a device with Vulkan version
// api and these extensions knows, and the extensions to enable for them.
func (c *Caps) available(api Version, has map[string]bool) (list []featureStruct, extensions []string) {
	for _, f := range c.features() {
		isCore := f.core != 0 && api >= f.core
		if !isCore && !has[f.extension] {
			continue
		}
		if !isCore {
			extensions = append(extensions, f.extension)
		}
		list = append(list, f)
	}
	return list, extensions
}

// effectiveVersion is the version that the instance and the device share.
func (c *Caps) effectiveVersion() Version { return min(c.APIVersion&^0xfff, instanceVersion()) }

// A featureBit is a boolean of Caps with its word in a chain of structures.
type featureBit struct {
	has  *bool
	word *uint32
}

// featureChain returns a chain of all structures that are available, the bits that are wanted, and the
// word of timeline semaphores. The caller frees the chain.
func (c *Caps) featureChain(api Version, has map[string]bool) (ch *chain, bits []featureBit, timeline *uint32) {
	ch = &chain{}
	core := ch.words(sTypeFeatures2, numCoreFeatures)
	for i, bit := range c.coreFeatures() {
		bits = append(bits, featureBit{bit, &core[i]})
	}
	list, _ := c.available(api, has)
	for _, f := range list {
		payload := ch.words(f.sType, len(f.bits))
		for i, bit := range f.bits {
			if bit != nil {
				bits = append(bits, featureBit{bit, &payload[i]})
			}
		}
	}
	return ch, bits, &ch.words(sTypeTimelineSemaphore, 1)[0]
}

func (c *Caps) readFeatures(in rawInstance, phys vulkan.PhysicalDevice, has map[string]bool) error {
	ch, bits, timeline := c.featureChain(c.effectiveVersion(), has)
	defer ch.free()
	if err := in.get2(phys, "vkGetPhysicalDeviceFeatures2", ch); err != nil {
		return err
	}
	for _, b := range bits {
		*b.has = *b.word != 0
	}
	if *timeline == 0 {
		c.Unusable = "the driver has no timeline semaphores"
	}
	return nil
}

// enabled returns the chain that turns on what readFeatures found. The caller
// frees it.
func (c *Caps) enabled(api Version, has map[string]bool) *chain {
	ch, bits, timeline := c.featureChain(api, has)
	for _, b := range bits {
		*b.word = onOff(*b.has)
	}
	*timeline = 1
	return ch
}

func onOff(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
