package vk

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
)

// The tests of this file need no Vulkan.

func TestResult(t *testing.T) {
	require.EqualError(t, callError("vkQueueSubmit", -4), "vk: vkQueueSubmit: VK_ERROR_DEVICE_LOST")
	require.NoError(t, callError("call", 2))
	require.Equal(t, "VkResult(-77)", Result(-77).Error())
}

func TestChoose(t *testing.T) {
	list := []Caps{
		{Name: "llvmpipe (LLVM)", Type: CPU},
		{Name: "Intel Arc", Type: IntegratedGPU},
		{Name: "NVIDIA H200", Type: DiscreteGPU},
		{Name: "NVIDIA H100", Type: DiscreteGPU},
		{Name: "Old Card", Type: DiscreteGPU, Unusable: "it is old"},
		{Name: "Venus", Type: VirtualGPU},
	}
	for _, c := range []struct {
		list     []Caps
		selector string
		want     int
		err      error
	}{
		{list, "", 2, nil},                     // the first of the discrete ones
		{list[:2], "", 1, nil},                 // integrated before CPU
		{list[:1], "", 0, nil},                 // CPU where there is nothing else
		{[]Caps{list[0], list[5]}, "", 1, nil}, // virtual before CPU
		{[]Caps{list[5], list[1]}, "", 1, nil}, // integrated before virtual
		{[]Caps{list[4], list[0]}, "", 1, nil}, // what cannot be used does not count
		{list[4:5], "", 0, ErrUnsupported},     //
		{list, "0", 0, nil},                    // by number
		{list, "3", 3, nil},                    //
		{list, "nvidia", 2, nil},               // by name, the first
		{list, "h100", 3, nil},                 //
		{list, "100", 3, nil},                  // a number that is no position may be in a name
		{list, "6", 0, ErrNoDevice},            //
		{list, "-1", 0, ErrNoDevice},           //
		{list, "radeon", 0, ErrNoDevice},       //
		{list, "old", 0, ErrUnsupported},       //
		{list, "4", 0, ErrUnsupported},         //
	} {
		got, err := choose(c.list, c.selector)
		require.Equal(t, c.want, got, "%q of %d", c.selector, len(c.list))
		require.ErrorIs(t, err, c.err, "%q of %d", c.selector, len(c.list))
	}
}

func TestCapsJSON(t *testing.T) {
	caps := Caps{
		Name: "card", Type: DiscreteGPU, APIVersion: MakeVersion(1, 4, 312), SubgroupOps: SubgroupBasic | SubgroupShuffle,
		CoopMat:       true,
		CoopMatShapes: []CoopMatShape{{M: 16, N: 8, K: 32, A: BF16, B: U8, C: F32, Result: S32, Scope: ScopeSubgroup, Saturating: true}},
		CoopMat2:      CoopMat2{Reductions: true, Flexible: []FlexShape{{MGranularity: 16, A: F8E4M3, Scope: ScopeWorkgroup, WorkgroupInvocations: 128}}},
		Heaps:         []Heap{{SizeBytes: 1 << 40, DeviceLocal: true}},
	}
	text, err := json.Marshal(caps)
	require.NoError(t, err)
	for _, want := range []string{`"discrete GPU"`, `"1.4.312"`, `"bf16"`, `"subgroup"`, `"basic|shuffle"`} {
		require.Contains(t, string(text), want)
	}
	var back Caps
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, caps, back)
	for _, bad := range []string{`{"Type":"toaster"}`, `{"APIVersion":"new"}`, `{"SubgroupOps":"basic|magic"}`,
		`{"CoopMatShapes":[{"A":"f17"}]}`, `{"CoopMatShapes":[{"Scope":"planet"}]}`} {
		require.Error(t, json.Unmarshal([]byte(bad), &back), bad)
	}
}

