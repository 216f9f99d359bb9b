package vk_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// TestList: what Open found is what List says.
func TestList(t *testing.T) {
	d := vktest.Open(t)
	list := must(vk.List())
	for i, c := range list {
		require.Equal(t, i, c.Index)
	}
	got, want := *d.Caps(), list[d.Caps().Index]
	heaps := must(d.Heaps())
	require.Len(t, heaps, len(got.Heaps))
	local := false
	for i, h := range heaps {
		local = local || h.DeviceLocal
		require.Equal(t, got.Heaps[i].SizeBytes, h.SizeBytes)
		require.True(t, !got.MemoryBudget || h.BudgetBytes > 0 && h.BudgetBytes <= h.SizeBytes, "%+v", h)
	}
	require.True(t, local, "no heap is in the device")
	got.Heaps, want.Heaps = nil, nil // with their present use
	require.Equal(t, want, got)
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
		require.True(t, ok, what)
	}
	for _, s := range c.CoopMatShapes {
		if s.M == 0 || s.N == 0 || s.K == 0 || s.M > 256 || s.Scope < vk.ScopeDevice || s.Scope > vk.ScopeQueueFamily {
			t.Errorf("shape %+v cannot be right", s)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	vktest.Open(t)
	for _, selector := range []string{"no such device", "99", "-1"} {
		_, err := vk.Open(vk.Options{Device: selector})
		require.ErrorIs(t, err, vk.ErrNoDevice)
		wantError(t, selector, err, selector)
	}
	t.Setenv("VK_DRIVER_FILES", filepath.Join(t.TempDir(), "none.json"))
	_, err := vk.Open(vk.Options{})
	require.ErrorIs(t, err, vk.ErrNoDevice)
	_, err = vk.List()
	require.ErrorIs(t, err, vk.ErrNoDevice)
	wantError(t, "List", err, "apt install mesa-vulkan-drivers") // what helps
}

// TestNoLoader runs where no Vulkan is installed.
func TestNoLoader(t *testing.T) {
	_, err := vk.List()
	if !errors.Is(err, vk.ErrNoLoader) {
		t.Skip("there is a Vulkan loader")
	}
	wantError(t, "List", err, "libvulkan.so.1", "apt install libvulkan1")
	for range 2 { // the second attempt fails alike
		_, err := vk.Open(vk.Options{Validate: true})
		require.ErrorIs(t, err, vk.ErrNoLoader)
	}
}

// TestReopen opens a device more often than NVIDIA's driver can be loaded by one process. Only
// there can it fail: lavapipe stays loaded, or can be loaded again.
func TestReopen(t *testing.T) {
	if testing.Short() {
		t.Skip("opens a device 40 times")
	}
	for range 40 {
		d := must(vk.Open(vk.Options{}))
		require.NoError(t, d.Close())
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
	require.NoError(t, openOwn(t, vk.Options{}).Close())
	submit(t, cb)
	wantTensor(t, yb, 24)
}

// TestLower refuses a tensor of 16 bits on a device without their storage.
func TestLower(t *testing.T) {
	d := vktest.Open(t, func(o *vk.Options) { o.Lower = func(c *vk.Caps) { c.Storage16 = false } })
	x, half := tensor(t, d, "x", 1), vktest.Tensor(t, d, dtype.Float16, 2)
	c := newCmd(t, d)
	axpy(t, d).Dispatch(c, vk.Groups{}, axpyParams{}, half, x)
	wantError(t, "tensor", c.Submit(background()), "tensor 0 is float16, but the device has no 16-bit storage")
}

func TestCloseListsLeaks(t *testing.T) {
	d := openOwn(t, vk.Options{Name: "leaky"})
	b := newBuffer(t, d, "forgotten", 64)
	c := must(d.NewCmd("lost"))
	timer := must(d.NewTimer(3))
	k := must(vk.NewKernel[axpyParams](d, "stray", axpySPIRV, nil, vk.KernelOptions{}))
	axpy(t, d) // belongs to the device: no leak
	scratch := c.Scratch("part of lost", 64)
	wantError(t, "Close", d.Close(), `"leaky"`, "4 objects", `buffer "forgotten"`, `cmd "lost"`, `timer "of 3"`, `kernel "stray"`)

	// Everything is closed now; using or closing it does no harm.
	require.NoError(t, d.Close())
	wantError(t, "Upload", b.Upload(background(), 0, make([]byte, 4)), "closed")
	wantError(t, "Submit", c.Submit(background()), "is closed")
	c.Reset()
	wantError(t, "Reset", c.Err(), "is closed")
	_, err := timer.Nanoseconds(0, 1)
	wantError(t, "Nanoseconds", err, "closed")
	for what, late := range map[string]func() error{
		"NewBuffer": func() error { _, err := d.NewBuffer("late", 64); return err },
		"NewCmd":    func() error { _, err := d.NewCmd("late"); return err },
		"NewTimer":  func() error { _, err := d.NewTimer(1); return err },
		"NewTensor": func() error { _, err := d.NewTensor("late", dtype.Float32, 4); return err },
		"Heaps":     func() error { _, err := d.Heaps(); return err },
		"kernels":   func() error { return make1[axpyParams](d, axpySPIRV, axpySpec{Scale: 1}, vk.KernelOptions{}) },
	} {
		wantError(t, what, late(), `"leaky" is closed`)
	}
	for _, o := range []interface{ Close() }{b, scratch, c, timer, k} {
		o.Close()
	}
	for _, o := range []interface{ Close() }{ // none of them was made
		(*vk.Buffer)(nil), (*vk.Cmd)(nil), (*vk.Timer)(nil), (*vk.Kernel[axpyParams])(nil), vk.Tensor{}, &vk.Buffer{}, &vk.Timer{},
	} {
		o.Close()
	}
	require.NoError(t, (*vk.Device)(nil).Close())
}

func TestPipelineCache(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "if needed")
	compile := func(dir string) error {
		d := openOwn(t, vk.Options{CacheDir: dir})
		y, c := tensor(t, d, "y", 1), newCmd(t, d)
		axpy(t, d).Dispatch(c, vk.Groups{}, axpyParams{N: 1, A: 1}, y, y)
		submit(t, c)
		c.Close()
		y.Close()
		require.NoError(t, d.Close())
		return d.CacheErr()
	}
	cache := func() (file string, content []byte, info os.FileInfo) {
		require.NoError(t, compile(dir))
		list := must(filepath.Glob(filepath.Join(dir, "*")))
		require.Len(t, list, 1)
		require.Equal(t, ".vkcache", filepath.Ext(list[0]))
		content = must(os.ReadFile(list[0]))
		info = must(os.Stat(list[0]))
		return list[0], content, info
	}
	file, first, before := cache()
	_, again, after := cache()
	if string(again) == string(first) { // else the driver writes another cache for the same kernel
		require.True(t, os.SameFile(before, after), "the file was replaced without news")
	}
	require.NoError(t, os.WriteFile(file, append([]byte("flashvk0"), first[8:]...), 0o644))
	_, got, _ := cache()
	require.Equal(t, "flashvk1", string(got[:8]), "another version was not replaced")
	wantError(t, "CacheErr", compile(file), "pipeline cache") // a file is no folder
}

// TestValidationMessage provokes an error that only the layer sees.
func TestValidationMessage(t *testing.T) {
	d := openValidated(t)
	// A capability that no device of ours has enabled, and that axpy has no use for.
	const header, message = 20, "VUID-VkShaderModuleCreateInfo-pCode-08740"
	geometry := []byte{17, 0, 2, 0, 2, 0, 0, 0} // OpCapability Geometry
	misfit := slices.Concat(axpySPIRV[:header], geometry, axpySPIRV[header:])
	k := must(vk.NewKernel[axpyParams](d, "misfit", misfit, nil, vk.KernelOptions{}))
	k.Close()
	c := newCmd(t, d)
	wantError(t, "Submit", c.Submit(background()), "validation layer", message)
	require.NoError(t, c.Submit(background()), "the message was reported")
	c.Close()
	wantError(t, "Close", d.Close(), "validation layer", message)
}

// TestCompileOnly: a device without memory and queue compiles what is recorded, and refuses the rest.
func TestCompileOnly(t *testing.T) {
	d := vktest.Open(t, func(o *vk.Options) { o.CompileOnly = true })
	x := tensor(t, d, "x", 1, 2, 3)
	require.ErrorContains(t, x.Download(t.Context(), make([]float32, 3)), "has no memory")
	_, err := d.Measure(func(c *vk.Cmd) error {
		axpy(t, d).Dispatch(c, vk.Groups{X: 1}, axpyParams{N: 3}, x, x)
		return nil
	})
	require.NoError(t, err)
	require.Len(t, d.CachedKernels(), 1)
	_, err = d.NewCmd("cmd")
	require.ErrorIs(t, err, vk.ErrUnsupported)
	require.ErrorContains(t, err, "only compiles")
}
