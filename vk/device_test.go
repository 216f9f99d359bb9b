package vk_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

func TestList(t *testing.T) {
	d := vktest.Open(t)
	list, err := vk.List()
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range list {
		t.Logf("%d: %s, %v, Vulkan %v, driver %s %s, unusable %q", c.Index, c.Name, c.Type, c.APIVersion, c.DriverName, c.DriverInfo, c.Unusable)
		if c.Index != i {
			t.Errorf("device %d has index %d", i, c.Index)
		}
	}
	// What Open found is what List says.
	got, want := d.Caps(), list[d.Caps().Index]
	if got.Name != want.Name || got.CoopMat != want.CoopMat || len(got.CoopMatShapes) != len(want.CoopMatShapes) || got.Float16 != want.Float16 {
		t.Errorf("Open has\n%+v, List\n%+v", got, want)
	}
}

// TestCaps checks what Vulkan guarantees, which a misread structure breaks.
func TestCaps(t *testing.T) {
	c := vktest.Open(t).Caps()
	checks := map[string]bool{
		"name":             c.Name != "" && c.DriverName != "",
		"version":          c.APIVersion >= vk.MakeVersion(1, 2, 0) && c.APIVersion < vk.MakeVersion(2, 0, 0),
		"subgroup size":    c.SubgroupSize >= 1 && c.SubgroupSize <= 128 && c.SubgroupSize&(c.SubgroupSize-1) == 0,
		"subgroup range":   c.MinSubgroupSize <= c.SubgroupSize && c.SubgroupSize <= c.MaxSubgroupSize && c.MaxSubgroupSize <= 128,
		"subgroup ops":     c.SubgroupOps.Has(vk.SubgroupBasic),
		"shared memory":    c.MaxSharedMemoryBytes >= 16384 && c.MaxSharedMemoryBytes <= 1<<20,
		"invocations":      c.MaxWorkgroupInvocations >= 128 && c.MaxWorkgroupInvocations <= 1<<16,
		"workgroup count":  c.MaxWorkgroupCount[0] >= 65535 && c.MaxWorkgroupCount[1] >= 65535,
		"push constants":   c.MaxPushConstantsBytes >= 128,
		"storage buffers":  c.MaxStorageBuffers >= 4,
		"storage range":    c.MaxStorageBufferRange >= 1<<27,
		"allocation":       c.MaxAllocationBytes >= 1<<30 && c.MaxAllocationBytes != 1<<63 && c.MaxBufferBytes >= 1<<30,
		"allocations":      c.MaxAllocations >= 4096,
		"offset alignment": c.MinStorageBufferOffsetAlignment >= 1 && c.MinStorageBufferOffsetAlignment <= 256,
		"timestamps":       c.TimestampBits == 0 || c.TimestampBits >= 36 && c.TimestampBits <= 64 && c.TimestampPeriod > 0,
		"heaps":            len(c.Heaps) > 0 && c.Heaps[0].SizeBytes > 1<<20,
		"shapes":           c.CoopMat == (len(c.CoopMatShapes) > 0),
		"flexible":         c.CoopMat2.FlexibleDimensions == (len(c.CoopMat2.Flexible) > 0),
	}
	for what, ok := range checks {
		if !ok {
			t.Errorf("%s cannot be right: %+v", what, c)
		}
	}
	for _, s := range c.CoopMatShapes {
		if s.M == 0 || s.N == 0 || s.K == 0 || s.M > 256 || s.Scope < vk.ScopeDevice || s.Scope > vk.ScopeQueueFamily {
			t.Errorf("shape %+v cannot be right", s)
		}
	}
}

func TestHeaps(t *testing.T) {
	d := vktest.Open(t)
	heaps, err := d.Heaps()
	if err != nil || len(heaps) != len(d.Caps().Heaps) {
		t.Fatalf("Heaps = %v, %v", heaps, err)
	}
	local := false
	for i, h := range heaps {
		local = local || h.DeviceLocal
		if h.SizeBytes != d.Caps().Heaps[i].SizeBytes {
			t.Errorf("heap %d has %d bytes now, %d at Open", i, h.SizeBytes, d.Caps().Heaps[i].SizeBytes)
		}
		if d.Caps().MemoryBudget && (h.BudgetBytes == 0 || h.BudgetBytes > h.SizeBytes) {
			t.Errorf("heap %d has a budget of %d of %d bytes", i, h.BudgetBytes, h.SizeBytes)
		}
	}
	if !local {
		t.Error("no heap is in the device")
	}
}

func TestOpenRefuses(t *testing.T) {
	vktest.Open(t)
	for _, selector := range []string{"no such device", "99", "-1"} {
		d, err := vk.Open(vk.Options{Device: selector})
		if d != nil || !errors.Is(err, vk.ErrNoDevice) {
			t.Errorf("Open(%q) = %v, %v, want ErrNoDevice", selector, d, err)
		}
		wantError(t, selector, err, selector)
	}
}