// TestFeatureChain: what is true in Caps is turned on, and nothing else. Extensions are for devices that
// lack the feature in their core.
func TestFeatureChain(t *testing.T) {
	c, api, has := Caps{}, MakeVersion(1, 2, 0), map[string]bool{}
	for _, f := range c.features() {
		has[f.extension] = true
	}
	known, _ := c.available(api, has)
	require.Len(t, known, len(c.features()))
	for _, on := range []bool{false, true} {
		c.Float64, c.Int64, c.Int16 = on, on, on
		want := [][]uint32{make([]uint32, numCoreFeatures)}
		want[0][coreFloat64], want[0][coreInt64], want[0][coreInt16] = onOff(on), onOff(on), onOff(on)
		for _, f := range known {
			var words []uint32
			for _, bit := range f.bits {
				if bit != nil {
					*bit = on
				}
				words = append(words, onOff(on && bit != nil))
			}
			want = append(want, words)
		}
		ch := c.enabled(api, has)
		for i, words := range append(want, []uint32{1}) { // timeline semaphores
			require.Equal(t, words, unsafe.Slice((*uint32)(unsafe.Add(ch.links[i], linkBytes)), len(words)))
		}
		require.Len(t, ch.links, len(want)+1)
		ch.free()
	}
	older, _ := c.available(api, nil)
	newer, extensions := c.available(MakeVersion(1, 3, 0), nil)
	require.True(t, 0 < len(older) && len(older) < len(newer) && len(newer) < len(known))
	require.Empty(t, extensions)
}

// TestComputeUnits fills the structure that each driver would, and reads the
// number back.
func TestComputeUnits(t *testing.T) {
	for _, c := range []struct {
		has   []string
		sType uint32
		words []uint32
		want  uint32
	}{
		{[]string{"VK_NV_shader_sm_builtins"}, 1000154001, []uint32{132, 64}, 132},
		{[]string{"VK_AMD_shader_core_properties", "VK_AMD_shader_core_properties2"}, 1000227000, []uint32{7, 96}, 96},
		{[]string{"VK_AMD_shader_core_properties"}, 1000185000, []uint32{6, 2, 8, 2, 16, 32, 1, 2, 3, 4, 5, 6, 7, 8}, 96},
	} {
		has := map[string]bool{}
		for _, name := range c.has {
			has[name] = true
		}
		var ch chain
		read := computeUnitsQuery(&ch, has)
		require.Equal(t, c.sType, *(*uint32)(ch.links[0]), c.has)
		copy(unsafe.Slice((*uint32)(unsafe.Add(ch.links[0], linkBytes)), len(c.words)), c.words)
		require.Equal(t, c.want, read(), c.has)
		ch.free()
	}
	var ch chain
	require.Zero(t, computeUnitsQuery(&ch, nil)())
	require.Empty(t, ch.links)
}

func TestComponentType(t *testing.T) {
	for v, want := range map[uint32]ComponentType{0: F16, 1: F32, 3: S8, 5: S32, 7: U8, 9: U32, 10: U64, 11: UnknownComponent,
		1000141000: BF16, 1000491002: F8E4M3, 1000491003: F8E5M2, 1000672000: UnknownComponent} {
		require.Equal(t, want, componentType(v))
	}
}

