package vk_test

import (
	"math"
	"reflect"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// TestTensorFormats: rounding to nearest even, infinities, NaN, subnormals.
func TestTensorFormats(t *testing.T) {
	d := vktest.Open(t)
	inf := float32(math.Inf(1))
	values := []float32{0, float32(math.Copysign(0, -1)), 1, -1, 1.0009765625, 1.00048828125, 1.00146484375, 1.00390625, 1.01171875,
		65504, 65519, 65520, -1e6, 1e-8, 6e-8, 3.4e38, inf, -inf, 1e-40}
	for _, format := range dtype.All() {
		x, err := d.NewTensor("x", format, len(values)+1)
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Upload(background(), append(values[:len(values):len(values)], float32(math.NaN()))); err != nil {
			t.Fatal(err)
		}
		got := download(t, x)
		for i, v := range values {
			if want := format.Round(v); math.Float32bits(got[i]) != math.Float32bits(want) {
				t.Errorf("%v: %v came back as %v, want %v", format, v, got[i], want)
			}
		}
		if nan := got[len(values)]; nan == nan {
			t.Errorf("%v: NaN came back as %v", format, nan)
		}
		raw := make([]byte, x.NumElements()*format.Size())
		if err := x.DownloadRaw(background(), raw); err != nil {
			t.Fatal(err)
		}
		if one := raw[2*format.Size() : 3*format.Size()]; one[len(one)-1] != 0x3f && one[len(one)-1] != 0x3c {
			t.Errorf("%v: 1 is stored as %x, not little endian", format, one)
		}
		if err := x.UploadRaw(background(), make([]byte, len(raw))); err != nil {
			t.Fatal(err)
		}
		if got := download(t, x); got[2] != 0 {
			t.Errorf("%v: raw zeros came back as %v", format, got[2])
		}
		x.Close()
	}
}

// TestTensorRaw: lengths and masks go as bytes, and are not taken for numbers.
func TestTensorRaw(t *testing.T) {
	d := vktest.Open(t)
	for format, raw := range map[dtype.DType][]byte{dtype.Int32: {1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 7, 0, 0, 0}, dtype.Bool: {1, 0, 1}} {
		x, err := d.NewTensor("x", format, 3)
		if err != nil {
			t.Fatal(err)
		}
		if err := x.UploadRaw(background(), raw); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(raw))
		if err := x.DownloadRaw(background(), got); err != nil || !reflect.DeepEqual(got, raw) {
			t.Errorf("%v: %v came back as %v, %v", format, raw, got, err)
		}
		up, down := x.Upload(background(), make([]float32, 3)), x.Download(background(), make([]float32, 3))
		for what, err := range map[string]error{"upload": up, "download": down} {
			if want := "vk: " + what + " as float32: a tensor of " + format.String() + " has no floats; Tensor.Buffer copies its bytes"; err == nil || err.Error() != want {
				t.Errorf("%v: %v, want %s", format, err, want)
			}
		}
		x.Close()
	}
}

