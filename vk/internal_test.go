package vk

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/flashvk/flashvk/dtype"
)

// The tests of this file need no Vulkan.

func TestResult(t *testing.T) {
	err := callError("vkQueueSubmit", -4)
	if got, want := err.Error(), "vk: vkQueueSubmit: VK_ERROR_DEVICE_LOST"; got != want {
		t.Errorf("error is %q, want %q", got, want)
	}
	for _, c := range []struct {
		result int32
		want   error
	}{{-1, ErrOutOfHostMemory}, {-2, ErrOutOfDeviceMemory}, {-4, ErrDeviceLost}} {
		err := callError("call", c.result)
		for _, sentinel := range []error{ErrOutOfHostMemory, ErrOutOfDeviceMemory, ErrDeviceLost, ErrUnsupported} {
			if errors.Is(err, sentinel) != (sentinel == c.want) {
				t.Errorf("errors.Is(%v, %v) = %v", err, sentinel, sentinel != c.want)
			}
		}
	}
	for _, r := range []int32{0, 2, 5} {
		if err := callError("call", r); err != nil {
			t.Errorf("callError(%d) = %v, which is no failure", r, err)
		}
	}
	if got := Result(-77).Error(); got != "VkResult(-77)" {
		t.Errorf("unknown result is %q", got)
	}
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
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("choose(%d devices, %q) = %d, %v, want %d, %v", len(c.list), c.selector, got, err, c.want, c.err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"discrete GPU"`, `"1.4.312"`, `"bf16"`, `"subgroup"`, `"basic|shuffle"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is not in %s", want, text)
		}
	}
	var back Caps
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	// Scope 0 of unset shapes does not occur; everything set must come back.
	if !reflect.DeepEqual(caps, back) {
		t.Errorf("after a round trip\n got %+v\nwant %+v", back, caps)
	}
	for _, bad := range []string{`{"Type":"toaster"}`, `{"APIVersion":"new"}`, `{"SubgroupOps":"basic|magic"}`,
		`{"CoopMatShapes":[{"A":"f17"}]}`, `{"CoopMatShapes":[{"Scope":"planet"}]}`} {
		if err := json.Unmarshal([]byte(bad), &back); err == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
}

// TestFeatureChain: what is true in Caps is turned on, and nothing else.
func TestFeatureChain(t *testing.T) {
	c, api := Caps{}, MakeVersion(1, 2, 0)
	has := map[string]bool{}
	for _, f := range c.features() {
		has[f.extension] = true
	}
	known, extensions := c.available(api, has)
	if len(known) != len(c.features()) || len(extensions) == 0 {
		t.Fatalf("%d of %d structures are available, with %v", len(known), len(c.features()), extensions)
	}
	check := func(name string, want uint32) {
		t.Helper()
		ch := c.enabled(api, has)
		defer ch.free()
		if len(ch.links) != len(known)+2 { // the core features before, timeline semaphores behind
			t.Fatalf("%s: %d structures, want %d", name, len(ch.links), len(known)+2)
		}
		core := unsafe.Slice((*uint32)(unsafe.Add(ch.links[0], linkBytes)), numCoreFeatures)
		for i, got := range core {
			wanted := uint32(0)
			if i == coreFloat64 || i == coreInt64 || i == coreInt16 {
				wanted = want
			}
			if got != wanted {
				t.Errorf("%s: core feature %d is %d, want %d", name, i, got, wanted)
			}
		}
		for i, f := range known {
			payload := unsafe.Slice((*uint32)(unsafe.Add(ch.links[i+1], linkBytes)), len(f.bits))
			for j, bit := range f.bits {
				if wanted := want * onOff(bit != nil); payload[j] != wanted {
					t.Errorf("%s: feature %d of structure %d is %d, want %d", name, j, f.sType, payload[j], wanted)
				}
			}
		}
	}
	check("none", 0)
	for _, f := range known {
		for _, bit := range f.bits {
			if bit != nil {
				*bit = true
			}
		}
	}
	c.Float64, c.Int64, c.Int16 = true, true, true
	check("all", 1)
	// Extensions are for devices that lack the feature in their core.
	older, _ := c.available(api, nil)
	newer, extensions := c.available(MakeVersion(1, 3, 0), nil)
	if len(older) == 0 || len(newer) <= len(older) || len(newer) >= len(known) || len(extensions) != 0 {
		t.Errorf("without extensions Vulkan 1.2 has %d structures, 1.3 %d, with extensions %v", len(older), len(newer), extensions)
	}
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
		{has: []string{"VK_KHR_cooperative_matrix"}},
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
		if len(ch.links) > 0 {
			if got := *(*uint32)(ch.links[0]); got != c.sType {
				t.Errorf("%v: asks for structure %d, want %d", c.has, got, c.sType)
			}
			copy(unsafe.Slice((*uint32)(unsafe.Add(ch.links[0], linkBytes)), len(c.words)), c.words)
		} else if c.sType != 0 {
			t.Errorf("%v: asks for nothing", c.has)
		}
		if got := read(); got != c.want {
			t.Errorf("%v: %d units, want %d", c.has, got, c.want)
		}
		ch.free()
	}
}

