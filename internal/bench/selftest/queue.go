package selftest

import (
	"sync"
	"time"

	"github.com/flashvk/flashvk/attention"
)

// A queue hands out the items of paths and passes so that each of these gets the same
// time of workers, and what one leaves goes to the others. A driver may compile one
// path's kernels for seconds: in turns by number, that path would take all of the time.
type queue struct {
	mu    sync.Mutex
	lanes []*lane
}

// A lane is what a path and a pass have of a queue.
type lane struct {
	impl  attention.Impl
	suite *suite
	items []*item
	spent time.Duration // by items that have ended
	begun map[*item]time.Time
}

// newQueue makes a queue of items, which are in the order in which each lane has its own.
func newQueue(items []*item) *queue {
	q := new(queue)
	for _, it := range items {
		s := q.lane(it)
		if s == nil {
			s = &lane{impl: it.impl, suite: it.suite, begun: map[*item]time.Time{}}
			q.lanes = append(q.lanes, s)
		}
		s.items = append(s.items, it)
	}
	return q
}

// lane returns that of an item, nil if there is none yet.
func (q *queue) lane(it *item) *lane {
	for _, s := range q.lanes {
		if s.impl == it.impl && s.suite == it.suite {
			return s
		}
	}
	return nil
}

// take returns the next item of the lane that has had the least time, nil if no item is left.
func (q *queue) take(now time.Time) *item {
	q.mu.Lock()
	defer q.mu.Unlock()
	var best *lane
	least := time.Duration(0)
	for _, s := range q.lanes {
		if len(s.items) == 0 {
			continue
		}
		cost := s.spent
		for _, start := range s.begun {
			cost += now.Sub(start) + 1 // the first of all begin together
		}
		if best == nil || cost < least {
			best, least = s, cost
		}
	}
	if best == nil {
		return nil
	}
	it := best.items[0]
	best.items = best.items[1:]
	best.begun[it] = now
	return it
}

// ended notes that an item of take has ended.
func (q *queue) ended(it *item, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.lane(it)
	s.spent += now.Sub(s.begun[it])
	delete(s.begun, it)
}
