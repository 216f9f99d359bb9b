package trial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/conformance"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A Failure is a problem with a wrong result. Its texts of problems are those that Encode writes.
type Failure struct {
	Problem  string
	What     string // is wrong with it
	Smallest string // the smallest problem found that is wrong as well
	Smaller  string // what is wrong with that
}

// A Result is the outcome of Run.
type Result struct {
	Record   *conformance.Record
	Seed     uint64
	Problems int // checked, right or wrong
	Refused  int // drawn, but not supported on the device
	Failures []Failure
	Took     time.Duration
	Workers  int
	Compiled int           // kernels
	Compile  time.Duration // the time of workers that compiling took
}

// Options choose what Run checks.
type Options struct {
	Seed     uint64
	Problems int // to check at most, not counting those that the device does not support
	Kernels  []Kernel
	Space    call.Space
	Workers  int           // problems at a time; 0: two for each core, since workers also wait for the device
	Budget   time.Duration // after which no more problems are begun; 0: none
	Hang     time.Duration // after which a problem is given up, and Run ends
	Failures int           // after which no more problems are begun; 0: 10
	Shrink   time.Duration // for which smaller problems are tried, for each failure
	Module   string        // of the drawn problems, check those that run a kernel of this module; "": all
}

// MaxWorkers is the largest Options.Workers.
const MaxWorkers = 1024

// A job is a problem to be checked.
type job struct {
	kernel  *Kernel
	problem Problem
	runner  *Runner
	failure *Failure
}

