package trial

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/flashvk/flashvk/vk"
)

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
