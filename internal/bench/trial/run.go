package trial

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flashvk/flashvk/vk"
)

// A Failure is a problem with a wrong result. Its texts of problems are those that Encode writes.
type Failure struct {
	Kernel   string
	Problem  string
	What     string // is wrong with it
	Smallest string // the smallest problem found that is wrong as well
	Smaller  string // what is wrong with that
	// Suspect says that the device was lost while the problem ran. Another suspect may have
	// lost it.
	Suspect bool
}

// A Module is a SPIR-V module that problems ran.
type Module struct {
	Name     string
	SHA256   string         // of the SPIR-V, in hexadecimal
	Problems map[string]int // problems that ran it and were right, by kernel
	Failed   int            // problems that ran it and were wrong
}

// A Result is the outcome of Run.
type Result struct {
	Seed     uint64
	Problems int            // checked, right or wrong
	Kernels  map[string]int // how many of them, by kernel
	Refused  int            // drawn, but not supported on the device
	Failures []Failure
	Modules  []Module // by name
	Took     time.Duration
}

// Options choose what Run checks.
type Options struct {
	Seed     uint64
	Problems int // to check, not counting those that the device does not support
	Kernels  []Kernel
	Space    Space
	Workers  int           // problems at a time; 0: two for each core, since workers also wait for the device
	Hang     time.Duration // after which a problem is given up, and Run ends
	Failures int           // after which no more problems are begun; 0: 10
	Shrink   time.Duration // for which smaller problems are tried, for each failure
}

// ErrHung is wrapped by the error of Run if a problem does not come back. Closing the
// device would wait for ever.
var ErrHung = errors.New("the device does not come back")

// family is the number of problems of a family, and the number of families whose problems take
// turns. Without turns, workers would wait for one compilation while cores are idle.
const family = 8

// softFamily is family for Space.Soft, where a test draws few problems and wants many families.
const softFamily = 4

// A job is a problem to be checked.
type job struct {
	kernel  *Kernel
	problem Problem
}

// Run checks random problems on a device, which has to poison its scratch memory with ScratchWord.
// An error means that the run was cut short; the Result then has the problems before.
func Run(ctx context.Context, d *vk.Device, o Options, progress func(done, total int, what string)) (*Result, error) {
	if o.Problems <= 0 || len(o.Kernels) == 0 {
		return nil, fmt.Errorf("trial: %d problems of %d kernels: at least one of each is needed", o.Problems, len(o.Kernels))
	}
	if o.Workers == 0 {
		o.Workers = 2 * runtime.GOMAXPROCS(0)
	}
	if o.Failures == 0 {
		o.Failures = 10
	}
	if err := poisoned(d); err != nil {
		return nil, err
	}
	runner, err := newRunner(d)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	r := &run{
		Options: o, runner: runner, modules: tally{}, progress: progress, jobs: make(chan job), underway: map[*Runner]job{},
		result: &Result{Seed: o.Seed, Kernels: map[string]int{}},
	}
	ctx, r.cancel = context.WithCancelCause(ctx)
	var workers sync.WaitGroup
	for range o.Workers {
		workers.Add(1)
		go func() { defer workers.Done(); r.work(ctx) }()
	}
	drawn := r.draw(ctx)
	close(r.jobs)
	done := make(chan struct{})
	go func() { workers.Wait(); close(done) }()
	select {
	case <-done:
	case <-r.hung(ctx, done):
	}
	if !errors.Is(context.Cause(ctx), ErrHung) { // else a call that did not come back may still use it
		runner.close()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Modules, r.result.Took = r.modules.list(), time.Since(start)
	if err := context.Cause(ctx); err != nil && !errors.Is(err, errEnough) {
		return r.result, err
	}
	return r.result, drawn
}

// poisoned returns an error for a device that does not poison scratch memory.
func poisoned(d *vk.Device) error {
	if word := d.PoisonScratch(); word != ScratchWord {
		return fmt.Errorf("trial: scratch memory of the device is filled with %#x, want %#x", word, uint32(ScratchWord))
	}
	return nil
}

// errEnough ends a run that has failed often enough.
var errEnough = errors.New("enough failures")

// run is the state of one Run.
type run struct {
	Options
	runner   *Runner
	jobs     chan job
	progress func(done, total int, what string)
	cancel   context.CancelCauseFunc

	mu       sync.Mutex
	result   *Result
	modules  tally
	underway map[*Runner]job
}

// hung returns a channel that is closed when a problem that does not come back has ended the run.
func (r *run) hung(ctx context.Context, done <-chan struct{}) <-chan struct{} {
	hung := make(chan struct{})
	go func() {
		select {
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), ErrHung) {
				close(hung)
			}
		case <-done:
		}
	}()
	return hung
}

