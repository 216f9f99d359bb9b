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
	"github.com/flashvk/flashvk/vk/kit"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// C = A * Bᵀ, with A and B of two rows of three.
func ExampleForward() {
	d, err := vk.Open(vk.Options{}) // the best device there is
	check(err)
	defer d.Close()
	p := gemm.Problem{M: 2, N: 2, K: 3, TransB: true, DType: dtype.Float16, Out: dtype.Some(dtype.Float32)}
	t := gemm.Tensors{
		A: tensor(d, "a", p.DType, []float32{1, 2, 3, 4, 5, 6}, 2, 3),
		B: tensor(d, "b", p.DType, []float32{1, 0, 0, 0, 1, 1}, 2, 3),
		C: tensor(d, "c", p.OutDType(), nil, 2, 2),
	}
	defer closeAll(t.A, t.B, t.C)
	check(d.Run(context.Background(), "product", func(c *vk.Cmd) error { return gemm.Forward(c, t, p, gemm.Options{}) }))
	fmt.Println(values(t.C))
	// Output: [1 5 4 11]
}

// Three experts with weights of their own have one, no and two rows of x.
func ExampleForwardGroup() {
	d, err := vk.Open(vk.Options{})
	check(err)
	defer d.Close()
	rows := []int{1, 0, 2}
	const in, out = 2, 3
	x := tensor(d, "x", dtype.Float16, []float32{1, 1, 2, 0, 0, 3}, 3, in)
	w := tensor(d, "w", dtype.Float16, []float32{1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0}, len(rows), in, out)
	y := tensor(d, "y", dtype.Float32, nil, 3, out)
	defer closeAll(x, w, y)

	var problems []gemm.Problem
	var tensors []gemm.Tensors // views of x, w and y
	at := func(t vk.Tensor, offset int, shape ...int) vk.Tensor {
		v := vk.View(t.Buffer, t.DType, shape...)
		v.Offset = offset
		return v
	}
	row := 0
	for i, m := range rows {
		problems = append(problems, gemm.Problem{M: m, N: out, K: in, DType: x.DType, Out: dtype.Some(y.DType)})
		tensors = append(tensors, gemm.Tensors{A: at(x, row*in, m, in), B: at(w, i*in*out, in, out), C: at(y, row*out, m, out)})
		row += m
	}
	check(d.Run(context.Background(), "experts", func(c *vk.Cmd) error {
		return gemm.ForwardGroup(c, tensors, problems, gemm.Options{})
	}))
	fmt.Println(values(y))
	// Output: [5 7 9 2 0 0 0 3 0]
}

// A Plan says what would run: here k is divided among four workgroups, whose sums a second
// kernel adds up.
func ExampleChoose() {
	d, err := vk.Open(vk.Options{})
	check(err)
	defer d.Close()
	config, err := gemm.ParseConfig("scalar 32x32 t8x8 k32 g8 splits4")
	check(err)
	p := gemm.Problem{M: 32, N: 32, K: 1000}
	plan, err := gemm.Choose(d.Caps(), p, kit.Forward, gemm.Options{Config: &config})
	check(err)
	fmt.Println(plan, plan.Kernels(), plan.Workspace(), "bytes")
	// Output: scalar 32x32 t8x8 k32 g8 splits4 [gemm_scalar gemm_combine] 16384 bytes
}

// Products of different sizes are one kernel, with a table of 128 bytes for each that is not
// empty.
func ExampleChooseGroup() {
	d, err := vk.Open(vk.Options{})
	check(err)
	defer d.Close()
	list := []gemm.Problem{{M: 5, N: 8, K: 9}, {M: 0, N: 8, K: 9}, {M: 7, N: 8, K: 9}}
	plan, err := gemm.ChooseGroup(d.Caps(), list, gemm.Options{})
	check(err)
	fmt.Println(plan.Kernels(), plan.Workspace(), "bytes")
	// Output: [gemm_scalar_group] 256 bytes
}

// A device without 16-bit storage multiplies float32.
func ExampleSupports() {
	caps := &vk.Caps{ScalarBlockLayout: true, MaxWorkgroupInvocations: 128, MaxWorkgroupSize: [3]uint32{128, 128, 64}, MaxWorkgroupCount: [3]uint32{65535, 65535, 65535}, MaxSharedMemoryBytes: 16384}
	p := gemm.Problem{M: 64, N: 64, K: 64}
	fmt.Println(gemm.Supports(caps, p, kit.Forward, gemm.Options{}))
	p.DType = dtype.Float16
	fmt.Println(gemm.Supports(caps, p, kit.Forward, gemm.Options{Impl: gemm.Scalar}))
	// Output:
	// <nil>
	// gemm: scalar: float16 to float16 needs 16-bit storage: unsupported on this device
}

// Products of many programs can have one buffer.
func ExampleWorkspace() {
	d, err := vk.Open(vk.Options{})
	check(err)
	defer d.Close()
	config := gemm.Config{Impl: gemm.Scalar, Threads: 64, ThreadsX: 8, BlockM: 32, BlockN: 32, BlockK: 32, GroupM: 8, Splits: 4}
	o := gemm.Options{Config: &config}
	bytes, err := gemm.Workspace(d.Caps(), gemm.Problem{M: 32, N: 32, K: 1000}, kit.Forward, o)
	check(err)
	o.Workspace, err = d.NewBuffer("workspace", bytes)
	check(err)
	defer o.Workspace.Close()
	fmt.Println(o.Workspace.Bytes())
	// Output: 16384
}

func ExampleParseConfig() {
	c, err := gemm.ParseConfig("coopmat s2x2 t4x4 k32 align g8")
	fmt.Println(c.Impl, c.TilesM, c.AlignRows, err)
	_, err = gemm.ParseConfig("coopmat s2x2 t4x4 k32 turbo")
	fmt.Println(err)
	// Output:
	// coopmat 4 true <nil>
	// gemm: configuration "coopmat s2x2 t4x4 k32 turbo": "turbo" is not one of its choices
}

func ExampleParseImpl() {
	impl, err := gemm.ParseImpl("scalar")
	fmt.Println(impl == gemm.Scalar, err)
	_, err = gemm.ParseImpl("cublas")
	fmt.Println(err)
	// Output:
	// true <nil>
	// gemm: impl "cublas" is not one of auto, coopmat, scalar
}

// check ends the program with an error.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// tensor returns a tensor with these values, or with none.
func tensor(d *vk.Device, name string, format dtype.DType, data []float32, shape ...int) vk.Tensor {
	t, err := d.NewTensor(name, format, shape...)
	if check(err); data != nil {
		check(t.Upload(context.Background(), data))
	}
	return t
}

// values returns the values of a tensor.
func values(t vk.Tensor) []float32 {
	data := make([]float32, t.NumElements())
	check(t.Download(context.Background(), data))
	return data
}

func closeAll(tensors ...vk.Tensor) {
	for _, t := range tensors {
		t.Close()
	}
}
