package call

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/vk"
)

// A Space is what problems are drawn from.
type Space struct {
	Impls  []string      // paths, "auto" among them; nil: all that a kernel has
	DTypes []dtype.DType // nil: all
	// Soft is for software drivers, which compile matrix kernels for seconds and compute
	// at 1 GFLOP/s: narrow heads, small tiles, small sizes.
	Soft bool
	// Thorough is for software drivers that have time: wide heads for decoding, too, and TestDrawn
	// checks all calls.
	Thorough bool
	// Work bounds the float64 operations of the references of an average problem. One problem
	// in eight may take eight times as many. Larger problems are compared on a sample.
	Work float64
}

// Impl draws one of a kernel's paths that the Space has; false: it has none of them.
func (s Space) Impl(rng *rand.Rand, all ...string) (string, bool) { return draw(rng, all, s.Impls) }

// DType draws one of a kernel's formats that the Space has; false: it has none of them.
func (s Space) DType(rng *rand.Rand, all ...dtype.DType) (dtype.DType, bool) {
	return draw(rng, all, s.DTypes)
}

// draw draws one of all that is also in some; nil is everything.
func draw[T comparable](rng *rand.Rand, all, some []T) (x T, ok bool) {
	list := both(all, some)
	if len(list) == 0 {
		return x, false
	}
	return list[rng.IntN(len(list))], true
}

// both returns what of all is also in some; nil is everything.
func both[T comparable](all, some []T) []T {
	if some == nil {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(x T) bool { return !slices.Contains(some, x) })
}

// Halves returns the Space without float32, if anything is left.
func (s Space) Halves() Space {
	if half := both([]dtype.DType{dtype.Float16, dtype.BFloat16}, s.DTypes); len(half) > 0 {
		s.DTypes = half
	}
	return s
}

// Supports returns nil if a kernel on a device computes the call on its path, and otherwise the reason,
// which wraps vk.ErrUnsupported.
func Supports(c Call, caps *vk.Caps) error {
	_, err := c.Host().Choose(caps, c.Pass())
	return err
}

// one draws one of a list.
func one[T any](rng *rand.Rand, list ...T) T { return list[rng.IntN(len(list))] }

// chance is true once in n times.
func chance(rng *rand.Rand, n int) bool { return rng.IntN(n) == 0 }

// sizeOf draws a size for a Space.
func sizeOf(rng *rand.Rand, s Space, most int) int {
	if s.Soft {
		most = min(most, 70)
	}
	return Size(rng, most)
}

// Size draws a size from 1 to most: near an edge of a tile (a multiple of 8 to 256, one
// or two beside it) more often than not, else any, small ones more often.
func Size(rng *rand.Rand, most int) int {
	n := 0
	switch rng.IntN(8) {
	case 0:
		n = 1 + rng.IntN(4)
	case 1, 2, 3, 4:
		tile := 8 << rng.IntN(6)
		n = tile*(1+rng.IntN(4)) + rng.IntN(5) - 2
	default:
		n = 1 + int(float64(most)*rng.Float64()*rng.Float64())
	}
	return max(1, min(n, most))
}

// drawn returns the Draw of a kernel that takes all formats of a Space: draw draws the rest of a call.
func drawn[T any, C interface {
	*T
	Call
}](draw func(c C, family, rng *rand.Rand, s Space)) func(family, rng *rand.Rand, s Space) Call {
	return func(family, rng *rand.Rand, s Space) Call {
		t, ok := s.DType(family, dtype.All()...)
		if !ok {
			return nil
		}
		c := C(new(T))
		Field(c, "dtype").Set(reflect.ValueOf(t))
		draw(c, family, rng, s)
		return c
	}
}

// drawLayout draws the layouts of tensors, since kernels are compiled for aligned rows and others.
func drawLayout(family *rand.Rand) string {
	switch family.IntN(8) {
	case 0, 1:
		return "p"
	case 2, 3, 4:
		return "a"
	case 5:
		return "o"
	}
	mixed := make([]byte, 7)
	for i := range mixed {
		mixed[i] = "pao"[family.IntN(3)]
	}
	return string(mixed)
}

// DrawData draws what the inputs of a call hold, and how tensors lie. Half of the time the numbers are ordinary.
func DrawData(family, rng *rand.Rand) Data {
	d := Data{Seed: rng.Uint64(), Kind: NormalKind, Layout: drawLayout(family), Workspace: rng.IntN(4) == 0}
	if rng.IntN(2) == 0 {
		d.Kind = []string{NormalKind, OutlierKind, OutlierKind, ZeroKind}[rng.IntN(4)]
		d.Magnitude, d.Second = TenTo(rng, -4, 4), TenTo(rng, -4, 4)
	}
	return d
}

