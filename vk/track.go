package vk

import "slices"

// stage is where a command runs.
type stage uint8

const (
	compute stage = iota
	transfer
	numStages
)

func (s stage) scope() scope {
	if s == compute {
		return computeScope()
	}
	return transferScope()
}

// use is what a Cmd knows of an object that its commands refer to.
type use struct {
	kernel *kernel // nil: it is none
	held   bool    // until the recording ends
	// touched are the bytes of a buffer that commands of one stage have read and written, and
	// that no barrier has ordered before commands of the other stage, or the same.
	touched [numStages][numStages]touched
}

func (u *use) clone() *use {
	v := &use{touched: u.touched}
	for from := range numStages {
		for to := range numStages {
			x := &v.touched[from][to]
			x.reads, x.writes = slices.Clone(x.reads), slices.Clone(x.writes)
		}
	}
	return v
}

// touched are bytes of a buffer.
type touched struct {
	barriers      uint64 // between the two stages when reads and writes began
	reads, writes spans
}

// touch is a range of bytes that a command reads, or writes.
type touch struct {
	of         *use
	start, end int64
	writes     bool
}

// tracker knows which memory the commands of a recording have read and written, and so where a
// barrier belongs: before a command that reads memory which an earlier command wrote, or that
// writes memory which an earlier command read or wrote, unless a barrier stands between already.
// No other placement of barriers between the same commands has fewer.
type tracker struct {
	barriers [numStages][numStages]uint64 // from one stage to another, in all recordings
	pending  [numStages][numStages]bool   // whether there are commands since the last one
	touches  []touch                      // of the command that is recorded now
	recorded int                          // barriers since Reset
	wide     bool                         // the next barrier is for both stages
	beside   bool                         // commands do not wait for each other: Cmd.Beside
	spare    []*use                       // of recordings before
}

// touch adds bytes to what the next command reads or writes.
func (t *tracker) touch(u *use, start, end int64, writes bool) {
	t.touches = append(t.touches, touch{u, start, end, writes})
}

// since returns what commands of one stage touched of a buffer since the last barrier
// between the two.
func (t *tracker) since(u *use, from, to stage) *touched {
	x := &u.touched[from][to]
	if x.barriers != t.barriers[from][to] {
		x.barriers, x.reads, x.writes = t.barriers[from][to], x.reads[:0], x.writes[:0]
	}
	return x
}

// conflicts reports whether the next command, of stage to, needs a barrier.
func (t *tracker) conflicts(to stage) bool {
	for from := range numStages {
		if !t.pending[from][to] {
			continue
		}
		for _, x := range t.touches {
			before := t.since(x.of, from, to)
			if before.writes.meet(x.start, x.end) || x.writes && before.reads.meet(x.start, x.end) {
				return true
			}
		}
	}
	return false
}

// order records a barrier if the next command needs one, and notes the memory that the command
// touches.
func (c *Cmd) order(s stage) {
	if c.tracker.beside {
		c.tracker.touches = c.tracker.touches[:0]
		return
	}
	if c.tracker.conflicts(s) {
		c.barrier(c.tracker.separation(s))
	}
	c.tracker.note(s)
}

// note adds what the next command, of stage s, touches.
func (t *tracker) note(s stage) {
	for to := range numStages {
		for _, x := range t.touches {
			if before := t.since(x.of, s, to); x.writes {
				before.writes.add(x.start, x.end)
			} else {
				before.reads.add(x.start, x.end)
			}
		}
		t.pending[s][to] = true
	}
	t.touches = t.touches[:0]
}

// separation returns the barrier between all that is pending and commands of some stages, for
// dispatches alone where no transfer has a part in it.
func (t *tracker) separation(stages ...stage) (from, to scope) {
	if t.wide {
		return anyScope(), anyScope()
	}
	for _, s := range stages {
		for before := range numStages {
			if t.pending[before][s] {
				from = from.with(before.scope())
			}
		}
		to = to.with(s.scope())
	}
	if from != computeScope() {
		to = anyScope()
	}
	return from, to
}

func (t *tracker) barrier(from, to scope) {
	for f := range numStages {
		for s := range numStages {
			if from.has(f) && to.has(s) {
				t.barriers[f][s]++
				t.pending[f][s] = false
			}
		}
	}
	t.recorded++
	t.wide = t.wide && (from != anyScope() || to != anyScope())
}

func (t *tracker) reset() {
	t.barrier(anyScope(), anyScope())
	t.recorded, t.touches = 0, t.touches[:0]
}

// with returns both scopes as one, has whether a scope has a stage.
func (s scope) with(o scope) scope   { return scope{s.stages | o.stages, s.access | o.access} }
func (s scope) has(stage stage) bool { return s.stages&stage.scope().stages != 0 }

// use notes that the commands refer to o, holds o until the recording ends, and returns its use.
func (c *Cmd) use(o *object) *use {
	u := c.uses[o]
	if u == nil {
		if n := len(c.tracker.spare); n > 0 {
			u, c.tracker.spare = c.tracker.spare[n-1], c.tracker.spare[:n-1]
		} else {
			u = new(use)
		}
		if u.held = o.hold(); !u.held {
			c.fail("%v is closed", o)
		}
		c.uses[o] = u
	}
	return u
}

// release ends the holds of a recording, by a method of what is held.
func (c *Cmd) release(unhold func(*object)) {
	for o, u := range c.uses {
		if u.held {
			u.held = false
			unhold(o)
		}
	}
}

// clearUses forgets what the commands refer to.
func (c *Cmd) clearUses() {
	c.release((*object).unhold)
	for _, u := range c.uses {
		u.kernel = nil
		c.tracker.spare = append(c.tracker.spare, u)
	}
	clear(c.uses)
	c.tracker.reset()
}

// Barriers returns the number of barriers recorded so far, Cmd's own and the caller's.
func (c *Cmd) Barriers() int { return c.tracker.recorded }

// spans are ranges of bytes, in order, with gaps between.
type spans []span

type span struct{ start, end int64 }

// after returns the index of the first span that ends after at.
func (s spans) after(at int64) int {
	low, high := 0, len(s)
	for low < high {
		if mid := (low + high) / 2; s[mid].end <= at {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

// meet reports whether a byte from start to end-1 is in s.
func (s spans) meet(start, end int64) bool {
	i := s.after(start)
	return i < len(s) && s[i].start < end
}

// add adds the bytes from start to end-1, as one span with those that they meet or follow.
func (s *spans) add(start, end int64) {
	first := s.after(start - 1)
	last := first
	for ; last < len(*s) && (*s)[last].start <= end; last++ {
		start, end = min(start, (*s)[last].start), max(end, (*s)[last].end)
	}
	if first < last {
		(*s)[first] = span{start, end}
		if first+1 < last {
			*s = append((*s)[:first+1], (*s)[last:]...)
		}
		return
	}
	*s = append(*s, span{})
	copy((*s)[first+1:], (*s)[first:])
	(*s)[first] = span{start, end}
}

// boundSpan returns the bytes of b's memory that a kernel sees of b.
func (b *Buffer) boundSpan(r bufferRange) (start, end int64) {
	if b.root == nil {
		return 0, b.d.wholeBytes(b.bytes)
	}
	return int64(r.offset), int64(r.offset + r.bytes)
}