// Run checks random problems on a device, which has to poison its scratch memory with ScratchWord.
// An error means that the run was cut short; the Result then has the problems before.
func Run(ctx context.Context, d *vk.Device, o Options, progress func(done, total int, what string)) (*Result, error) {
	if o.Problems <= 0 || len(o.Kernels) == 0 {
		return nil, fmt.Errorf("trial: %d problems of %d kernels: at least one of each is needed", o.Problems, len(o.Kernels))
	}
	o.Workers, o.Failures = cmp.Or(o.Workers, DefaultWorkers()), cmp.Or(o.Failures, 10)
	poison, err := newPoison(d)
	if err != nil {
		return nil, err
	}
	r := &run{
		Options: o, poison: poison, progress: progress, start: time.Now(),
		result: &Result{Record: conformance.New(d.Caps()), Seed: o.Seed, Workers: o.Workers},
	}
	if o.Budget > 0 {
		r.end = r.start.Add(o.Budget)
	}
	ctx, r.cancel = context.WithCancelCause(ctx)
	defer r.cancel(nil)
	pool := Pool[*job]{Workers: o.Workers, Next: r.next, Check: r.check, Done: r.add}
	_, err = pool.Run(ctx)
	if !errors.Is(err, ErrHung) { // else a call that did not come back may still use it
		poison.sink.Close()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Took = time.Since(r.start)
	for _, k := range d.CachedKernels() {
		r.result.Compiled++
		r.result.Compile += k.Stats.Created
	}
	cause := context.Cause(ctx)
	if errors.Is(cause, errEnough) {
		cause = nil
	}
	return r.result, cmp.Or(err, cause, r.none)
}

// DefaultWorkers is above the number of cores because workers wait: for the device, and for the
// driver while it compiles another's kernel.
func DefaultWorkers() int { return 2 * runtime.GOMAXPROCS(0) }

// errEnough ends a run that has failed often enough.
var errEnough = errors.New("enough failures")

// run is the state of one Run.
type run struct {
	Options
	poison   *poison
	progress func(done, total int, what string)
	cancel   context.CancelCauseFunc
	start    time.Time
	end      time.Time // of the budget; zero: none

	mu     sync.Mutex
	drawn  int // problems, with those that the device does not support
	begun  int
	none   error // the device supports none of many problems
	result *Result
}

// spent reports whether the budget is spent.
func (r *run) spent() bool { return !r.end.IsZero() && time.Now().After(r.end) }

// mostRefused problems one after the other a device may not support; mostOthers may run other modules: 1 of 200 families has one.
const mostRefused, mostOthers = 10_000, 400_000

// next draws a problem.
func (r *run) next() (*job, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for refused := 0; r.begun < r.Problems && r.none == nil && !r.spent(); r.drawn++ {
		k, p, ok := Draw(r.Seed, r.drawn, r.Kernels, r.Space)
		supported := ok && call.Supports(p, r.poison.d.Caps()) == nil
		if supported && r.wants(p) {
			r.drawn++
			r.begun++
			return &job{kernel: k, problem: p}, true
		}
		if !supported {
			r.result.Refused++
		}
		if refused++; refused == mostRefused && r.Module == "" || refused == mostOthers {
			does := "supports"
			if r.Module != "" {
				does = "runs " + r.Module + " for"
			}
			r.none = fmt.Errorf("trial: the device %s none of %d problems one after the other", does, refused)
		}
	}
	return nil, false
}

// wants reports whether a problem runs Options.Module. Some plans name kernels without the format.
func (r *run) wants(p Problem) bool {
	if r.Module == "" {
		return true
	}
	kernel, format, _ := strings.Cut(r.Module, ".")
	of := call.Field(p, "dtype")
	plan, err := p.Host().Choose(r.poison.d.Caps(), p.Pass())
	return err == nil && slices.ContainsFunc(plan.Kernels(), func(name string) bool {
		return name == r.Module || name == kernel && of.IsValid() && of.Interface().(dtype.DType).Short() == format
	})
}

// check checks a job, and looks for a smaller problem if it fails.
func (r *run) check(ctx context.Context, use Use, j *job) error {
	j.runner = r.poison.runner(use)
	err := attempt(ctx, j.runner, j.kernel, j.problem, r.Hang)
	if err != nil && ctx.Err() == nil && !cannot(err) && !errors.Is(err, errInterrupted) {
		j.failure = r.shrink(ctx, use, j, err)
	}
	return err
}

// cannot reports whether an error says that the device cannot compute a problem.
func cannot(err error) bool {
	return errors.Is(err, vk.ErrUnsupported) || errors.Is(err, vk.ErrOutOfDeviceMemory)
}

// add counts a problem.
func (r *run) add(j *job, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.result
	switch {
	case j.failure != nil:
		x.Failures = append(x.Failures, *j.failure)
		if len(x.Failures) >= r.Failures {
			r.cancel(errEnough)
		}
	case err != nil:
		x.Refused++
		return
	}
	x.Problems++
	x.Record.Problem(j.kernel.Name, r.Seed, err == nil)
	for _, m := range j.runner.Modules() {
		x.Record.Ran(m, j.kernel.Name, err == nil || m.Name == poisonModule) // which has no result that could be wrong
	}
	if r.progress != nil {
		r.progress(x.Problems, r.Problems, fmt.Sprintf("%s, %d wrong", j.kernel.Name, len(x.Failures)))
	}
}

// attempt checks a problem, and gives it up after a time.
func attempt(ctx context.Context, r *Runner, k *Kernel, p Problem, hang time.Duration) error {
	result := make(chan error, 1)
	go func() {
		defer func() {
			if x := recover(); x != nil {
				result <- fmt.Errorf("panic: %v\n%s", x, debug.Stack())
			}
		}()
		_, err := r.Check(ctx, p)
		result <- err
	}()
	limit := time.NewTimer(hang)
	defer limit.Stop()
	select {
	case err := <-result:
		return err
	case <-limit.C:
		return fmt.Errorf("%s: not done within %v: %w", Encode(k, p), hang, ErrHung)
	}
}

// shrink looks for the smallest problem that also fails, while the device is not broken. A problem
// counts as right after three runs, since some defects do not show in every run.
func (r *run) shrink(ctx context.Context, use Use, j *job, err error) *Failure {
	f := &Failure{Problem: Encode(j.kernel, j.problem), What: err.Error()}
	smallest, what, until := j.problem, err, time.Now().Add(r.Shrink)
	over := func() bool { return time.Now().After(until) || r.spent() || ctx.Err() != nil }
	for again := true; again && !over() && !Breaks(what); {
		again = false
		for _, p := range call.Smaller(smallest) {
			if err := r.fails(ctx, use, j.kernel, p); err != nil && ctx.Err() == nil {
				smallest, what, again = p, err, true
				break
			}
			if over() {
				break
			}
		}
	}
	f.Smallest, f.Smaller = Encode(j.kernel, smallest), what.Error()
	return f
}

// fails returns the first error of three runs of a problem, or nil.
func (r *run) fails(ctx context.Context, use Use, k *Kernel, p Problem) error {
	if call.Supports(p, r.poison.d.Caps()) != nil {
		return nil
	}
	for range 3 {
		err := attempt(ctx, r.poison.runner(use), k, p, r.Hang)
		if cannot(err) || errors.Is(err, errInterrupted) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Examine checks one problem once, as Run does, and returns the modules that it ran. With replay it
// submits the recording once more, and wants the same bits.
func Examine(ctx context.Context, d *vk.Device, k *Kernel, p Problem, replay bool, hang time.Duration) (modules []string, err error) {
	poison, err := newPoison(d)
	if err != nil {
		return nil, err
	}
	one := poison.runner(nil)
	one.guard.Replay = replay
	if err = attempt(ctx, one, k, p, hang); errors.Is(err, ErrHung) {
		return nil, err
	}
	poison.sink.Close()
	for _, m := range one.Modules() {
		modules = append(modules, m.Name)
	}
	return modules, err
}

// Err returns an error if problems are wrong.
func (x *Result) Err() error {
	if n := len(x.Failures); n > 0 {
		return fmt.Errorf("%d of %d random problems are wrong", n, x.Problems)
	}
	return nil
}

// Write prints the wrong problems, with commands that repeat them, and the summary.
func (x *Result) Write(w io.Writer) error {
	for _, f := range x.Failures {
		fmt.Fprintf(w, "WRONG    %s\n         flashvk selftest --problem '%s'\n", f.What, f.Problem)
		if f.Smallest != f.Problem {
			fmt.Fprintf(w, "smaller  %s\n         flashvk selftest --problem '%s'\n", f.Smaller, f.Smallest)
		}
	}
	_, err := fmt.Fprintln(w, x.Summary())
	return err
}

// Summary says in a line what was checked.
func (x *Result) Summary() string {
	var parts []string
	for _, run := range x.Record.Random {
		parts = append(parts, fmt.Sprintf("%s %d", run.Kernel, run.Problems))
	}
	slices.Sort(parts)
	return fmt.Sprintf("%d wrong of %d random problems of seed %d, %d modules (%s), %d more not supported; %v, %.1f a second; %d kernels compiled in %v of the workers' %v",
		len(x.Failures), x.Problems, x.Seed, len(x.Record.Modules), strings.Join(parts, ", "), x.Refused,
		x.Took.Round(time.Second), float64(x.Problems)/x.Took.Seconds(),
		x.Compiled, x.Compile.Round(time.Second), (x.Took * time.Duration(x.Workers)).Round(time.Second))
}

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
