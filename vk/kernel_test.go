package vk_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// TestSpecialization: every kind of constant arrives in its place.
func TestSpecialization(t *testing.T) {
	d := vktest.Open(t)
	for _, c := range []struct {
		spec any
		want float32
	}{
		{nil, 3}, // the shader's defaults: SCALE 1, NEGATE false, BIAS 0
		{axpySpec{Scale: 5}, 15},
		{axpySpec{Scale: 5, Negate: true}, -15},
		{axpySpec{Scale: 2, Bias: 0.5}, 6.5},
	} {
		k, err := vk.NewKernel[axpyParams](d, "axpy", axpySPIRV, c.spec, vk.KernelOptions{})
		if err != nil {
			t.Fatal(err)
		}
		x, y := tensor(t, d, "x", 3), tensor(t, d, "y", 0)
		cmd := newCmd(t, d)
		k.Dispatch(cmd, vk.Groups{}, axpyParams{N: 1, A: 1}, x, y)
		submit(t, cmd)
		wantTensor(t, y, c.want)
		k.Close()
		k.Close()
	}
}

// TestWorkgroups looks at the workgroup from inside.
func TestWorkgroups(t *testing.T) {
	d := vktest.Open(t)
	caps := d.Caps()
	for name, module := range map[string][]byte{"shape": shapeSPIRV, "shape13": shape13SPIRV} {
		if name == "shape13" && (caps.APIVersion < vk.MakeVersion(1, 3, 0) || !caps.Maintenance4) {
			continue
		}
		var o vk.KernelOptions
		if caps.SubgroupSizeControl {
			o.SubgroupSize = caps.MaxSubgroupSize
		}
		o.FullSubgroups = caps.ComputeFullSubgroups
		k, err := vk.NewKernel[struct{}](d, name, module, shapeSpec{WorkgroupSize: 128, Signed: -5}, o)
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		b := newBuffer(t, d, "out", 20)
		c := newCmd(t, d)
		c.Fill(b, 0, 20, 0)
		k.Dispatch(c, vk.Groups{X: 3, Z: 2}, struct{}{}, vk.View(b, dtype.Float32, 5))
		submit(t, c)
		raw := make([]byte, 20)
		if err := b.Download(background(), 0, raw); err != nil {
			t.Fatal(err)
		}
		var got [5]uint32
		for i := range got {
			got[i] = binary.LittleEndian.Uint32(raw[4*i:])
		}
		if got[0] != 6 || got[1] != 128 || int32(got[4]) != -5 {
			t.Errorf("%s: %d workgroups of %d, constant %d, want 6 of 128, -5", name, got[0], got[1], int32(got[4]))
		}
		if o.SubgroupSize != 0 && got[2] != o.SubgroupSize {
			t.Errorf("%s: subgroups of %d, want %d", name, got[2], o.SubgroupSize)
		}
		if o.FullSubgroups && got[3]*got[2] != 128 {
			t.Errorf("%s: %d subgroups of %d are not full", name, got[3], got[2])
		}
		if k.Bindings() != 1 || k.Name() != name {
			t.Errorf("kernel %q has %d bindings, want %q, 1", k.Name(), k.Bindings(), name)
		}
	}
}

