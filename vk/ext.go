package vk

// #cgo CFLAGS: -std=gnu11 -Wall -Wextra -O2
// #cgo linux LDFLAGS: -ldl -lpthread
// #include <stdlib.h>
// #include "ext.h"
import "C"

import (
	"fmt"
	"strings"
	"sync"
	"unsafe"

	vulkan "github.com/vulkan-go/vulkan"
)

// Traps of vulkan-go that this package steers around:
//
//   - The info structs keep a C copy of themselves: Free after the call.
//   - Calls that take arrays of structs are not used; ext.h says why.
//   - What a call writes to is a variable of its own, never a field: cgo checks
//     the whole Go object that a pointer points into, and panics if there is a
//     Go pointer anywhere in it.

// Handles are C pointers or 64-bit numbers; a 32-bit build must not compile.
const _ = uint(unsafe.Sizeof(uintptr(0)) - 8)

// loader is the process's Vulkan loader. vulkan-go keeps its function pointers
// in C globals, so this much state is shared by all devices: the pointers are
// set once, from the first instance, and are the loader's own entry points,
// which dispatch on the handle they are given and so serve every instance.
var loader struct {
	once     sync.Once
	gipa     unsafe.Pointer // vkGetInstanceProcAddr
	version  uint32
	err      error
	instance sync.Once
	kept     sync.Once
}

// loadVulkan opens the loader once per process.
func loadVulkan() error {
	loader.once.Do(func() {
		var msg [256]C.char
		loader.gipa = C.fvk_load(&msg[0], C.size_t(len(msg)))
		if loader.gipa == nil {
			loader.err = fmt.Errorf("vk: %w: %s: %s", ErrNoLoader, C.GoString(&msg[0]), installLoader)
			return
		}
		vulkan.SetGetInstanceProcAddr(loader.gipa)
		if err := vulkan.Init(); err != nil {
			loader.err = fmt.Errorf("vk: %w: %w", ErrNoLoader, err)
			return
		}
		loader.version = uint32(C.fvk_loader_version(loader.gipa))
	})
	return loader.err
}

// messages collects what the validation layer says.
type messages struct{ p *C.fvk_messages }

func newMessages() *messages { return &messages{C.fvk_messages_new()} }

func (m *messages) free() { C.fvk_messages_free(m.p) }

// take returns the messages that came since the last call.
func (m *messages) take() []string {
	var all []string
	for text := C.fvk_messages_take(m.p); text != nil; text = C.fvk_messages_take(m.p) {
		all = append(all, C.GoString(text))
		C.free(unsafe.Pointer(text))
	}
	return all
}

// rawInstance is a VkInstance, with a debug messenger if m is set.
type rawInstance struct {
	handle    unsafe.Pointer
	messenger C.uint64_t
}

func createInstance(api uint32, m *messages, layerSettings bool) (rawInstance, error) {
	info := C.fvk_instance_info{api_version: C.uint32_t(api)}
	var sink *C.fvk_messages
	if m != nil {
		info.validate = 1
		sink = m.p
	}
	if layerSettings {
		info.layer_settings = 1
	}
	var in rawInstance
	if r := C.fvk_create_instance(loader.gipa, &info, sink, &in.handle, &in.messenger); r < 0 {
		return rawInstance{}, partError("vkCreateInstance", int32(r))
	}
	var err error
	loader.instance.Do(func() { err = vulkan.InitInstance(vulkan.Instance(in.handle)) })
	return in, err
}

// destroy destroys in, except for the first of the process, which keeps the drivers loaded:
// with no instance left the loader unloads them, and NVIDIA's (580.159.04) can be loaded 30
// times only, after which vkCreateInstance says VK_ERROR_INCOMPATIBLE_DRIVER.
func (in rawInstance) destroy() {
	if in.handle == nil {
		return
	}
	C.fvk_destroy_messenger(loader.gipa, in.handle, in.messenger)
	keep := false
	loader.kept.Do(func() { keep = true })
	if !keep {
		vulkan.DestroyInstance(vulkan.Instance(in.handle), nil)
	}
}

// nameList runs a two-call enumeration of names of 256 bytes.
func nameList(enumerate func(count *C.uint32_t, names *C.char) C.int32_t) ([]string, error) {
	var n C.uint32_t
	if r := enumerate(&n, nil); r < 0 {
		return nil, Result(r)
	}
	buf := (*C.char)(C.calloc(C.size_t(n)+1, C.FVK_NAME_BYTES))
	defer C.free(unsafe.Pointer(buf))
	if r := enumerate(&n, buf); r < 0 {
		return nil, Result(r)
	}
	names := make([]string, n)
	for i := range names {
		names[i] = C.GoString((*C.char)(unsafe.Add(unsafe.Pointer(buf), i*C.FVK_NAME_BYTES)))
	}
	return names, nil
}

