package attention_test

import (
	"testing"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// BenchmarkForwardRecord measures the host's share of a call that was made
// before: recording into a Cmd that is reset.
func BenchmarkForwardRecord(b *testing.B) {
	d := vktest.Open(b, vktest.NoValidation)
	for _, impl := range append(attention.Impls(), attention.Auto) {
		b.Run(impl.String(), func(b *testing.B) {
			p := attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 64, SeqKV: 64, HeadDim: 16, DType: dtype.Float16, Causal: true}
			vktest.Require(b, impl.String(), attention.Supports(d.Caps(), p, kit.Forward, attention.Options{Impl: impl}))
			o, lse, q, k, v := newTensors(b, d, p)
			c, err := d.NewCmd("record")
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			record := func() {
				c.Reset()
				if err := attention.Forward(c, attention.Tensors{O: o, LSE: lse, Q: q, K: k, V: v}, p, attention.Options{Impl: impl}); err != nil {
					b.Fatal(err)
				}
			}
			record() // compiles
			b.ReportAllocs()
			for b.Loop() {
				record()
			}
		})
	}
}

// BenchmarkReset measures what BenchmarkForwardRecord has besides Forward.
func BenchmarkReset(b *testing.B) {
	d := vktest.Open(b, vktest.NoValidation)
	c, err := d.NewCmd("reset")
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.ReportAllocs()
	for b.Loop() {
		c.Reset()
	}
}

// newTensors returns tensors for p, closed at the end of the test.
func newTensors(t testing.TB, d *vk.Device, p attention.Problem) (o, lse, q, k, v vk.Tensor) {
	query := []int{p.Batch, p.NumHeads, p.SeqQ, p.HeadDim}
	key := []int{p.Batch, p.NumKVHeads, p.SeqKV, p.HeadDim}
	for _, x := range []struct {
		target *vk.Tensor
		name   string
		format dtype.DType
		shape  []int
	}{{&o, "o", p.DType, query}, {&lse, "lse", dtype.Float32, query[:3]}, {&q, "q", p.DType, query}, {&k, "k", p.DType, key}, {&v, "v", p.DType, key}} {
		var err error
		if *x.target, err = d.NewTensor(x.name, x.format, x.shape...); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(x.target.Close)
	}
	return o, lse, q, k, v
}
