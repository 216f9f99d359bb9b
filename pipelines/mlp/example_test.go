package mlp_test

import (
	"fmt"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func TestMain(m *testing.M) { vktest.Main(m) }

func ExampleForward() {
	e := vktest.NewExample()
	defer e.Close()
	p := mlp.Problem{Tokens: 2, In: 1, Hidden: 2, Out: 1} // float32
	t := mlp.Tensors{
		X: e.Float32(p.XShape(), 0, 1), W1: e.Float32(p.W1Shape(), 1, -1), W2: e.Float32(p.W2Shape(), 1, -1),
		Y: e.Float32(p.YShape()),
	}
	e.Run(func(c *vk.Cmd) error { return mlp.Forward(c, t, p, mlp.Options{}) })
	fmt.Printf("%.4f\n", e.Values(t.Y)) // silu(1) - silu(-1) = 1
	// Output: [0.0000 1.0000]
}

// newHeads returns the tensors of the next examples: two heads of one hidden unit and one token.
func newHeads() (e *vktest.Example, p mlp.Problem, t mlp.Tensors, g mlp.Gradients) {
	e, p = vktest.NewExample(), mlp.Problem{Tokens: 1, Heads: 2, In: 1, Hidden: 1, Out: 1}
	t = mlp.Tensors{X: e.Float32(p.XShape(), 1), W1: e.Float32(p.W1Shape(), 0, 20), W2: e.Float32(p.W2Shape(), 1, 3)}
	g = mlp.Gradients{DX: e.Float32(p.XShape()), DW1: e.Float32(p.W1Shape()), DW2: e.Float32(p.W2Shape())}
	return e, p, t, g
}

// The hidden units of two heads are silu(0) = 0 and silu(20) = 20, with slopes of 0.5 and 1. The
// gradients by x are 0.5 * 0 and 3 * 20. The gradient of a head by W2 is its hidden unit.
func ExampleBackward() {
	e, p, t, g := newHeads()
	defer e.Close()
	p.Keep = mlp.KeepPre
	t.Y, t.Pre, g.DY = e.Float32(p.YShape()), e.Float32(p.PreShape()), e.Float32(p.YShape(), 1, 1)
	e.Run(func(c *vk.Cmd) error {
		if err := mlp.Forward(c, t, p, mlp.Options{}); err != nil {
			return err
		}
		return mlp.Backward(c, t, g, p, mlp.Options{})
	})
	fmt.Println(e.Values(t.Y), e.Values(t.Pre), e.Values(g.DX), e.Values(g.DW1), e.Values(g.DW2))
	// Output: [0 60] [0 20] [60] [0.5 3] [0 20]
}

// The loss is the sum of y²/2. Its gradient by y is y, so it is a copy.
func ExampleBackwardLoss() {
	e, p, t, g := newHeads()
	defer e.Close()
	e.Run(func(c *vk.Cmd) error {
		return mlp.BackwardLoss(c, t, g, func(c *vk.Cmd, dy, y vk.Tensor) error {
			for k := range p.Heads { // rows of dy lie apart
				c.Copy(dy.Buffer, 4*int64(dy.Offset+k*dy.Strides[1]), y.Buffer, 4*int64(y.Offset+k), 4)
			}
			return nil
		}, p, mlp.Options{})
	})
	fmt.Printf("%.4g %.4g %.4g\n", e.Values(g.DX), e.Values(g.DW1), e.Values(g.DW2))
	// Output: [3600] [0 180] [0 1200]
}

// caps describes a device that only has float32.
var caps = &vk.Caps{
	ScalarBlockLayout: true, Storage16: true, SubgroupSize: 32, MaxSharedMemoryBytes: 32768, MaxWorkgroupInvocations: 256,
	MaxWorkgroupSize: [3]uint32{256, 256, 64}, MaxWorkgroupCount: [3]uint32{65535, 65535, 65535}, MaxStorageBufferRange: 1 << 30,
}

func ExampleChoose() {
	plan, err := mlp.Choose(caps, mlp.Problem{Tokens: 100, In: 16, Hidden: 60, Out: 16}, kit.Forward, mlp.Options{})
	vktest.Must(err)
	fmt.Println(plan.Kernels(), plan.Workspace(), plan)
	// Output: [gemm_scalar gemm_scalar] 25600 scalar 64x64 t8x16 k16 g8
}

// Pre and Hidden of the caller need no workspace. The workspace holds 100 rows of hidden units,
// 64 elements apart: of silu(pre) and of dpre.
func ExampleWorkspace() {
	p := mlp.Problem{Tokens: 100, In: 16, Hidden: 60, Out: 16}
	for _, p.Keep = range mlp.Keeps() {
		bytes, err := mlp.Workspace(caps, p, kit.Backward, mlp.Options{})
		vktest.Must(err)
		fmt.Println(p.Keep, bytes)
	}
	// Output:
	// nothing 51200
	// pre 51200
	// hidden 25600
}

// The device has no matrices, so hidden units that are kept have no zeros behind.
func ExampleKeptUnits() {
	p := mlp.Problem{Tokens: 18048, In: 512, Hidden: 1365, Out: 512, Keep: mlp.KeepHidden}
	p.Units = mlp.KeptUnits(caps, p, mlp.Options{})
	fmt.Println(p.PreShape())
	// Output: [18048 1365]
}

func ExampleSupports() {
	p := mlp.Problem{Tokens: 100, In: 16, Hidden: 60, Out: 16, DType: dtype.Float16}
	fmt.Println(mlp.Supports(caps, p, kit.Forward, mlp.Options{Fused: mlp.FusedOn}))
	// Output: mlp: fused: the device has no float16 arithmetic: unsupported on this device
}

func ExampleChooseLoss() {
	plan, err := mlp.ChooseLoss(caps, mlp.Problem{Tokens: 100, Heads: 2, In: 16, Hidden: 60, Out: 16}, mlp.Options{}, "my_loss")
	vktest.Must(err)
	fmt.Println(plan.Kernels(), plan.Workspace())
	// Output: [gemm_align gemm_scalar gemm_scalar my_loss gemm_scalar gemm_scalar gemm_scalar gemm_scalar] 129536
}

func ExampleParseKeep() {
	keep, err := mlp.ParseKeep("pre")
	fmt.Println(keep, err, keep == mlp.KeepPre)
	// Output: pre <nil> true
}

func ExampleProblem() {
	p := mlp.Problem{Tokens: 5000, Heads: 10, In: 512, Hidden: 1365, Out: 3, DType: dtype.BFloat16, Grad: dtype.Some(dtype.Float32)}
	fmt.Println(p)
	fmt.Println(p.W1Shape(), p.W2Shape(), p.YShape(), p.PreShape())
	p.Heads = 0
	fmt.Println(p.W1Shape(), p.W2Shape(), p.YShape(), p.PreShape())
	// Output:
	// 5000 tokens, 10 heads of 512 to 1365 to 3, bfloat16, weight gradients float32
	// [10 512 1365] [10 1365 3] [5000 10 3] [5000 10 1365]
	// [512 1365] [1365 3] [5000 3] [5000 1365]
}
