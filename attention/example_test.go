package attention_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// Slices in, slices out: two query heads share one key head, and row i of three
// sees the first i+3 of five keys.
func ExampleForwardHost() {
	d, err := vk.Open(vk.Options{}) // the best device there is
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()

	p := attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 1, SeqQ: 3, SeqKV: 5, HeadDim: 8, DType: dtype.Float16, Causal: true}
	q := make([]float32, 2*3*8)                        // (batch, num_heads, seq_q, head_dim)
	k, v := make([]float32, 5*8), make([]float32, 5*8) // (batch, num_kv_heads, seq_kv, head_dim)
	for i := range v {
		v[i] = float32(i / 8) // row j of V is (j, j, ...)
	}
	o, lse := make([]float32, 2*3*8), make([]float32, 2*3)
	if err := attention.ForwardHost(context.Background(), d, attention.HostTensors{Q: q, K: k, V: v, O: o, LSE: lse}, p, attention.Options{}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(o[0], o[8], o[16]) // Q is zero, so each row of O is the mean of the values that it sees
	// Output: 1 1.5 2
}

// On the device: tensors stay there, and a Cmd is recorded once and submitted
// as often as its inputs change. These are in (batch, seq, heads, dim) order in
// memory, which a permuted view puts right without a copy.
func ExampleForward() {
	ctx := context.Background()
	d, err := vk.Open(vk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()

	const batch, seq, heads, dim = 1, 4, 2, 8
	p := attention.Problem{
		Batch: batch, NumHeads: heads, NumKVHeads: heads, SeqQ: seq, SeqKV: seq, HeadDim: dim,
		DType: dtype.Float16,
	}
	var t [4]vk.Tensor // o, q, k, v as (batch, heads, seq, dim)
	for i, name := range []string{"o", "q", "k", "v"} {
		memory, err := d.NewTensor(name, p.DType, batch, seq, heads, dim)
		if err != nil {
			log.Fatal(err)
		}
		defer memory.Close()
		t[i] = memory.Permute(0, 2, 1, 3)
	}
	c, err := d.NewCmd("attention")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	// The zero Tensor leaves LSE out.
	if err := attention.Forward(c, attention.Tensors{O: t[0], Q: t[1], K: t[2], V: t[3]}, p, attention.Options{}); err != nil {
		log.Fatal(err)
	}

	x := make([]float32, batch*heads*seq*dim)
	for step := range 2 {
		for i := range x {
			x[i] = float32(step + 1)
		}
		for _, in := range t[1:] {
			if err := in.Upload(ctx, x); err != nil {
				log.Fatal(err)
			}
		}
		if err := c.Submit(ctx); err != nil {
			log.Fatal(err)
		}
		if err := t[0].Download(ctx, x); err != nil {
			log.Fatal(err)
		}
		fmt.Println(x[0], x[len(x)-1])
	}
	// Output:
	// 1 1
	// 2 2
}
