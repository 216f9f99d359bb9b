package selftest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/vk"
)

// An item is a case on a path.
type item struct {
	suite *suite
	impl  attention.Impl
	c     *testCase
	path  *Path
	rank  int  // the order in which items are reported, and those of a path run
	alone bool // memory was too short beside other items
}

// String says what is run.
func (it *item) String() string {
	return fmt.Sprintf("%v %v: %s", it.impl, it.path.What(), it.c.name)
}

func byRank(a, b *item) int { return cmp.Compare(a.rank, b.rank) }

// An outcome is what a case came to.
type outcome struct {
	*item
	worst   float64         // the largest error by what is allowed
	err     error           // what is wrong with it
	modules []vk.ModuleInfo // that its calls ran
}

// workersPerCore is above 1 because workers wait: for the device, for the driver while it compiles
// another's kernel, and for the expected results that paths share.
const workersPerCore = 2

// items lists the cases to run on all paths, the cheapest of each suite first.
func (r *run) items(suites []suite) []*item {
	var list []*item
	for _, impl := range r.Impls {
		for i := range suites {
			s := &suites[i]
			if s.impls != nil && !slices.Contains(s.impls, impl) {
				continue
			}
			for _, c := range s.cases {
				p := r.report.path(impl, s, c.dtype)
				switch {
				case p.Verdict == Unsupported:
				case r.refuses(s, impl, c) != nil:
					p.Refused++
				default:
					list = append(list, &item{suite: s, impl: impl, c: c, path: p, rank: len(list)})
				}
			}
		}
	}
	return list
}

// A gate lets one goroutine at a time use the device. So it is known whose call hung or lost the
// device, and no call seems to hang that only waits. Compiling needs no gate.
type gate struct {
	mu      sync.Mutex
	culprit *item         // the item that broke the device; nobody uses the device then
	broken  chan struct{} // closed when there is a culprit
}

func newGate() *gate { return &gate{broken: make(chan struct{})} }

// errInterrupted is the error of an item whose device another item has broken. It says nothing
// about the item, which runs again.
var errInterrupted = errors.New("the device was lost or hung by another case")

// breaks reports whether an error means that the device is lost or hangs.
func breaks(err error) bool {
	return errors.Is(err, vk.ErrDeviceLost) || errors.Is(err, context.DeadlineExceeded)
}

// do runs f, which uses the device, for an item.
func (g *gate) do(it *item, f func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.culprit != nil {
		return errInterrupted
	}
	err := f()
	if breaks(err) {
		g.blame(it)
	}
	return err
}

// shut blames an item whose error broke the device outside of do, for example while a kernel was
// compiled, unless another item broke it before.
func (g *gate) shut(it *item) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.culprit == nil {
		g.blame(it)
	}
}

func (g *gate) blame(it *item) {
	g.culprit = it
	close(g.broken)
}

// open reports whether the device may be used.
func (g *gate) open() bool {
	select {
	case <-g.broken:
		return false
	default:
		return true
	}
}

// drainTime is how long the pool waits for workers after a call hung. A software driver may take a
// minute to compile the kernel of one of them.
const drainTime = 2 * time.Minute

// pool runs items on all cores until the deadline, or until one breaks the device, and waits for
// those that have begun. Items that run alone come last; if there are others, they are left to
// another call. It returns outcomes in the order of the items, and the item that broke the device,
// or nil. The error is ErrHung if workers do not come back.
func (r *run) pool(ctx context.Context, items []*item, deadline time.Time) ([]outcome, *item, error) {
	workers := r.workers
	if items[0].alone {
		workers = 1
	} else if i := slices.IndexFunc(items, func(it *item) bool { return it.alone }); i >= 0 {
		items = items[:i]
	}
	g, q := newGate(), newQueue(items)
	take := func() *item {
		now := time.Now()
		if ctx.Err() != nil || now.After(deadline) || !g.open() {
			return nil
		}
		it := q.take(now)
		if it != nil {
			r.step(it.String())
		}
		return it
	}
	results := make(chan outcome, len(items)) // a worker that comes back too late does not block
	var wg sync.WaitGroup
	for range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for it := take(); it != nil; it = take() {
				o := it.suite.check(ctx, g, it)
				q.ended(it, time.Now())
				if breaks(o.err) {
					g.shut(it)
				}
				results <- o
			}
		}()
	}
	ended := make(chan struct{})
	go func() {
		wg.Wait()
		close(ended)
	}()
	var err error
	select {
	case <-ended:
	case <-g.broken:
		select {
		case <-ended:
		case <-time.After(drainTime):
			err = ErrHung
		}
	}
	list := make([]outcome, len(results))
	for i := range list {
		list[i] = <-results
	}
	slices.SortStableFunc(list, func(a, b outcome) int { return byRank(a.item, b.item) })
	g.mu.Lock()
	defer g.mu.Unlock()
	return list, g.culprit, err
}

// workers returns how many goroutines run cases.
func workers() int { return workersPerCore * runtime.GOMAXPROCS(0) }
