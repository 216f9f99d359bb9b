package guard_test

import (
	"context"
	"encoding/binary"
	"math"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/dtype/storage"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// TestEncode says that a trip through the storage format keeps every value
// that the engine uses.
func TestEncode(t *testing.T) {
	for _, dt := range dtype.All() {
		data := []float64{0, math.Copysign(0, -1), 1.5, -12288, 28672, math.Inf(1), math.Inf(-1), 65504 * 0.96875, 0}
		data[7] = float64(dt.Round(float32(data[7])))
		data[8] = guard.NotFinite.Poison(dt)(0) // NaN
		x := &guard.View{Name: "q", DType: dt, Data: data}
		b := x.Encode()
		require.Len(t, b, len(data)*dt.Size())
		y := make([]float32, len(data))
		storage.Decode(dt, y, b)
		for i := range data {
			require.Equal(t, math.Float64bits(data[i]), math.Float64bits(float64(y[i])), "%v: %g became %g", dt, data[i], y[i])
		}
	}
}

func TestOff(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	for _, c := range []struct {
		got, want []float64
		off       float64
	}{
		{nil, nil, 0},
		{[]float64{1, 2.5, 3}, []float64{1, 2, 3.25}, 0.5},
		{[]float64{-inf, 1}, []float64{-inf, 2}, 1},
		{[]float64{5, -inf}, []float64{7, inf}, inf},
		{[]float64{5, -inf}, []float64{7, 0}, inf},
		{[]float64{nan}, []float64{1}, inf},
		{[]float64{1}, []float64{nan}, inf},
	} {
		require.Equal(t, c.off, guard.Off(c.got, c.want))
	}
}

// The tensors of the calls below: (2, 4) with rows apart.
const rows, cols = 2, 4

// call returns a case of x, which is read, y = 1, which is written, z = 1, which is
// compared on a sample, and s, which may be anything; y and z share their memory if so
// wanted.
func call(shared bool) guard.Case {
	ones := []float64{1, 1, 1, 1, 1, 1, 1, 1}
	shape := []int{rows, cols}
	list := []guard.Tensor{
		{Name: "x", Shape: shape, Values: ones},
		{Name: "y", Shape: shape, Want: ones, Bound: 0.25},
		{Name: "z", Shape: shape, Want: ones[:2], Sample: []int{0, 7}},
		{Name: "s", Shape: shape, Scratch: true},
	}
	if shared {
		list[1].Memory, list[2].Memory = "outputs", "outputs"
	}
	for i := range list {
		list[i].Place = &guard.Place{Offset: 65 + 2*i, RowGap: 3 + 2*i}
	}
	return guard.Case{Name: "call", Tensors: list}
}

// A write sets an element of a tensor, row and column, which may lie beside it.
type write struct {
	name     string
	row, col int
	value    float64
}

// right is what the call should do.
func right() (list []write) {
	for _, name := range []string{"y", "z"} {
		for i := range rows * cols {
			list = append(list, write{name, i / cols, i % cols, 1})
		}
	}
	return append(list, write{"s", 1, 2, 42})
}

// record returns a call that makes the writes of list in every run, and the writes of runs[i] in
// run i only.
func record(list []write, runs map[int][]write) guard.Record {
	run := 0
	return func(c *vk.Cmd, t map[string]vk.Tensor) error {
		type place struct {
			name string
			at   int
		}
		last := map[place]float64{} // fills are not in order
		for _, w := range slices.Concat(list, runs[run]) {
			last[place{w.name, t[w.name].Offset + w.row*t[w.name].Strides[0] + w.col}] = w.value
		}
		for p, value := range last {
			c.Fill(t[p.name].Buffer, 4*int64(p.at), 4, math.Float32bits(float32(value)))
		}
		run++
		return nil
	}
}

// TestCheck plants each kind of mistake.
func TestCheck(t *testing.T) {
	d := vktest.Open(t)
	nan, inf := math.NaN(), math.Inf(1)
	for _, x := range []struct {
		what  string
		add   []write         // beside what is right, and after it
		leave string          // the tensor of which an element is not written
		runs  map[int][]write // in one of the runs only
		want  string          // of the error; "": none
	}{
		{what: "right"},
		{"within the bound", []write{{"y", 1, 3, 1.25}}, "", nil, ""},
		{"another number in what is not in the sample", []write{{"z", 1, 0, 77}}, "", nil, ""},

		{"an input is changed", []write{{"x", 0, 1, 2}}, "", nil, `^input x was changed: backing element \d+ is 2, was 1$`},
		{"beside an input", []write{{"x", 0, cols, 2}}, "", nil, `^input x was changed: backing element \d+ is 2, was `},
		{"NaN beside an input, where Inf was", []write{{"x", 0, -1, nan}, {"x", 0, -2, nan}}, "", nil, `^input x was changed`},
		{"past a row", []write{{"y", 0, cols, 7}}, "", nil, `^y was written outside its elements: backing element \d+, between the rows, is 7, was NaN$`},
		{"past the end", []write{{"y", 1, cols + 2, 7}}, "", nil, `^y was written outside its elements: backing element \d+, 3 after the last element, is 7, was NaN$`},
		{"before the start", []write{{"y", 0, -1, 7}}, "", nil, `^y was written outside its elements: backing element \d+, 1 before the first element, is 7, was NaN$`},
		{"NaN past the end", []write{{"y", 1, cols, nan}}, "", nil, `y was written outside its elements: .* is NaN, was `},
		{"beside scratch memory", []write{{"s", 1, cols, 7}}, "", nil, `^s was written outside its elements`},
		{"an element is not written", nil, "y", nil, `^y\[5\] = NaN, want 1 at \(1, 1\): not written, or computed from NaN$`},
		{"an element of those not in the sample is not written", nil, "z", nil, `^z\[5\] = NaN at \(1, 1\): not written`},
		{"infinite", []write{{"y", 0, 2, inf}}, "", nil, `^y\[2\] = \+Inf, want 1 at \(0, 2\)$`},
		{"off by more than the bound", []write{{"y", 0, 2, 1.2}, {"y", 1, 2, 0.5}}, "", nil, `^y\[6\] = 0.5, want 1: off by 0.5, tolerance 0.25 at \(1, 2\)$`},
		{"off in the sample", []write{{"z", 1, 3, 2}}, "", nil, `^z\[7\] = 2, want 1: off by 1, tolerance 0 at \(1, 3\)$`},
		{"not the same in the second run", nil, "", map[int][]write{1: {{"y", 0, 1, 1.25}}}, `^y\[1\] = 1 in the first run, 1.25 in a second at \(0, 1\): not deterministic`},
		{"nor what is not in the sample", nil, "", map[int][]write{1: {{"z", 1, 0, 3}}}, `^z\[4\] = 1 in the first run, 3 in a second`},
		{"sign of zero", nil, "", map[int][]write{0: {{"z", 1, 0, 0}}, 1: {{"z", 1, 0, math.Copysign(0, -1)}}}, `^z\[4\] = 0 in the first run, -0 in a second`},
		{"beside only in the second run", nil, "", map[int][]write{1: {{"y", 0, -3, 7}}}, `^second run: y was written outside its elements: .* is 7, was -12288$`},
	} {
		for _, shared := range []bool{false, true} {
			t.Run(x.what, func(t *testing.T) {
				var list []write
				for _, w := range right() {
					if w.name != x.leave || w.row != 1 || w.col != 1 {
						list = append(list, w)
					}
				}
				c := call(shared)
				report, err := c.Check(d, record(append(list, x.add...), x.runs))
				if x.want == "" {
					require.NoError(t, err)
					require.Contains(t, report, "y off by ")
					return
				}
				require.Error(t, err)
				require.Regexp(t, regexp.MustCompile(x.want), err.Error())
			})
		}
	}
}

// TestPlace: tensors of a memory lie side by side in one buffer, and one that is tight ends
// with it.
func TestPlace(t *testing.T) {
	d := vktest.Open(t)
	ones := []float64{1, 1, 1, 1, 1, 1}
	one := func(name string, p guard.Place) guard.Tensor {
		return guard.Tensor{Name: name, Shape: []int{3, 2}, Values: ones, Place: &p, Memory: "m"}
	}
	c := guard.Case{Name: "place", Tensors: []guard.Tensor{
		one("a", guard.Place{Offset: 1, RowGap: 1, Tight: true}), one("b", guard.Place{Tight: true}), one("c", guard.Place{Aligned: true, Tight: true}),
	}}
	_, err := c.Check(d, func(_ *vk.Cmd, t1 map[string]vk.Tensor) error {
		a, b, c := t1["a"], t1["b"], t1["c"]
		require.Same(t, a.Buffer, b.Buffer)
		require.Same(t, a.Buffer, c.Buffer)
		require.Equal(t, []int{1, 9, 16}, []int{a.Offset, b.Offset, c.Offset})
		require.Equal(t, [][]int{{3, 1}, {2, 1}, {8, 1}}, [][]int{a.Strides, b.Strides, c.Strides})
		require.EqualValues(t, 4*(16+2*8+2), c.Buffer.Bytes())
		return nil
	})
	require.NoError(t, err)
}

// TestReplay: a recording whose second submission gives other bits, of memory that the call keeps,
// is found where that is asked for.
func TestReplay(t *testing.T) {
	d := vktest.Open(t)
	for _, replay := range []bool{false, true} {
		kept, err := d.NewBuffer("kept", 4)
		require.NoError(t, err)
		defer kept.Close()
		y := guard.Tensor{Name: "y", Shape: []int{1}, Want: []float64{1}, Bound: 1}
		c := guard.Case{Name: "replay", Tensors: []guard.Tensor{y}}
		ctx := context.Background()
		_, err = c.CheckContext(ctx, guard.Device{Device: d, Replay: replay}, func(c *vk.Cmd, t map[string]vk.Tensor) error {
			if err := kept.Upload(ctx, 0, binary.LittleEndian.AppendUint32(nil, math.Float32bits(1))); err != nil {
				return err
			}
			c.Copy(t["y"].Buffer, 4*int64(t["y"].Offset), kept, 0, 4)
			c.Fill(kept, 0, 4, math.Float32bits(1.5))
			return nil
		})
		if replay {
			require.EqualError(t, err, "what was recorded, submitted again, gave other bits: backing element 0 of y is 1.5, was 1")
		} else {
			require.NoError(t, err)
		}
	}
}
