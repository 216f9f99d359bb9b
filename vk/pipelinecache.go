package vk

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	vulkan "github.com/vulkan-go/vulkan"

	"github.com/flashvk/flashvk/internal/files"
)

// pipelineCache is a VkPipelineCache and the file that it is kept in.
//
// The file has a header of ours before the driver's data, because drivers are
// trusted to notice neither a truncated file nor one of another version:
//
//	magic "flashvk1"  vendor, device, driver version (uint32, little endian)
//	pipeline cache UUID (16 bytes)  SHA-256 of the data  data
type pipelineCache struct {
	handle vulkan.PipelineCache
	path   string            // "" for none
	loaded [sha256.Size]byte // checksum of what the file held
	err    error             // why the file could not be read or written
}

const cacheMagic = "flashvk1"

// cacheHeader returns the header for data, without the checksum.
func (d *Device) cacheHeader() []byte {
	var props vulkan.PhysicalDeviceProperties
	vulkan.GetPhysicalDeviceProperties(d.phys, &props)
	props.Deref()
	defer props.Free()
	h := []byte(cacheMagic)
	for _, v := range []uint32{props.VendorID, props.DeviceID, props.DriverVersion} {
		h = binary.LittleEndian.AppendUint32(h, v)
	}
	return append(h, props.PipelineCacheUUID[:]...)
}

// openCache makes the pipeline cache, from the file in dir if that is of this
// device and driver. Any other file there is ignored and later replaced. A
// folder that cannot be used costs time, not the device.
func (d *Device) openCache(dir string) (*pipelineCache, error) {
	c := &pipelineCache{}
	data, err := c.load(d, dir)
	if err != nil {
		c.err = fmt.Errorf("vk: pipeline cache: %w", err)
	}
	err = c.create(d, data)
	if err != nil && data != nil {
		err = c.create(d, nil) // the driver does not like its own data
	}
	return c, err
}

func (c *pipelineCache) load(d *Device, dir string) ([]byte, error) {
	if dir == "" {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	c.path = filepath.Join(dir, fmt.Sprintf("%08x-%08x-%08x.vkcache", d.caps.VendorID, d.caps.DeviceID, d.caps.DriverVersion))
	file, err := os.ReadFile(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	data := checkCache(file, d.cacheHeader())
	c.loaded = sha256.Sum256(data)
	return data, nil
}

func (c *pipelineCache) create(d *Device, data []byte) error {
	mem := copyToC(data)
	defer mem.free()
	info := vulkan.PipelineCacheCreateInfo{SType: vulkan.StructureTypePipelineCacheCreateInfo, InitialDataSize: uint(len(data)), PInitialData: mem.p}
	defer info.Free()
	var handle vulkan.PipelineCache
	r := vulkan.CreatePipelineCache(d.handle, &info, nil, &handle)
	c.handle = handle
	return callError("vkCreatePipelineCache", int32(r))
}

// checkCache returns the driver's data in a cache file, nil if the file is not
// whole or not of this device and driver.
func checkCache(file, header []byte) []byte {
	n := len(header) + sha256.Size
	if len(file) <= n || string(file[:len(header)]) != string(header) {
		return nil
	}
	if sum := sha256.Sum256(file[n:]); string(sum[:]) != string(file[len(header):n]) {
		return nil
	}
	return file[n:]
}

// close writes the file, if there is news, and destroys the cache.
func (c *pipelineCache) close(d *Device) {
	if c.path != "" {
		if err := c.save(d); err != nil {
			c.err = fmt.Errorf("vk: pipeline cache: %w", err)
		}
	}
	vulkan.DestroyPipelineCache(d.handle, c.handle, nil)
	c.handle = nil
}

func (c *pipelineCache) save(d *Device) error {
	var n uint
	if r := vulkan.GetPipelineCacheData(d.handle, c.handle, &n, nil); r < 0 || n == 0 {
		return partError("vkGetPipelineCacheData", int32(r))
	}
	mem := copyToC(make([]byte, n))
	defer mem.free()
	if r := Result(vulkan.GetPipelineCacheData(d.handle, c.handle, &n, mem.p)); r < 0 || r == resultIncomplete {
		return fmt.Errorf("vkGetPipelineCacheData: %w", r)
	}
	data := mem.bytes(int(n))
	sum := sha256.Sum256(data)
	if sum == c.loaded {
		return nil
	}
	return files.Write(c.path, append(append(d.cacheHeader(), sum[:]...), data...))
}

// CacheErr returns the error of reading the pipeline cache on disk or, after Close, of writing it;
// nil if there was none or there is no CacheDir. A file that is damaged or of another driver is no
// error: it is replaced.
func (d *Device) CacheErr() error {
	if d.cache == nil {
		return nil
	}
	return d.cache.err
}