func TestNewKernelRefuses(t *testing.T) {
	d := vktest.Open(t)
	caps := d.Caps()
	tooLarge := caps.MaxWorkgroupInvocations + 1
	type large struct{ Words [65]uint32 }
	for _, c := range []struct {
		name   string
		make   func() error
		want   string
		unsupp bool
	}{
		{"no module", func() error { return make1[axpyParams](d, nil, nil, vk.KernelOptions{}) }, "not a SPIR-V module", false},
		{"hole", func() error {
			return make1[struct {
				A uint32
				B uint64
			}](d, axpySPIRV, nil, vk.KernelOptions{})
		}, "has a hole before B", false},
		{"not a struct", func() error { return make1[uint32](d, axpySPIRV, nil, vk.KernelOptions{}) }, "not a struct", false},
		{"large", func() error { return make1[large](d, axpySPIRV, nil, vk.KernelOptions{}) }, "260 bytes of push constants", true},
		{"none", func() error { return make1[struct{}](d, axpySPIRV, nil, vk.KernelOptions{}) }, "the shader has 16 bytes of push constants, struct {} has 0", false},
		{"fewer", func() error { return make1[spinParams](d, axpySPIRV, nil, vk.KernelOptions{}) }, "the shader has 16 bytes of push constants, vk_test.spinParams has 4", false},
		{"more", func() error { return make1[axpyParams](d, spinSPIRV, nil, vk.KernelOptions{}) }, "the shader has 4 bytes of push constants, vk_test.axpyParams has 16", false},
		{"some", func() error { return make1[axpyParams](d, shapeSPIRV, nil, vk.KernelOptions{}) }, "the shader has 0 bytes of push constants, vk_test.axpyParams has 16", false},
		{"fewer constants", func() error {
			return make1[axpyParams](d, axpySPIRV, struct{ Scale uint32 }{1}, vk.KernelOptions{})
		}, "the shader has 3 specialization constants, struct { Scale uint32 } has 1", false},
		{"more constants", func() error {
			return make1[struct{}](d, shapeSPIRV, axpySpec{Scale: 1}, vk.KernelOptions{})
		}, "the shader has 2 specialization constants, vk_test.axpySpec has 3", false},
		{"spec", func() error { return make1[axpyParams](d, axpySPIRV, struct{ A string }{}, vk.KernelOptions{}) }, "field A", false},
		{"workgroup", func() error {
			return make1[struct{}](d, shapeSPIRV, shapeSpec{WorkgroupSize: tooLarge}, vk.KernelOptions{})
		}, "the device has", true},
		{"subgroup 3", func() error { return make1[axpyParams](d, axpySPIRV, nil, vk.KernelOptions{SubgroupSize: 3}) }, "subgroup size 3", true},
		{"subgroup 4096", func() error { return make1[axpyParams](d, axpySPIRV, nil, vk.KernelOptions{SubgroupSize: 4096}) }, "subgroup size 4096", true},
		{"shared memory", func() error {
			return make1[struct{}](d, sharedSPIRV, sharedSpec{N: caps.MaxSharedMemoryBytes / 32}, vk.KernelOptions{})
		}, fmt.Sprintf("bytes of shared memory, the device has %d", caps.MaxSharedMemoryBytes), true},
	} {
		err := c.make()
		wantError(t, c.name, err, `kernel "bad"`, c.want)
		if errors.Is(err, vk.ErrUnsupported) != c.unsupp {
			t.Errorf("%s: %v: wraps ErrUnsupported is %v, want %v", c.name, err, !c.unsupp, c.unsupp)
		}
	}
}

// make1 tries to make a kernel of the name "bad", both ways.
func make1[P any](d *vk.Device, spirv []byte, spec any, o vk.KernelOptions) error {
	k, err := vk.NewKernel[P](d, "bad", spirv, spec, o)
	k.Close()
	if _, err2 := vk.CachedKernel[P](d, "bad", spirv, spec, o); (err == nil) != (err2 == nil) {
		return errors.Join(err, err2)
	}
	return err
}

