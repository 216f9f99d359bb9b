package gemm_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/vk"
)

func TestMain(m *testing.M) { vktest.Main(m) }

func ExampleMultiplyGroup() {
	d, err := vk.Open(vk.Options{}) // the best device there is
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	ctx := context.Background()

	// Three experts with weights of their own have one, no and two rows of x.
	rows := []int{1, 0, 2}
	const in, out = 2, 3
	g := gemm.Group{DType: dtype.Float16, Out: dtype.Float32}
	for _, m := range rows {
		g.Products = append(g.Products, gemm.Product{M: m, N: out, K: in})
	}
	tensor := func(name string, format dtype.DType, shape ...int) vk.Tensor {
		t, err := d.NewTensor(name, format, shape...)
		if err != nil {
			log.Fatal(err)
		}
		return t
	}
	x, w, y := tensor("x", g.DType, 3, in), tensor("w", g.DType, len(rows), in, out), tensor("y", g.Out, 3, out)
	defer x.Close()
	defer w.Close()
	defer y.Close()
	if err := x.Upload(ctx, []float32{1, 1, 2, 0, 0, 3}); err != nil {
		log.Fatal(err)
	}
	if err := w.Upload(ctx, []float32{1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0}); err != nil {
		log.Fatal(err)
	}

	tensors := make([]gemm.Tensors, len(rows)) // views of x, w and y
	at := func(t vk.Tensor, offset int, shape ...int) vk.Tensor {
		v := vk.View(t.Buffer, t.DType, shape...)
		v.Offset = offset
		return v
	}
	row := 0
	for i, m := range rows {
		tensors[i] = gemm.Tensors{C: at(y, row*out, m, out), A: at(x, row*in, m, in), B: at(w, i*in*out, in, out)}
		row += m
	}
	cmd, err := d.NewCmd("example")
	if err != nil {
		log.Fatal(err)
	}
	defer cmd.Close()
	if err := gemm.MultiplyGroup(cmd, tensors, g, gemm.GroupOptions{}); err != nil {
		log.Fatal(err)
	}
	if err := cmd.Submit(ctx); err != nil {
		log.Fatal(err)
	}
	result := make([]float32, 3*out)
	if err := y.Download(ctx, result); err != nil {
		log.Fatal(err)
	}
	fmt.Println(result)
	// Output: [5 7 9 2 0 0 0 3 0]
}

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