func TestComponentType(t *testing.T) {
	for v, want := range map[uint32]ComponentType{0: F16, 1: F32, 3: S8, 5: S32, 7: U8, 9: U32, 10: U64, 11: UnknownComponent,
		1000141000: BF16, 1000491002: F8E4M3, 1000491003: F8E5M2, 1000672000: UnknownComponent} {
		if got := componentType(v); got != want {
			t.Errorf("componentType(%d) = %v, want %v", v, got, want)
		}
	}
}

func TestFindType(t *testing.T) {
	// The memory types of an H200: see h200_vulkan_caps.
	h200 := []memoryType{{0, 1}, {deviceLocal, 0}, {hostVisible | hostCoherent, 1}, {hostVisible | hostCoherent | hostCached, 1}, {deviceLocal | hostVisible | hostCoherent, 0}}
	unified := []memoryType{{deviceLocal | hostVisible | hostCoherent | hostCached, 0}}
	for _, c := range []struct {
		types   []memoryType
		allowed uint32
		wishes  []memoryWish
		want    int
		ok      bool
	}{
		{h200, ^uint32(0), inDevice(), 1, true},
		{h200, ^uint32(0), forUpload(), 2, true},
		{h200, ^uint32(0), forDownload(), 3, true}, // cached, or reading takes seconds
		{h200, 1 << 4, inDevice(), 4, true},
		{h200, 1 << 0, inDevice(), 0, true},
		{h200, 1<<1 | 1<<2, forDownload(), 2, true},
		{h200, 1 << 1, forUpload(), 0, false},
		{unified, 1, inDevice(), 0, true},
		{unified, 1, forUpload(), 0, true},
		{unified, 1, forDownload(), 0, true},
	} {
		if got, ok := findType(c.types, c.allowed, c.wishes); got != c.want || ok != c.ok {
			t.Errorf("findType(%v, %b, %v) = %d, %v, want %d, %v", c.types, c.allowed, c.wishes, got, ok, c.want, c.ok)
		}
	}
}

func TestComputeFamily(t *testing.T) {
	const graphics, compute, transfer = 1, 2, 4
	for _, c := range []struct {
		families []queueFamily
		want     int
		ok       bool
	}{
		{[]queueFamily{{graphics | compute | transfer, 16, 64}, {transfer, 2, 64}, {compute, 8, 64}}, 0, true},
		{[]queueFamily{{graphics, 1, 64}, {compute, 1, 0}, {compute, 1, 36}}, 2, true}, // with timestamps
		{[]queueFamily{{compute, 1, 0}}, 0, true},
		{[]queueFamily{{compute, 0, 64}, {graphics, 1, 64}}, -1, false},
		{nil, -1, false},
	} {
		if got, ok := computeFamily(c.families); got != c.want || ok != c.ok {
			t.Errorf("computeFamily(%v) = %d, %v, want %d, %v", c.families, got, ok, c.want, c.ok)
		}
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
		if got := elapsedNanoseconds(c.from, c.to, c.bits, c.period); got != c.want {
			t.Errorf("elapsedNanoseconds(%d, %d, %d, %v) = %v, want %v", c.from, c.to, c.bits, c.period, got, c.want)
		}
	}
}

