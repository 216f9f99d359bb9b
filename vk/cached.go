package vk

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Memory is the memory of the open buffers of a device, without slices and placeholders: bytes of
// device memory, and of host memory for the copies of Upload and Download.
type Memory struct {
	Bytes, Peak int64         // now, and the most since Open or ResetPeak
	Buffers     []NamedMemory // by name, those with the highest peak first
}

// NamedMemory is the memory of the buffers of one name.
type NamedMemory struct {
	Name        string
	Bytes, Peak int64
	Buffers     int // open now
}

// memoryCount counts what buffers take.
type memoryCount struct {
	mu     sync.Mutex
	all    NamedMemory
	byName map[string]*NamedMemory
}

func (m *memoryCount) add(name string, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.byName[name]
	if x == nil {
		if m.byName == nil {
			m.byName = map[string]*NamedMemory{}
		}
		x = &NamedMemory{Name: name}
		m.byName[name] = x
	}
	for _, x := range []*NamedMemory{x, &m.all} {
		x.Bytes, x.Buffers = x.Bytes+bytes, x.Buffers+1
		x.Peak = max(x.Peak, x.Bytes)
	}
}

func (m *memoryCount) remove(name string, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, x := range []*NamedMemory{m.byName[name], &m.all} {
		if x != nil && bytes > 0 { // else the memory was never allocated
			x.Bytes, x.Buffers = x.Bytes-bytes, x.Buffers-1
		}
	}
}

// Memory returns the memory of buffers. A closed buffer counts until the submissions that use it
// have finished.
func (d *Device) Memory() Memory {
	d.memory.mu.Lock()
	defer d.memory.mu.Unlock()
	m := Memory{Bytes: d.memory.all.Bytes, Peak: d.memory.all.Peak}
	for _, x := range d.memory.byName {
		m.Buffers = append(m.Buffers, *x)
	}
	slices.SortFunc(m.Buffers, func(a, b NamedMemory) int {
		return cmp.Or(cmp.Compare(b.Peak, a.Peak), cmp.Compare(a.Name, b.Name))
	})
	return m
}

// ResetPeak sets the peaks to the present values, and forgets names without open buffers.
func (d *Device) ResetPeak() {
	d.memory.mu.Lock()
	defer d.memory.mu.Unlock()
	maps.DeleteFunc(d.memory.byName, func(_ string, x *NamedMemory) bool {
		x.Peak = x.Bytes
		return x.Buffers == 0
	})
	d.memory.all.Peak = d.memory.all.Bytes
}

// onceValue is a value that is made once. A failed attempt leaves it unset, so
// that the next one tries again: memory may have come free.
type onceValue[T any] struct {
	mu    sync.Mutex // held while making
	value atomic.Pointer[T]
}

func (o *onceValue[T]) get(compute func() (T, error)) (T, error) {
	if p := o.value.Load(); p != nil {
		return *p, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if p := o.value.Load(); p != nil {
		return *p, nil
	}
	v, err := compute()
	if err == nil {
		o.value.Store(&v)
	}
	return v, err
}

// cacheMap is a map from keys to values made on demand. Making one blocks
// those who want the same key, and no others.
type cacheMap[K comparable, V any] struct {
	mu      sync.RWMutex
	entries map[K]*onceValue[V]
}

func (m *cacheMap[K, V]) entry(key K) *onceValue[V] {
	m.mu.RLock()
	e := m.entries[key]
	m.mu.RUnlock()
	if e != nil {
		return e
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if e = m.entries[key]; e != nil {
		return e
	}
	if m.entries == nil {
		m.entries = map[K]*onceValue[V]{}
	}
	e = &onceValue[V]{}
	m.entries[key] = e
	return e
}

// all calls f for every value made so far.
func (m *cacheMap[K, V]) all(f func(K, V)) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for key, e := range m.entries {
		if p := e.value.Load(); p != nil {
			f(key, *p)
		}
	}
}

// Cached returns a fact about the device that is expensive to find out: the result of the first
// call of compute for d and key that returned no error. The type of a key belongs to one package
// and stands for one T. Cached is safe for concurrent use; compute may use the device.
func Cached[T any](d *Device, key any, compute func() (T, error)) (T, error) {
	v, err := d.values.entry(key).get(func() (any, error) { return compute() })
	if err != nil {
		var none T
		return none, err
	}
	return v.(T), nil
}

// kernelKey is what tells the kernels of CachedKernel apart.
type kernelKey struct {
	name    string
	spec    any
	options KernelOptions
	params  reflect.Type
}

// CachedKernel is NewKernel that makes a kernel of one name, spec, options and P only once. The
// device owns it and closes it. A name stands for one SPIR-V module: another module under the same
// name is an error. CachedKernel is safe for concurrent use.
func CachedKernel[P any](d *Device, name string, spirv []byte, spec any, o KernelOptions) (*Kernel[P], error) {
	if spec != nil && !reflect.TypeOf(spec).Comparable() {
		return nil, fmt.Errorf("vk: kernel %q: specialization is a %T, not a struct of plain fields", name, spec)
	}
	if !d.enter() {
		return nil, fmt.Errorf("vk: kernel %q: %w", name, d.errClosed())
	}
	defer d.leave()
	params := reflect.TypeFor[P]()
	k, err := d.kernels.entry(kernelKey{name, spec, o, params}).get(func() (*kernel, error) {
		k, err := newKernel(d, name, spirv, spec, o, params)
		if err == nil {
			k.adopt(d, "kernel", name, func() {})
		}
		return k, err
	})
	if err == nil && !sameBytes(k.code, spirv) {
		err = fmt.Errorf("the name stands for another SPIR-V module already")
	}
	if err != nil {
		return nil, fmt.Errorf("vk: kernel %q: %w", name, err)
	}
	return &Kernel[P]{k}, nil
}

// sameBytes compares, at once in the usual case that both are one slice.
func sameBytes(a, b []byte) bool {
	return len(a) == len(b) && (unsafe.SliceData(a) == unsafe.SliceData(b) || bytes.Equal(a, b))
}

// A KernelInfo describes one kernel in the device's cache.
type KernelInfo struct {
	Name  string
	Spec  any // the specialization struct
	Stats KernelStats
}

// CachedKernels lists the kernels that CachedKernel has made so far, the
// slowest to compile first.
func (d *Device) CachedKernels() []KernelInfo {
	var list []KernelInfo
	d.kernels.all(func(key kernelKey, k *kernel) {
		list = append(list, KernelInfo{key.name, key.spec, k.stats})
	})
	slices.SortFunc(list, func(a, b KernelInfo) int { return cmp.Compare(b.Stats.Created, a.Stats.Created) })
	return list
}

func (d *Device) closeKernels() {
	d.kernels.all(func(_ kernelKey, k *kernel) {
		d.api.destroyKernel(k.raw)
		k.usable.Store(false)
	})
	d.kernels.entries = nil
}
