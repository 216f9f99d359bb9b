package vk

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	vulkan "github.com/vulkan-go/vulkan"

	"github.com/flashvk/flashvk/internal/text"
)

// noCopy makes go vet complain about copies of the struct that holds it.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// Options says what Open opens. The zero value is the best device, without
// validation and without a pipeline cache on disk.
type Options struct {
	// Device selects a device: "" is the best one, a number is the position in List, anything else
	// is a part of the name, in any case.
	//
	// Best is the first of: discrete GPU, integrated GPU, virtual GPU, other, CPU. So a CPU device
	// is opened only if there is no GPU, or by request.
	Device string
	// Validate loads the Khronos validation layer with synchronization validation. A message at
	// error level fails the next Submit, and Close. Like Cmd, the layer assumes that a kernel
	// accesses all that is bound.
	Validate bool
	// CacheDir is a folder for compiled pipelines, made if needed; "" is none. Close writes it.
	// CacheErr reports its errors.
	CacheDir string
	// UserCache sets CacheDir to flashvk/pipelines in the user's cache folder. A user without such a
	// folder has no cache.
	UserCache bool
	// Compiling, if it is not nil, is called when the driver begins to compile a kernel; its result
	// is called at the end. That includes kernels in the cache, which take no time. Any goroutine
	// may call it.
	Compiling func(kernel string) (done func())
	// Name appears in error messages of Close; "" is the device's own name.
	Name string
	// PoisonScratch, if it is not 0, is a word that fills memory each time Cmd.Scratch takes it.
	// With it, tests find kernels that read uninitialized memory.
	PoisonScratch uint32
	// WholeBuffers makes Tensor.Narrow return its argument, so that kernels see all of their
	// buffers. On a device that guards bound memory, tests then find reads and writes beside
	// tensors. Kernels overlap less.
	WholeBuffers bool
	// CompileOnly opens a device that compiles kernels and runs nothing: Measure compiles what it
	// records, and CachedKernels lists the result. Buffers come from Placeholder, uploads to them
	// go nowhere, and NewCmd is an error that wraps ErrUnsupported. So the device needs no memory and
	// no queue, which the null hardware of Mesa's RADV lacks: a driver with the compiler of any AMD
	// GPU, for machines without that GPU.
	CompileOnly bool
	// Fault, if it is not nil, is called before calls that fail on a device that is full or lost:
	// vkCreateBuffer, vkAllocateMemory, vkCreateCommandPool, vkCreateDescriptorPool,
	// vkCreateComputePipelines, vkQueueSubmit and vkWaitSemaphores. A negative Result replaces
	// the call's, and the call is not made. It is for tests; any goroutine may call it.
	Fault func(call string) Result
	// Lower, if it is not nil, may take away from what the device has: kernels keep to the limits that it
	// lowers, and features that it clears stay off. It is for tests.
	Lower func(c *Caps)
}

// Device is an open Vulkan device with one compute queue. It may be shared by
// goroutines.
//
// Submissions run one after the other: each sees all memory that earlier ones
// wrote, and later ones wait for it.
type Device struct {
	_ noCopy

	name     string
	caps     Caps
	instance *instance
	phys     vulkan.PhysicalDevice
	handle   vulkan.Device
	api      deviceAPI
	queue    vulkan.Queue
	family   uint32
	types    []memoryType
	cache    *pipelineCache
	staging  staging
	kernels  cacheMap[kernelKey, *kernel]
	values   cacheMap[any, any]
	options  Options
	life

	numAllocs atomic.Int64
	memory    memoryCount

	mu        sync.Mutex // guards what follows, and the queue
	timeline  uint64     // semaphore that counts finished submissions
	submitted uint64
	completed uint64
	retired   []retired            // destructions that wait for submissions
	open      map[*object]struct{} // what Close reports as leaked
	closings  uint64               // number of objects closed so far
	invalid   []string             // validation messages, all of them
	reported  int                  // how many of these errors have reported
}

// retired is a destruction to run once submission serial has finished.
type retired struct {
	serial uint64
	run    func()
}

// List returns the capabilities of every Vulkan device of the machine without opening one. It
// includes devices that Open refuses; Caps.Unusable is the reason. The error wraps ErrNoLoader or
// ErrNoDevice if there is nothing to list.
func List() ([]Caps, error) {
	in, err := openInstance(false)
	if err != nil {
		return nil, err
	}
	defer in.close()
	_, caps, err := in.caps()
	return caps, err
}

