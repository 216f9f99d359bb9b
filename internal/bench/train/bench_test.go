package train

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/chart"
	"github.com/flashvk/flashvk/internal/bench/peer"
	"github.com/flashvk/flashvk/internal/safetensors/filetest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/record"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/pipelines/tnp/gp"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

// benchCase is a case that takes little time.
func benchCase(t testing.TB) Case {
	p, err := tnp.PresetOf("tiny")
	require.NoError(t, err)
	return Case{Preset: p, Checkpoint: tnp.Auto, Samples: 3, Stages: true, PeerLimit: time.Hour}
}

// answerFile writes what a peer would that computes what we do, and leaves out a tensor.
func answerFile(t testing.TB, d *vk.Device, c Case, path, without string, factor float32) {
	ctx := context.Background()
	w, err := tnp.Init(c.Config, 1)
	require.NoError(t, err)
	b := &benchmark{d: d, c: &c, w: w}
	b.x, b.y = gp.Tokens(gp.Default().Batch(c.Shape, 1, 0))
	_, err = b.check(ctx)
	require.NoError(t, err)
	values := map[string][]float32{"loss": {float32(b.loss)}, "last": {1.25}, "memory": {17}}
	var tensors []safetensors.Tensor
	for _, p := range c.Params() {
		g := b.grads[p.Name]
		for i := range g {
			g[i] *= factor
		}
		values["grad."+p.Name] = g
		tensors = append(tensors, safetensors.Tensor{Name: "grad." + p.Name, DType: safetensors.F32, Shape: p.Shape})
	}
	for _, name := range []string{"loss", "last", "memory"} {
		if name != without {
			tensors = append(tensors, safetensors.Tensor{Name: name, DType: safetensors.F32, Shape: []int{1}})
		}
	}
	filetest.Write(t, path, tensors, values)
}

// TestBenchUnsupported: what the device does not do is in the report, and a failure.
func TestBenchUnsupported(t *testing.T) {
	vktest.Sequential(t)
	c := benchCase(t)
	c.Variant = tnp.Fused // of float32
	d := vktest.Open(t)
	planned := func(*tnp.Memory) { t.Error("it has a plan") }
	r, err := Bench(context.Background(), d, c, planned, func(string) {})
	require.NoError(t, err)
	report := Report{Results: []*BenchResult{r}}
	require.Contains(t, report.Failed(), "float32 matrices have no kernel")
	var table bytes.Buffer
	require.NoError(t, report.Write(&table, bench.Table))
	require.Contains(t, table.String(), "\nflashvk fused, auto, once: train: blocks.0.perceptron: ")
	require.Empty(t, report.Charts())

	// Likewise what does not fit, before anything is allocated.
	c = benchCase(t)
	c.Batch, c.Context, c.Targets = 1<<11, 1<<13, 1<<13
	before := d.Memory().Bytes
	lines := 0
	r, err = Bench(context.Background(), d, c, func(m *tnp.Memory) { lines++; require.Greater(t, m.Bytes(), int64(50e9)) }, func(string) {})
	if err == nil { // else a tensor is larger than a buffer may be, which the error says
		require.Equal(t, 1, lines)
		require.Regexp(t, `^train: model and activations take [0-9]+ bytes, [0-9]+ more than the device has left: `, r.Timings[0].Failed)
	}
	require.Equal(t, before, d.Memory().Bytes)
}

