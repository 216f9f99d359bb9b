package trial

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/shaders/compile/compiletest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func openPoisoned(t *testing.T) *vk.Device {
	return vktest.Open(t, func(o *vk.Options) { o.PoisonScratch = ScratchWord })
}

// A made is a problem that fills its output with 1. Its size says what is wrong with it.
type made struct {
	Size  int
	Wrong int    // the output is 2 for multiples of it
	Least int    // and for sizes from it on
	Do    string // refuse, panic, hang, lose, differ: in the second run the output is 0.5
	call.Data
	kernel  *vk.Kernel[struct{}] // of careless, instead
	scratch bool                 // the kernel reads scratch memory; else shared memory
	runs    int
}

// A madePlan has no kernels.
type madePlan []string

func (madePlan) String() string      { return "made" }
func (madePlan) Workspace() int64    { return 0 }
func (p madePlan) Kernels() []string { return p }

func (m *made) String() string  { return fmt.Sprintf("made of size %d", m.Size) }
func (m *made) Validate() error { return nil }
func (m *made) Pass() kit.Pass  { return kit.Forward }

func (m *made) Host() call.Host { return call.Host{Choose: m.choose, Bind: m.bind} }

func (m *made) choose(*vk.Caps, kit.Pass) (kit.Plan, error) {
	if m.Do == "refuse" {
		return nil, vk.ErrUnsupported
	}
	if m.kernel != nil {
		return madePlan{"careless"}, nil
	}
	return madePlan{}, nil
}

func (m *made) Tensors() []call.Tensor {
	if m.kernel != nil {
		return []call.Tensor{{Name: "given", DType: dtype.Int32, Shape: []int{64}, Own: true}, {Name: "found", DType: dtype.Int32, Shape: []int{carelessGroups * 64, 2}, Role: call.Output}}
	}
	return []call.Tensor{{Name: "y", Shape: []int{16}, Role: call.Output}}
}

// Adjust gives careless zeros.
func (m *made) Adjust(x call.Values) { x["given"] = make([]float64, 64) }

func (m *made) Want(call.Values, kit.Pass) call.Outputs {
	want := make([]float64, 16)
	for i := range want {
		want[i] = 1
	}
	return call.Outputs{"y": {Want: want, Bound: 0.75}, "found": {Want: make([]float64, carelessGroups*64*2)}}
}

func (m *made) bind(t map[string]vk.Tensor, _ *vk.Buffer, _ kit.Pass) call.Recording {
	return func(c *vk.Cmd) error { return m.record(c, t) }
}

func (m *made) record(c *vk.Cmd, t map[string]vk.Tensor) error {
	value := float32(1)
	m.runs++
	switch {
	case m.kernel != nil:
		in := t["given"]
		if m.scratch {
			in.Buffer = c.Scratch("scratch", 256)
		}
		m.kernel.Dispatch(c, vk.Groups{X: carelessGroups}, struct{}{}, in, t["found"])
		return nil
	case m.Do == "panic":
		panic("at the disco")
	case m.Do == "hang":
		time.Sleep(time.Hour)
	case m.Do == "lose":
		return fmt.Errorf("made: %w", vk.ErrDeviceLost)
	case m.Wrong > 0 && m.Size%m.Wrong == 0 || m.Least > 0 && m.Size >= m.Least:
		value = 2
	case m.Do == "differ" && m.runs == 2:
		value = 0.5
	}
	c.Fill(t["y"].Buffer, 4*int64(t["y"].Offset), 64, math.Float32bits(value))
	return nil
}

// makes returns a Kernel of made problems with sizes from 1 to 1000, or from Least on.
func makes(name string, p made) Kernel {
	return Kernel{Name: name, Weight: 1, New: func() call.Call { return new(made) }, Draw: func(_, rng *rand.Rand, _ call.Space) call.Call {
		q := p
		q.Size, q.Kind, q.Layout = p.Least+1+rng.IntN(1000), call.NormalKind, "p"
		return &q
	}}
}

