package optim_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/vk"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// A model has two weights with constant gradients, for the examples to train.
type model struct {
	*vktest.Example
	w     optim.Tensors
	adamw *optim.AdamW
}

// newModel returns a model with the weights 1 and 2, and its optimizer, with a learning rate of 0.1.
func newModel(p optim.Problem, grad ...float32) *model {
	p.LR = 0.1
	e, n := vktest.NewExample(), []int{2}
	w := optim.Tensors{Param: e.Float32(n, 1, 2), Grad: e.Float32(n, grad...), M: e.Float32(n, 0, 0), V: e.Float32(n, 0, 0)}
	adamw, err := optim.New(context.Background(), e.D, []optim.Param{{Name: "w", Tensors: w}}, p)
	vktest.Must(err)
	return &model{e, w, adamw}
}

func (m *model) close() {
	m.adamw.Close()
	m.Close()
}

func (m *model) step() { m.Run(m.adamw.Step) }

func (m *model) weights() []float32 { return m.Values(m.w.Param) }

// word returns a tensor of one element of 32 bits.
func word(t vk.Tensor) uint32 {
	var b [4]byte
	vktest.Must(t.DownloadRaw(context.Background(), b[:]))
	return binary.LittleEndian.Uint32(b[:])
}

// The first step moves every parameter by the learning rate against the sign of its gradient,
// whatever its size, and takes off the weight decay. The recorded step is submitted twice.
func ExampleNew() {
	e, n, ctx := vktest.NewExample(), []int{2}, context.Background()
	defer e.Close()
	w := optim.Param{Name: "w", Tensors: optim.Tensors{
		Param: e.Float32(n, 1, 2), Grad: e.Float32(n, 5, -0.25), M: e.Float32(n, 0, 0), V: e.Float32(n, 0, 0),
	}}
	p := optim.Default()
	p.LR = 0.1
	adamw, err := optim.New(ctx, e.D, []optim.Param{w}, p)
	vktest.Must(err)
	defer adamw.Close()
	c, err := e.D.NewCmd("step")
	vktest.Must(err)
	defer c.Close()
	vktest.Must(adamw.Step(c))
	for range 2 {
		vktest.Must(c.Submit(ctx))
		fmt.Printf("%.3f\n", e.Values(w.Param))
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
	fmt.Printf("%.3f norm %g\n", m.weights(), math.Float32frombits(word(m.adamw.Norm())))
	vktest.Must(m.w.Grad.Upload(context.Background(), []float32{float32(math.NaN()), 4}))
	m.step()
	fmt.Printf("%.3f steps %d, skipped %d\n", m.weights(), word(m.adamw.Count()), word(m.adamw.Skipped()))
	// Output:
	// [0.899 1.898] norm 5
	// [0.899 1.898] steps 1, skipped 1
}

// A training that goes on sets the number of steps so far, since AdamW corrects the moments by
// it.
func ExampleAdamW_SetStep() {
	m := newModel(optim.Default(), 1, -1)
	defer m.close()
	vktest.Must(m.adamw.SetStep(context.Background(), 9))
	m.step()
	fmt.Printf("%.3f after step %d\n", m.weights(), word(m.adamw.Count()))
	// Output: [0.951 2.046] after step 10
}

// Steps read the learning rate from the device, also steps that are recorded.
func ExampleAdamW_SetLR() {
	m := newModel(optim.Default(), 1, -1)
	defer m.close()
	vktest.Must(m.adamw.SetLR(context.Background(), 0.5))
	m.step()
	fmt.Printf("%.3f %g\n", m.weights(), math.Float32frombits(word(m.adamw.LR())))
	// Output: [0.495 2.490] 0.5
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

// Clipping adds a kernel to a step.
func ExampleChoose() {
	caps := &vk.Caps{ScalarBlockLayout: true}
	p := optim.Default()
	for _, p.MaxNorm = range []float64{0, 1} {
		plan, err := optim.Choose(caps, p)
		vktest.Must(err)
		fmt.Println(plan, plan.Kernels())
	}
	// Output:
	// adamw [adamw_prepare adamw]
	// adamw [adamw_norm adamw_prepare adamw]
}

func ExampleSupports() {
	fmt.Println(optim.Supports(&vk.Caps{}, optim.Default()))
	// Output: optim: the device has no scalar block layout: unsupported on this device
}
