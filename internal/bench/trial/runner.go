package trial

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// ScratchWord is the vk.Options.PoisonScratch that Run demands: NaN in every format, and a negative
// integer.
const ScratchWord = 0xffffffff

// words fill shared memory and registers in turn. NaN in every format shows in sums; large numbers
// show in maxima, which ignore NaN.
var words = []uint32{0x7fff7fff, 0x76007600}

// A Runner runs the calls of problems on a device. It may be shared by goroutines.
type Runner struct {
	d      *vk.Device
	kernel *vk.Kernel[poisonParams]
	sink   vk.Tensor
	groups uint32
	calls  atomic.Uint64

	replay bool // Guard's
	use    Use  // likewise

	parent *Runner

	mu      sync.Mutex
	modules map[string]vk.ModuleInfo // that the problem ran, by name; nil: they do not count
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

// poisonThreads is the size of the workgroups of poison.comp. A few of them hold all registers of a
// multiprocessor.
const poisonThreads = 256

// poisonedRunner is newRunner of a device that has to poison its scratch memory.
func poisonedRunner(d *vk.Device) (*Runner, error) {
	if word := d.PoisonScratch(); word != ScratchWord {
		return nil, fmt.Errorf("trial: scratch memory of the device is filled with %#x, want %#x", word, uint32(ScratchWord))
	}
	return newRunner(d)
}

// newRunner returns a Runner of a device, which the caller closes.
func newRunner(d *vk.Device) (*Runner, error) {
	module, err := shaders.Get(poisonModule, "")
	if err != nil {
		return nil, err
	}
	caps := d.Caps()
	r := &Runner{d: d, groups: 1024}
	if caps.Type == vk.CPU {
		// Each of lavapipe's threads keeps its shared memory from dispatch to dispatch, and takes
		// several workgroups at a time.
		r.groups = uint32(8 * runtime.NumCPU())
	}
	r.kernel, err = vk.CachedKernel[poisonParams](d, module.Name, module.SPIRV, poisonSpec{
		WorkgroupSize: min(poisonThreads, caps.MaxWorkgroupInvocations), Words: caps.MaxSharedMemoryBytes / 4,
	}, vk.KernelOptions{})
	if err != nil {
		return nil, err
	}
	r.sink, err = d.NewTensor("sink", dtype.Int32, 1)
	return r, err
}

// close frees what newRunner made.
func (r *Runner) close() { r.sink.Close() }

// problem returns a Runner for one problem. It counts the modules of that problem alone.
func (r *Runner) problem(use Use) *Runner {
	return &Runner{d: r.d, parent: r, replay: r.replay, use: use, modules: map[string]vk.ModuleInfo{}}
}

// root returns the Runner of the device.
func (r *Runner) root() *Runner {
	if r.parent != nil {
		return r.parent
	}
	return r
}

// Device returns the device.
func (r *Runner) Device() *vk.Device { return r.d }

// Guard returns the device of package guard, which runs calls on tensors and watches the memory
// around them.
func (r *Runner) Guard() guard.Device { return guard.Device{Device: r.d, Replay: r.replay, Use: r.use} }

// Submit records a call, with poison before it, and runs it.
func (r *Runner) Submit(ctx context.Context, name string, record func(c *vk.Cmd) error) error {
	c, err := r.d.NewCmd(name)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := r.Record(c, record); err != nil {
		return err
	}
	if r.use == nil {
		return c.Submit(ctx)
	}
	return r.use(ctx, c.Submit)
}

// Record records a call into a Cmd of the caller, with poison before it, and notes the
// modules that it runs.
func (r *Runner) Record(c *vk.Cmd, record func(c *vk.Cmd) error) error {
	root := r.root()
	if root.kernel != nil {
		n := root.calls.Add(1)
		root.kernel.Dispatch(c, vk.Groups{X: root.groups}, poisonParams{words[n%uint64(len(words))]}, root.sink)
		c.Barrier()
	}
	err := record(c)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range c.Modules() {
		if r.modules != nil {
			r.modules[m.Name] = m
		}
	}
	return err
}

// Modules returns the modules that the calls of a problem ran, in no order.
func (r *Runner) Modules() []vk.ModuleInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.modules))
}

// A Tally counts problems by module. It is in the order of names.
type Tally []Module

// Add counts one problem of a kernel, right or wrong, for the modules that it ran.
func (t *Tally) Add(modules []vk.ModuleInfo, kernel string, right bool) {
	for _, m := range modules {
		i, found := slices.BinarySearchFunc(*t, m.Name, func(x Module, name string) int { return strings.Compare(x.Name, name) })
		if !found {
			*t = slices.Insert(*t, i, Module{ModuleInfo: m, Problems: map[string]int{}})
		}
		if right || m.Name == poisonModule { // it has no result that could be wrong
			(*t)[i].Problems[kernel]++
		} else {
			(*t)[i].Failed++
		}
	}
}