func TestCheckCache(t *testing.T) {
	header, data := []byte("flashvk1 of this driver"), []byte("pipelines")
	sum := sha256.Sum256(data)
	file := append(append(append([]byte(nil), header...), sum[:]...), data...)
	if got := checkCache(file, header); string(got) != string(data) {
		t.Errorf("a good file gives %q, want %q", got, data)
	}
	for i := range file { // any damaged byte
		bad := append([]byte(nil), file...)
		bad[i] ^= 1
		if got := checkCache(bad, header); got != nil {
			t.Errorf("a file with byte %d damaged gives %q", i, got)
		}
	}
	for n := range file { // any shorter file
		if got := checkCache(file[:n], header); got != nil {
			t.Errorf("a file cut to %d bytes gives %q", n, got)
		}
	}
	if got := checkCache(file, []byte("flashvk1 of other driver")); got != nil {
		t.Errorf("a file of another driver gives %q", got)
	}
}

func TestCheckParams(t *testing.T) {
	type inner struct{ A, B uint32 }
	for _, c := range []struct {
		params any
		bytes  int // -1: refused
	}{
		{struct{}{}, 0},
		{struct {
			A uint32
			B int32
			C float32
		}{}, 12},
		{struct {
			A    uint64
			B, C uint32
		}{}, 16},
		{struct {
			A [3]uint32
			B inner
		}{}, 20},
		{struct {
			A uint32
			B uint64
		}{}, -1}, // a hole
		{struct {
			A uint64
			B uint32
		}{}, -1}, // a hole at the end
		{struct{ A bool }{}, -1},
		{struct{ A uint16 }{}, -1},
		{struct{ A *uint32 }{}, -1},
		{struct{ A int }{}, -1},
		{struct{ A []uint32 }{}, -1},
		{uint32(0), -1},
	} {
		got, err := checkParams(reflect.TypeOf(c.params))
		if c.bytes >= 0 && (err != nil || got != c.bytes) || c.bytes < 0 && err == nil {
			t.Errorf("checkParams(%T) = %d, %v, want %d", c.params, got, err, c.bytes)
		}
	}
}

func TestSpecWords(t *testing.T) {
	got, err := specWords(struct {
		A uint32
		B int32
		C float32
		D bool
		F struct{ A, B uint32 }
		E bool
	}{7, -2, 1.5, true, struct{ A, B uint32 }{8, 9}, false})
	if want := []uint32{7, 0xfffffffe, 0x3fc00000, 1, 8, 9, 0}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("specWords = %x, %v, want %x", got, err, want)
	}
	if got, err := specWords(nil); got != nil || err != nil {
		t.Errorf("specWords(nil) = %v, %v", got, err)
	}
	for _, bad := range []any{struct{ A uint64 }{}, struct{ A string }{}, struct{ A int }{}, struct{ A struct{ B int } }{}, 7, &struct{}{}} {
		if _, err := specWords(bad); err == nil {
			t.Errorf("specWords(%T) gave no error", bad)
		}
	}
}

func TestRequiredSubgroupSize(t *testing.T) {
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
		if got, err := requiredSubgroupSize(&c.caps, c.o); got != c.want || !errors.Is(err, c.err) {
			t.Errorf("requiredSubgroupSize(%+v) = %d, %v, want %d, %v", c.o, got, err, c.want, c.err)
		}
	}
}