func layerExtensions(layer string) ([]string, error) {
	name := C.CString(layer)
	defer C.free(unsafe.Pointer(name))
	return nameList(func(n *C.uint32_t, names *C.char) C.int32_t {
		return C.fvk_extensions(loader.gipa, nil, nil, name, n, names)
	})
}

func (in rawInstance) deviceExtensions(phys vulkan.PhysicalDevice) ([]string, error) {
	return nameList(func(n *C.uint32_t, names *C.char) C.int32_t {
		return C.fvk_extensions(loader.gipa, in.handle, unsafe.Pointer(phys), nil, n, names)
	})
}

// queueFamily describes one queue family.
type queueFamily struct{ flags, count, timestampBits uint32 }

func (in rawInstance) queueFamilies(phys vulkan.PhysicalDevice) []queueFamily {
	var list [32]C.fvk_queue_family
	n := C.uint32_t(len(list))
	C.fvk_queue_families(loader.gipa, in.handle, unsafe.Pointer(phys), &n, &list[0])
	out := make([]queueFamily, n)
	for i := range out {
		out[i] = queueFamily{uint32(list[i].flags), uint32(list[i].count), uint32(list[i].timestamp_bits)}
	}
	return out
}

// A chain is a pNext chain of structures in C memory.
type chain struct{ links []unsafe.Pointer }

// linkBytes is the size of sType and pNext with padding; payload follows.
const linkBytes = 16

// add appends a structure with a zeroed payload and returns the payload.
func (c *chain) add(sType uint32, payloadBytes int) unsafe.Pointer {
	p := C.calloc(1, C.size_t(linkBytes+payloadBytes+8)) // 8: room for tail padding
	*(*uint32)(p) = sType
	if n := len(c.links); n > 0 {
		*(*unsafe.Pointer)(unsafe.Add(c.links[n-1], 8)) = p
	}
	c.links = append(c.links, p)
	return unsafe.Add(p, linkBytes)
}

// words is add for a payload of n 32-bit values.
func (c *chain) words(sType uint32, n int) []uint32 {
	return unsafe.Slice((*uint32)(c.add(sType, 4*n)), n)
}

func (c *chain) head() unsafe.Pointer { return c.links[0] }

func (c *chain) free() {
	for _, p := range c.links {
		C.free(p)
	}
	c.links = nil
}

func (in rawInstance) get2(phys vulkan.PhysicalDevice, function string, c *chain) error {
	name := C.CString(function)
	defer C.free(unsafe.Pointer(name))
	return callError(function, int32(C.fvk_get2(loader.gipa, in.handle, unsafe.Pointer(phys), name, c.head())))
}

// enumerate calls a function that fills an array of structures of words 32-bit
// values after sType and pNext, and returns those values of each.
func (in rawInstance) enumerate(phys vulkan.PhysicalDevice, function string, sType uint32, words int) ([][]uint32, error) {
	name := C.CString(function)
	defer C.free(unsafe.Pointer(name))
	var n C.uint32_t
	call := func(out unsafe.Pointer) error {
		return callError(function, int32(C.fvk_enumerate(loader.gipa, in.handle, unsafe.Pointer(phys), name, &n, out)))
	}
	if err := call(nil); err != nil || n == 0 {
		return nil, err
	}
	stride := linkBytes + (4*words+7)&^7
	list := C.calloc(C.size_t(n), C.size_t(stride))
	defer C.free(list)
	for i := 0; i < int(n); i++ {
		*(*uint32)(unsafe.Add(list, i*stride)) = sType
	}
	if err := call(list); err != nil {
		return nil, err
	}
	out := make([][]uint32, n)
	for i := range out {
		out[i] = append(out[i], unsafe.Slice((*uint32)(unsafe.Add(list, i*stride+linkBytes)), words)...)
	}
	return out, nil
}

func (in rawInstance) createDevice(phys vulkan.PhysicalDevice, family uint32, extensions []string, features *chain) (vulkan.Device, error) {
	names := C.CString(strings.Join(extensions, "\x00"))
	defer C.free(unsafe.Pointer(names))
	var dev unsafe.Pointer
	r := C.fvk_create_device(loader.gipa, in.handle, unsafe.Pointer(phys), C.uint32_t(family), names, C.uint32_t(len(extensions)), features.head(), &dev)
	return vulkan.Device(dev), callError("vkCreateDevice", int32(r))
}

