package vk

import (
	"fmt"
	"unsafe"

	vulkan "github.com/vulkan-go/vulkan"

	"github.com/flashvk/flashvk/internal/text"
)

func minVersion() Version { return MakeVersion(1, 2, 0) }

// instanceVersion is the version asked of the loader: 1.3 where there is one,
// because SPIR-V 1.6 and thus cooperative matrices of kind 2 need it.
func instanceVersion() Version { return min(Version(loader.version)&^0xfff, MakeVersion(1, 3, 0)) }

// readCaps asks one physical device everything.
func readCaps(in rawInstance, phys vulkan.PhysicalDevice, index int) (Caps, error) {
	c := Caps{Index: index}
	var props vulkan.PhysicalDeviceProperties
	vulkan.GetPhysicalDeviceProperties(phys, &props)
	props.Deref()
	defer props.Free()
	props.Limits.Deref()
	c.Name = text.Printable(vulkan.ToString(props.DeviceName[:]))
	c.Type = DeviceType(props.DeviceType)
	c.DriverVersion, c.VendorID, c.DeviceID = props.DriverVersion, props.VendorID, props.DeviceID
	c.APIVersion = Version(props.ApiVersion)
	c.setLimits(&props.Limits)
	if c.APIVersion < minVersion() {
		// Such a device need not answer the queries below.
		c.Unusable = fmt.Sprintf("it has Vulkan %v, flashvk needs %v", c.APIVersion, minVersion())
		return c, nil
	}

	names, err := in.deviceExtensions(phys)
	if err != nil {
		return c, fmt.Errorf("vk: vkEnumerateDeviceExtensionProperties: %w", err)
	}
	has := map[string]bool{}
	for _, name := range names {
		has[name] = true
	}
	if err := c.readFeatures(in, phys, has); err != nil {
		return c, err
	}
	c.MemoryBudget = has["VK_EXT_memory_budget"]
	_, c.Extensions = c.available(c.effectiveVersion(), has)
	if err := c.readProperties(in, phys, has); err != nil {
		return c, err
	}
	if err := c.readMatrices(in, phys); err != nil {
		return c, err
	}
	if c.Heaps, err = readHeaps(in, phys, c.MemoryBudget); err != nil {
		return c, err
	}
	if family, ok := computeFamily(in.queueFamilies(phys)); ok {
		c.TimestampBits = in.queueFamilies(phys)[family].timestampBits
	} else {
		c.Unusable = "it has no compute queue"
	}
	if c.TimestampBits == 0 {
		c.TimestampPeriod = 0
	}
	return c, nil
}

func (c *Caps) setLimits(l *vulkan.PhysicalDeviceLimits) {
	c.MaxSharedMemoryBytes = l.MaxComputeSharedMemorySize
	c.MaxWorkgroupInvocations = l.MaxComputeWorkGroupInvocations
	c.MaxWorkgroupSize = l.MaxComputeWorkGroupSize
	c.MaxWorkgroupCount = l.MaxComputeWorkGroupCount
	c.MaxPushConstantsBytes = l.MaxPushConstantsSize
	c.MaxStorageBuffers = min(l.MaxPerStageDescriptorStorageBuffers, l.MaxDescriptorSetStorageBuffers, maxBindings)
	c.MaxStorageBufferRange = uint64(l.MaxStorageBufferRange)
	c.MaxAllocations = l.MaxMemoryAllocationCount
	c.MinStorageBufferOffsetAlignment = uint64(l.MinStorageBufferOffsetAlignment)
	c.TimestampPeriod = float64(l.TimestampPeriod)
}

const (
	sTypeProperties2         = 1000059001
	sTypeDriverProperties    = 1000196000
	sTypeSubgroupProperties  = 1000094000
	sTypeMaintenance3        = 1000168000
	sTypeMaintenance4        = 1000413001
	sTypeSubgroupSizeControl = 1000225000
	sTypeCoopMatProperties   = 1000506002
	sTypeCoopMat2Properties  = 1000593002
	sTypeMemoryProperties2   = 1000059006
	sTypeMemoryBudget        = 1000237000
	sTypeCoopMatShape        = 1000506001
	sTypeFlexShape           = 1000593001
	sTypeSMBuiltinsNV        = 1000154001
	sTypeShaderCoreAMD       = 1000185000
	sTypeShaderCore2AMD      = 1000227000

	propertiesBytes       = 824 // VkPhysicalDeviceProperties
	memoryPropertiesBytes = 520 // VkPhysicalDeviceMemoryProperties
	nameBytes             = 256 // VK_MAX_DRIVER_NAME_SIZE
	maxHeaps              = 16  // VK_MAX_MEMORY_HEAPS
	computeStage          = 0x20
)

