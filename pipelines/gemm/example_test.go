package gemm_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/vktest"
)

func TestMain(m *testing.M) { vktest.Main(m) }

func ExampleMultiply() {
	d, err := vk.Open(vk.Options{}) // the best device there is
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	ctx := context.Background()

	// C = A * Bᵀ, with A and B of two rows of three.
	p := gemm.Problem{M: 2, N: 2, K: 3, TransB: true, DType: dtype.Float16, Out: dtype.Float32}
	tensor := func(name string, format dtype.DType, shape ...int) vk.Tensor {
		t, err := d.NewTensor(name, format, shape...)
		if err != nil {
			log.Fatal(err)
		}
		return t
	}
	a, b, c := tensor("a", p.DType, 2, 3), tensor("b", p.DType, 2, 3), tensor("c", p.Out, 2, 2)
	defer a.Close()
	defer b.Close()
	defer c.Close()
	if err := a.Upload(ctx, []float32{1, 2, 3, 4, 5, 6}); err != nil {
		log.Fatal(err)
	}
	if err := b.Upload(ctx, []float32{1, 0, 0, 0, 1, 1}); err != nil {
		log.Fatal(err)
	}

	cmd, err := d.NewCmd("example") // recorded once, it can be submitted again and again
	if err != nil {
		log.Fatal(err)
	}
	defer cmd.Close()
	if err := gemm.Multiply(cmd, c, a, b, p, gemm.Options{}); err != nil {
		log.Fatal(err)
	}
	if err := cmd.Submit(ctx); err != nil {
		log.Fatal(err)
	}
	result := make([]float32, 4)
	if err := c.Download(ctx, result); err != nil {
		log.Fatal(err)
	}
	fmt.Println(result)
	// Output: [1 5 4 11]
}
