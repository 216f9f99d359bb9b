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

// caps are those of a device with plain Vulkan 1.2.
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

// A kernel of one's own says which problem takes which tile: rows, the first that matches first.
func ExampleNewTable() {
	table := kit.NewTable(kit.Table[sumProblem, sumConfig, sumShape]{
		Kernel: "sum", Pass: kit.Forward, Paths: []string{"scalar"},
		Family: func(caps *vk.Caps) string { return "hopper" },
		Rows: []kit.Row[sumShape, sumConfig]{
			{Family: "hopper rdna4", Shape: sumShape{most: 1000}, Config: sumConfig{Threads: 64}},
			{Fill: 1, Config: sumConfig{Threads: 256}},
			{Config: sumConfig{Threads: 128}},
		},
		Format: func(*sumProblem) dtype.DType { return dtype.Float32 },
		Path:   func(*sumConfig) string { return "scalar" },
		Feasible: func(c *sumConfig, caps *vk.Caps, p *sumProblem) error {
			if c.Threads > int(caps.MaxWorkgroupInvocations) {
				return kit.Unsupported("sum", "%d threads", c.Threads)
			}
			return nil
		},
		Blocks: func(c *sumConfig, _ *vk.Caps, p *sumProblem) int { return p.N / c.Threads },
		None:   func(path string, _ *sumProblem) error { return kit.Unsupported("sum", "no row of %s", path) },
		Likeness: func(p *sumProblem) kit.Likeness {
			return kit.Likeness{Sizes: [4]kit.Size{{N: float64(p.N), Enough: 1 << 20}}}
		},
		Module:   func(*sumProblem, *sumConfig) string { return "hash of the module" },
		Validate: func(*sumProblem) error { return nil },
	})
	for _, n := range []int{500, 1 << 20} {
		c, _, err := table.Choose(caps, &sumProblem{n}, kit.Query[sumConfig]{Auto: []string{"scalar"}})
		fmt.Println(c, err)
	}
	fmt.Println(kit.Fill(caps, 55), kit.OneOf("rdna4", "hopper rdna4"), kit.SourceRow("hopper", "", "shape{most: 1000}", 0))
	// Output:
	// {64} <nil>
	// {128} <nil>
	// 5.5 true {Family: "hopper", Shape: shape{most: 1000}, Config:
}

type (
	sumProblem struct{ N int }
	sumConfig  struct{ Threads int }
	sumShape   struct{ most int } // 0: any
)

// Has implements kit.Shape.
func (s sumShape) Has(p *sumProblem) bool { return s.most == 0 || p.N <= s.most }
