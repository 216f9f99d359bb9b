package selftest

import (
	"sync"
	"time"

	"github.com/flashvk/flashvk/attention"
)

// A queue hands out items so that each path and pass gets the same time of workers. Time that one
// does not need goes to the others. A driver may take seconds to compile each kernel of one path;
// if paths took turns by number of items, that path would take nearly all of the time.
type queue struct {
	mu    sync.Mutex
	lanes []*lane
}

// A lane is the part of a queue that belongs to a path and a pass.
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
			cost += now.Sub(start) + 1 // at least 1, so that all lanes begin
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
