package kit_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// caps describe a device with plain Vulkan 1.2.
var caps = &vk.Caps{
	Name: "plain", VendorID: 0x1234, DeviceID: 1, DriverID: 5, ComputeUnits: 10, SubgroupSize: 32,
	MaxSharedMemoryBytes: 16 << 10, MaxWorkgroupInvocations: 128, MaxWorkgroupSize: [3]uint32{128, 128, 64},
	MaxWorkgroupCount: [3]uint32{65535, 65535, 65535}, MaxStorageBuffers: 8, MaxPushConstantsBytes: 128,
	MaxStorageBufferRange: 1 << 27, MaxAllocationBytes: 1 << 30, ScalarBlockLayout: true,
}

// A configuration that was measured comes before what is built in, and outlives the program in a
// file of its device.
func ExampleTuning() {
	p := attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 2, SeqQ: 40, SeqKV: 40, HeadDim: 8, DType: dtype.Float32}
	config := attention.Config{Impl: attention.Scalar, Threads: 32, ThreadsX: 8, BlockM: 8, BlockN: 8, Depth: 4, ValueRows: 4}
	tuning := kit.NewTuning(caps)
	if err := tuning.Add("attention", kit.Forward, p, config, 1e6); err != nil {
		log.Fatal(err)
	}
	var file bytes.Buffer
	if err := tuning.Write(&file); err != nil {
		log.Fatal(err)
	}
	loaded, err := kit.LoadTuning(&file, caps)
	if err != nil {
		log.Fatal(err)
	}
	plan, err := attention.Choose(caps, p, kit.Forward, attention.Options{Tuning: loaded})
	fmt.Println(plan, err)
	path, err := kit.UserTuningPath(caps)
	fmt.Println(filepath.Base(path) == filepath.Base(kit.TuningPath("", caps)), err)
	_, err = kit.LoadTuningFile(filepath.Join("nowhere", "file.json"), caps)
	fmt.Println(errors.Is(err, fs.ErrNotExist))
	// Output:
	// scalar 8x8 t4x8 depth4 rows4 <nil>
	// true <nil>
	// true
}

// A device with what its user keeps for it: compiled pipelines, and what flashvk tune found, if anything.
func ExampleOpenUser() {
	dir, err := os.MkdirTemp("", "pipelines") // a folder of our own; without one it is the user's
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	d, tuning, err := kit.OpenUser(vk.Options{CacheDir: dir})
	if errors.Is(err, vk.ErrNoLoader) || errors.Is(err, vk.ErrNoDevice) {
		fmt.Println(true, nil) // err says what to install
		return
	}
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	again, err := kit.UserTuning(d.Caps())
	fmt.Println((tuning == nil) == (again == nil), err)
	// Output: true <nil>
}