func (c *Caps) readProperties(in rawInstance, phys vulkan.PhysicalDevice, has map[string]bool) error {
	var ch chain
	defer ch.free()
	ch.add(sTypeProperties2, propertiesBytes)
	driver := ch.add(sTypeDriverProperties, 4+2*nameBytes+4)
	subgroup := ch.words(sTypeSubgroupProperties, 4)
	maintenance3 := ch.words(sTypeMaintenance3, 4)
	maintenance4, sizes, matrix, matrix2 := make([]uint32, 2), make([]uint32, 4), []uint32{0}, make([]uint32, 3)
	if c.Maintenance4 {
		maintenance4 = ch.words(sTypeMaintenance4, 2)
	}
	if c.SubgroupSizeControl {
		sizes = ch.words(sTypeSubgroupSizeControl, 4)
	}
	if c.CoopMat {
		matrix = ch.words(sTypeCoopMatProperties, 1)
	}
	if has["VK_NV_cooperative_matrix2"] {
		matrix2 = ch.words(sTypeCoopMat2Properties, 3)
	}
	units := computeUnitsQuery(&ch, has)
	if err := in.get2(phys, "vkGetPhysicalDeviceProperties2", &ch); err != nil {
		return err
	}

	c.ComputeUnits = units()
	c.DriverID = *(*uint32)(driver)
	c.DriverName = text.Printable(vulkan.ToString(unsafe.Slice((*byte)(unsafe.Add(driver, 4)), nameBytes)))
	c.DriverInfo = text.Printable(vulkan.ToString(unsafe.Slice((*byte)(unsafe.Add(driver, 4+nameBytes)), nameBytes)))
	c.SubgroupSize = subgroup[0]
	if subgroup[1]&computeStage != 0 {
		c.SubgroupOps = SubgroupOps(subgroup[2])
	}
	c.MinSubgroupSize, c.MaxSubgroupSize = c.SubgroupSize, c.SubgroupSize
	if c.SubgroupSizeControl {
		c.MinSubgroupSize, c.MaxSubgroupSize = sizes[0], sizes[1]
		if c.SubgroupSizeControl = sizes[3]&computeStage != 0; c.SubgroupSizeControl {
			c.MaxWorkgroupSubgroups = sizes[2]
		}
	}
	c.MaxAllocationBytes = uint64(maintenance3[2]) | uint64(maintenance3[3])<<32 // after a count and padding
	c.MaxBufferBytes = c.MaxAllocationBytes
	if c.Maintenance4 {
		c.MaxBufferBytes = uint64(maintenance4[0]) | uint64(maintenance4[1])<<32
	}
	c.CoopMat = c.CoopMat && matrix[0]&computeStage != 0
	c.CoopMat2.MaxWorkgroupSize, c.CoopMat2.FlexMaxDimension, c.CoopMat2.ReservedSharedBytes = matrix2[0], matrix2[1], matrix2[2]
	return nil
}

// computeUnitsQuery adds what tells the number of compute units to a chain of
// properties, and returns the function that reads the number, 0 if no
// extension tells.
func computeUnitsQuery(ch *chain, has map[string]bool) func() uint32 {
	switch {
	case has["VK_NV_shader_sm_builtins"]:
		words := ch.words(sTypeSMBuiltinsNV, 2) // shaderSMCount, shaderWarpsPerSM
		return func() uint32 { return words[0] }
	case has["VK_AMD_shader_core_properties2"]:
		words := ch.words(sTypeShaderCore2AMD, 2) // flags, activeComputeUnitCount
		return func() uint32 { return words[1] }
	case has["VK_AMD_shader_core_properties"]:
		words := ch.words(sTypeShaderCoreAMD, 14) // engines, arrays of an engine, units of an array, ...
		return func() uint32 { return words[0] * words[1] * words[2] }
	}
	return func() uint32 { return 0 }
}