// TestRun checks right problems of two kernels, one of which the device refuses, and problems and
// devices that are wrong in one way each.
func TestRun(t *testing.T) {
	d, ctx := openPoisoned(t), context.Background()
	o := Options{Seed: 3, Problems: 100, Hang: time.Minute, Kernels: []Kernel{makes("a", made{}), makes("b", made{Do: "refuse"}), makes("c", made{})}}
	last := 0
	x, err := Run(ctx, d, o, func(done, total int, _ string) { last = max(last, done) })
	require.NoError(t, err)
	require.Len(t, x.Record.Random, 2)
	a, c := x.Record.Random[0].Problems, x.Record.Random[1].Problems
	require.Equal(t, []int{100, 100, 100}, []int{x.Problems, last, a + c})
	require.Positive(t, a*c*x.Refused)
	require.Empty(t, x.Failures)
	require.Len(t, x.Record.Modules, 1)
	require.Equal(t, poisonModule, x.Record.Modules[0].Name)
	require.Equal(t, map[string]int{x.Record.Random[0].Kernel: a, x.Record.Random[1].Kernel: c}, x.Record.Modules[0].Random)

	o.Module = "another"
	_, err = Run(ctx, d, o, nil)
	require.ErrorContains(t, err, "runs another for none of 400000 problems")

	// A failure is made smaller, and its text repeats it.
	o = Options{Problems: 300, Hang: time.Minute, Failures: 2, Shrink: time.Minute, Workers: 1, Kernels: []Kernel{makes("a", made{Wrong: 7})}}
	x, err = Run(ctx, d, o, nil)
	require.NoError(t, err)
	require.Len(t, x.Failures, 2)
	f := x.Failures[0]
	require.Contains(t, f.What, "y[0] = 2, want 1: off by 1, tolerance 0.75")
	require.True(t, strings.HasPrefix(f.Problem, `a:{"Kind":"normal","Layout":"p","Size":`), f.Problem)
	require.Contains(t, f.Smallest, `"Wrong":`)
	require.LessOrEqual(t, len(f.Smallest), len(f.Problem))
	require.Zero(t, x.Record.Modules[0].Wrong) // it is the poison's
	require.Equal(t, 2, x.Record.Random[0].Failed)

	// A run ends at its budget with what it has, also while it makes a failure smaller.
	o = Options{Problems: math.MaxInt, Failures: math.MaxInt, Budget: 100 * time.Millisecond, Hang: time.Minute, Shrink: time.Hour, Kernels: []Kernel{makes("a", made{Least: 1 << 40})}}
	x, err = Run(ctx, d, o, nil)
	require.NoError(t, err)
	require.Positive(t, x.Problems)
	require.Len(t, x.Failures, x.Problems)
	require.GreaterOrEqual(t, x.Took, o.Budget)

	one := func(do string) (*Result, error) {
		return Run(ctx, d, Options{Problems: 1, Hang: time.Minute, Kernels: []Kernel{makes("a", made{Do: do})}}, nil)
	}
	for do, want := range map[string]string{"panic": "panic: at the disco", "differ": "y[0] = 1 in the first run, 0.5 in a second at (0): not deterministic"} {
		x, err = one(do)
		require.NoError(t, err)
		require.Len(t, x.Failures, 1)
		require.Contains(t, x.Failures[0].What, want)
	}
	_, err = one("refuse")
	require.EqualError(t, err, "trial: the device supports none of 10000 problems one after the other")
	_, err = Run(ctx, d, Options{Kernels: o.Kernels}, nil)
	require.EqualError(t, err, "trial: 0 problems of 1 kernels: at least one of each is needed")
	over, cancel := context.WithCancel(ctx)
	cancel()
	_, err = Run(over, d, o, nil)
	require.ErrorIs(t, err, context.Canceled)

	// A lost device ends the run: one problem is to blame, without a smaller one.
	x, err = Run(ctx, d, Options{Problems: 1000, Workers: 4, Hang: time.Minute, Shrink: time.Minute, Kernels: []Kernel{makes("a", made{Do: "lose"})}}, nil)
	require.ErrorIs(t, err, vk.ErrDeviceLost)
	require.Equal(t, 1, x.Problems)
	require.Len(t, x.Failures, 1)
	require.Equal(t, x.Failures[0].Problem, x.Failures[0].Smallest)
	require.Contains(t, x.Failures[0].Problem, `a:{"Do":"lose","Kind"`)

	// A device that does not poison scratch memory is refused.
	k, plain := makes("a", made{}), vktest.Open(t)
	_, err = Run(ctx, plain, Options{Problems: 1, Hang: time.Minute, Kernels: []Kernel{k}}, nil)
	require.EqualError(t, err, "trial: scratch memory of the device is filled with 0x0, want 0xffffffff")
	_, err = Examine(ctx, plain, &k, &made{}, false, time.Minute)
	require.ErrorContains(t, err, "scratch memory of the device is filled with 0x0")
}

// TestRunHangs has a problem that does not come back. Everything that it may use stays open.
func TestRunHangs(t *testing.T) {
	caps := openPoisoned(t).Caps() // or skips the test
	d, err := vk.Open(vk.Options{Device: caps.Name, PoisonScratch: ScratchWord})
	require.NoError(t, err)
	o := Options{Problems: 1, Hang: 50 * time.Millisecond, Kernels: []Kernel{makes("a", made{Do: "hang"})}}
	_, err = Run(context.Background(), d, o, nil)
	require.ErrorIs(t, err, ErrHung)
	require.ErrorContains(t, err, `a:{"Do":"hang","Kind"`)
	require.ErrorContains(t, d.Close(), `buffer "sink"`)
}

