package trial

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// ScratchWord is the vk.Options.PoisonScratch that Run demands: NaN in every format, and a negative
// integer.
const ScratchWord = 0xffffffff

// words fill shared memory and registers in turn. NaN in every format shows in sums; large numbers
// show in maxima, which ignore NaN.
var words = []uint32{0x7fff7fff, 0x76007600}

// A Runner checks a problem on a device.
type Runner struct {
	guard  guard.Device
	poison *poison // nil: none

	mu      sync.Mutex
	modules map[string]vk.ModuleInfo // that the problem ran, by name
}

// OnDevice returns a Runner for one problem, which leaves no poison.
func OnDevice(d *vk.Device, use Use) *Runner {
	return &Runner{guard: guard.Device{Device: d, Use: use}, modules: map[string]vk.ModuleInfo{}}
}

// poison leaves numbers in shared memory and registers before calls.
type poison struct {
	d      *vk.Device
	kernel *vk.Kernel[poisonParams]
	sink   vk.Tensor
	groups uint32
	calls  atomic.Uint64
}

// poisonParams is the push-constant block of poison.comp.
type poisonParams struct {
	Word uint32 `glsl:"word"`
}

// poisonSpec is the specialization of poison.comp.
type poisonSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	Words         uint32 `glsl:"WORDS"`
}

// poisonModule is the module that leaves the poison.
const poisonModule = "poison"

// newPoison returns the poison of a device that poisons its scratch memory. The caller closes sink.
func newPoison(d *vk.Device) (*poison, error) {
	if word := d.PoisonScratch(); word != ScratchWord {
		return nil, fmt.Errorf("trial: scratch memory of the device is filled with %#x, want %#x", word, uint32(ScratchWord))
	}
	module, err := shaders.Get(poisonModule, "")
	if err != nil {
		return nil, err
	}
	caps, x := d.Caps(), &poison{d: d, groups: 1024}
	if caps.Type == vk.CPU {
		// Each of lavapipe's threads keeps its shared memory from dispatch to dispatch, and takes
		// several workgroups at a time.
		x.groups = uint32(8 * runtime.NumCPU())
	}
	const threads = 256 // a few such workgroups hold all registers of a multiprocessor
	x.kernel, err = vk.CachedKernel[poisonParams](d, module.Name, module.SPIRV, poisonSpec{
		WorkgroupSize: min(threads, caps.MaxWorkgroupInvocations), Words: caps.MaxSharedMemoryBytes / 4,
	}, vk.KernelOptions{})
	if err != nil {
		return nil, err
	}
	x.sink, err = d.NewTensor("sink", dtype.Int32, 1)
	return x, err
}

// runner returns a Runner for one problem.
func (x *poison) runner(use Use) *Runner {
	r := OnDevice(x.d, use)
	r.poison = x
	return r
}

// Check computes the problem, all of its passes, twice. It returns the largest error by its bound, and
// the first thing that is wrong.
func (r *Runner) Check(ctx context.Context, p Problem) (worst float64, err error) {
	if c, ok := p.(interface{ Close() }); ok {
		defer c.Close()
	}
	x, caps := call.Inputs(p), r.guard.Caps()
	var first call.Call
	if f, ok := p.(interface{ First() call.Call }); ok {
		first = f.First()
	}
	if first != nil {
		c, record, err := call.Case(caps, first, kit.Forward, x)
		if err != nil {
			return 0, err
		}
		saved, err := c.Outputs(ctx, r.guard, r.record(record))
		if err != nil {
			return 0, fmt.Errorf("the forward pass before: %w", err)
		}
		maps.Copy(x, saved)
	}
	c, record, err := call.Case(caps, p, p.Pass(), x)
	if err != nil {
		return 0, err
	}
	report, err := c.CheckContext(ctx, r.guard, r.record(record))
	return report.Worst, err
}

// record records poison before a call, and notes the modules that it runs.
func (r *Runner) record(record guard.Record) guard.Record {
	return func(c *vk.Cmd, t map[string]vk.Tensor) error {
		if x := r.poison; x != nil {
			n := x.calls.Add(1)
			x.kernel.Dispatch(c, vk.Groups{X: x.groups}, poisonParams{words[n%uint64(len(words))]}, x.sink)
			c.Barrier()
		}
		err := record(c, t)
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, m := range c.Modules() {
			r.modules[m.Name] = m
		}
		return err
	}
}

// Modules returns the modules that the calls of a problem ran, in no order.
func (r *Runner) Modules() []vk.ModuleInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.modules))
}