// TestBench measures a step beside peers: one that is as we are, one whose gradients are off by a
// quarter, one that says too little, and one that fails.
func TestBench(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	file := inFolder(t)
	c := benchCase(t)
	answerFile(t, d, c, file("same"), "", 1)
	answerFile(t, d, c, file("off"), "", 1.25)
	answerFile(t, d, c, file("less"), "memory", 1)
	for _, name := range []string{"same", "off", "less"} {
		c.Peers = append(c.Peers, peer.Peer{Name: name, Command: fmt.Sprintf(`cat > %s.request; echo '{"about": "a peer"}'; echo '{"name": "x", "samples_ns": [1e9], "output": "%s"}'`, file(name), file(name))})
	}
	c.Peers = append(c.Peers, peer.Peer{Name: "broken", Command: "exit 3"})
	var planned *tnp.Memory
	r, err := Bench(context.Background(), d, c, func(m *tnp.Memory) { planned = m }, func(string) { require.NotNil(t, planned) })
	require.NoError(t, err)
	require.Same(t, r.Memory, planned)
	require.Len(t, r.Timings, 5)
	ours, same, off := r.Timings[0], r.Timings[1], r.Timings[2]
	require.Empty(t, ours.Failed)
	require.Len(t, ours.NS, 3)
	require.Len(t, ours.HostNS, 3)
	for i, ns := range ours.HostNS {
		require.Positive(t, ns)
		require.Less(t, ns, ours.NS[i])
	}
	require.Less(t, ours.Slope, slopeBound(c.DType))
	require.Less(t, ours.Last, ours.First, "steps on one batch")
	require.GreaterOrEqual(t, ours.Bytes, r.Memory.Bytes())
	require.Equal(t, "same:x", same.Impl)
	require.Equal(t, ours.First, same.First)
	require.Zero(t, same.Slope)
	require.Equal(t, int64(17e6), same.Bytes)
	require.Empty(t, same.Wrong)
	require.InDelta(t, 0.25, off.Slope, 1e-6)
	require.Equal(t, "its gradients are 0.25 of their norm from ours, more than 0.001", off.Wrong)
	require.Equal(t, `tensor "memory" is missing in its output`, r.Timings[3].Failed)
	require.Contains(t, r.Timings[4].Failed, "exit status 3")
	require.Equal(t, "same: a peer", r.About[0])

	var request peer.Request
	require.NoError(t, json.Unmarshal([]byte(read(t, file("same.request"))), &request))
	require.Equal(t, "train", request.Op)
	require.EqualValues(t, 16, request.Params["context"])

	stages := map[string]int{}
	for _, s := range r.Stages {
		require.Positive(t, s.NS, s.Name)
		stages[s.Name] = s.Dispatches
	}
	for name, least := range map[string]int{"embed": 1, "attention": 2, "attention, backward": 4, "loss, backward": 1, "heads, backward": 2, "optimizer": 2, "norm1": 2} {
		require.GreaterOrEqual(t, stages[name], least, name)
	}

	report := Report{Env: bench.Environment{Device: "some GPU"}, Results: []*BenchResult{r}}
	require.Empty(t, report.Failed())
	var table, lines, samples, whole bytes.Buffer
	require.NoError(t, report.Write(&table, bench.Table))
	for _, want := range []string{"\nflashvk ", "\nsame:x ", "\nbroken: ", "\nattention, backward ", "what the host works on a step", " % beside kernels", "17.00 MB", "2.5e-01",
		"\nratio    the time of same:x by a row's", "\noff:x: its gradients are 0.25 "} {
		require.Contains(t, table.String(), want)
	}
	require.NoError(t, report.Write(&lines, bench.CSV))
	rows, err := csv.NewReader(&lines).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 1+5)
	require.NoError(t, report.Write(&samples, bench.Benchfmt))
	require.Equal(t, 3+1+1, strings.Count(samples.String(), "\nBenchmarkTrainStep/shape=tiny/dtype=float32/variant=auto/checkpoint=off/"))
	require.NoError(t, report.Write(&whole, bench.JSON))
	require.True(t, json.Valid(whole.Bytes()))
	column := func(row []string, name string) string { return row[slices.Index(rows[0], name)] }
	require.Equal(t, "1", column(rows[2], "ratio"))
	require.Equal(t, "once", column(rows[1], "recording"))
	require.NotEmpty(t, column(rows[1], "host_ns"))
	require.Equal(t, off.Wrong, column(rows[3], "wrong"))
	require.Equal(t, "", column(rows[5], "ratio"), "it has no time")
}

// TestFresh: a step that is recorded anew is the same. A recording allocates on the host for each of
// its commands, a replay hardly does; their times are for the benchmark.
func TestFresh(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	measure := func(fresh bool) (first float64, allocated uint64) {
		c := benchCase(t)
		c.Fresh, c.Stages, c.Samples = fresh, false, 40
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r, err := Bench(context.Background(), d, c, func(*tnp.Memory) {}, func(string) {})
		runtime.ReadMemStats(&after)
		require.NoError(t, err)
		require.Empty(t, r.Timings[0].Failed)
		return r.Timings[0].First, after.Mallocs - before.Mallocs
	}
	once, few := measure(false)
	fresh, many := measure(true)
	require.Equal(t, once, fresh)
	require.Greater(t, many, few+40*500, "a step has more commands than that")
}

// TestJudge: a peer whose loss or gradients are not ours is wrong, NaN above all, and a file can
// have its numbers.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		format      dtype.DType
		loss, slope float64
		want        string
	}{
		{dtype.Float32, 1.2, 9e-4, ""},
		{dtype.Float32, 1.2001, 0, ""},
		{dtype.Float32, 1.2002, 0, "its first loss is 1.2002, ours 1.2"},
		{dtype.BFloat16, 1.22, 0.04, ""},
		{dtype.BFloat16, 1.23, 0, "its first loss is 1.23, ours 1.2"},
		{dtype.Float16, 1.2, 0.06, "its gradients are 0.06 of their norm from ours, more than 0.05"},
		{dtype.Float16, 1.2, math.NaN(), "its gradients are NaN of their norm from ours, more than 0.05"},
		{dtype.Float16, math.NaN(), 0, "its first loss is NaN, ours 1.2"},
	} {
		x := Timing{First: c.loss, Last: math.Inf(1)}
		x.judge(c.format, 1.2, c.slope)
		require.Equal(t, c.want, x.Wrong)
		_, err := json.Marshal(x)
		require.NoError(t, err)
	}
}

