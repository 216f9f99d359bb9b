// Package trial draws random problems of every kernel, over all that the library
// accepts, and checks each on a device against the float64 reference of its package:
// what a fixed table of cases did not think of.
//
//	Kernel   a row of package call: draws problems of one kernel
//	Problem  one of them, a call: JSON that says all of it
//	Runner   checks problems, amid poison, and counts the modules that ran
//	Run      checks many problems on all cores, repeats and shrinks those that fail
//
// Problem n of a seed is the same in every run and on every device that draws from the
// same Space. Each is computed at least twice, and the bits compared, with NaN in
// outputs, workspaces, scratch memory, shared memory and registers before the call.
package trial

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/vk"
)

// A Kernel is one that problems are drawn for, and a Problem one problem of it.
type (
	Kernel  = call.Kernel
	Problem = call.Call
)

// Encode writes a problem as flashvk selftest --problem takes it: the kernel's name, a
// colon, and the problem as JSON without the fields that are zero, or with them where a problem
// without them is another one: a dtype.Option of float32 is 0, too.
func Encode(k *Kernel, p Problem) string {
	text, err := json.Marshal(p)
	var fields map[string]any
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber() // seeds have more digits than a float64
		err = d.Decode(&fields)
	}
	short, q := []byte(nil), reflect.New(reflect.TypeOf(p).Elem()).Interface()
	if err == nil {
		short, err = json.Marshal(withoutZeros(fields))
	}
	if err != nil {
		panic(fmt.Sprintf("trial: %v: %v", p, err)) // a bug: fields are plain
	}
	if json.Unmarshal(short, q) == nil {
		if again, err := json.Marshal(q); err == nil && bytes.Equal(again, text) {
			text = short
		}
	}
	return k.Name + ":" + string(text)
}

// withoutZeros removes the fields of an object that hold zero values, and returns nil if
// none are left.
func withoutZeros(fields map[string]any) any {
	for name, x := range fields {
		if object, ok := x.(map[string]any); ok {
			x = withoutZeros(object)
		}
		if x == nil || x == false || x == "" || x == json.Number("0") {
			delete(fields, name)
		}
	}
	if len(fields) == 0 {
		return nil
	}
	return fields
}

// Decode reads what Encode writes.
func Decode(text string) (*Kernel, Problem, error) {
	name, rest, ok := strings.Cut(text, ":")
	if !ok {
		return nil, nil, fmt.Errorf("trial: problem %q is not a kernel's name, a colon, and JSON", text)
	}
	all := call.All()
	i := slices.IndexFunc(all, func(k Kernel) bool { return k.Name == name })
	if i < 0 {
		return nil, nil, fmt.Errorf("trial: no kernel %q", name)
	}
	p, decoder := all[i].New(), json.NewDecoder(strings.NewReader(rest))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(p); err != nil {
		return nil, nil, fmt.Errorf("trial: problem of %s: %w", name, err)
	}
	return &all[i], p, nil
}

// Kernels are compiled once for the problems of a family. (In families of eight a problem took half a
// second of a core beside an H100, and its reference a tenth of that.) Families take turns, at least
// as many as there are workers, else workers would wait for one compilation while cores are idle.
const family, turns = 64, 64

// softFamily is both for Space.Soft, where a test draws few problems and wants many families of all kernels.
const softFamily = 4

// weights returns the sum of the kernels' weights.
func weights(kernels []Kernel) int {
	total := 0
	for _, k := range kernels {
		total += k.Weight
	}
	return total
}

// Draw returns problem number n of a seed, and its kernel; false if the Space has none of
// that kernel.
func Draw(seed uint64, n int, kernels []Kernel, s call.Space) (*Kernel, Problem, bool) {
	family, turns := family, turns
	if s.Soft {
		family, turns = softFamily, softFamily
	}
	group := uint64(n/(family*turns)*turns + n%turns)
	of := rand.New(rand.NewPCG(seed, 2*group+1))
	total := weights(kernels)
	x := of.IntN(total)
	if s.Soft { // each kernel as often as its weight says, in some order
		x = rand.New(rand.NewPCG(seed, ^(group / uint64(total)))).Perm(total)[group%uint64(total)]
	}
	for i := range kernels {
		k := &kernels[i]
		if x -= k.Weight; x < 0 {
			p := k.Draw(of, rand.New(rand.NewPCG(seed, 2*uint64(n))), s)
			return k, p, p != nil
		}
	}
	panic("trial: weights do not add up")
}