// choose returns the position in list of the device that selector names.
func choose(list []Caps, selector string) (int, error) {
	best := -1
	number, err := strconv.Atoi(selector)
	if err == nil && number >= 0 && number < len(list) {
		best = number
	}
	var names []string
	for i, c := range list {
		names = append(names, fmt.Sprintf("%d %q", i, c.Name))
		switch {
		case selector == "" && c.Unusable == "" && (best < 0 || c.Type.rank() > list[best].Type.rank()):
			best = i
		case selector != "" && best < 0 && strings.Contains(strings.ToLower(c.Name), strings.ToLower(selector)):
			best = i
		}
	}
	if best < 0 && selector != "" {
		return 0, fmt.Errorf("vk: device %q is not among %s: %w", selector, strings.Join(names, ", "), ErrNoDevice)
	}
	if c := list[max(best, 0)]; c.Unusable != "" {
		return 0, fmt.Errorf("vk: device %q: %s: %w", c.Name, c.Unusable, ErrUnsupported)
	}
	return best, nil
}

// Open opens a device with every feature that Caps lists. Each call makes its own Vulkan instance,
// so several devices, or one device several times, may be open at once.
//
// The error wraps ErrNoLoader, ErrNoDevice, ErrUnsupported or a Result.
func Open(o Options) (_ *Device, err error) {
	d := &Device{life: life{idle: make(chan struct{}, 1)}, open: map[*object]struct{}{}, staging: newStaging(), options: o}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	if d.instance, err = openInstance(o.Validate); err != nil {
		return nil, err
	}
	phys, list, err := d.instance.caps()
	if err != nil {
		return nil, err
	}
	i, err := choose(list, o.Device)
	if err != nil {
		return nil, err
	}
	if d.phys, d.caps = phys[i], list[i]; o.Lower != nil {
		o.Lower(&d.caps)
	}
	if d.name = o.Name; d.name == "" {
		d.name = d.caps.Name
	}
	if err := d.createDevice(); err != nil {
		return nil, err
	}
	if d.types, _, err = readMemory(d.instance.raw, d.phys, false); err != nil {
		return nil, err
	}
	if user, err := os.UserCacheDir(); o.UserCache && o.CacheDir == "" && err == nil { // else there is no cache
		o.CacheDir = filepath.Join(user, "flashvk", "pipelines")
	}
	if d.cache, err = d.openCache(o.CacheDir); err != nil {
		return nil, err
	}
	return d, nil
}

// createDevice makes the VkDevice, its queue and its timeline.
func (d *Device) createDevice() error {
	in := d.instance.raw
	family, _ := computeFamily(in.queueFamilies(d.phys))
	d.family = uint32(family)
	names, err := in.deviceExtensions(d.phys)
	if err != nil {
		return fmt.Errorf("vk: vkEnumerateDeviceExtensionProperties: %w", err)
	}
	has := map[string]bool{}
	for _, name := range names {
		has[name] = true
	}
	features := d.caps.enabled(d.caps.effectiveVersion(), has)
	defer features.free()
	if d.handle, err = in.createDevice(d.phys, d.family, d.caps.Extensions, features); err != nil {
		return err
	}
	if d.api, err = in.newAPI(d.handle); err != nil {
		return err
	}
	var queue vulkan.Queue
	vulkan.GetDeviceQueue(d.handle, d.family, 0, &queue)
	d.queue = queue
	if d.options.CompileOnly {
		return nil
	}
	d.timeline, err = d.api.createTimeline()
	return err
}

// CompileOnly returns Options.CompileOnly.
func (d *Device) CompileOnly() bool { return d.options.CompileOnly }

// fault returns the failure that Options.Fault wants a call to have, or 0.
func (d *Device) fault(call string) Result {
	if d.options.Fault == nil {
		return 0
	}
	return min(d.options.Fault(call), 0)
}

// Caps returns the capabilities of the device. The caller must not change them.
func (d *Device) Caps() *Caps { return &d.caps }

// PoisonScratch returns Options.PoisonScratch.
func (d *Device) PoisonScratch() uint32 { return d.options.PoisonScratch }

// Name returns the name that error messages give the device.
func (d *Device) Name() string { return d.name }

// Heaps returns the memory heaps with their present budget and usage.
func (d *Device) Heaps() ([]Heap, error) {
	if !d.enter() {
		return nil, withPrefix(d.errClosed())
	}
	defer d.leave()
	return readHeaps(d.instance.raw, d.phys, d.caps.MemoryBudget)
}

func (d *Device) errClosed() error { return fmt.Errorf("device %q is closed", d.name) }

