package vk

import (
	"cmp"
	"maps"
	"slices"
	"sync"
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