// TestTensorViews writes through every kind of view and looks at the memory.
func TestTensorViews(t *testing.T) {
	d := vktest.Open(t)
	const memory = 24
	for _, format := range dtype.All() {
		b := newBuffer(t, d, "memory", memory*int64(format.Size()))
		all := vk.View(b, format, memory)
		for _, c := range []struct {
			name    string
			shape   []int
			strides []int
			offset  int
		}{
			{"scalar", nil, nil, 5},
			{"row", []int{6}, []int{1}, 3},
			{"every other", []int{6}, []int{2}, 1},
			{"padded rows", []int{3, 4}, []int{7, 1}, 2},
			{"transposed", []int{4, 6}, []int{1, 4}, 0},
			{"transposed, gaps", []int{3, 2}, []int{2, 11}, 1},
			{"3-D, axes exchanged", []int{2, 3, 4}, []int{4, 8, 1}, 0},
			{"dimensions of 1", []int{1, 5, 1}, []int{99, 1, 77}, 19},
			{"far apart", []int{2, 2}, []int{1, 20}, 1},
			{"rows between one another", []int{2, 3}, []int{3, 2}, 2},
			{"gaps of two kinds", []int{2, 2, 2}, []int{9, 4, 2}, 3},
			{"last element", []int{1}, []int{1}, memory - 1},
		} {
			view := vk.Tensor{Buffer: b, DType: format, Shape: c.shape, Strides: c.strides, Offset: c.offset}
			if err := view.Validate(); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			before := make([]float32, memory)
			for i := range before {
				before[i] = float32(-1 - i)
			}
			if err := all.Upload(background(), before); err != nil {
				t.Fatal(err)
			}
			data := make([]float32, view.NumElements())
			want := append([]float32(nil), before...)
			for i := range data {
				data[i] = float32(100 + i)
				at, rest := c.offset, i
				for axis := len(c.shape) - 1; axis >= 0; axis-- {
					at += rest % c.shape[axis] * c.strides[axis]
					rest /= c.shape[axis]
				}
				want[at] = data[i]
			}
			if err := view.Upload(background(), data); err != nil {
				t.Fatal(err)
			}
			if got := download(t, all); !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %v: memory is\n%v, want\n%v", c.name, format, got, want)
			}
			if got := download(t, view); !reflect.DeepEqual(got, data) {
				t.Errorf("%s, %v: the view reads %v, want %v", c.name, format, got, data)
			}
		}
	}
}

func TestPermute(t *testing.T) {
	d := vktest.Open(t)
	x, err := d.NewTensor("x", dtype.Float32, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if err := x.Permute(1, 0).Upload(background(), []float32{1, 4, 2, 5, 3, 6}); err != nil {
		t.Fatal(err)
	}
	wantTensor(t, x, 1, 2, 3, 4, 5, 6)
	if p := x.Permute(1, 0); p.Contiguous() || !p.Permute(1, 0).Contiguous() {
		t.Error("Contiguous is wrong about a transposed tensor")
	}
	for _, axes := range [][]int{{0}, {0, 0}, {0, 2}, {-1, 0}, {0, 1, 2}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Permute(%v) did not panic", axes)
				}
			}()
			x.Permute(axes...)
		}()
	}
}

func TestTensorValidate(t *testing.T) {
	d := vktest.Open(t)
	b := newBuffer(t, d, "b", 101) // 50 elements of 16 bits, one byte over
	big := math.MaxInt / 2
	for _, c := range []struct {
		name string
		x    vk.Tensor
		want string // "" if it is valid
	}{
		{"whole", vk.Tensor{Buffer: b, DType: dtype.Float16, Shape: []int{50}, Strides: []int{1}}, ""},
		{"last", vk.Tensor{Buffer: b, DType: dtype.Float16, Shape: []int{1}, Strides: []int{1}, Offset: 49}, ""},
		{"shared", vk.Tensor{Buffer: b, DType: dtype.Float16, Shape: []int{9, 50}, Strides: []int{0, 1}}, ""},
		{"exact", vk.Tensor{Buffer: b, DType: dtype.Float16, Shape: []int{8, 8}, Strides: []int{6, 1}}, ""},
		{"zero", vk.Tensor{}, "no buffer"},
		{"one too many", vk.Tensor{Buffer: b, DType: dtype.Float16, Shape: []int{51}, Strides: []int{1}}, "outside"},
		{"partly over", vk.Tensor{Buffer: b, DType: dtype.Float32, Shape: []int{26}, Strides: []int{1}}, "outside"},
		{"offset", vk.Tensor{Buffer: b, DType: dtype.Float16, Shape: []int{1}, Strides: []int{1}, Offset: 50}, "outside"},
		{"huge offset", vk.Tensor{Buffer: b, DType: dtype.Float16, Shape: []int{1}, Strides: []int{1}, Offset: math.MaxInt}, "outside"},
		{"strides", vk.Tensor{Buffer: b, DType: dtype.Float16, Shape: []int{8, 8}, Strides: []int{7, 1}}, "outside"},
		{"overflow", vk.Tensor{Buffer: b, DType: dtype.Float16, Shape: []int{5, 5}, Strides: []int{big, big}}, "outside"},
		{"huge shape", vk.Tensor{Buffer: b, DType: dtype.Float16, Shape: []int{big, 4, 4}, Strides: []int{1, 1, 1}}, "more elements than can be counted"},
		{"long shape", vk.Tensor{Buffer: b, DType: dtype.Float16, Shape: []int{1 << 40, 4, 4}, Strides: []int{1, 1, 1}}, "outside"},
		{"negative offset", vk.Tensor{Buffer: b, DType: dtype.Float16, Shape: []int{1}, Strides: []int{1}, Offset: -1}, "negative"},
		{"negative stride", vk.Tensor{Buffer: b, DType: dtype.Float16, Shape: []int{2}, Strides: []int{-1}, Offset: 5}, "not negative"},
		{"empty", vk.Tensor{Buffer: b, DType: dtype.Float16, Shape: []int{0}, Strides: []int{1}}, "must be positive"},
		{"ranks", vk.Tensor{Buffer: b, DType: dtype.Float16, Shape: []int{1, 1}, Strides: []int{1}}, "differ in length"},
		{"format", vk.Tensor{Buffer: b, DType: 77, Shape: []int{1}, Strides: []int{1}}, "no storage format"},
	} {
		err := c.x.Validate()
		if c.want == "" && err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.want != "" {
			wantError(t, c.name, err, c.want)
			wantError(t, c.name+", Upload", c.x.Upload(background(), nil), c.want)
			wantError(t, c.name+", Download", c.x.Download(background(), nil), c.want)
		}
	}
	x := vk.View(b, dtype.Float16, 5, 10)
	wantError(t, "short", x.Upload(background(), make([]float32, 49)), "length 49, want 50")
	wantError(t, "long", x.Download(background(), make([]float32, 51)), "length 51, want 50")
	wantError(t, "raw", x.UploadRaw(background(), make([]byte, 99)), "length 99, want 100")
	wantError(t, "raw", x.DownloadRaw(background(), make([]byte, 101)), "length 101, want 100")
	shared := vk.Tensor{Buffer: b, DType: dtype.Float16, Shape: []int{9, 50}, Strides: []int{0, 1}}
	wantError(t, "shared", shared.Upload(background(), make([]float32, 450)), "share memory")
	b.Close()
	wantError(t, "closed", x.Validate(), "closed")
}