// Draw returns problem number n of a seed, and its kernel; false if the Space has none of
// that kernel.
func Draw(seed uint64, n int, kernels []Kernel, s Space) (*Kernel, Problem, bool) {
	family := family
	if s.Soft {
		family = softFamily
	}
	group := uint64(n/(family*family)*family + n%family)
	of := rand.New(rand.NewPCG(seed, 2*group+1))
	total := 0
	for _, k := range kernels {
		total += k.Weight
	}
	x := of.IntN(total)
	for i := range kernels {
		k := &kernels[i]
		if x -= k.Weight; x < 0 {
			p := k.Draw(of, rand.New(rand.NewPCG(seed, 2*uint64(n))), s)
			return k, p, p != nil
		}
	}
	panic("trial: weights do not add up")
}

// draw hands problems to the workers.
func (r *run) draw(ctx context.Context) error {
	refused := 0 // one after the other
	for n, sent := 0, 0; sent < r.Problems; n++ {
		k, p, ok := Draw(r.Seed, n, r.Kernels, r.Space)
		if !ok || p.Supports(r.runner.d.Caps()) != nil {
			if refused++; refused == 10000 {
				return fmt.Errorf("trial: the device supports none of %d problems one after the other", refused)
			}
			r.mu.Lock()
			r.result.Refused++
			r.mu.Unlock()
			continue
		}
		refused = 0
		select {
		case r.jobs <- job{k, p}:
			sent++
		case <-ctx.Done():
			return nil // Run knows the cause
		}
	}
	return nil
}

// work checks problems until there are no more.
func (r *run) work(ctx context.Context) {
	for j := range r.jobs {
		if ctx.Err() != nil {
			return
		}
		runner := r.runner.problem()
		r.begin(runner, j)
		err := r.check(ctx, runner, j.kernel, j.problem)
		if errors.Is(err, vk.ErrDeviceLost) {
			r.lost(err)
		}
		r.end(runner)
		if ctx.Err() != nil {
			return
		}
		var failure *Failure
		if err != nil && !errors.Is(err, vk.ErrUnsupported) && !errors.Is(err, vk.ErrOutOfDeviceMemory) {
			failure = r.shrink(ctx, j, err)
		}
		r.add(runner, j, err, failure)
	}
}

func (r *run) begin(runner *Runner, j job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.underway[runner] = j
}

func (r *run) end(runner *Runner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.underway, runner)
}

// lost ends the run. Any of the problems that were running may have lost the device, so none of
// their modules counts as right.
func (r *run) lost(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.ContainsFunc(r.result.Failures, func(f Failure) bool { return f.Suspect }) {
		return
	}
	r.cancel(err)
	for runner, j := range r.underway {
		text := Encode(j.kernel, j.problem)
		r.result.Failures = append(r.result.Failures, Failure{Kernel: j.kernel.Name, Problem: text, What: err.Error(), Smallest: text, Suspect: true})
		r.result.Problems++
		r.result.Kernels[j.kernel.Name]++
		r.modules.add(runner, j.kernel.Name, false)
	}
}

// add counts a problem.
func (r *run) add(runner *Runner, j job, err error, failure *Failure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.result
	switch {
	case failure != nil:
		x.Failures = append(x.Failures, *failure)
		if len(x.Failures) >= r.Failures {
			r.cancel(errEnough)
		}
	case err != nil:
		x.Refused++
		return
	}
	x.Problems++
	x.Kernels[j.kernel.Name]++
	r.modules.add(runner, j.kernel.Name, failure == nil)
	if r.progress != nil {
		r.progress(x.Problems, r.Problems, fmt.Sprintf("%s, %d wrong", j.kernel.Name, len(x.Failures)))
	}
}

