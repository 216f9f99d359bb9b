package attention

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

var leaveOutModules = flag.String("leaveout", "", "BenchmarkLeaveOut: the folder that go run ./tools/mutants wrote")

// BenchmarkLeaveOut times the matrix kernels without one of their stages: what
// the time goes into, which is where to look for speed. Results are wrong.
//
//	everything       the kernel
//	without-softmax  weights are the scores: no maxima, exponentials, sums
//	without-staging  K and V of the first tile for all: no loads, shared memory
//	                 writes, barriers
//	without-both     products, and their operands from shared memory
//
// The kernels are not among those that programs get:
//
//	go run ./tools/mutants /tmp/mutants
//	go test ./attention -run '^$' -bench LeaveOut -leaveout /tmp/mutants
//
// On a CPU device the problem is small and says nothing but that it runs.
func BenchmarkLeaveOut(b *testing.B) {
	if *leaveOutModules == "" {
		b.Skip("needs -leaveout")
	}
	d := vktest.Open(b, vktest.NoValidation)
	seq := 4096
	if d.Caps().Type == vk.CPU {
		seq = 64
	}
	for _, impl := range []Impl{CoopMat2, CoopMat} {
		for _, headDim := range []int{64, 128} {
			p := Problem{Batch: 4, NumHeads: 2048 / headDim, NumKVHeads: 2048 / headDim, SeqQ: seq, SeqKV: seq, HeadDim: headDim, DType: dtype.Float16}
			config, err := chooseForward(d.Caps(), p, Options{Impl: impl})
			vktest.Require(b, impl.String(), err)
			for _, name := range []string{"everything", "without-softmax", "without-staging", "without-both"} {
				b.Run(fmt.Sprintf("%v/headdim=%d/%s", impl, headDim, name), func(b *testing.B) {
					benchmarkWithout(b, d, p, config, name)
				})
			}
		}
	}
}

// withoutStage returns the module of a path as an experiment has it.
func withoutStage(impl Impl, t dtype.DType, name string) (shaders.Module, error) {
	module, err := shaders.Get("attention_fwd_"+impl.String(), t.Short())
	if err == nil && name != "everything" {
		module.SPIRV, err = os.ReadFile(filepath.Join(*leaveOutModules, name, module.Name+".spv"))
		module.Name += " " + name
	}
	return module, err
}

// benchmarkWithout reports the device time of calls without stages.
func benchmarkWithout(b *testing.B, d *vk.Device, p Problem, config Config, name string) {
	const calls = 10
	rng := rand.New(rand.NewPCG(1, 2))
	tensor := func() vk.Tensor {
		t, err := d.NewTensor("leaveout", p.DType, p.Batch, p.NumHeads, p.SeqQ, p.HeadDim)
		check(b, err)
		b.Cleanup(func() { t.Close() })
		x := make([]float32, p.Batch*p.NumHeads*p.SeqQ*p.HeadDim)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		check(b, t.Upload(b.Context(), x))
		return t
	}
	o, q, k, v := tensor(), tensor(), tensor(), tensor()
	spec, err := newMatrixSpec(d, o, vk.Tensor{}, q, k, v, p, config)
	check(b, err)
	module, err := withoutStage(config.Impl, p.DType, name)
	check(b, err)
	plain, err := vk.CachedKernel[fwdParams](d, module.Name, module.SPIRV, spec, matrixKernelOptions(d))
	check(b, err)
	timer, err := d.NewTimer(2)
	check(b, err)
	defer timer.Close()
	c, err := d.NewCmd("leaveout")
	check(b, err)
	defer c.Close()
	c.Timestamp(timer, 0)
	for range calls {
		check(b, dispatchFwd(c, kernel[fwdParams]{plain: plain}, o, vk.Tensor{}, q, k, v, p, nil, config))
		c.Barrier()
	}
	c.Timestamp(timer, 1)
	run := func() float64 {
		check(b, c.Submit(b.Context()))
		ns, err := timer.Nanoseconds(0, 1)
		check(b, err)
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

func check(tb testing.TB, err error) {
	if err != nil {
		tb.Helper()
		tb.Fatal(err)
	}
}