func TestNewTensorRefuses(t *testing.T) {
	d := vktest.Open(t)
	for _, shape := range [][]int{{0}, {-1}, {2, 0, 2}, {math.MaxInt, math.MaxInt}, {1 << 40, 1 << 40}} {
		if _, err := d.NewTensor("x", dtype.Float16, shape...); err == nil {
			t.Errorf("NewTensor(%v) gave no error", shape)
		}
	}
	if _, err := d.NewTensor("x", 9, 1); err == nil {
		t.Error("NewTensor of no format gave no error")
	}
}

// TestTensorSlice wants what Go's slices of an array are, of any axis.
func TestTensorSlice(t *testing.T) {
	d := vktest.Open(t)
	x := tensor(t, d, "x", 0, 1, 2, 3, 4, 5)
	x.Shape, x.Strides = []int{2, 3}, []int{3, 1}
	for _, c := range []struct {
		axis, first, end int
		want             []float32
	}{{0, 1, 2, []float32{3, 4, 5}}, {1, 1, 3, []float32{1, 2, 4, 5}}, {1, 0, 3, []float32{0, 1, 2, 3, 4, 5}}} {
		if got := download(t, x.Slice(c.axis, c.first, c.end)); !reflect.DeepEqual(got, c.want) {
			t.Errorf("Slice(%d, %d, %d) is %v, want %v", c.axis, c.first, c.end, got, c.want)
		}
	}
	if got := download(t, x.Slice(1, 2, 3).Slice(0, 1, 2)); !reflect.DeepEqual(got, []float32{5}) {
		t.Errorf("a slice of a slice is %v", got)
	}
	if x.Shape[0] != 2 || x.Shape[1] != 3 {
		t.Errorf("the tensor itself has the shape %v now", x.Shape)
	}
	for _, bad := range [][3]int{{2, 0, 1}, {-1, 0, 1}, {0, 1, 0}, {0, 0, 3}, {1, -1, 2}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Slice%v does not panic", bad)
				}
			}()
			x.Slice(bad[0], bad[1], bad[2])
		}()
	}
}

