package trial

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/shaders/compile/compiletest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// careless is a kernel that reads shared memory that it has not written, and a buffer.
const careless = `#version 450
layout(local_size_x = 64) in;
layout(binding = 0) readonly buffer In { uint given[]; };
layout(binding = 1) writeonly buffer Out { uint found[]; };
shared uint memory[1024];
void main() {
    const uint at = (gl_WorkGroupID.x * 64 + gl_LocalInvocationIndex) * 2;
    found[at] = memory[gl_LocalInvocationIndex * 16];
    found[at + 1] = given[gl_LocalInvocationIndex];
}
`

// carelessGroups is the number of its workgroups in a dispatch.
const carelessGroups = 64

// compileCareless returns careless as SPIR-V, or skips the test where there is no compiler.
func compileCareless(t *testing.T) []byte {
	t.Helper()
	glslc := compiletest.Tool(t, "../../..", "glslc", false)
	source, module := filepath.Join(t.TempDir(), "careless.comp"), filepath.Join(t.TempDir(), "careless.spv")
	require.NoError(t, os.WriteFile(source, []byte(careless), 0o666))
	out, err := exec.Command(glslc, "--target-env=vulkan1.2", "-o", module, source).CombinedOutput()
	require.NoError(t, err, "%s", out)
	code, err := os.ReadFile(module)
	require.NoError(t, err)
	return code
}

// carelessProblem is right if the kernel finds only zeros, as it does by luck.
type carelessProblem struct {
	Size    int
	kernel  *vk.Kernel[struct{}]
	scratch bool // the kernel reads scratch memory; else shared memory
}

func (p *carelessProblem) String() string            { return "careless" }
func (p *carelessProblem) Supports(*vk.Caps) error   { return nil }
func (p *carelessProblem) Smaller() (list []Problem) { return nil }

func (p *carelessProblem) Check(ctx context.Context, r *Runner) error {
	given, err := r.Device().NewTensor("given", dtype.Int32, 64)
	if err != nil {
		return err
	}
	defer given.Close()
	found, err := r.Device().NewTensor("found", dtype.Int32, carelessGroups*64, 2)
	if err != nil {
		return err
	}
	defer found.Close()
	err = r.Submit(ctx, "careless", func(c *vk.Cmd) error {
		in := given
		if p.scratch {
			in.Buffer = c.Scratch("scratch", 256)
		}
		p.kernel.Dispatch(c, vk.Groups{X: carelessGroups}, struct{}{}, in, found)
		return nil
	})
	if err != nil {
		return err
	}
	data := make([]byte, found.Buffer.Bytes())
	if err := found.Buffer.Download(ctx, 0, data); err != nil {
		return err
	}
	which := 0
	if p.scratch {
		which = 1
	}
	for i := which; i < carelessGroups*64*2; i += 2 {
		if x := binary.LittleEndian.Uint32(data[4*i:]); x != 0 {
			return fmt.Errorf("element %d is %#x", i, x)
		}
	}
	return nil
}

// TestPoison says that Run finds a kernel that reads scratch or shared memory that it has not
// written. Each thread of lavapipe keeps its shared memory from dispatch to dispatch.
func TestPoison(t *testing.T) {
	code := compileCareless(t)
	d := openPoisoned(t)
	kernel, err := vk.NewKernel[struct{}](d, "careless", code, struct{}{}, vk.KernelOptions{})
	require.NoError(t, err)
	t.Cleanup(kernel.Close)
	for _, scratch := range []bool{true, false} {
		o := Options{Problems: 8, Failures: 100, Hang: time.Minute, Kernels: []Kernel{{Name: "careless", Weight: 1, New: func() Problem { return nil }, Draw: func(_, rng *rand.Rand, _ call.Space) Problem {
			return &carelessProblem{Size: rng.IntN(100), kernel: kernel, scratch: scratch}
		}}}}
		x, err := Run(context.Background(), d, o, nil)
		require.NoError(t, err)
		require.Len(t, x.Failures, 8, "scratch=%v", scratch)
		found := map[string]bool{}
		for _, f := range x.Failures {
			_, what, _ := strings.Cut(f.What, " is ")
			found[what] = true
		}
		if scratch {
			require.Equal(t, map[string]bool{fmt.Sprintf("%#x", uint32(ScratchWord)): true}, found)
			continue
		}
		for _, word := range words { // in turn
			require.Contains(t, found, fmt.Sprintf("%#x", word))
		}
	}
}

// TestRunWantsPoison says that Run refuses a device that does not poison scratch memory.
func TestRunWantsPoison(t *testing.T) {
	d := vktest.Open(t)
	k := makes("a", made{})
	_, err := Run(context.Background(), d, Options{Problems: 1, Hang: time.Minute, Kernels: []Kernel{k}}, nil)
	require.EqualError(t, err, "trial: scratch memory of the device is filled with 0x0, want 0xffffffff")
	_, err = Examine(context.Background(), d, &k, &made{}, false, time.Minute)
	require.ErrorContains(t, err, "scratch memory of the device is filled with 0x0")
}

// TestTwice says that Run finds a call whose two results differ, even if both are right.
func TestTwice(t *testing.T) {
	d := openPoisoned(t)
	r := newTestRunner(t, d)
	y := guard.Tensor{Name: "y", Shape: []int{16}, Want: make([]float64, 16), Bound: 10, Place: &guard.Place{}}
	for _, step := range []float32{0, 1} {
		value := float32(1)
		err := r.Check(context.Background(), guard.Case{Name: "twice", Tensors: []guard.Tensor{y}}, func(c *vk.Cmd, tensors map[string]vk.Tensor) error {
			value += step
			c.Fill(tensors["y"].Buffer, 4*int64(tensors["y"].Offset), 64, math.Float32bits(value))
			return nil
		})
		if step == 0 {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "y[0] = 2 in the first run, 3 in a second at (0): not deterministic")
		}
	}
}
