package gemm_test

import (
	"fmt"
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
	e := vktest.NewExample()
	defer e.Close()
	p := gemm.Problem{M: 2, N: 2, K: 3, TransB: true, DType: dtype.Float16, Out: dtype.Some(dtype.Float32)}
	t := gemm.Tensors{
		A: e.Tensor(p.DType, []int{2, 3}, 1, 2, 3, 4, 5, 6),
		B: e.Tensor(p.DType, []int{2, 3}, 1, 0, 0, 0, 1, 1),
		C: e.Tensor(p.OutDType(), []int{2, 2}),
	}
	e.Run(func(c *vk.Cmd) error { return gemm.Forward(c, t, p, gemm.Options{}) })
	fmt.Println(e.Values(t.C))
	// Output: [1 5 4 11]
}

// The gradient of a bias is the sum of the rows of dY, here added to that of another batch.
func ExampleProblem_ones() {
	e := vktest.NewExample()
	defer e.Close()
	t := gemm.Tensors{
		B: e.Tensor(dtype.Float16, []int{2, 3}, 1, 2, 3, 4, 5, 6),
		C: e.Tensor(dtype.Float32, []int{1, 3}, 10, 20, 30),
	}
	p := gemm.Problem{M: 1, N: 3, K: 2, Ones: true, Beta: 1, DType: dtype.Float16, Out: dtype.Some(dtype.Float32)}
	e.Run(func(c *vk.Cmd) error { return gemm.Forward(c, t, p, gemm.Options{}) })
	fmt.Println(e.Values(t.C))
	// Output: [15 27 39]
}

// Three experts with weights of their own have one, no and two rows of x.
func ExampleForwardGroup() {
	e := vktest.NewExample()
	defer e.Close()
	rows := []int{1, 0, 2}
	const in, out = 2, 3
	x := e.Tensor(dtype.Float16, []int{3, in}, 1, 1, 2, 0, 0, 3)
	w := e.Tensor(dtype.Float16, []int{len(rows), in, out}, 1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0)
	y := e.Float32([]int{3, out})

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
	e.Run(func(c *vk.Cmd) error { return gemm.ForwardGroup(c, tensors, problems, gemm.Options{}) })
	fmt.Println(e.Values(y))
	// Output: [5 7 9 2 0 0 0 3 0]
}

// A Plan says what would run: here k is divided among four workgroups, whose sums a second
// kernel adds up.
func ExampleChoose() {
	e := vktest.NewExample()
	defer e.Close()
	config, err := gemm.ParseConfig("scalar 32x32 t8x8 k32 g8 splits4")
	vktest.Must(err)
	p := gemm.Problem{M: 32, N: 32, K: 1000}
	plan, err := gemm.Choose(e.D.Caps(), p, kit.Forward, gemm.Options{Config: &config})
	vktest.Must(err)
	fmt.Println(plan, plan.Kernels(), plan.Workspace(), "bytes")
	// Output: scalar 32x32 t8x8 k32 g8 splits4 [gemm_scalar gemm_combine] 16384 bytes
}

// Products of different sizes are one kernel, with a table of 128 bytes for each that is not
// empty.
func ExampleChooseGroup() {
	e := vktest.NewExample()
	defer e.Close()
	list := []gemm.Problem{{M: 5, N: 8, K: 9}, {M: 0, N: 8, K: 9}, {M: 7, N: 8, K: 9}}
	plan, err := gemm.ChooseGroup(e.D.Caps(), list, gemm.Options{})
	vktest.Must(err)
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
	// gemm: float16 needs 16-bit storage: unsupported on this device
}

// Products of many programs can have one buffer.
func ExampleWorkspace() {
	e := vktest.NewExample()
	defer e.Close()
	config := gemm.Config{Impl: gemm.Scalar, Threads: 64, ThreadsX: 8, BlockM: 32, BlockN: 32, BlockK: 32, GroupM: 8, Splits: 4}
	o := gemm.Options{Config: &config}
	bytes, err := gemm.Workspace(e.D.Caps(), gemm.Problem{M: 32, N: 32, K: 1000}, kit.Forward, o)
	vktest.Must(err)
	o.Workspace, err = e.D.NewBuffer("workspace", bytes)
	vktest.Must(err)
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
	// gemm: impl "cublas" is not one of auto, coopmat, scalar, gemv
}
