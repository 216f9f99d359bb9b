package attention

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/vktest"
)

// BenchmarkLeaveOut times the matrix kernels without one of their stages: what
// the time goes into, which is where to look for speed. Results are wrong.
//
//	everything  the kernel
//	softmax     weights are the scores: no maxima, exponentials, sums
//	staging     K and V of the first tile for all: no loads, shared memory
//	            writes, barriers
//	both        products, and their operands from shared memory
//
// On a CPU device the problem is small and says nothing but that it runs.
func BenchmarkLeaveOut(b *testing.B) {
	d := vktest.Open(b, vktest.NoValidation)
	seq := 4096
	if d.Caps().Type == vk.CPU {
		seq = 64
	}
	for _, impl := range []Impl{CoopMat2, CoopMat} {
		for _, headDim := range []int{64, 128} {
			p := Problem{Batch: 4, NumHeads: 2048 / headDim, NumKVHeads: 2048 / headDim, SeqQ: seq, SeqKV: seq, HeadDim: headDim, DType: dtype.Float16}
			config, err := Choose(d.Caps(), p, Options{Impl: impl})
			vktest.Require(b, impl.String(), err)
			for leaveOut, name := range []string{"everything", "softmax", "staging", "both"} {
				b.Run(fmt.Sprintf("%v/headdim=%d/without=%s", impl, headDim, name), func(b *testing.B) {
					benchmarkWithout(b, d, p, config, uint32(leaveOut))
				})
			}
		}
	}
}

// leaveOutSpec is the specialization of the modules attention_fwd_*_leaveout.
type leaveOutSpec struct {
	Kernel   fwdMatrixSpec
	LeaveOut uint32 `glsl:"LEAVE_OUT"`
}

// benchmarkWithout reports the device time of calls without stages.
func benchmarkWithout(b *testing.B, d *vk.Device, p Problem, config Config, leaveOut uint32) {
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
	module, err := shaders.Get("attention_fwd_"+config.Impl.String()+"_leaveout", p.DType.Short())
	check(b, err)
	plain, err := vk.CachedKernel[fwdParams](d, module.Name, module.SPIRV, leaveOutSpec{spec, leaveOut}, matrixKernelOptions(d))
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
