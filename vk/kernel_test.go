package vk_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// TestWorkgroups looks at the workgroup from inside.
func TestWorkgroups(t *testing.T) {
	d := vktest.Open(t)
	caps := d.Caps()
	for name, module := range map[string][]byte{"shape": shapeSPIRV, "shape13": shape13SPIRV} {
		if name == "shape13" && (caps.APIVersion < vk.MakeVersion(1, 3, 0) || !caps.Maintenance4) {
			continue
		}
		o := vk.KernelOptions{FullSubgroups: caps.ComputeFullSubgroups}
		if caps.SubgroupSizeControl {
			o.SubgroupSize = caps.MaxSubgroupSize
		}
		k := must(vk.NewKernel[struct{}](d, name, module, shapeSpec{WorkgroupSize: 128, Signed: -5}, o))
		defer k.Close()
		require.Equal(t, 1, k.Bindings())
		require.Equal(t, name, k.Name())
		out := must(d.NewTensor("out", dtype.Int32, 5))
		defer out.Close()
		require.NoError(t, out.Zero(background()))
		c := newCmd(t, d)
		k.Dispatch(c, vk.Groups{X: 3, Z: 2}, struct{}{}, out)
		submit(t, c)
		raw, got := make([]byte, 20), [5]int32{}
		require.NoError(t, out.DownloadRaw(background(), raw))
		must(binary.Decode(raw, binary.LittleEndian, &got))
		require.Equal(t, []int32{6, 128, -5}, []int32{got[0], got[1], got[4]}, "workgroups, their size, a constant")
		require.True(t, o.SubgroupSize == 0 || got[2] == int32(o.SubgroupSize), "subgroups of %d", got[2])
		require.True(t, !o.FullSubgroups || got[3]*got[2] == 128, "%d subgroups of %d", got[3], got[2])
	}
}

