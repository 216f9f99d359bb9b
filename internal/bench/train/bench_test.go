package train

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/peer"
	"github.com/flashvk/flashvk/internal/bench/sheet"
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
	require.Equal(t, `tensor "memory" is missing in its output`, list[3].Reason)
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

	// The report has columns of what only these results have, also where the first has nothing.
	absent := c.subject().Result("fused,auto,once", bench.Timing{})
	absent.Status = bench.StatusUnsupported
	report := bench.Report{Results: append([]bench.Result{absent}, list...), More: []sheet.Section{*stages}, Wide: true}
	var table, lines, samples bytes.Buffer
	require.NoError(t, report.Write(&table, bench.Table))
	for _, want := range []string{`\nfused,auto,once is not supported: `, `\nauto,auto,once .* pass .*checkpoint off`, `\nsame:x .* 17.00 MB .* 1.2500 +- `,
		`\noff:x .*2.5e-01 .*FAIL`, `\nbroken has no times: `, `\nattention, backward `, " % beside kernels"} {
		require.Regexp(t, want, table.String())
	}
	require.NoError(t, report.Write(&lines, bench.CSV))
	rows := must(csv.NewReader(&lines).ReadAll())
	column := func(row int, name string) string { return rows[row][slices.Index(rows[0], name)] }
	require.Equal(t, []string{"", "1.7e+07", ""}, []string{column(1, "memory_bytes"), column(3, "memory_bytes"), column(3, "host_ns")})
	require.NotEmpty(t, column(2, "host_ns"))
	require.Equal(t, off.Reason, column(4, "reason"))
	require.NoError(t, report.Write(&samples, bench.Benchfmt))
	require.Equal(t, 3, strings.Count(samples.String(), "\nBenchmarkTrainStep/impl=auto,auto,once/shape=tiny/dtype=float32/batch="))
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
		list, _, err := Bench(context.Background(), d, c, func(*train.Memory) {}, func(string) {})
		runtime.ReadMemStats(&after)
		require.NoError(t, err)
		require.Equal(t, bench.StatusOK, list[0].Status)
		return list[0].Facts[1].N, after.Mallocs - before.Mallocs
	}
	once, few := measure(false)
	fresh, many := measure(true)
	require.Equal(t, once, fresh)
	require.Greater(t, many, few+40*500, "a step has more commands than that")
}

// TestJudge: a peer whose loss or gradients are not ours is wrong, NaN above all.
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
		if err := judge(&bench.Result{}, c.format, c.loss, 1.2, c.slope); c.want == "" {
			require.NoError(t, err)
		} else {
			require.EqualError(t, err, c.want)
		}
	}
}