// TenTo draws a power of ten.
func TenTo(rng *rand.Rand, least, most float64) float64 {
	return float64(float32(math.Pow(10, least+(most-least)*rng.Float64())))
}

// Budget returns the operations that the reference of a problem may take.
func (s Space) Budget(rng *rand.Rand) float64 {
	if rng.IntN(8) == 0 {
		return 8 * s.Work
	}
	return s.Work
}

// Within makes sizes smaller until a cost that grows with them is within a budget.
func Within(rng *rand.Rand, limit float64, cost func() float64, sizes ...*int) {
	for cost() > limit {
		n := sizes[rng.IntN(len(sizes))]
		for _, other := range sizes { // the larger of two
			if rng.IntN(2) == 0 && *other > *n {
				n = other
			}
		}
		*n = max(1, *n*3/4)
	}
}

// TypicalCaps are the capabilities of a typical device. Configurations are drawn again until they
// are feasible on it.
func TypicalCaps(soft bool) *vk.Caps {
	caps := &vk.Caps{
		Name: "NVIDIA H200", Type: vk.DiscreteGPU, VendorID: chips.VendorNVIDIA, DriverID: 4, ComputeUnits: 132, APIVersion: vk.MakeVersion(1, 4, 0),
		SubgroupSize: 32, MinSubgroupSize: 32, MaxSubgroupSize: 32, MaxSharedMemoryBytes: 49152, MaxWorkgroupInvocations: 1024, MaxWorkgroupSize: [3]uint32{1024, 1024, 64},
		MaxStorageBufferRange: 1<<32 - 1, MaxWorkgroupCount: [3]uint32{1<<31 - 1, 1<<16 - 1, 1<<16 - 1},
		Float16: true, Int8: true, Int16: true, Storage16: true, Storage8: true, ScalarBlockLayout: true, VulkanMemoryModel: true,
		SubgroupSizeControl: true, ComputeFullSubgroups: true, CoopMat: true, BFloat16Type: true, BFloat16CoopMat: true,
		CoopMat2:          vk.CoopMat2{Reductions: true, Conversions: true, PerElement: true, FlexibleDimensions: true},
		SubgroupOps:       vk.SubgroupBasic | vk.SubgroupVote | vk.SubgroupArithmetic | vk.SubgroupBallot | vk.SubgroupShuffle,
		MaxStorageBuffers: 32, MaxPushConstantsBytes: 256, MaxAllocationBytes: 1<<32 - 1, MaxBufferBytes: 1<<32 - 1,
	}
	size, deep := uint32(16), uint32(32)
	if soft {
		size, deep = 8, 8
		caps.Name, caps.VendorID, caps.DriverID, caps.ComputeUnits = "llvmpipe", 0x10005, 13, 0
		caps.SubgroupSize, caps.MinSubgroupSize, caps.MaxSubgroupSize, caps.MaxSharedMemoryBytes, caps.BFloat16Type, caps.BFloat16CoopMat = 8, 8, 8, 32768, false, false
		caps.MaxWorkgroupSubgroups = 32
	}
	for _, t := range []vk.ComponentType{vk.F16, vk.BF16} {
		caps.CoopMatShapes = append(caps.CoopMatShapes, vk.CoopMatShape{M: size, N: size, K: size, A: t, B: t, C: vk.F32, Result: vk.F32, Scope: vk.ScopeSubgroup})
	}
	caps.CoopMatShapes = append(caps.CoopMatShapes, vk.CoopMatShape{M: size, N: size, K: deep, A: vk.S8, B: vk.S8, C: vk.S32, Result: vk.S32, Scope: vk.ScopeSubgroup})
	if !soft {
		caps.CoopMatShapes = append(caps.CoopMatShapes, vk.CoopMatShape{M: 16, N: 8, K: 16, A: vk.F16, B: vk.F16, C: vk.F32, Result: vk.F32, Scope: vk.ScopeSubgroup})
	}
	return caps
}