func TestFindType(t *testing.T) {
	// The memory types of an H200, and one for all.
	h200 := []memoryType{{0, 1}, {deviceLocal, 0}, {hostVisible | hostCoherent, 1}, {hostVisible | hostCoherent | hostCached, 1}, {deviceLocal | hostVisible | hostCoherent, 0}}
	unified := []memoryType{{deviceLocal | hostVisible | hostCoherent | hostCached, 0}}
	for _, c := range []struct {
		types   []memoryType
		allowed uint32
		wishes  []memoryWish
		want    int
		ok      bool
	}{
		{h200, ^uint32(0), inDevice, 1, true},
		{h200, ^uint32(0), forUpload, 2, true},
		{h200, ^uint32(0), forDownload, 3, true}, // cached, or reading takes seconds
		{h200, 1 << 4, inDevice, 4, true},
		{h200, 1 << 0, inDevice, 0, true},
		{h200, 1<<1 | 1<<2, forDownload, 2, true},
		{h200, 1 << 1, forUpload, 0, false},
		{unified, 1, inDevice, 0, true},
		{unified, 1, forUpload, 0, true},
		{unified, 1, forDownload, 0, true},
	} {
		got, ok := findType(c.types, c.allowed, c.wishes)
		require.Equal(t, c.want, got, c)
		require.Equal(t, c.ok, ok, c)
	}
	const graphics, compute, transfer = 1, 2, 4
	for _, c := range []struct {
		families []queueFamily
		want     int
	}{
		{[]queueFamily{{graphics | compute | transfer, 16, 64}, {transfer, 2, 64}, {compute, 8, 64}}, 0},
		{[]queueFamily{{graphics, 1, 64}, {compute, 1, 0}, {compute, 1, 36}}, 2}, // with timestamps
		{[]queueFamily{{compute, 1, 0}}, 0},
		{[]queueFamily{{compute, 0, 64}, {graphics, 1, 64}}, -1},
		{nil, -1},
	} {
		got, ok := computeFamily(c.families)
		require.Equal(t, c.want, got, c)
		require.Equal(t, c.want >= 0, ok, c)
	}
}

func TestElapsedNanoseconds(t *testing.T) {
	for _, c := range []struct {
		from, to uint64
		bits     uint32
		period   float64
		want     float64
	}{
		{100, 350, 64, 1, 250},
		{100, 350, 64, 0.5, 125},
		{1<<36 - 10, 5, 36, 2, 30},              // the counter wrapped around
		{^uint64(0), 1, 64, 1, 2},               //
		{7, 7, 40, 1, 0},                        //
		{5 | 1<<50, 6 | 1<<51, 36, 1, 1},        // bits beyond the valid ones mean nothing
		{0, 1 << 53, 64, 1e-3, (1 << 53) / 1e3}, //
	} {
		require.Equal(t, c.want, elapsedNanoseconds(c.from, c.to, c.bits, c.period))
	}
}

// TestStructs: what push constants and specializations may be made of.
func TestStructs(t *testing.T) {
	of := func(fields ...any) any { // a struct of zeros
		var list []reflect.StructField
		for i, x := range fields {
			list = append(list, reflect.StructField{Name: string(rune('A' + i)), Type: reflect.TypeOf(x)})
		}
		return reflect.Zero(reflect.StructOf(list)).Interface()
	}
	type two struct{ A, B uint32 }
	for _, good := range []any{of(), of(uint32(0), int32(0), float32(0)), of(uint64(0), uint32(0), uint32(0)), of([3]uint32{}, two{})} {
		got, err := checkParams(reflect.TypeOf(good))
		require.NoError(t, err)
		require.Equal(t, reflect.TypeOf(good).Size(), uintptr(got))
	}
	for _, bad := range []any{ // the first two have holes
		of(uint32(0), uint64(0)), of(uint64(0), uint32(0)), of(false), of(uint16(0)), of(new(uint32)), of(0), of([]uint32{}), uint32(0),
	} {
		_, err := checkParams(reflect.TypeOf(bad))
		require.Error(t, err, "%T", bad)
	}
	got, err := specWords(struct {
		A uint32
		B int32
		C float32
		D bool
		F two
		E bool
	}{7, -2, 1.5, true, two{8, 9}, false})
	require.NoError(t, err)
	require.Equal(t, []uint32{7, 0xfffffffe, 0x3fc00000, 1, 8, 9, 0}, got)
	for _, bad := range []any{of(uint64(0)), of(""), of(0), of(of(0)), 7, &struct{}{}} {
		_, err := specWords(bad)
		require.Error(t, err, "%T", bad)
	}
}