// A Pool checks tasks on a device, several at a time. One task at a time uses the device, so it is
// known whose call hung or lost the device, and no call seems to hang that only waits.
type Pool[T comparable] struct {
	Workers int
	Hang    time.Duration // after which a call on the device is given up; 0: never
	// Next returns a task, or false after the last. Several goroutines call it.
	Next func() (T, bool)
	// Check checks a task. What takes the device's time goes through use, compiling does not.
	Check func(ctx context.Context, use Use, task T) error
	// Done gets a task and the error of Check, one task at a time. It does not get tasks that ended
	// because another one broke the device, nor any after the context ended.
	Done func(task T, err error)
}

// Use calls a function that takes the device's time: it uploads, or submits and downloads.
type Use = func(ctx context.Context, f func(ctx context.Context) error) error

// ErrHung is wrapped by an error if a task does not come back. Closing the device would wait for
// ever.
var ErrHung = errors.New("the device does not come back")

// Recover waits for what was given up on a device. Its error wraps ErrHung if that does not end in time.
func Recover(ctx context.Context, d *vk.Device, limit time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := d.Run(limited, "recover", func(*vk.Cmd) error { return nil })
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w within %v", ErrHung, limit)
	}
	return err
}

// errInterrupted is the error of a task whose device another task has broken. It says nothing
// about the task.
var errInterrupted = errors.New("the device was lost or hung by another problem")

// Breaks reports whether an error means that the device is lost or hangs.
func Breaks(err error) bool {
	return errors.Is(err, vk.ErrDeviceLost) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrHung)
}

// drainTime is how long a pool waits for workers after a task broke the device. A software driver
// may take a minute to compile the kernel of one of them.
const drainTime = 2 * time.Minute

// Run runs the tasks until there are no more, the context ends, or a task breaks the device, and
// waits for those that have begun. It returns the task that broke the device and its error, which
// wraps ErrHung if workers do not come back.
func (p *Pool[T]) Run(ctx context.Context) (culprit T, err error) {
	g := &gate[T]{hang: p.Hang, turn: make(chan struct{}, 1), broken: make(chan struct{})}
	var workers sync.WaitGroup
	for range p.Workers {
		workers.Add(1)
		go func() {
			defer workers.Done()
			p.work(ctx, g)
		}()
	}
	ended := make(chan struct{})
	go func() {
		workers.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-g.broken:
		select {
		case <-ended:
		case <-time.After(drainTime):
			err = ErrHung
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
	if err != nil {
		return g.culprit, fmt.Errorf("%w: %w", err, g.err)
	}
	return g.culprit, g.err
}

// work runs tasks on one goroutine.
func (p *Pool[T]) work(ctx context.Context, g *gate[T]) {
	for ctx.Err() == nil && g.open() {
		task, ok := p.Next()
		if !ok {
			return
		}
		err := p.Check(ctx, g.use(task), task)
		if Breaks(err) {
			g.blame(task, err)
		}
		if ctx.Err() == nil && !errors.Is(err, errInterrupted) {
			g.done(task, err, p.Done)
		}
	}
}

// A gate lets one task at a time use the device, and none after it broke.
type gate[T comparable] struct {
	hang   time.Duration
	turn   chan struct{} // holds a token while a task uses the device
	broken chan struct{} // closed when there is a culprit

	mu      sync.Mutex
	culprit T // the task that broke the device
	err     error
	over    bool // Run has returned
}

// open reports whether the device may be used.
func (g *gate[T]) open() bool {
	select {
	case <-g.broken:
		return false
	default:
		return true
	}
}

// use returns what a task uses the device with.
func (g *gate[T]) use(task T) Use {
	return func(ctx context.Context, f func(ctx context.Context) error) error {
		select {
		case g.turn <- struct{}{}:
		case <-g.broken:
			return errInterrupted
		}
		defer func() { <-g.turn }()
		if !g.open() {
			return errInterrupted
		}
		if g.hang > 0 {
			limited, cancel := context.WithTimeout(ctx, g.hang)
			defer cancel()
			ctx = limited
		}
		err := f(ctx)
		if Breaks(err) {
			g.blame(task, err)
		}
		return err
	}
}

// blame makes a task the culprit, unless another task broke the device before.
func (g *gate[T]) blame(task T, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		g.culprit, g.err = task, err
		close(g.broken)
	}
}

// done calls f for a task that has ended, unless its error follows from the culprit's.
func (g *gate[T]) done(task T, err error, f func(task T, err error)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.over && (task == g.culprit || !Breaks(err)) {
		f(task, err)
	}
}
