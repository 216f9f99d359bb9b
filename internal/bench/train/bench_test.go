package train

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/peer"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/pipelines/tnp/gp"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

// benchCase is a case that takes little time.
func benchCase(t testing.TB) Case {
	p, err := tnp.PresetOf("tiny")
	require.NoError(t, err)
	return Case{Preset: p, Checkpoint: tnp.Auto, Samples: 3, Stages: true, PeerLimit: 10 * time.Second}
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
	out, err := safetensors.Create(path, tensors, nil)
	require.NoError(t, err)
	defer out.Close()
	for _, x := range tensors {
		require.NoError(t, out.WriteFloat32s(x.Name, values[x.Name]))
	}
	require.NoError(t, out.Commit())
}

// TestBenchUnsupported: what the device does not do is in the report, and a failure.
func TestBenchUnsupported(t *testing.T) {
	vktest.Sequential(t)
	c := benchCase(t)
	c.Variant = tnp.Fused // of float32
	r, err := Bench(context.Background(), vktest.Open(t), c, func(string) {})
	require.NoError(t, err)
	report := Report{Results: []*BenchResult{r}}
	require.Contains(t, report.Failed(), "float32 matrices have no kernel")
	var table bytes.Buffer
	require.NoError(t, report.Write(&table, bench.Table))
	require.Contains(t, table.String(), "\nflashvk: tnp: blocks.0.perceptron: ")
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
	r, err := Bench(context.Background(), d, c, func(string) {})
	require.NoError(t, err)
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
	require.InDelta(t, 0.25, off.Slope, 1e-6)
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
	for _, want := range []string{"\nflashvk ", "\nsame:x ", "\nbroken: ", "\nattention, backward ", " of our step, until its recording is submitted", " % beside kernels", "17.00 MB", "2.5e-01"} {
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
}