// Close waits for the device, writes the pipeline cache and destroys everything. Its error lists
// what was still open, by debug name, and the messages of the validation layer. Close is
// idempotent. It waits for calls of other goroutines; later calls are errors.
func (d *Device) Close() error {
	if d == nil || d.instance == nil || !d.end() {
		return nil
	}
	var leaks error
	if d.handle != nil {
		leaks = d.closeDevice()
	}
	d.mu.Lock()
	d.reported = 0 // all messages since Open
	invalid := d.validationError()
	d.mu.Unlock()
	d.instance.close()
	d.instance = nil
	if leaks != nil && invalid != nil {
		return fmt.Errorf("%w; %w", leaks, invalid) // in one line
	}
	return cmp.Or(leaks, invalid)
}

// closeDevice closes all but the instance and reports what was left open.
func (d *Device) closeDevice() (leaks error) {
	if d.api.p != nil {
		if !d.options.CompileOnly {
			vulkan.DeviceWaitIdle(d.handle) // a lost device is closed all the same
		}
		leaks = d.closeObjects()
		if d.cache != nil {
			d.cache.close(d)
		}
		vulkan.DestroySemaphore(d.handle, *(*vulkan.Semaphore)(unsafe.Pointer(&d.timeline)), nil)
	}
	vulkan.DestroyDevice(d.handle, nil)
	if d.api.p != nil {
		d.api.free()
	}
	d.handle, d.api = nil, deviceAPI{}
	return leaks
}

// closeObjects releases what the device owns itself, then what its user
// forgot to close, which it reports.
func (d *Device) closeObjects() error {
	d.closeKernels()
	d.staging.close(d)
	d.mu.Lock()
	leaked := make([]*object, 0, len(d.open))
	for o := range d.open {
		leaked = append(leaked, o)
	}
	d.mu.Unlock()
	var names []string
	for _, o := range leaked {
		names = append(names, o.String())
		o.close()
	}
	d.mu.Lock()
	d.completed = d.submitted // the device is idle
	d.runRetired()
	d.mu.Unlock()
	if len(names) == 0 {
		return nil
	}
	sort.Strings(names)
	return fmt.Errorf("vk: device %q was closed with %d objects open: %s", d.name, len(names), strings.Join(names, ", "))
}

// validationError returns the validation messages that no error reported yet. The caller holds d.mu.
func (d *Device) validationError() error {
	if d.instance.messages != nil {
		d.invalid = append(d.invalid, d.instance.messages.take()...)
	}
	list := d.invalid[d.reported:]
	if d.reported = len(d.invalid); len(list) == 0 {
		return nil
	}
	return fmt.Errorf("vk: validation layer: %d errors, first: %s", len(list), text.Line(list[0]))
}

// submit hands cmd to the queue and returns its serial number. Check, if not
// nil, runs first with d.mu held.
func (d *Device) submit(ctx context.Context, cmd vulkan.CommandBuffer, check func() error) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("vk: not submitted: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if check != nil {
		if err := check(); err != nil {
			return 0, err
		}
	}
	if err := d.validationError(); err != nil {
		return 0, err
	}
	if r := d.fault("vkQueueSubmit"); r < 0 {
		return 0, callError("vkQueueSubmit", int32(r))
	}
	if r := d.api.submit(d.queue, cmd, d.timeline, d.submitted+1); r < 0 {
		return 0, callError("vkQueueSubmit", int32(r))
	}
	d.submitted++
	return d.submitted, nil
}

// How long one wait for the device lasts before the context is looked at.
const (
	waitSlice        = time.Second
	waitSliceContext = 2 * time.Millisecond
)

// wait returns when submission serial has finished, or early with the error
// of ctx.
func (d *Device) wait(ctx context.Context, serial uint64) error {
	if d.finished(serial) {
		return nil
	}
	slice := waitSlice
	if ctx.Done() != nil {
		slice = waitSliceContext
	}
	if r := d.fault("vkWaitSemaphores"); r < 0 {
		return callError("vkWaitSemaphores", int32(r))
	}
	for {
		r := d.api.timelineWait(d.timeline, serial, uint64(slice))
		if r < 0 {
			return callError("vkWaitSemaphores", int32(r))
		}
		if r != resultTimeout {
			break
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("vk: still running: %w", err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.completed = max(d.completed, serial)
	d.runRetired()
	return nil
}

// waitChecked is wait for a caller who reports what the validation layer says.
func (d *Device) waitChecked(ctx context.Context, serial uint64) error {
	if err := d.wait(ctx, serial); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.validationError()
}

// finished reports whether submission serial is known to have finished.
func (d *Device) finished(serial uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return serial <= d.completed
}
