package optim_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"math"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/vk"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// A model is what the examples train: two weights, 1 and 2, with constant gradients, and its
// optimizer, with a learning rate of 0.1.
type model struct {
	d     *vk.Device
	w     optim.Tensors
	adamw *optim.AdamW
}

func newModel(p optim.Problem, grad ...float32) *model {
	p.LR = 0.1
	d, err := vk.Open(vk.Options{})
	check(err)
	two := []int{2}
	w := optim.Tensors{Param: tensor(d, "w", two, 1, 2), Grad: tensor(d, "grad", two, grad...), M: tensor(d, "m", two, 0, 0), V: tensor(d, "v", two, 0, 0)}
	adamw, err := optim.New(context.Background(), d, []optim.Param{{Name: "w", Tensors: w}}, p)
	check(err)
	return &model{d, w, adamw}
}

func (m *model) close() {
	m.adamw.Close()
	for _, t := range []vk.Tensor{m.w.Param, m.w.Grad, m.w.M, m.w.V} {
		t.Close()
	}
	m.d.Close()
}

// step makes a step, and prints the weights.
func (m *model) step() {
	check(m.d.Run(context.Background(), "step", m.adamw.Step))
	show("%.3f", m.w.Param)
}

// word returns a tensor of one element of 32 bits.
func word(t vk.Tensor) uint32 {
	var b [4]byte
	check(t.DownloadRaw(context.Background(), b[:]))
	return binary.LittleEndian.Uint32(b[:])
}

// The first step moves every parameter by the learning rate against the sign of its gradient,
// whatever its size, and takes off the weight decay. The recorded step is submitted twice.
func ExampleNew() {
	d, err := vk.Open(vk.Options{})
	check(err)
	defer d.Close()
	ctx, two := context.Background(), []int{2}
	w := optim.Param{Name: "w", Tensors: optim.Tensors{
		Param: tensor(d, "w", two, 1, 2), Grad: tensor(d, "grad", two, 5, -0.25),
		M: tensor(d, "m", two, 0, 0), V: tensor(d, "v", two, 0, 0),
	}}
	for _, t := range []vk.Tensor{w.Param, w.Grad, w.M, w.V} {
		defer t.Close()
	}
	p := optim.Default()
	p.LR = 0.1
	adamw, err := optim.New(ctx, d, []optim.Param{w}, p)
	check(err)
	defer adamw.Close()
	c, err := d.NewCmd("step")
	check(err)
	defer c.Close()
	check(adamw.Step(c))
	for range 2 {
		check(c.Submit(ctx))
		show("%.3f", w.Param)
	}
	// Output:
	// [0.899 2.098]
	// [0.798 2.196]
}

// Gradients are clipped by their norm. A step with a gradient that is not finite is skipped.
func ExampleAdamW_Step() {
	p := optim.Default()
	p.MaxNorm = 1
	m := newModel(p, 3, 4)
	defer m.close()
	m.step()
	fmt.Println("norm", math.Float32frombits(word(m.adamw.Norm())))
	check(m.w.Grad.Upload(context.Background(), []float32{float32(math.NaN()), 4}))
	m.step()
	fmt.Printf("steps %d, skipped %d\n", word(m.adamw.Count()), word(m.adamw.Skipped()))
	// Output:
	// [0.899 1.898]
	// norm 5
	// [0.899 1.898]
	// steps 1, skipped 1
}

// A training that goes on sets the number of steps so far, since AdamW corrects the moments by
// it.
func ExampleAdamW_SetStep() {
	m := newModel(optim.Default(), 1, -1)
	defer m.close()
	check(m.adamw.SetStep(context.Background(), 9))
	m.step()
	fmt.Println("after step", word(m.adamw.Count()))
	// Output:
	// [0.951 2.046]
	// after step 10
}

// Steps read the learning rate from the device, also steps that are recorded.
func ExampleAdamW_SetLR() {
	m := newModel(optim.Default(), 1, -1)
	defer m.close()
	check(m.adamw.SetLR(context.Background(), 0.5))
	m.step()
	fmt.Println(math.Float32frombits(word(m.adamw.LR())))
	// Output:
	// [0.495 2.490]
	// 0.5
}

// Each tensor of the parameter has a buffer of its own: one set of buffers, one launch.
func ExampleAdamW_Launches() {
	m := newModel(optim.Default(), 1, -1)
	defer m.close()
	fmt.Println(m.adamw.Launches())
	// Output: 1
}

func ExampleDefault() {
	fmt.Printf("%+v\n", optim.Default())
	// Output: {LR:0.001 Beta1:0.9 Beta2:0.999 Eps:1e-08 WeightDecay:0.01 MaxNorm:0}
}

func ExampleProblem_Validate() {
	p := optim.Default()
	p.Beta1 = 1
	fmt.Println(p.Validate())
	// Output: optim: beta1=1 is not in [0, 1)
}

// Clipping adds a kernel to those of a step.
func ExampleChoose() {
	caps := &vk.Caps{ScalarBlockLayout: true, Storage16: true}
	p := optim.Default()
	for _, p.MaxNorm = range []float64{0, 1} {
		plan, err := optim.Choose(caps, p)
		check(err)
		fmt.Println(plan, plan.Kernels())
	}
	// Output:
	// adamw [adamw_prepare adamw]
	// adamw [adamw_norm adamw_prepare adamw]
}

func ExampleSupports() {
	fmt.Println(optim.Supports(&vk.Caps{ScalarBlockLayout: true}, optim.Default()))
	// Output: optim: the device has no 16-bit storage: unsupported on this device
}

// check ends the program with an error.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// tensor returns a float32 tensor with these values, or with none.
func tensor(d *vk.Device, name string, shape []int, values ...float32) vk.Tensor {
	t, err := d.NewTensor(name, dtype.Float32, shape...)
	if check(err); values != nil {
		check(t.Upload(context.Background(), values))
	}
	return t
}

// show prints the values of tensors.
func show(format string, tensors ...vk.Tensor) {
	for _, t := range tensors {
		got := make([]float32, t.NumElements())
		check(t.Download(context.Background(), got))
		fmt.Printf(format, got)
	}
	fmt.Println()
}