func TestCachedKernel(t *testing.T) {
	d := vktest.Open(t)
	get := func(spec axpySpec, o vk.KernelOptions) *vk.Kernel[axpyParams] {
		k, err := vk.CachedKernel[axpyParams](d, "axpy", axpySPIRV, spec, o)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	size := d.Caps().SubgroupSize
	a, same := get(axpySpec{Scale: 1}, vk.KernelOptions{}), get(axpySpec{Scale: 1}, vk.KernelOptions{})
	if *a != *same {
		t.Error("one kernel was made twice")
	}
	if b := get(axpySpec{Scale: 2}, vk.KernelOptions{}); *a == *b {
		t.Error("two specializations share a kernel")
	}
	if b := get(axpySpec{Scale: 1}, vk.KernelOptions{SubgroupSize: size}); *a == *b {
		t.Error("two subgroup sizes share a kernel")
	}
	if list := d.CachedKernels(); len(list) != 3 || list[0].Name != "axpy" || list[0].Stats.Created < list[2].Stats.Created {
		t.Errorf("CachedKernels = %+v, want 3, slowest first", list)
	}
	a.Close() // no effect
	x, y := tensor(t, d, "x", 1), tensor(t, d, "y", 7)
	c := newCmd(t, d)
	a.Dispatch(c, vk.Groups{}, axpyParams{N: 1, A: 1}, x, y)
	submit(t, c)
	wantTensor(t, y, 8)

	_, err := vk.CachedKernel[axpyParams](d, "axpy", spinSPIRV, axpySpec{Scale: 1}, vk.KernelOptions{})
	wantError(t, "another module", err, `kernel "axpy"`, "another SPIR-V module")
	copied := append([]byte(nil), axpySPIRV...)
	if k, err := vk.CachedKernel[axpyParams](d, "axpy", copied, axpySpec{Scale: 1}, vk.KernelOptions{}); err != nil || *k != *a {
		t.Errorf("a copy of the module gives %v, %v", k, err)
	}
	_, err = vk.CachedKernel[axpyParams](d, "axpy", axpySPIRV, struct{ F []int }{}, vk.KernelOptions{})
	wantError(t, "slice in spec", err, "plain fields")
}

func TestCached(t *testing.T) {
	d := vktest.Open(t)
	type key struct{ n int }
	calls, fail := 0, errors.New("not yet")
	get := func(n int) (int, error) {
		return vk.Cached(d, key{n}, func() (int, error) {
			if calls++; calls == 1 {
				return 0, fail
			}
			return 10 * n, nil
		})
	}
	if v, err := get(4); v != 0 || err != fail {
		t.Errorf("first try: %d, %v, want the error", v, err)
	}
	for range 2 {
		if v, err := get(4); v != 40 || err != nil || calls != 2 {
			t.Errorf("got %d, %v after %d calls, want 40 after 2", v, err, calls)
		}
	}
	if v, err := get(5); v != 50 || err != nil || calls != 3 {
		t.Errorf("got %d, %v after %d calls, want 50 after 3", v, err, calls)
	}
}

func TestStats(t *testing.T) {
	d := vktest.Open(t)
	s := axpy(t, d).Stats()
	if s.Created <= 0 || s.Created > time.Minute {
		t.Errorf("created in %v", s.Created)
	}
	if s.Available != (len(s.All) > 0) || s.Available && !d.Caps().ExecutableStats {
		t.Errorf("statistics available: %v, %d of them", s.Available, len(s.All))
	}
	if d.Caps().ExecutableStats {
		t.Logf("%+v", s)
		if s.Registers == 0 || s.CodeBytes == 0 {
			t.Logf("the driver uses names for its numbers that are not known here")
		}
	}
}

// TestSharedBytes has the sizes of shared.comp by hand, and lets a kernel have all that there is.
func TestSharedBytes(t *testing.T) {
	part := func(n int) int { return 32 * n } // the vec3 begins at 16 bytes, the word behind it at 28
	half := func(n int) int { return (8*n + 15) / 16 * 16 }
	for _, x := range []struct {
		spec sharedSpec
		want int
	}{
		{sharedSpec{3, false}, 32 + 32 + part(3) + half(3) + 16}, // 7 words
		{sharedSpec{2, false}, 32 + 32 + part(2) + half(2) + 16}, // 8 words
		{sharedSpec{2, true}, 32 + 512 + part(2) + half(2) + 16}, // 16 rows of quads
		{sharedSpec{10, true}, 64 + 1024 + part(10) + half(10) + 16},
		{sharedSpec{101, false}, 416 + 103*64 + part(101) + half(101) + 16},
	} {
		got, err := vk.SharedBytes(sharedSPIRV, x.spec)
		if err != nil || got != x.want {
			t.Errorf("%+v: %d bytes, %v, want %d", x.spec, got, err, x.want)
		}
	}
	if _, err := vk.SharedBytes(nil, nil); err == nil {
		t.Error("no module has shared memory")
	}
	if got, err := vk.SharedBytes(axpySPIRV, axpySpec{}); got != 0 || err != nil {
		t.Errorf("axpy has %d bytes, %v", got, err)
	}
	d := vktest.Open(t)
	want, err := vk.SharedBytes(sharedSPIRV, sharedSpec{3, true})
	if err != nil {
		t.Fatal(err)
	}
	for _, less := range []int{0, 1} {
		d.Caps().MaxSharedMemoryBytes = uint32(want - less)
		k, err := vk.NewKernel[struct{}](d, "shared", sharedSPIRV, sharedSpec{3, true}, vk.KernelOptions{})
		if (err == nil) != (less == 0) {
			t.Errorf("%d bytes of %d: %v", want, want-less, err)
		}
		k.Close()
	}
}