// carelessGroups is the number of workgroups of careless.comp, which reads shared memory that it has not
// written, and a buffer.
const carelessGroups = 64

// TestPoison says that Run finds a kernel that reads scratch or shared memory that it has not
// written. Each thread of lavapipe keeps its shared memory from dispatch to dispatch.
func TestPoison(t *testing.T) {
	glslc := compiletest.Tool(t, "../../..", "glslc", false)
	module := filepath.Join(t.TempDir(), "careless.spv")
	out, err := exec.Command(glslc, "--target-env=vulkan1.2", "-o", module, "testdata/careless.comp").CombinedOutput()
	require.NoError(t, err, "%s", out)
	code, err := os.ReadFile(module)
	require.NoError(t, err)
	d := openPoisoned(t)
	for _, scratch := range []bool{true, false} {
		kernel, err := vk.NewKernel[struct{}](d, "careless", code, struct {
			Shared bool `glsl:"SHARED"`
		}{!scratch}, vk.KernelOptions{})
		require.NoError(t, err)
		t.Cleanup(kernel.Close)
		o := Options{Problems: 8, Failures: 100, Hang: time.Minute, Kernels: []Kernel{{Name: "careless", Weight: 1, Draw: func(_, _ *rand.Rand, _ call.Space) call.Call {
			return &made{kernel: kernel, scratch: scratch}
		}}}}
		x, err := Run(context.Background(), d, o, nil)
		require.NoError(t, err)
		require.Len(t, x.Failures, 8, "scratch=%v", scratch)
		pattern := `\] = (2\.147|1\.979)\d*e\+09, want 0` // words in turn
		if scratch {
			pattern = `\] = -1, want 0`
		}
		for _, f := range x.Failures {
			require.Regexp(t, pattern, f.What)
		}
	}
}

// countTo returns a Pool.Next of the numbers from 0 to n-1, and how many it has returned.
func countTo(n int) (next func() (int, bool), begun *atomic.Int32) {
	begun = new(atomic.Int32)
	return func() (int, bool) {
		i := int(begun.Add(1)) - 1
		return i, i < n
	}, begun
}

// TestPool says that tasks run side by side, and that one at a time uses the device.
func TestPool(t *testing.T) {
	const workers = 4
	var together sync.WaitGroup
	together.Add(workers)
	var inside atomic.Int32
	var done []int
	next, _ := countTo(40)
	pool := Pool[int]{
		Workers: workers, Next: next,
		Check: func(ctx context.Context, use Use, i int) error {
			if i < workers {
				together.Done()
				together.Wait() // with fewer workers this would wait for ever
			}
			return use(ctx, func(context.Context) error {
				if inside.Add(1) != 1 {
					return errors.New("two use the device")
				}
				defer inside.Add(-1)
				time.Sleep(time.Duration(i%3) * time.Millisecond)
				return nil
			})
		},
		Done: func(i int, err error) {
			done = append(done, i)
			require.NoError(t, err)
		},
	}
	_, err := pool.Run(context.Background())
	require.NoError(t, err)
	require.Len(t, done, 40)
}

// TestPoolBlames breaks the device in task 5 while other tasks wait. Only task 5 is to blame, and
// nobody uses the device afterwards.
func TestPoolBlames(t *testing.T) {
	const culprit, follows, tasks = 5, 6, 30
	for _, broken := range []error{vk.ErrDeviceLost, context.DeadlineExceeded} {
		var used atomic.Int32
		lost, results := make(chan struct{}), map[int]error{}
		next, begun := countTo(tasks)
		pool := Pool[int]{
			Workers: 4, Next: next, Hang: 50 * time.Millisecond,
			Check: func(ctx context.Context, use Use, i int) error {
				if i == follows {
					<-lost
					return fmt.Errorf("compiling: %w", broken) // what follows from the culprit
				}
				return use(ctx, func(ctx context.Context) error {
					used.Add(1)
					if i != culprit {
						return nil
					}
					for begun.Load() <= follows { // until the other one is under way
						time.Sleep(time.Millisecond)
					}
					defer time.AfterFunc(time.Second, func() { close(lost) }) // the culprit is known by then
					if broken == context.DeadlineExceeded {                   // the call is given up
						<-ctx.Done()
						return ctx.Err()
					}
					return fmt.Errorf("vkQueueSubmit: %w", broken)
				})
			},
			Done: func(i int, err error) { results[i] = err },
		}
		i, err := pool.Run(context.Background())
		require.ErrorIs(t, err, broken)
		require.Equal(t, culprit, i)
		require.ErrorIs(t, results[culprit], broken)
		for i, err := range results {
			require.True(t, i == culprit || err == nil, "%d: %v", i, err)
		}
		require.EqualValues(t, len(results), used.Load())
		require.Less(t, len(results), tasks, "the others went on")
	}
}