// Smaller returns calls that are a step simpler, the boldest step first: no configuration, a part
// of a list, no size or half of it, one less, a feature less, plain data. Each is valid. A DType and a
// path stay.
func Smaller(c Call) (list []Call) {
	add := func(change func(to Call)) {
		q := Copy(c)
		change(q)
		if t, ok := q.(interface{ Tidy() }); ok {
			t.Tidy()
		}
		if !reflect.DeepEqual(q, c) && q.Validate() == nil {
			list = append(list, q)
		}
	}
	var bold, halves, less, rest []change
	walk(reflect.ValueOf(c).Elem(), nil, func(path []int, name string, f reflect.Value) {
		off := change{path, reflect.Zero(f.Type())}
		switch {
		case name == "DType" || name == "Impl" || f.IsZero():
		case f.Kind() == reflect.Slice:
			n := f.Len()
			for _, part := range [][2]int{{0, 1}, {n - 1, n}, {0, (n + 1) / 2}, {n / 2, n}, {min(1, n-1), n}} {
				bold = append(bold, change{path, f.Slice(part[0], part[1])})
			}
			for i := range f.Len() {
				x := f.Index(i)
				if x.Kind() == reflect.Int && x.Int() > 0 {
					halves = append(halves, change{path, element(f, i, reflect.ValueOf(int(x.Int()/2)))})
					less = append(less, change{path, element(f, i, reflect.ValueOf(int(x.Int()-1)))})
				}
				for j := 0; n <= 8 && j < partsOf(x); j++ {
					if y := partOf(x, j); y.Kind() == reflect.Int && y.Int() > 0 {
						halves = append(halves, change{path, element(f, i, with(x, j, reflect.ValueOf(int(y.Int()/2))))})
						less = append(less, change{path, element(f, i, with(x, j, reflect.ValueOf(int(y.Int()-1))))})
					} else if y.Kind() != reflect.Int && !y.IsZero() {
						rest = append(rest, change{path, element(f, i, with(x, j, reflect.Zero(y.Type())))})
					}
				}
			}
		case f.Kind() == reflect.Pointer || f.Kind() == reflect.String:
			bold = append(bold, off)
		case f.Kind() == reflect.Int && f.Int() > 1:
			halves = append(halves, off, change{path, reflect.ValueOf(int((f.Int() + 1) / 2)).Convert(f.Type())})
			less = append(less, change{path, reflect.ValueOf(int(f.Int() - 1)).Convert(f.Type())})
		default:
			rest = append(rest, off)
		}
	})
	for _, x := range slices.Concat(bold, halves, less, rest) {
		add(func(to Call) { reflect.ValueOf(to).Elem().FieldByIndex(x.path).Set(x.to) })
	}
	for _, change := range []func(d *Data){
		func(d *Data) { d.Kind, d.Magnitude, d.Second = NormalKind, 0, 0 },
		func(d *Data) { d.Mean, d.Equal = 0, false },
		func(d *Data) { d.Layout = "p" },
		func(d *Data) { d.Workspace = false },
	} {
		add(func(to Call) { change(to.Given()) })
	}
	return list
}

// A change sets a field.
type change struct {
	path []int
	to   reflect.Value
}

// element returns a copy of a slice with another element i.
func element(of reflect.Value, i int, x reflect.Value) reflect.Value {
	list := reflect.AppendSlice(reflect.MakeSlice(of.Type(), 0, of.Len()), of)
	list.Index(i).Set(x)
	return list
}

// partsOf returns how many fields a struct has, or elements an array; 0 of other types. PartOf returns one.
func partsOf(x reflect.Value) int {
	switch x.Kind() {
	case reflect.Struct:
		return x.NumField()
	case reflect.Array:
		return x.Len()
	}
	return 0
}

func partOf(x reflect.Value, i int) reflect.Value {
	if x.Kind() == reflect.Struct {
		return x.Field(i)
	}
	return x.Index(i)
}

// with returns a copy of a struct or an array with another part i.
func with(of reflect.Value, i int, x reflect.Value) reflect.Value {
	y := reflect.New(of.Type()).Elem()
	y.Set(of)
	partOf(y, i).Set(x)
	return y
}

// walk calls f with each field of a struct, and of structs in it, but for Data and Direction.
func walk(v reflect.Value, path []int, f func(path []int, name string, x reflect.Value)) {
	for i := range v.NumField() {
		field, at := v.Type().Field(i), append(slices.Clone(path), i)
		switch {
		case !field.IsExported() || field.Type == reflect.TypeFor[Data]() || field.Type == reflect.TypeFor[Direction]():
		case field.Type.Kind() == reflect.Struct:
			walk(v.Field(i), at, f)
		default:
			f(at, field.Name, v.Field(i))
		}
	}
}