// made returns the result of a case that nobody measured.
func made(name string, v tnp.Variant, fresh bool, impl string, ns ...float64) *BenchResult {
	p, _ := tnp.PresetOf(name)
	x := &BenchResult{Case: Case{Preset: p, Variant: v, Checkpoint: tnp.Off, Asked: tnp.Auto, Fresh: fresh, Samples: 1}}
	for i, ns := range ns {
		x.Timings = append(x.Timings, Timing{Impl: []string{ourName, impl}[i], NS: []float64{ns}})
	}
	return x
}

// TestReport: results of one shape are rows of one table, and bars of one chart, beside the peers of
// the first; ratios are to the first peer. Of stages the smallest are one.
func TestReport(t *testing.T) {
	r := Report{Env: bench.Environment{Device: "some GPU", CPU: true}, Results: []*BenchResult{
		made("small", tnp.Fastest, false, "torch:eager", 20e6, 40e6),
		made("small", tnp.Fastest, true, "", 25e6),
		made("small", tnp.Unfused, false, "", 80e6),
		made("mid", tnp.Fastest, false, "", 50e6),
	}}
	r.Results[2].Timings[0] = Timing{Impl: ourName, Failed: "why not"}
	text := func(f bench.Format) string {
		var b strings.Builder
		require.NoError(t, r.Write(&b, f))
		return b.String()
	}
	for _, want := range []string{
		`\nflashvk auto, auto, once +20.00 ms .* 2.00 `, `\nflashvk auto, auto, fresh +25.00 ms .* 1.60 `, `\ntorch:eager +40.00 ms .* 1.00 `,
		`\nflashvk unfused, auto, once: why not\n`, `\nratio +the time of torch:eager by`, `\nratio +the time of flashvk auto, auto, once by`,
	} {
		require.Regexp(t, want, text(bench.Table))
	}
	require.Equal(t, 2, strings.Count(text(bench.Table), "\nstep "), "a table for each shape")
	require.Equal(t, "small, unfused, auto, once: why not", r.Failed())
	r.Results[2].Timings[0].Absent = true
	require.Empty(t, r.Failed(), "others are measured")
	require.Regexp(t, `\nflashvk unfused, auto, once +– +– .*–\n`, text(bench.Table))
	require.Equal(t, 1, strings.Count(text(bench.Benchfmt), "/recording=fresh/"))

	r.Results[0].Stages = []tnp.Stage{{Name: "a", NS: 90e6}, {Name: "b", NS: 8e6}, {Name: "c", NS: 1e6}, {Name: "d", NS: 1e6}}
	r.Results[0].Memory = &tnp.Memory{Model: 3e6, Parts: []record.Holder{{Name: "weights", Bytes: 3e6}}, Plan: &record.Memory{Bytes: 5e6, Holders: []record.Holder{{Name: "blocks.0.pre", Bytes: 1e6}, {Name: "blocks.1.pre", Bytes: 2e6}}}}
	charts := map[string]bench.Drawing{}
	for _, d := range r.Charts() {
		require.NoError(t, d.SVG(io.Discard), d.Name)
		require.Contains(t, d.Subtitle, bench.CPUWarning)
		charts[d.Name] = d
	}
	require.ElementsMatch(t, []string{"step-1", "step-2", "stages-1", "memory-1"}, slices.Collect(maps.Keys(charts)))
	require.Equal(t, []string{"small\nauto\nauto\nonce", "small\nauto\nauto\nfresh", "small\nunfused\nauto\nonce"}, charts["step-1"].Categories)
	require.Equal(t, []chart.Series{{Name: "flashvk", X: []float64{0, 1}, Y: []float64{20, 25}}, {Name: "torch:eager", Peer: true, X: []float64{0}, Y: []float64{40}}}, charts["step-1"].Series)
	bar := func(name string, y float64) chart.Series {
		return chart.Series{Name: name, X: []float64{0}, Y: []float64{y}}
	}
	require.Equal(t, []chart.Series{bar("weights", 3), bar("pre", 3), bar("gaps", 2)}, charts["memory-1"].Series)
	require.True(t, charts["stages-1"].Stacked)
	require.Equal(t, []chart.Series{bar("a", 90), bar("b", 8), bar("others", 2)}, charts["stages-1"].Series)
}