// cMemory is a block of C memory, for what vulkan-go stores in C structures.
type cMemory struct{ p unsafe.Pointer }

func copyToC(data []byte) cMemory {
	m := cMemory{C.calloc(1, C.size_t(len(data)+1))}
	copy(unsafe.Slice((*byte)(m.p), len(data)), data)
	return m
}

// bytes returns a copy of the first n bytes.
func (m cMemory) bytes(n int) []byte { return C.GoBytes(m.p, C.int(n)) }

func (m cMemory) free() { C.free(m.p) }

// deviceAPI calls device functions that vulkan-go lacks or makes too slow.
type deviceAPI struct{ p *C.fvk_api }

func (in rawInstance) newAPI(dev vulkan.Device) (deviceAPI, error) {
	var missing *C.char
	p := C.fvk_api_new(loader.gipa, in.handle, unsafe.Pointer(dev), &missing)
	if p == nil {
		return deviceAPI{}, fmt.Errorf("vk: the driver has no %s", C.GoString(missing))
	}
	return deviceAPI{p}, nil
}

func (a deviceAPI) free() { C.fvk_api_free(a.p) }

// rawKernel holds the handles of a compute pipeline.
type rawKernel struct{ setLayout, layout, pipeline uint64 }

type rawKernelInfo struct {
	bindings, pushBytes, subgroupSize int
	fullSubgroups, statistics         bool
	cache                             vulkan.PipelineCache
}

func (a deviceAPI) createKernel(info rawKernelInfo, code []byte, entry string, spec []uint32) (rawKernel, error) {
	ci := C.fvk_kernel_info{
		num_bindings: C.uint32_t(info.bindings), push_bytes: C.uint32_t(info.pushBytes), num_spec: C.uint32_t(len(spec)),
		subgroup_size: C.uint32_t(info.subgroupSize), full_subgroups: C.uint32_t(onOff(info.fullSubgroups)),
		capture_statistics: C.uint32_t(onOff(info.statistics)), cache: C.uint64_t(uintptr(unsafe.Pointer(info.cache))),
	}
	name := C.CString(entry)
	defer C.free(unsafe.Pointer(name))
	// A copy, because SPIR-V must be aligned to 4 and embedded bytes need not be.
	words := copyToC(code)
	defer words.free()
	var k C.fvk_kernel
	var call *C.char
	var specWords *C.uint32_t
	if len(spec) > 0 {
		specWords = (*C.uint32_t)(unsafe.Pointer(&spec[0]))
	}
	r := C.fvk_create_kernel(a.p, &ci, (*C.uint32_t)(words.p), C.size_t(len(code)), name, specWords, &k, &call)
	if r < 0 {
		return rawKernel{}, partError(C.GoString(call), int32(r))
	}
	return rawKernel{uint64(k.set_layout), uint64(k.layout), uint64(k.pipeline)}, nil
}

func (a deviceAPI) destroyKernel(k rawKernel) {
	c := C.fvk_kernel{C.uint64_t(k.setLayout), C.uint64_t(k.layout), C.uint64_t(k.pipeline)}
	C.fvk_destroy_kernel(a.p, &c)
}

// rawStatistic is one executable statistic; format as in fvk_statistic.
type rawStatistic struct {
	name   string
	format uint32
	bits   uint64
}

func (a deviceAPI) statistics(pipeline uint64) (subgroupSize uint32, list []rawStatistic, err error) {
	var out [64]C.fvk_statistic
	n, size := C.uint32_t(len(out)), C.uint32_t(0)
	if r := C.fvk_statistics(a.p, C.uint64_t(pipeline), &size, &n, &out[0]); r < 0 {
		return 0, nil, callError("vkGetPipelineExecutableStatisticsKHR", int32(r))
	}
	for _, s := range out[:n] {
		list = append(list, rawStatistic{C.GoString(&s.name[0]), uint32(s.format), uint64(s.bits)})
	}
	return uint32(size), list, nil
}

func (a deviceAPI) createPool(sets, buffers int) (vulkan.DescriptorPool, error) {
	var pool C.uint64_t
	r := C.fvk_create_pool(a.p, C.uint32_t(sets), C.uint32_t(buffers), &pool)
	return *(*vulkan.DescriptorPool)(unsafe.Pointer(&pool)), partError("vkCreateDescriptorPool", int32(r))
}

const (
	maxBindings  = C.FVK_MAX_BINDINGS
	maxPushBytes = C.FVK_MAX_PUSH_BYTES
)

