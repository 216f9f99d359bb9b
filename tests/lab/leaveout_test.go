//go:build lab

package lab

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

var modules = flag.String("modules", "", "a folder of kernels that take the place of those built in, as go run ./tools/mutants writes them")

// BenchmarkLeaveOut times the matrix kernels of attention, forward, without one of their stages: what
// the time goes into, which is where to look for speed. Results are wrong.
//
//	without-softmax  weights are the scores: no maxima, exponentials, sums
//	without-staging  K and V of the first tile for all: no loads, shared memory
//	                 writes, barriers
//	without-both     products, and their operands from shared memory
//
// The kernels are not among those that programs get; each run of the benchmark takes one kind of them:
//
//	go run ./tools/mutants /tmp/mutants
//	go test -tags lab ./tests/lab -run '^$' -bench LeaveOut -modules /tmp/mutants/without-softmax
//
// On a CPU device the problem is small and says nothing but that it runs.
func BenchmarkLeaveOut(b *testing.B) {
	kind := "everything"
	if *modules != "" {
		require.NoError(b, shaders.Use(os.DirFS(*modules)))
		kind = filepath.Base(*modules)
	}
	d := vktest.Open(b, vktest.NoValidation)
	seq := 4096
	if d.Caps().Type == vk.CPU {
		seq = 64
	}
	for _, impl := range []attention.Impl{attention.CoopMat2, attention.CoopMat} {
		for _, headDim := range []int{64, 128} {
			b.Run(fmt.Sprintf("%v/headdim=%d/%s", impl, headDim, kind), func(b *testing.B) {
				heads := 2048 / headDim
				p := attention.Problem{Batch: 4, NumHeads: heads, NumKVHeads: heads, SeqQ: seq, SeqKV: seq, HeadDim: headDim, DType: dtype.Float16}
				vktest.Require(b, impl.String(), attention.Supports(d.Caps(), p, kit.Forward, attention.Options{Impl: impl}))
				benchmark(b, d, p, impl)
			})
		}
	}
}

// benchmark reports the device time of calls.
func benchmark(b *testing.B, d *vk.Device, p attention.Problem, impl attention.Impl) {
	const calls = 10
	rng := rand.New(rand.NewPCG(1, 2))
	tensor := func(shape []int) vk.Tensor {
		t, err := d.NewTensor("leaveout", p.DType, shape...)
		require.NoError(b, err)
		b.Cleanup(t.Close)
		x := make([]float32, t.NumElements())
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		require.NoError(b, t.Upload(b.Context(), x))
		return t
	}
	t := attention.Tensors{O: tensor(p.OShape()), Q: tensor(p.QShape()), K: tensor(p.KShape()), V: tensor(p.VShape())}
	timer, err := d.NewTimer(2)
	require.NoError(b, err)
	defer timer.Close()
	c, err := d.NewCmd("leaveout")
	require.NoError(b, err)
	defer c.Close()
	c.Timestamp(timer, 0)
	for range calls {
		require.NoError(b, attention.Forward(c, t, p, attention.Options{Impl: impl}))
		c.Barrier()
	}
	c.Timestamp(timer, 1)
	run := func() float64 {
		require.NoError(b, c.Submit(b.Context()))
		ns, err := timer.Nanoseconds(0, 1)
		require.NoError(b, err)
		return ns / calls
	}
	if d.Caps().Type != vk.CPU {
		for start := time.Now(); time.Since(start) < time.Second; { // until the clock is up
			run()
		}
	}
	total, n := 0.0, 0
	for b.Loop() {
		total += run()
		n++
	}
	b.ReportMetric(total/float64(n), "device-ns/call")
	b.ReportMetric(p.FLOPs()*float64(n)/total/1e3, "TFLOP/s")
}