// TestZero wants zeros in a view, and nothing else changed.
func TestZero(t *testing.T) {
	d := vktest.Open(t)
	x := tensor(t, d, "x", 1, 2, 3, 4, 5, 6)
	x.Shape, x.Strides = []int{2, 3}, []int{3, 1}
	if err := x.Slice(1, 1, 2).Zero(background()); err != nil {
		t.Fatal(err)
	}
	if got := download(t, x); !reflect.DeepEqual(got, []float32{1, 0, 3, 4, 0, 6}) {
		t.Errorf("a column of zeros: %v", got)
	}
	if err := x.Zero(background()); err != nil {
		t.Fatal(err)
	}
	if got := download(t, x); !reflect.DeepEqual(got, make([]float32, 6)) {
		t.Errorf("all zeros: %v", got)
	}
	wantError(t, "none", (vk.Tensor{}).Zero(background()), "tensor has no buffer")
}

// TestUploadOverlap refuses what would lose elements, and takes what only looks like it.
func TestUploadOverlap(t *testing.T) {
	d := vktest.Open(t)
	base := tensor(t, d, "x", make([]float32, 64)...)
	for _, c := range []struct {
		shape, strides []int
		ok             bool
	}{
		{[]int{2, 3}, []int{4, 2}, false}, // (0, 2) is (1, 0)
		{[]int{2, 3}, []int{3, 2}, true},  // rows between one another
		{[]int{2, 3}, []int{1, 2}, true},
		{[]int{3, 1}, []int{1, 0}, true},
		{[]int{2, 2}, []int{0, 1}, false},
		{[]int{2, 2, 2}, []int{8, 3, 3}, false},
		{[]int{3, 3}, []int{2, 3}, true},
		{[]int{4, 3}, []int{2, 3}, false}, // (3, 0) is (0, 2)
	} {
		x := base
		x.Shape, x.Strides = c.shape, c.strides
		data := make([]float32, x.NumElements())
		for i := range data {
			data[i] = float32(i + 1)
		}
		err := x.Upload(background(), data)
		if !c.ok {
			wantError(t, "overlap", err, "elements share memory")
			continue
		}
		if err != nil {
			t.Errorf("%v by %v: %v", c.shape, c.strides, err)
		} else if got := download(t, x); !reflect.DeepEqual(got, data) {
			t.Errorf("%v by %v: %v came back", c.shape, c.strides, got)
		}
	}
	x := base
	x.Shape, x.Strides = []int{1 << 32, 1 << 32}, []int{0, 0}
	wantError(t, "more than an int counts", x.Validate(), "more elements than can be counted")
	wantError(t, "more than an int counts", x.Download(background(), nil), "more elements than can be counted")
}

// TestMasksAndLengths stores what Go has as bools and ints.
func TestMasksAndLengths(t *testing.T) {
	d := vktest.Open(t)
	mask, err := d.NewTensor("mask", dtype.Bool, 3)
	if err != nil {
		t.Fatal(err)
	}
	lengths, err := d.NewTensor("lengths", dtype.Int32, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := mask.UploadBools(background(), []bool{true, false, true}); err != nil {
		t.Fatal(err)
	}
	if err := lengths.UploadInts(background(), []int32{-1, 258}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(mask.Close)
	t.Cleanup(lengths.Close)
	for _, c := range []struct {
		x    vk.Tensor
		want []byte
	}{{mask, []byte{1, 0, 1}}, {lengths, []byte{255, 255, 255, 255, 2, 1, 0, 0}}} {
		got := make([]byte, len(c.want))
		if err := c.x.DownloadRaw(background(), got); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%v: %v, %v, want %v", c.x.DType, got, err, c.want)
		}
	}
	wantError(t, "ints", mask.UploadInts(background(), []int32{1, 2, 3}), "upload of bool as int32")
	wantError(t, "bools", lengths.UploadBools(background(), []bool{true, true}), "upload of int32 as bools")
	wantError(t, "too few", lengths.UploadInts(background(), []int32{1}), "length")
	if b, start, end := (vk.Tensor{}).Memory(); b != nil || start != 0 || end != 0 {
		t.Errorf("no tensor lies in %v from %d to %d", b, start, end)
	}
}