func TestSubgroups(t *testing.T) {
	control := Caps{MinSubgroupSize: 16, MaxSubgroupSize: 64, SubgroupSizeControl: true, ComputeFullSubgroups: true}
	fixed := Caps{MinSubgroupSize: 32, MaxSubgroupSize: 32}
	vague := Caps{MinSubgroupSize: 16, MaxSubgroupSize: 64}
	for _, c := range []struct {
		caps Caps
		o    KernelOptions
		want int
		err  error
	}{
		{control, KernelOptions{}, 0, nil},
		{control, KernelOptions{SubgroupSize: 16, FullSubgroups: true}, 16, nil},
		{control, KernelOptions{SubgroupSize: 64}, 64, nil},
		{control, KernelOptions{SubgroupSize: 8}, 0, ErrUnsupported},
		{control, KernelOptions{SubgroupSize: 128}, 0, ErrUnsupported},
		{control, KernelOptions{SubgroupSize: 48}, 0, ErrUnsupported},
		{fixed, KernelOptions{SubgroupSize: 32}, 0, nil}, // there is no other
		{fixed, KernelOptions{SubgroupSize: 16}, 0, ErrUnsupported},
		{fixed, KernelOptions{FullSubgroups: true}, 0, ErrUnsupported},
		{vague, KernelOptions{SubgroupSize: 32}, 0, ErrUnsupported},
	} {
		got, err := requiredSubgroupSize(&c.caps, c.o)
		require.Equal(t, c.want, got, "%+v", c.o)
		require.ErrorIs(t, err, c.err, "%+v", c.o)
	}
	caps := Caps{MaxWorkgroupSize: [3]uint32{1024, 128, 64}, MaxWorkgroupInvocations: 1024, MaxWorkgroupSubgroups: 32}
	for _, c := range []struct {
		size     [3]uint32
		subgroup int
		want     error
	}{
		{[3]uint32{128, 8, 1}, 0, nil},
		{[3]uint32{1, 1, 64}, 0, nil},
		{[3]uint32{0, 128, 0}, 8, nil},
		{[3]uint32{1025, 1, 1}, 0, ErrUnsupported},
		{[3]uint32{1, 1, 65}, 0, ErrUnsupported},
		{[3]uint32{128, 9, 1}, 0, ErrUnsupported},
		{[3]uint32{1 << 31, 1 << 31, 1 << 31}, 0, ErrUnsupported},
		{[3]uint32{256, 1, 1}, 8, nil},
		{[3]uint32{257, 1, 1}, 8, ErrUnsupported},
		{[3]uint32{1024, 1, 1}, 32, nil},
	} {
		require.ErrorIs(t, checkWorkgroup(&caps, c.size, c.subgroup), c.want, c)
	}
	caps.MaxWorkgroupSubgroups = 0 // no limit of its own
	require.NoError(t, checkWorkgroup(&caps, [3]uint32{1024, 1, 1}, 8))
}

// TestKernelStats has the names of NVIDIA and RADV, and each format of a number.
func TestKernelStats(t *testing.T) {
	for _, c := range []struct {
		all                             []Statistic
		registers, code, shared, spills uint64
	}{
		{[]Statistic{{"Register Count", 255}, {"Binary Size", 17000}, {"Shared Memory Size", 22528}, {"Local Memory Size", 1<<36 + 64}}, 255, 17000, 22528, 64},
		{[]Statistic{{"VGPRs", 96}, {"Code size", 5000}, {"LDS size", 1024}, {"Scratch size", 16}, {"SGPRs", 40}, {"Spilled VGPRs", 3}}, 96, 5000, 1024, 16},
	} {
		s := KernelStats{All: c.all}
		s.name()
		require.Equal(t, []uint64{c.registers, c.code, c.shared, c.spills}, []uint64{s.Registers, s.CodeBytes, s.SharedBytes, s.SpillBytes})
	}
	for in, want := range map[rawStatistic]float64{
		{"", 0, 0xdead_0000_0001}: 1, {"", 1, ^uint64(0)}: -1, {"", 2, 1 << 40}: 1 << 40, {"", 3, 0x3ff8000000000000}: 1.5,
	} {
		require.Equal(t, want, in.value(), in)
	}
}