func TestCheckWorkgroup(t *testing.T) {
	caps := Caps{MaxWorkgroupSize: [3]uint32{128, 128, 64}, MaxWorkgroupInvocations: 256}
	for size, ok := range map[[3]uint32]bool{
		{128, 2, 1}: true, {1, 1, 64}: true, {0, 0, 0}: true, {0, 128, 0}: true,
		{129, 1, 1}: false, {1, 1, 65}: false, {128, 3, 1}: false, {1 << 31, 1 << 31, 1 << 31}: false,
	} {
		if err := checkWorkgroup(&caps, size); (err == nil) != ok || err != nil && !errors.Is(err, ErrUnsupported) {
			t.Errorf("checkWorkgroup(%v) = %v, want ok %v", size, err, ok)
		}
	}
}

func TestCheckSubgroups(t *testing.T) {
	caps := Caps{MaxWorkgroupSubgroups: 32}
	for _, c := range []struct {
		caps Caps
		size int
		x    uint32
		ok   bool
	}{{caps, 8, 256, true}, {caps, 8, 257, false}, {caps, 0, 1024, true}, {caps, 32, 1024, true}, {Caps{}, 8, 1024, true}, {caps, 8, 0, true}} {
		if err := checkSubgroups(&c.caps, c.size, [3]uint32{c.x, 1, 1}); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrUnsupported) {
			t.Errorf("checkSubgroups(%d of %d) = %v, want ok %v", c.x, c.size, err, c.ok)
		}
	}
}

func TestKernelStats(t *testing.T) {
	s := KernelStats{All: []Statistic{{"Register Count", 255}, {"Binary Size", 17000}, {"Shared Memory Size", 22528}, {"Local Memory Size", 1<<36 + 64}}}
	s.name()
	if s.Registers != 255 || s.CodeBytes != 17000 || s.SharedBytes != 22528 || s.SpillBytes != 64 {
		t.Errorf("NVIDIA's names give %+v", s)
	}
	s = KernelStats{All: []Statistic{{"VGPRs", 96}, {"Code size", 5000}, {"LDS size", 1024}, {"Scratch size", 16}, {"SGPRs", 40}, {"Spilled VGPRs", 3}}}
	s.name()
	if s.Registers != 96 || s.CodeBytes != 5000 || s.SharedBytes != 1024 || s.SpillBytes != 16 {
		t.Errorf("RADV's names give %+v", s)
	}
	for _, c := range []struct {
		in   rawStatistic
		want float64
	}{{rawStatistic{"", 0, 0xdead_0000_0001}, 1}, {rawStatistic{"", 1, ^uint64(0)}, -1}, {rawStatistic{"", 2, 1 << 40}, 1 << 40}, {rawStatistic{"", 3, 0x3ff8000000000000}, 1.5}} {
		if got := c.in.value(); got != c.want {
			t.Errorf("value of %+v is %v, want %v", c.in, got, c.want)
		}
	}
}

// TestWholeBytes: a kernel may load 16 bytes around the last element, and a buffer of
// the device's largest size is not made larger than that.
func TestWholeBytes(t *testing.T) {
	d := &Device{caps: Caps{MaxAllocationBytes: 1 << 20, MaxBufferBytes: 1 << 20, MaxStorageBufferRange: 1<<20 - 1}}
	for bytes, want := range map[int64]int64{1: 16, 2: 16, 16: 16, 17: 32, 1<<20 - 20: 1<<20 - 16, 1<<20 - 15: 1<<20 - 12, 1<<20 - 2: 1 << 20} {
		if got := d.wholeBytes(bytes); got != want {
			t.Errorf("%d bytes become %d, want %d", bytes, got, want)
		}
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
		x := Tensor{DType: dtype.Float16, Shape: c.shape, Strides: c.strides, Offset: 5}
		if got, _ := x.blocks(c.waste); !reflect.DeepEqual(got, c.want) {
			t.Errorf("shape %v, strides %v: %v, want %v", c.shape, c.strides, got, c.want)
		}
	}
}
