package vk

import (
	"cmp"
	"slices"
	"sync"
)

// valueCache holds the values of Cached.
type valueCache struct {
	mu      sync.Mutex
	entries map[any]*cachedValue
}

type cachedValue struct {
	mu    sync.Mutex
	done  bool
	value any
}

// Cached returns what compute returned the first time it was called for d and
// key without an error: a fact about the device that costs something to find
// out. A key's type belongs to one package and stands for one T. It is safe
// for concurrent use; compute may use the device.
func Cached[T any](d *Device, key any, compute func() (T, error)) (T, error) {
	d.values.mu.Lock()
	e := d.values.entries[key]
	if e == nil {
		if d.values.entries == nil {
			d.values.entries = map[any]*cachedValue{}
		}
		e = &cachedValue{}
		d.values.entries[key] = e
	}
	d.values.mu.Unlock()

	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.done {
		value, err := compute()
		if err != nil {
			return value, err
		}
		e.value, e.done = value, true
	}
	return e.value.(T), nil
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
	d.kernels.mu.RLock()
	defer d.kernels.mu.RUnlock()
	var list []KernelInfo
	for key, e := range d.kernels.entries {
		e.once.Do(func() {})
		if e.kernel != nil {
			list = append(list, KernelInfo{key.name, key.spec, e.kernel.stats})
		}
	}
	slices.SortFunc(list, func(a, b KernelInfo) int { return cmp.Compare(b.Stats.Created, a.Stats.Created) })
	return list
}