// TestWholeBytes: a kernel may load 16 bytes around the last element, and a buffer of the
// device's largest size gets no more than that size.
func TestWholeBytes(t *testing.T) {
	d := &Device{caps: Caps{MaxAllocationBytes: 1 << 20, MaxBufferBytes: 1 << 20, MaxStorageBufferRange: 1<<20 - 1}}
	for bytes, want := range map[int64]int64{1: 16, 2: 16, 16: 16, 17: 32, 1<<20 - 20: 1<<20 - 16, 1<<20 - 15: 1<<20 - 12, 1<<20 - 2: 1 << 20} {
		require.Equal(t, want, d.wholeBytes(bytes))
	}
}

// TestBlocks: rows without gaps are one region of a copy, axes without gaps one axis.
func TestBlocks(t *testing.T) {
	for _, c := range []struct {
		shape, strides []int
		waste          int
		want           blocks
	}{
		{[]int{4, 6}, []int{6, 1}, 1, blocks{10, 48, nil, nil}},
		{[]int{4, 6}, []int{1, 4}, 1, blocks{10, 48, nil, nil}},
		{[]int{4, 6}, []int{8, 1}, 1, blocks{10, 12, []int64{4}, []int64{16}}},
		{[]int{3, 1, 5, 6}, []int{90, 7, 6, 1}, 1, blocks{10, 60, []int64{3}, []int64{180}}},
		{[]int{4, 6}, []int{1, 10}, 1, blocks{10, 8, []int64{6}, []int64{20}}},
		{[]int{4, 6}, []int{2, 16}, 1, blocks{10, 2, []int64{6, 4}, []int64{32, 4}}},
		{[]int{4, 6}, []int{2, 16}, 8, blocks{10, 2 * 87, nil, nil}},
		{[]int{4, 6}, []int{2, 160}, 8, blocks{10, 14, []int64{6}, []int64{320}}},
		{[]int{9, 6}, []int{0, 1}, 8, blocks{10, 12, nil, nil}},
	} {
		got, _ := Tensor{DType: dtype.Float16, Shape: c.shape, Strides: c.strides, Offset: 5}.blocks(c.waste)
		require.Equal(t, c.want, got, c)
	}
}

// TestCheckCache: of a cache file nothing reaches the driver but the data of a whole one of this device.
func TestCheckCache(t *testing.T) {
	header, sum := []byte("flashvk1 device"), sha256.Sum256([]byte("pipelines"))
	good := slices.Concat(header, sum[:], []byte("pipelines"))
	require.Equal(t, "pipelines", string(checkCache(good, header)))
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1
		require.Nil(t, checkCache(bad, header), i)
		require.Nil(t, checkCache(good[:i], header), i)
	}
}

// TestSpans compares spans with a set of bytes.
func TestSpans(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var s spans
	var set [64]bool
	for range 3000 {
		start := rng.Int64N(60)
		end := start + 1 + rng.Int64N(4)
		require.Equal(t, slices.Contains(set[start:end], true), s.meet(start, end))
		add := rng.IntN(2) == 0
		if add {
			s.add(start, end)
		} else if slices.Contains(set[start:end], false) { // remove is for what is there
			continue
		} else {
			s.remove(start, end)
		}
		for i := start; i < end; i++ {
			set[i] = add
		}
	}
}

// TestLack names what a module needs and a device lacks.
func TestLack(t *testing.T) {
	c := Caps{Float16: true}
	require.Empty(t, c.lack([]uint32{1, 9, 61}), "shaders, float16 and subgroups")
	require.Equal(t, "16-bit storage", c.lack([]uint32{1, 9, 4433}))
	require.Equal(t, "cooperative matrices", c.lack([]uint32{6022}))
}
