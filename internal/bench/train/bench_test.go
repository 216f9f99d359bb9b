package train

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/peer"
	"github.com/flashvk/flashvk/internal/safetensors/filetest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/pipelines/tnp/gp"
	"github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

// benchCase is a case that takes little time.
func benchCase(t testing.TB) Case {
	return Case{Preset: must(tnp.PresetOf("tiny")), PlanOptions: tnp.PlanOptions{Checkpoint: train.Auto}, Samples: 3, Stages: true, PeerLimit: time.Hour}
}

// answerFile writes what a peer would that computes what we do, and leaves out a tensor.
func answerFile(t testing.TB, d *vk.Device, c Case, path, without string, factor float32) {
	ctx := context.Background()
	b := &benchmark{d: d, c: &c, w: must(tnp.Init(c.Config, 1))}
	b.x, b.y = gp.Tokens(gp.Batch(c.Shape, 1, 0))
	_, err := b.check(ctx)
	require.NoError(t, err)
	values := map[string][]float32{"loss": {float32(b.loss)}, "last": {1.25}, "memory": {17}}
	var tensors []safetensors.Tensor
	for _, p := range c.Params(dtype.Float32) {
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
	var planned *train.Memory
	list, stages, err := Bench(context.Background(), d, c, func(m *train.Memory) { planned = m }, func(string) { require.NotNil(t, planned) })
	require.NoError(t, err)
	require.Len(t, list, 5)
	ours, same, off := list[0], list[1], list[2]
	require.Equal(t, bench.StatusOK, ours.Status, ours.Reason)
	require.Len(t, ours.Timing.DeviceNS, 3)
	require.Less(t, ours.Check.MaxAbs, slopeBound(c.DType))
	memory, first, last, host := ours.Facts[0].N, ours.Facts[1].N, ours.Facts[2].N, ours.Facts[3].N
	require.GreaterOrEqual(t, memory, float64(planned.Bytes()))
	require.Less(t, last, first, "steps on one batch")
	require.Positive(t, host)
	require.Less(t, host, ours.NS())
	require.Equal(t, "same:x", same.Impl)
	require.Equal(t, "a peer", same.Choice)
	require.Zero(t, same.Check.MaxAbs)
	require.Equal(t, facts(17e6, first, 1.25), same.Facts)
	require.Empty(t, same.Reason)
	require.InDelta(t, 0.25, off.Check.MaxAbs, 1e-6)
	require.Equal(t, "its gradients are 0.25 of their norm from ours, more than 0.001", off.Reason)
	require.Equal(t, `its output: train: tensor "memory" is missing`, list[3].Reason)
	require.Contains(t, list[4].Reason, "exit status 3")

	var request peer.Request
	require.NoError(t, json.Unmarshal(must(os.ReadFile(file("same.request"))), &request))
	require.Equal(t, "train", request.Op)
	require.EqualValues(t, 16, request.Params["context"])

	dispatches := map[string]int{}
	for _, row := range stages.Rows {
		require.NotContains(t, row[2:], "0 s", row[0])
		dispatches[row[0]] = must(strconv.Atoi(row[1]))
	}
	for name, least := range map[string]int{"embed": 1, "attention": 2, "attention, backward": 4, "loss, backward": 1, "heads, backward": 2, "optimizer": 2, "norm1": 2} {
		require.GreaterOrEqual(t, dispatches[name], least, name)
	}
}

// TestJudge: a peer whose loss or gradients are not ours is wrong, NaN above all.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		format      dtype.DType
		loss, slope float64
		want        string
	}{
		{dtype.Float32, 1.2, 9e-4, "<nil>"},
		{dtype.Float32, 1.2001, 0, "<nil>"},
		{dtype.Float32, 1.2002, 0, "its first loss is 1.2002, ours 1.2"},
		{dtype.BFloat16, 1.22, 0.04, "<nil>"},
		{dtype.BFloat16, 1.23, 0, "its first loss is 1.23, ours 1.2"},
		{dtype.Float16, 1.2, 0.06, "its gradients are 0.06 of their norm from ours, more than 0.05"},
		{dtype.Float16, 1.2, math.NaN(), "its gradients are NaN of their norm from ours, more than 0.05"},
		{dtype.Float16, math.NaN(), 0, "its first loss is NaN, ours 1.2"},
	} {
		require.Equal(t, c.want, fmt.Sprint(judge(&bench.Result{}, c.format, c.loss, 1.2, c.slope)))
	}
}
