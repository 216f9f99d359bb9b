package vk_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

func TestMain(m *testing.M) { vktest.Main(m) }

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

// The kernel axpy.comp computes y = a*x + y.
func Example() {
	ctx := context.Background()
	d := must(vk.Open(vk.Options{})) // the best device there is
	defer d.Close()
	x := must(d.NewTensor("x", dtype.Float32, 3))
	defer x.Close()
	y := must(d.NewTensor("y", dtype.Float32, 3))
	defer y.Close()
	check(x.Upload(ctx, []float32{1, 2, 3}))
	check(y.Upload(ctx, []float32{10, 20, 30}))

	k := must(vk.CachedKernel[axpyParams](d, "axpy", axpySPIRV, axpySpec{Scale: 1}, vk.KernelOptions{}))
	check(d.Run(ctx, "axpy", func(c *vk.Cmd) error {
		k.Dispatch(c, vk.Groups{X: 1}, axpyParams{N: 3, A: 2}, x, y)
		return nil
	}))

	out := make([]float32, 3)
	check(y.Download(ctx, out))
	fmt.Println(out)
	// Output: [12 24 36]
}

// The devices of the machine, without opening one; and the first that can be, with the validation
// layer if that is installed, and a folder for compiled pipelines.
func ExampleList() {
	list, err := vk.List()
	check(err) // says what to install
	for i, c := range list {
		if c.Unusable != "" || c.APIVersion < vk.MakeVersion(1, 2, 0) {
			continue
		}
		d := must(vk.Open(vk.Options{Device: fmt.Sprint(i), Validate: vk.HaveValidation() == nil}))
		defer d.Close()
		fmt.Println(d.Caps().Name == c.Name)
		break
	}
	// Output: true
}

// Two tensors in one buffer, and the bytes that a kernel binds and moves.
func ExampleView() {
	d := must(vk.Open(vk.Options{}))
	defer d.Close()
	b := must(d.NewBuffer("both", 1<<16))
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
	d := must(vk.Open(vk.Options{}))
	defer d.Close()
	k := must(vk.NewKernel[axpyParams](d, "axpy", axpySPIRV, axpySpec{Scale: 1}, vk.KernelOptions{}))
	defer k.Close()
	fmt.Println(k.Name(), k.Bindings())
	_, err := vk.NewKernel[struct{ N uint32 }](d, "axpy", axpySPIRV, axpySpec{Scale: 1}, vk.KernelOptions{})
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
	d := must(vk.Open(vk.Options{}))
	defer d.Close()
	c := must(d.NewCmd("empty"))
	defer c.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := c.Submit(ctx)
	fmt.Println(errors.Is(err, context.Canceled), errors.Is(err, vk.ErrDeviceLost))
	// Output: true false
}
