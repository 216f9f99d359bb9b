package bench

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

func TestCeilings(t *testing.T) {
	rate := func(name string, r float64) Ceiling {
		return Ceiling{Name: name, Work: r, Timing: Timing{DeviceNS: []float64{1e9}}}
	}
	list := []Ceiling{rate("matrix f16", 600), rate("matrix bf16", 500), rate("fma f32", 50), rate("copy", 4)}
	require.Equal(t, Peak{FLOPs: 500, Bytes: 4, Name: "matrix bf16"}, PeakOf(list, true, dtype.BFloat16))
	require.Equal(t, Peak{FLOPs: 50, Bytes: 4, Name: "fma f32"}, PeakOf(list, false, dtype.BFloat16))
	require.InDelta(t, 200, PeakOf(list, true, dtype.Float32).FLOPs, 1e-9, "three products of float16")
	require.Zero(t, PeakOf(nil, true, dtype.Float16).FLOPs)
	require.Equal(t, "4x2x3 4x2 4 - 4x1x3", strings.Join([]string{
		sizes([3]uint32{4, 2, 3}), sizes([3]uint32{4, 2, 1}), sizes([3]uint32{4, 1, 1}), sizes([3]uint32{}), sizes([3]uint32{4, 1, 3})}, " "))
}

// TestCallProfile adds calls of dispatches that overlap and occur several times, by hand. A call that is not supported has a
// line, and no table.
func TestCallProfile(t *testing.T) {
	list := []vk.TracedDispatch{
		{Kernel: "pack", Note: vk.Note{Text: "4x4", Bytes: 80}},
		{Kernel: "multiply.bf16", Note: vk.Note{Text: "first", FLOPs: 6000, Bytes: 40, Matrices: true, DType: dtype.BFloat16}},
		{Kernel: "multiply.bf16", Beside: true, Note: vk.Note{Text: "second", FLOPs: 3000, Matrices: true, DType: dtype.BFloat16}},
		{Kernel: "sum", Note: vk.Note{FLOPs: 10}},
	}
	begin, end := []float64{0, 100, 150, 400}, []float64{80, 200, 300, 500}
	x := CallProfile{Result: Result{Kernel: "x", Impl: "auto", Choice: "tiles", Status: StatusOK, Subject: &Subject{title: "x", params: "n=4", flops: 9000}}}
	for range 3 {
		require.NoError(t, x.add(list, begin, end))
	}
	require.ErrorContains(t, x.add(list[:3], begin[:3], end[:3]), "a call has 4 dispatches, another 3")
	require.ErrorContains(t, x.add(nil, nil, nil), "a call dispatches nothing")
	require.Equal(t, []float64{500, 500, 500}, x.WholeNS)
	require.Equal(t, []float64{120, 120, 120}, x.IdleNS) // 80 to 100, and 300 to 400
	require.Equal(t, []KernelProfile{
		{"pack", 1, []float64{80, 80, 80}, Work{0, 80}},
		{"multiply.bf16", 2, []float64{250, 250, 250}, Work{9000, 0}}, // the traffic of one is not known
		{"sum", 1, []float64{100, 100, 100}, Work{10, 0}},
	}, x.Kernels())

	rate := func(name string, r float64) Ceiling {
		return Ceiling{Name: name, Unit: "FLOP/s", Work: r, Timing: Timing{DeviceNS: []float64{1e9}}}
	}
	lacking := CallProfile{Result: Result{Impl: "auto", Status: StatusUnsupported, Reason: "no memory", Subject: x.Result.Subject}}
	p := Profile{Calls: []CallProfile{x, lacking}, Ceilings: []Ceiling{
		rate("matrix bf16", 1e11), rate("fma f32", 1e10), rate("copy", 1e10), {Name: "matrix f16", Wrong: errors.New("element 5 is 1, want 2")}, {Name: "matrix int8", Reason: "no such matrices"},
	}}
	s := p.Sheet()
	var text bytes.Buffer
	require.NoError(t, WriteSheet(&text, s, Table, true))
	if *update {
		require.NoError(t, os.WriteFile("testdata/profile.txt", text.Bytes(), 0o644))
	}
	want, err := os.ReadFile("testdata/profile.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), text.String())
}