// bufferRange mirrors fvk_buffer_range.
type bufferRange struct{ buffer, offset, bytes uint64 }

// dispatchArgs mirrors fvk_dispatch.
type dispatchArgs struct {
	setLayout, layout, pipeline uint64
	numBuffers, pushBytes       uint32
	groups                      [3]uint32
	_                           uint32
	buffers                     [maxBindings]bufferRange
	push                        [maxPushBytes / 8]uint64
}

// The mirror has the size of the original.
const (
	_ = uint(unsafe.Sizeof(dispatchArgs{}) - C.sizeof_fvk_dispatch)
	_ = uint(C.sizeof_fvk_dispatch - unsafe.Sizeof(dispatchArgs{}))
)

func (a deviceAPI) dispatch(cmd vulkan.CommandBuffer, pool vulkan.DescriptorPool, args *dispatchArgs) Result {
	return Result(C.fvk_record_dispatch(a.p, unsafe.Pointer(cmd), C.uint64_t(uintptr(unsafe.Pointer(pool))), (*C.fvk_dispatch)(unsafe.Pointer(args))))
}

func (a deviceAPI) barrier(cmd vulkan.CommandBuffer, from, to scope) {
	C.fvk_barrier(a.p, unsafe.Pointer(cmd), C.uint32_t(from.stages), C.uint32_t(from.access), C.uint32_t(to.stages), C.uint32_t(to.access))
}

// copy records copies of regions, of which there is at least one.
func (a deviceAPI) copy(cmd vulkan.CommandBuffer, dst, src uint64, regions []region) {
	C.fvk_copy(a.p, unsafe.Pointer(cmd), C.uint64_t(dst), C.uint64_t(src), C.uint32_t(len(regions)), (*C.fvk_region)(unsafe.Pointer(&regions[0])))
}

func (a deviceAPI) fill(cmd vulkan.CommandBuffer, buffer uint64, offset, bytes int64, word uint32) {
	C.fvk_fill(a.p, unsafe.Pointer(cmd), C.uint64_t(buffer), C.uint64_t(offset), C.uint64_t(bytes), C.uint32_t(word))
}

// update records a copy of data, which must not be empty.
func (a deviceAPI) update(cmd vulkan.CommandBuffer, buffer uint64, offset int64, data []byte) {
	C.fvk_update(a.p, unsafe.Pointer(cmd), C.uint64_t(buffer), C.uint64_t(offset), unsafe.Pointer(&data[0]), C.uint64_t(len(data)))
}

func (a deviceAPI) resetQueries(cmd vulkan.CommandBuffer, pool vulkan.QueryPool, n int) {
	C.fvk_reset_queries(a.p, unsafe.Pointer(cmd), C.uint64_t(uintptr(unsafe.Pointer(pool))), C.uint32_t(n))
}

func (a deviceAPI) timestamp(cmd vulkan.CommandBuffer, pool vulkan.QueryPool, i int) {
	C.fvk_timestamp(a.p, unsafe.Pointer(cmd), C.uint64_t(uintptr(unsafe.Pointer(pool))), C.uint32_t(i))
}

func (a deviceAPI) submit(queue vulkan.Queue, cmd vulkan.CommandBuffer, timeline, value uint64) Result {
	return Result(C.fvk_submit(a.p, unsafe.Pointer(queue), unsafe.Pointer(cmd), C.uint64_t(timeline), C.uint64_t(value)))
}

func (a deviceAPI) createTimeline() (uint64, error) {
	var t C.uint64_t
	r := C.fvk_create_timeline(a.p, &t)
	return uint64(t), callError("vkCreateSemaphore", int32(r))
}

func (a deviceAPI) timelineValue(timeline uint64) (uint64, Result) {
	var v C.uint64_t
	r := C.fvk_timeline_value(a.p, C.uint64_t(timeline), &v)
	return uint64(v), Result(r)
}

func (a deviceAPI) timelineWait(timeline, value, timeoutNS uint64) Result {
	return Result(C.fvk_timeline_wait(a.p, C.uint64_t(timeline), C.uint64_t(value), C.uint64_t(timeoutNS)))
}

func (a deviceAPI) invalidate(memory vulkan.DeviceMemory) Result {
	return Result(C.fvk_invalidate(a.p, C.uint64_t(uintptr(unsafe.Pointer(memory)))))
}

func (a deviceAPI) setName(objectType uint32, handle uint64, name string) {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	C.fvk_set_name(a.p, C.uint32_t(objectType), C.uint64_t(handle), s)
}
