package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// TestProfile profiles a path of three kernels, and reads the timeline: calls one after the other,
// kernels within the wait for them.
func TestProfile(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	p := smallProblem()
	x, err := RunProfile(context.Background(), d, Environment{Device: "Test GPU"}, []Case{{Op: opOf(t, p), Impls: []string{"unfused"}, Protocol: quick()}}, nil)
	require.NoError(t, err)
	require.Equal(t, StatusOK, x.Calls[0].Result.Status)
	forward := []string{"attention_unfused_scores.f16", "attention_unfused_softmax", "attention_unfused_values.f16"}
	var names []string
	sum := 0.0
	for i, k := range x.Calls[0].Dispatches {
		names = append(names, k.Kernel)
		require.Len(t, k.NS, profileCalls)
		require.Positive(t, k.Groups[0])
		require.Positive(t, k.Workgroup[0])
		for call, ns := range k.NS {
			require.Positive(t, ns)
			require.LessOrEqual(t, k.BeginNS[call]+ns, x.Calls[0].WholeNS[call])
			require.Equal(t, i == 0, k.BeginNS[call] == 0)
		}
		sum += k.Note.FLOPs
		require.Positive(t, k.Note.Bytes)
	}
	require.Equal(t, forward, names)
	require.InDelta(t, p.FLOPs(), sum, 1e-6*sum, "the operations of all kernels are not the operations of the call")
	var text bytes.Buffer
	require.NoError(t, WriteSheet(&text, x.Sheet(), Table, true))
	for _, want := range append(names, "attention forward, ", "fma f32 ", "copy ", "FLOP/s", "100%") {
		require.Contains(t, text.String(), want)
	}
	text.Reset()
	require.NoError(t, x.WriteTrace(&text))
	var got struct {
		TraceEvents []struct {
			Name, Ph string
			Ts, Dur  float64
			TID      int
		}
		OtherData map[string]string
	}
	require.NoError(t, json.Unmarshal(text.Bytes(), &got))
	require.Contains(t, got.OtherData["problem"], "dtype=float16")
	var host, device []string
	end := 0.0
	for _, e := range got.TraceEvents {
		switch {
		case e.Ph != "X":
		case e.TID == 1:
			require.Positive(t, e.Dur)
			require.GreaterOrEqual(t, e.Ts, end-1e-3, "%s begins before the call before it has ended", e.Name)
			host, end = append(host, e.Name), e.Ts+e.Dur
		default:
			require.Positive(t, e.Dur)
			require.LessOrEqual(t, e.Ts+e.Dur, end+1e-2)
			device = append(device, e.Name)
		}
	}
	require.Equal(t, slices.Repeat([]string{"record", "submit and wait"}, eventCalls), host)
	require.Equal(t, slices.Repeat(names, eventCalls), device)
}

func TestCeilings(t *testing.T) {
	rate := func(name string, r float64) Ceiling {
		return Ceiling{Name: name, Work: r, Timing: Timing{DeviceNS: []float64{1e9}}}
	}
	list := []Ceiling{rate("matrix f16", 600), rate("matrix bf16", 500), rate("fma f32", 50), rate("copy", 4)}
	require.Equal(t, Peak{FLOPs: 500, Bytes: 4, Name: "matrix bf16"}, PeakOf(list, true, dtype.BFloat16))
	require.Equal(t, Peak{FLOPs: 50, Bytes: 4, Name: "fma f32"}, PeakOf(list, false, dtype.BFloat16))
	require.InDelta(t, 200, PeakOf(list, true, dtype.Float32).FLOPs, 1e-9, "three products of float16")
	require.Zero(t, PeakOf(nil, true, dtype.Float16).FLOPs)
	s := CeilingSection([]Ceiling{
		{Name: "copy", Unit: "B/s", Work: 2e9, Timing: Timing{DeviceNS: []float64{1e6}}},
		{Name: "matrix f16", Wrong: errors.New("element 5 is 1, want 2")},
		{Name: "matrix bf16", Reason: "no such matrices"},
	})
	require.Equal(t, [][]string{{"copy", "2.000 TB/s", "∞", "pass"}, {"matrix f16", "-", "-", "FAIL"}}, s.Rows)
	require.Equal(t, []string{"matrix f16 is WRONG and was not timed: element 5 is 1, want 2", "matrix bf16: no such matrices"}, s.Notes)
	require.Equal(t, "4x2x3 4x2 4 - 4x1x3", strings.Join([]string{
		sizes([3]uint32{4, 2, 3}), sizes([3]uint32{4, 2, 1}), sizes([3]uint32{4, 1, 1}), sizes([3]uint32{}), sizes([3]uint32{4, 1, 3})}, " "))
}

// TestCallProfile adds calls of dispatches that overlap and occur several times, by hand.
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
	p := Profile{Calls: []CallProfile{x}, Ceilings: []Ceiling{rate("matrix bf16", 1e11), rate("fma f32", 1e10), rate("copy", 1e10)}}
	s := p.Sheet()
	require.Len(t, s.Sections, 3)
	require.Equal(t, [][]string{
		{"1", "pack", "4x4", "0 s", "80.00 ns", "100–100%", "16%", "-", "-", "1.000 GB/s", "10%", "-", "-", "-", "-", "-"},
		{"2", "multiply.bf16", "first", "100.0 ns", "100.0 ns", "100–100%", "20%", "60.00 GFLOP/s", "60%", "400.0 MB/s", "4%", "-", "-", "-", "-", "-"},
		{"3", "multiply.bf16", "second", "∥ 150.0 ns", "150.0 ns", "100–100%", "30%", "20.00 GFLOP/s", "20%", "-", "-", "-", "-", "-", "-", "-"},
		{"4", "sum", "", "400.0 ns", "100.0 ns", "100–100%", "20%", "100.0 MFLOP/s", "1%", "-", "-", "-", "-", "-", "-", "-"},
		{"", "all", "", "", "500.0 ns", "100–100%", "100%", "18.00 GFLOP/s", "18%", "-", "-", "", "", "", "", ""},
	}, s.Sections[0].Rows)
	require.Equal(t, []string{"multiply.bf16", "2", "250.0 ns", "100–100%", "50%", "36.00 GFLOP/s", "36%", "-", "-"}, s.Sections[1].Rows[1])
	var text bytes.Buffer
	require.NoError(t, WriteSheet(&text, s, Table, true))
	for _, want := range []string{"\n∥        no barrier before it", `rate over the rate of the loop "matrix bf16", or without matrices "fma f32"; B/s`, "in 120.0 ns no dispatch runs"} {
		require.Contains(t, text.String(), want)
	}

	// One that is not supported has a line, and no table.
	p.Calls[0] = CallProfile{Result: Result{Impl: "auto", Status: StatusUnsupported, Reason: "no memory", Subject: x.Result.Subject}}
	s = p.Sheet()
	require.Len(t, s.Sections, 2)
	require.Empty(t, s.Sections[0].Rows)
	require.Equal(t, []string{"auto is not supported: no memory"}, s.Sections[0].Notes)
}
