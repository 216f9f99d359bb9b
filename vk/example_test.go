package vk_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// The kernel axpy.comp computes y = a*x + y.
func Example() {
	d, err := vk.Open(vk.Options{}) // the best device there is
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	ctx := context.Background()

	x, err := d.NewTensor("x", dtype.Float32, 3)
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	if err := x.Upload(ctx, []float32{1, 2, 3}); err != nil {
		log.Fatal(err)
	}
	y, err := d.NewTensor("y", dtype.Float32, 3)
	if err != nil {
		log.Fatal(err)
	}
	defer y.Close()
	if err := y.Upload(ctx, []float32{10, 20, 30}); err != nil {
		log.Fatal(err)
	}

	k, err := vk.CachedKernel[axpyParams](d, "axpy", axpySPIRV, axpySpec{Scale: 1}, vk.KernelOptions{})
	if err != nil {
		log.Fatal(err)
	}
	c, err := d.NewCmd("axpy")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	k.Dispatch(c, vk.Groups{X: 1}, axpyParams{N: 3, A: 2}, x, y)
	if err := c.Submit(ctx); err != nil {
		log.Fatal(err)
	}

	out := make([]float32, 3)
	if err := y.Download(ctx, out); err != nil {
		log.Fatal(err)
	}
	fmt.Println(out)
	// Output: [12 24 36]
}

// The devices of the machine, without opening one; and the first that can be, with the validation
// layer if that is installed, and a folder for compiled pipelines.
func ExampleList() {
	list, err := vk.List()
	if err != nil {
		log.Fatal(err) // says what to install
	}
	for i, c := range list {
		if c.Unusable != "" || c.APIVersion < vk.MakeVersion(1, 2, 0) {
			continue
		}
		d, err := vk.Open(vk.Options{Device: fmt.Sprint(i), Validate: vk.HaveValidation() == nil})
		if err != nil {
			log.Fatal(err)
		}
		defer d.Close()
		fmt.Println(d.Caps().Name == c.Name)
		break
	}
	// Output: true
}

// Two tensors in one buffer, and the bytes that a kernel binds and moves.
func ExampleView() {
	d, err := vk.Open(vk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	b, err := d.NewBuffer("both", 1<<16)
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	x := vk.View(b, dtype.Float16, 100, 64)
	y := x
	y.Offset = 16384
	fmt.Println(x.Shape, x.Strides, vk.Traffic(x, y), "bytes")
	vk.Narrow(&x, &y) // to the bytes that the tensors have, so that one does not wait for the other
	fmt.Println(x.Buffer.Bytes(), y.Buffer.Bytes())
	// Output:
	// [100 64] [64 1] 25600 bytes
	// 12800 12800
}

// The shared memory that a module takes is known without a device.
func ExampleSharedBytes() {
	bytes, err := vk.SharedBytes(axpySPIRV, axpySpec{Scale: 1})
	fmt.Println(bytes, err, vk.SharedVariables(4, 20))
	// Output: 0 <nil> 48
}

// A kernel of the caller's own, and a fact about the device that is found out once.
func ExampleNewKernel() {
	d, err := vk.Open(vk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	k, err := vk.NewKernel[axpyParams](d, "axpy", axpySPIRV, axpySpec{Scale: 1}, vk.KernelOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer k.Close()
	fmt.Println(k.Name(), k.Bindings())
	_, err = vk.NewKernel[struct{ N uint32 }](d, "axpy", axpySPIRV, axpySpec{Scale: 1}, vk.KernelOptions{})
	fmt.Println(err)
	type groups struct{}
	for range 2 {
		n, err := vk.Cached(d, groups{}, func() (int, error) {
			fmt.Println("found out")
			return 64, nil
		})
		fmt.Println(n, err)
	}
	// Output:
	// axpy 2
	// vk: kernel "axpy": the shader has 16 bytes of push constants, struct { N uint32 } has 4
	// found out
	// 64 <nil>
	// 64 <nil>
}

// A canceled wait, and what a lost device is.
func ExampleCmd_Submit() {
	d, err := vk.Open(vk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	c, err := d.NewCmd("empty")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err = c.Submit(ctx)
	fmt.Println(errors.Is(err, context.Canceled), errors.Is(err, vk.ErrDeviceLost))
	// Output: true false
}