// check checks one problem. One that does not come back ends the run.
func (r *run) check(ctx context.Context, runner *Runner, k *Kernel, p Problem) error {
	result := make(chan error, 1)
	go func() {
		defer func() {
			if x := recover(); x != nil {
				result <- fmt.Errorf("panic: %v\n%s", x, debug.Stack())
			}
		}()
		result <- p.Check(ctx, runner)
	}()
	hang := time.NewTimer(r.Hang)
	defer hang.Stop()
	select {
	case err := <-result:
		return err
	case <-hang.C:
		err := fmt.Errorf("%s: not done within %v: %w", Encode(k, p), r.Hang, ErrHung)
		r.cancel(err)
		return err
	}
}

// shrink looks for the smallest problem that also fails. A problem counts as right after three
// runs, since some defects do not show in every run.
func (r *run) shrink(ctx context.Context, j job, err error) *Failure {
	f := &Failure{Kernel: j.kernel.Name, Problem: Encode(j.kernel, j.problem), What: err.Error()}
	smallest, what, until := j.problem, err, time.Now().Add(r.Shrink)
	for again := true; again && time.Now().Before(until) && !errors.Is(what, vk.ErrDeviceLost); { // where every problem fails
		again = false
		for _, p := range smallest.Smaller() {
			if err := r.fails(ctx, j.kernel, p); err != nil && ctx.Err() == nil {
				smallest, what, again = p, err, true
				if errors.Is(err, vk.ErrDeviceLost) {
					r.lost(err)
				}
				break
			}
			if time.Now().After(until) || ctx.Err() != nil {
				break
			}
		}
	}
	f.Smallest, f.Smaller = Encode(j.kernel, smallest), what.Error()
	return f
}

// fails returns the first error of three runs of a problem, or nil.
func (r *run) fails(ctx context.Context, k *Kernel, p Problem) error {
	if p.Supports(r.runner.d.Caps()) != nil {
		return nil
	}
	for range 3 {
		err := r.check(ctx, r.runner.problem(), k, p)
		if errors.Is(err, vk.ErrUnsupported) || errors.Is(err, vk.ErrOutOfDeviceMemory) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Check checks one problem on a device, as Run does, and returns the first error. It checks a right
// problem `times` times.
func Check(ctx context.Context, d *vk.Device, k *Kernel, p Problem, times int, hang time.Duration) error {
	if err := poisoned(d); err != nil {
		return err
	}
	runner, err := newRunner(d)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &run{Options: Options{Hang: hang}, runner: runner, cancel: cancel}
	for range times {
		if err = r.check(ctx, runner.problem(), k, p); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrHung) {
		runner.close()
	}
	return err
}

// Examine checks one problem once, as Check does, and returns the modules that it ran. With replay
// it submits the recording once more, and wants the same bits.
func Examine(ctx context.Context, d *vk.Device, k *Kernel, p Problem, replay bool, hang time.Duration) (modules []string, err error) {
	if err := poisoned(d); err != nil {
		return nil, err
	}
	runner, err := newRunner(d)
	if err != nil {
		return nil, err
	}
	runner.replay = replay
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r, one := &run{Options: Options{Hang: hang}, runner: runner, cancel: cancel}, runner.problem()
	if err = r.check(ctx, one, k, p); errors.Is(err, ErrHung) {
		return nil, err
	}
	runner.close()
	return slices.Sorted(maps.Keys(one.modules)), err
}

// Summary says in a line what was checked.
func (x *Result) Summary() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(x.Kernels)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, x.Kernels[name]))
	}
	return fmt.Sprintf("%d random problems of seed %d in %v, %.1f a second: %d wrong, %d modules (%s); %d more not supported",
		x.Problems, x.Seed, x.Took.Round(time.Second), float64(x.Problems)/x.Took.Seconds(), len(x.Failures), len(x.Modules),
		strings.Join(parts, ", "), x.Refused)
}