func TestNewKernelRefuses(t *testing.T) {
	d := vktest.Open(t)
	type large struct{ Words [65]uint32 }
	type hole struct {
		A uint32
		B uint64
	}
	var none vk.KernelOptions
	memory := d.Caps().MaxSharedMemoryBytes
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"no module":       {make1[axpyParams](d, nil, nil, none), "not a SPIR-V module"},
		"hole":            {make1[hole](d, axpySPIRV, nil, none), "has a hole before B"},
		"not a struct":    {make1[uint32](d, axpySPIRV, nil, none), "not a struct"},
		"large":           {make1[large](d, axpySPIRV, nil, none), "260 bytes of push constants"},
		"none":            {make1[struct{}](d, axpySPIRV, nil, none), "16 bytes of push constants, struct {} has 0"},
		"fewer":           {make1[spinParams](d, axpySPIRV, nil, none), "16 bytes of push constants, vk_test.spinParams has 4"},
		"more":            {make1[axpyParams](d, spinSPIRV, nil, none), "4 bytes of push constants, vk_test.axpyParams has 16"},
		"some":            {make1[axpyParams](d, shapeSPIRV, nil, none), "0 bytes of push constants, vk_test.axpyParams has 16"},
		"fewer constants": {make1[axpyParams](d, axpySPIRV, spinParams{}, none), "3 specialization constants, vk_test.spinParams has 1"},
		"more constants":  {make1[struct{}](d, shapeSPIRV, axpySpec{}, none), "2 specialization constants, vk_test.axpySpec has 3"},
		"spec":            {make1[axpyParams](d, axpySPIRV, struct{ A string }{}, none), "field A"},
		"workgroup": {
			make1[struct{}](d, shapeSPIRV, shapeSpec{WorkgroupSize: d.Caps().MaxWorkgroupInvocations + 1}, none), "the device has",
		},
		"subgroup 3":    {make1[axpyParams](d, axpySPIRV, nil, vk.KernelOptions{SubgroupSize: 3}), "subgroup size 3"},
		"subgroup 4096": {make1[axpyParams](d, axpySPIRV, nil, vk.KernelOptions{SubgroupSize: 4096}), "subgroup size 4096"},
		"shared memory": {
			make1[struct{}](d, sharedSPIRV, sharedSpec{N: memory / 32}, none), fmt.Sprintf("bytes of shared memory, the device has %d", memory),
		},
	} {
		wantError(t, name, c.err, `kernel "bad"`, c.want)
		unsupported := slices.Contains([]string{"large", "workgroup", "subgroup 3", "subgroup 4096", "shared memory"}, name)
		require.Equal(t, unsupported, errors.Is(c.err, vk.ErrUnsupported), name)
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
	get := func(spirv []byte, spec axpySpec, o vk.KernelOptions) *vk.Kernel[axpyParams] {
		k := must(vk.CachedKernel[axpyParams](d, "axpy", spirv, spec, o))
		return k
	}
	a := get(axpySPIRV, axpySpec{Scale: 1}, vk.KernelOptions{})
	require.True(t, *a == *get(axpySPIRV, axpySpec{Scale: 1}, vk.KernelOptions{}), "one kernel was made twice")
	require.True(t, *a == *get(bytes.Clone(axpySPIRV), axpySpec{Scale: 1}, vk.KernelOptions{}))
	require.False(t, *a == *get(axpySPIRV, axpySpec{Scale: 2}, vk.KernelOptions{}), "two specializations share a kernel")
	size := vk.KernelOptions{SubgroupSize: d.Caps().SubgroupSize}
	require.False(t, *a == *get(axpySPIRV, axpySpec{Scale: 1}, size), "two subgroup sizes share a kernel")
	list := d.CachedKernels()
	require.Len(t, list, 3)
	require.Equal(t, "axpy", list[0].Name)
	require.GreaterOrEqual(t, list[0].Stats.Created, list[2].Stats.Created, "the slowest first")
	a.Close() // no effect
	x, y := tensor(t, d, "x", 1), tensor(t, d, "y", 7)
	c := newCmd(t, d)
	a.Dispatch(c, vk.Groups{}, axpyParams{N: 1, A: 1}, x, y)
	submit(t, c)
	wantTensor(t, y, 8)

	_, err := vk.CachedKernel[axpyParams](d, "axpy", spinSPIRV, axpySpec{Scale: 1}, vk.KernelOptions{})
	wantError(t, "another module", err, `kernel "axpy"`, "another SPIR-V module")
	_, err = vk.CachedKernel[axpyParams](d, "axpy", axpySPIRV, struct{ F []int }{}, vk.KernelOptions{})
	wantError(t, "slice in spec", err, "plain fields")

	s := a.Stats()
	require.Positive(t, s.Created)
	require.Equal(t, len(s.All) > 0, s.Available)
	require.True(t, !s.Available || d.Caps().ExecutableStats)
}

func TestCached(t *testing.T) {
	d := vktest.Open(t)
	type key struct{ n int }
	calls, fail := 0, errors.New("not yet")
	want := func(n, value, after int, is error) {
		t.Helper()
		v, err := vk.Cached(d, key{n}, func() (int, error) {
			if calls++; calls == 1 {
				return 0, fail
			}
			return 10 * n, nil
		})
		require.Equal(t, is, err)
		require.Equal(t, value, v)
		require.Equal(t, after, calls)
	}
	want(4, 0, 1, fail)
	want(4, 40, 2, nil)
	want(4, 40, 2, nil)
	want(5, 50, 3, nil)
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
		got := must(vk.SharedBytes(sharedSPIRV, x.spec))
		require.Equal(t, x.want, got, x.spec)
	}
	_, err := vk.SharedBytes(nil, nil)
	require.Error(t, err)
	d := vktest.Open(t)
	want := must(vk.SharedBytes(sharedSPIRV, sharedSpec{3, true}))
	for _, less := range []int{0, 1} {
		d.Caps().MaxSharedMemoryBytes = uint32(want - less)
		k, err := vk.NewKernel[struct{}](d, "shared", sharedSPIRV, sharedSpec{3, true}, vk.KernelOptions{})
		require.Equal(t, less == 0, err == nil)
		k.Close()
	}
}
