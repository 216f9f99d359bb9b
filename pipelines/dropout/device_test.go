package dropout_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/dropout"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// TestDrawn checks drawn calls.
func TestDrawn(t *testing.T) {
	d := vktest.Open(t, vktest.WholeBuffers)
	require.NoError(t, call.TestDrawn(t, d, "dropout", 60, call.Space{}, nil))
}

// TestShare counts: of n elements P n are dropped, within five deviations, and two streams, numbers or seeds drop
// others.
func TestShare(t *testing.T) {
	const rows, cols, p = 300, 200, 0.1
	dropped := func(seed uint64, stream int, number uint32) (list []bool) {
		x := dropout.Problem{Rows: rows, Cols: cols, P: p, Stream: stream}
		for i := range rows * cols {
			list = append(list, !x.Kept(dropout.States(seed, number), i/cols, i%cols))
		}
		return list
	}
	count := func(list []bool) (n float64) {
		for _, x := range list {
			if x {
				n++
			}
		}
		return n
	}
	first := dropped(1<<40, 0, 0)
	require.InDelta(t, p, count(first)/(rows*cols), 5*math.Sqrt(p*(1-p)/(rows*cols)))
	for _, other := range [][]bool{dropped(1<<41, 0, 0), dropped(1<<40, 1, 0), dropped(1<<40, 0, 1)} {
		for i := range other {
			other[i] = other[i] && first[i]
		}
		require.InDelta(t, p*p, count(other)/(rows*cols), 5*math.Sqrt(p*p*(1-p*p)/(rows*cols)))
	}
}

// Half of the elements are dropped, the others doubled; the next number drops others.
func ExampleForward() {
	e := vktest.NewExample()
	defer e.Close()
	p := dropout.Problem{Rows: 1, Cols: 6, P: 0.5}
	t := dropout.Tensors{X: e.Float32([]int{1, 6}, 1, 2, 3, 4, 5, 6), State: e.Tensor(dtype.Int32, []int{3}), Y: e.Float32([]int{1, 6})}
	for number := range uint32(2) {
		state := dropout.States(7, number)
		vktest.Must(t.State.UploadInts(context.Background(), state))
		e.Run(func(c *vk.Cmd) error { return dropout.Forward(c, t, p, dropout.Options{}) })
		fmt.Println(e.Values(t.Y), p.Kept(state, 0, 5))
	}
	// Output:
	// [2 4 0 0 0 12] true
	// [2 0 0 0 10 12] true
}

// A plan says what would run.
func ExampleChoose() {
	caps := &vk.Caps{ScalarBlockLayout: true, Storage16: true} // plain Vulkan 1.2
	p := dropout.Problem{Rows: 1000, Cols: 512, P: 0.05, DType: dtype.BFloat16}
	plan, err := dropout.Choose(caps, p, kit.Forward, dropout.Options{})
	fmt.Println(plan, plan.Kernels(), err)
	fmt.Println(dropout.Workspace(caps, p, kit.Forward, dropout.Options{}))
	fmt.Println(errors.Is(dropout.Supports(caps, p, kit.Backward, dropout.Options{}), vk.ErrUnsupported))
	// Output:
	// wg128 [dropout] <nil>
	// 0 <nil>
	// true
}