func TestNoDriver(t *testing.T) {
	vktest.Open(t)
	t.Setenv("VK_DRIVER_FILES", filepath.Join(t.TempDir(), "none.json"))
	if _, err := vk.Open(vk.Options{}); !errors.Is(err, vk.ErrNoDevice) {
		t.Errorf("Open without a driver: %v, want ErrNoDevice", err)
	}
	_, err := vk.List()
	if !errors.Is(err, vk.ErrNoDevice) {
		t.Errorf("List without a driver: %v, want ErrNoDevice", err)
	}
	wantError(t, "List", err, "apt install mesa-vulkan-drivers") // what helps
}

// TestNoLoader runs where no Vulkan is installed.
func TestNoLoader(t *testing.T) {
	_, err := vk.List()
	if !errors.Is(err, vk.ErrNoLoader) {
		t.Skip("there is a Vulkan loader")
	}
	wantError(t, "List", err, "libvulkan.so.1")
	wantError(t, "List", err, "apt install libvulkan1")
	for range 2 { // the second attempt fails alike
		if d, err := vk.Open(vk.Options{Validate: true}); d != nil || !errors.Is(err, vk.ErrNoLoader) {
			t.Errorf("Open = %v, %v, want ErrNoLoader", d, err)
		}
	}
}

// TestReopen opens a device more often than NVIDIA's driver can be loaded by one process. Only
// there can it fail: lavapipe stays loaded, or can be loaded again.
func TestReopen(t *testing.T) {
	if testing.Short() {
		t.Skip("opens a device 40 times")
	}
	for i := range 40 {
		d, err := vk.Open(vk.Options{})
		if err != nil {
			t.Fatalf("device number %d: %v", i, err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTwoDevices(t *testing.T) {
	a, b := vktest.Open(t), vktest.Open(t)
	xa, xb := tensor(t, a, "xa", 1), tensor(t, b, "xb", 2)
	ya, yb := tensor(t, a, "ya", 10), tensor(t, b, "yb", 20)
	ca, cb := newCmd(t, a), newCmd(t, b)
	axpy(t, a).Dispatch(ca, vk.Groups{}, axpyParams{N: 1, A: 1}, xa, ya)
	axpy(t, b).Dispatch(cb, vk.Groups{}, axpyParams{N: 1, A: 1}, xb, yb)
	submit(t, ca)
	submit(t, cb)
	wantTensor(t, ya, 11)
	wantTensor(t, yb, 22)

	// What belongs to the other device is refused.
	for what, record := range map[string]func(*vk.Cmd){
		"tensor":    func(c *vk.Cmd) { axpy(t, a).Dispatch(c, vk.Groups{}, axpyParams{}, xa, yb) },
		"kernel":    func(c *vk.Cmd) { axpy(t, b).Dispatch(c, vk.Groups{}, axpyParams{}, xa, ya) },
		"fill":      func(c *vk.Cmd) { c.Fill(xb.Buffer, 0, 4, 0) },
		"copy from": func(c *vk.Cmd) { c.Copy(xa.Buffer, 0, xb.Buffer, 0, 4) },
		"copy to":   func(c *vk.Cmd) { c.Copy(xb.Buffer, 0, xa.Buffer, 0, 4) },
	} {
		ca.Reset()
		record(ca)
		wantError(t, what, ca.Submit(background()), "another device")
	}

	// One device closes, the other goes on.
	c := openOwn(t, vk.Options{})
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	submit(t, cb)
	wantTensor(t, yb, 24)
}

func TestCloseListsLeaks(t *testing.T) {
	d := openOwn(t, vk.Options{Name: "leaky"})
	b, err := d.NewBuffer("forgotten", 64)
	if err != nil {
		t.Fatal(err)
	}
	c, err := d.NewCmd("lost")
	if err != nil {
		t.Fatal(err)
	}
	timer, err := d.NewTimer(3)
	if err != nil {
		t.Fatal(err)
	}
	k, err := vk.NewKernel[axpyParams](d, "stray", axpySPIRV, nil, vk.KernelOptions{})
	if err != nil {
		t.Fatal(err)
	}
	axpy(t, d) // belongs to the device: no leak
	scratch := c.Scratch("part of lost", 64)
	wantError(t, "Close", d.Close(), `"leaky"`, "4 objects", `buffer "forgotten"`, `cmd "lost"`, `timer "of 3"`, `kernel "stray"`)

	// Everything is closed now; using or closing it does no harm.
	if err := d.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	wantError(t, "Upload", b.Upload(background(), 0, make([]byte, 4)), "closed")
	wantError(t, "Submit", c.Submit(background()), "is closed")
	c.Reset()
	wantError(t, "Reset", c.Err(), "is closed")
	_, err = timer.Elapsed(0, 1)
	wantError(t, "Elapsed", err, "closed")
	_, err = d.NewBuffer("late", 64)
	wantError(t, "NewBuffer", err, `"leaky" is closed`)
	_, err = d.NewCmd("late")
	wantError(t, "NewCmd", err, `"leaky" is closed`)
	_, err = d.NewTimer(1)
	wantError(t, "NewTimer", err, `"leaky" is closed`)
	_, err = d.NewTensor("late", dtype.Float32, 4)
	wantError(t, "NewTensor", err, `"leaky" is closed`)
	_, err = vk.CachedKernel[axpyParams](d, "axpy", axpySPIRV, axpySpec{Scale: 1}, vk.KernelOptions{})
	wantError(t, "CachedKernel", err, `"leaky" is closed`)
	_, err = d.Heaps()
	wantError(t, "Heaps", err, `"leaky" is closed`)
	b.Close()
	scratch.Close()
	c.Close()
	timer.Close()
	k.Close()
}

func TestCloseNil(t *testing.T) {
	(*vk.Device)(nil).Close()
	(*vk.Buffer)(nil).Close()
	(*vk.Cmd)(nil).Close()
	(*vk.Timer)(nil).Close()
	(*vk.Kernel[axpyParams])(nil).Close()
	vk.Tensor{}.Close()
	(&vk.Buffer{}).Close()
	(&vk.Timer{}).Close()
}

func TestPipelineCache(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "if needed")
	compile := func(want string) (file string, content []byte) {
		t.Helper()
		d := openOwn(t, vk.Options{CacheDir: dir})
		y := tensor(t, d, "y", 1)
		c := newCmd(t, d)
		axpy(t, d).Dispatch(c, vk.Groups{}, axpyParams{N: 1, A: 1}, y, y)
		submit(t, c)
		c.Close()
		y.Close()
		if err := d.Close(); err != nil {
			t.Fatalf("%s: %v", want, err)
		}
		if err := d.CacheErr(); err != nil {
			t.Errorf("%s: CacheErr = %v", want, err)
		}
		list, _ := filepath.Glob(filepath.Join(dir, "*"))
		if len(list) != 1 || filepath.Ext(list[0]) != ".vkcache" {
			t.Fatalf("%s: the folder holds %v, want one cache", want, list)
		}
		content, err := os.ReadFile(list[0])
		if err != nil {
			t.Fatal(err)
		}
		return list[0], content
	}
	file, first := compile("cold")
	before, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	_, again := compile("warm")
	after, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(again) != string(first) {
		t.Log("the driver writes another cache for the same kernel")
	} else if !os.SameFile(before, after) {
		t.Error("the file was replaced without news")
	}
	for what, damage := range map[string][]byte{
		"empty":         {},
		"text":          []byte("not a cache"),
		"cut":           first[:len(first)-1],
		"damaged":       append(append([]byte(nil), first[:len(first)/2]...), make([]byte, len(first)-len(first)/2)...),
		"other version": append([]byte("flashvk0"), first[8:]...),
	} {
		if err := os.WriteFile(file, damage, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, got := compile(what); len(got) <= len(damage)/2 || string(got[:8]) != "flashvk1" {
			t.Errorf("%s: the file was not replaced", what)
		}
	}
}

func TestPipelineCacheUnusable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	d := openOwn(t, vk.Options{CacheDir: file}) // a file is no folder
	wantError(t, "CacheErr", d.CacheErr(), "pipeline cache")
	axpy(t, d)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestValidationMessage provokes an error that only the layer sees.
func TestValidationMessage(t *testing.T) {
	d := openValidated(t)
	// A capability that no device of ours has enabled, and that axpy has no use for.
	const header = 20
	geometry := []byte{17, 0, 2, 0, 2, 0, 0, 0} // OpCapability Geometry
	misfit := slices.Concat(axpySPIRV[:header], geometry, axpySPIRV[header:])
	k, err := vk.NewKernel[axpyParams](d, "misfit", misfit, nil, vk.KernelOptions{})
	if err != nil {
		t.Fatal(err)
	}
	k.Close()
	c, err := d.NewCmd("after")
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, "Submit", c.Submit(background()), "validation layer", "VUID-VkShaderModuleCreateInfo-pCode-08740")
	if err := c.Submit(background()); err != nil {
		t.Errorf("second Submit: %v, but the message was reported", err)
	}
	c.Close()
	wantError(t, "Close", d.Close(), "validation layer", "VUID-VkShaderModuleCreateInfo-pCode-08740")
}