func (c *Caps) readMatrices(in rawInstance, phys vulkan.PhysicalDevice) error {
	var rows [][]uint32
	if c.CoopMat {
		var err error
		rows, err = in.enumerate(phys, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", sTypeCoopMatShape, 9)
		if err != nil {
			return err
		}
	}
	if len(rows) == 0 { // a feature without a shape is of no use
		c.CoopMat, c.CoopMat2 = false, CoopMat2{}
		c.BFloat16CoopMat, c.Float8CoopMat = false, false
		return nil
	}
	for _, r := range rows {
		c.CoopMatShapes = append(c.CoopMatShapes, CoopMatShape{
			M: r[0], N: r[1], K: r[2],
			A: componentType(r[3]), B: componentType(r[4]), C: componentType(r[5]), Result: componentType(r[6]),
			Saturating: r[7] != 0, Scope: Scope(r[8]),
		})
	}
	if !c.CoopMat2.FlexibleDimensions {
		return nil
	}
	rows, err := in.enumerate(phys, "vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV", sTypeFlexShape, 10)
	if err != nil {
		return err
	}
	for _, r := range rows {
		c.CoopMat2.Flexible = append(c.CoopMat2.Flexible, FlexShape{
			MGranularity: r[0], NGranularity: r[1], KGranularity: r[2],
			A: componentType(r[3]), B: componentType(r[4]), C: componentType(r[5]), Result: componentType(r[6]),
			Saturating: r[7] != 0, Scope: Scope(r[8]), WorkgroupInvocations: r[9],
		})
	}
	return nil
}

// memoryType is one VkMemoryType.
type memoryType struct{ flags, heap uint32 }

// readMemory reads the memory types and, with budget, the heaps' budgets.
//
// VkPhysicalDeviceMemoryProperties is, in 32-bit words: the number of types,
// 32 types of (flags, heap), the number of heaps, 16 heaps of (size low,
// size high, flags, padding).
func readMemory(in rawInstance, phys vulkan.PhysicalDevice, budget bool) ([]memoryType, []Heap, error) {
	var ch chain
	defer ch.free()
	words := unsafe.Slice((*uint32)(ch.add(sTypeMemoryProperties2, memoryPropertiesBytes)), memoryPropertiesBytes/4)
	budgets := make([]uint64, 2*maxHeaps)
	if budget {
		budgets = unsafe.Slice((*uint64)(ch.add(sTypeMemoryBudget, 16*maxHeaps)), 2*maxHeaps)
	}
	if err := in.get2(phys, "vkGetPhysicalDeviceMemoryProperties2", &ch); err != nil {
		return nil, nil, err
	}
	var types []memoryType
	for i := range words[0] {
		types = append(types, memoryType{words[1+2*i], words[2+2*i]})
	}
	const heapCount = 1 + 2*32
	var heaps []Heap
	for i := range words[heapCount] {
		h := words[heapCount+1+4*i:]
		heaps = append(heaps, Heap{
			SizeBytes:   uint64(h[0]) | uint64(h[1])<<32,
			BudgetBytes: budgets[i], UsageBytes: budgets[maxHeaps+i],
			DeviceLocal: h[2]&1 != 0,
		})
	}
	return types, heaps, nil
}

func readHeaps(in rawInstance, phys vulkan.PhysicalDevice, budget bool) ([]Heap, error) {
	_, heaps, err := readMemory(in, phys, budget)
	return heaps, err
}

// computeFamily picks the first queue family that computes and, if there is a
// choice, has timestamps.
func computeFamily(families []queueFamily) (int, bool) {
	const compute = 2 // VK_QUEUE_COMPUTE_BIT
	best := -1
	for i, f := range families {
		if f.flags&compute == 0 || f.count == 0 {
			continue
		}
		if best < 0 || families[best].timestampBits == 0 && f.timestampBits > 0 {
			best = i
		}
	}
	return best, best >= 0
}
