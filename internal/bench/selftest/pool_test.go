package selftest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/vk"
)

// made returns items whose check is a function of their number.
func made(n int, check func(ctx context.Context, g *gate, i int) error) []*item {
	s := new(suite)
	s.check = func(ctx context.Context, g *gate, it *item) outcome {
		return outcome{item: it, err: check(ctx, g, it.rank)}
	}
	var list []*item
	for i := range n {
		list = append(list, &item{suite: s, c: &testCase{name: fmt.Sprint(i)}, path: new(Path), rank: i})
	}
	return list
}

// TestPool says that items run side by side, that one at a time is in the gate, and that
// outcomes come in order.
func TestPool(t *testing.T) {
	const workers = 4
	var together sync.WaitGroup
	together.Add(workers)
	var inside atomic.Int32
	items := made(40, func(_ context.Context, g *gate, i int) error {
		if i < workers {
			together.Done()
			together.Wait() // with fewer workers this would wait for ever
		}
		time.Sleep(time.Duration(i%3) * time.Millisecond)
		return g.do(nil, func() error {
			if inside.Add(1) != 1 {
				return errors.New("two are in the gate")
			}
			defer inside.Add(-1)
			return nil
		})
	})
	r := &run{Options: Options{Budget: time.Hour}, start: time.Now(), workers: workers}
	outcomes, culprit, err := r.pool(context.Background(), items, time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.Nil(t, culprit)
	require.Len(t, outcomes, len(items))
	for i, o := range outcomes {
		require.Equal(t, i, o.rank)
		require.NoError(t, o.err)
	}
	outcomes, _, err = r.pool(context.Background(), items, time.Now())
	require.NoError(t, err)
	require.Empty(t, outcomes, "begun after the deadline")
}

// TestQueue gives one path items that take ten times as long: it gets a tenth as many.
func TestQueue(t *testing.T) {
	slow, fast := made(100, nil), made(100, nil)
	q := newQueue(append(slow, fast...))
	now := time.Now()
	for n := range 55 {
		it := q.take(now)
		if it.suite == slow[0].suite {
			now = now.Add(10 * time.Second)
		} else {
			now = now.Add(time.Second)
		}
		q.ended(it, now)
		left := []int{len(q.lanes[0].items), len(q.lanes[1].items)}
		require.Equal(t, 199-n, left[0]+left[1])
	}
	require.InDelta(t, 95, len(q.lanes[0].items), 1)
	require.InDelta(t, 50, len(q.lanes[1].items), 1)
	a, b := q.take(now), q.take(now)
	require.NotSame(t, a.suite, b.suite, "two that begin together are of one path")
	for range 143 {
		require.NotNil(t, q.take(now))
	}
	require.Nil(t, q.take(now))
}

// TestPoolBlames breaks the device in item 5 while other items wait. Only item 5 is to blame, and
// nobody uses the device afterwards.
func TestPoolBlames(t *testing.T) {
	for _, broken := range []error{vk.ErrDeviceLost, context.DeadlineExceeded} {
		var used atomic.Int32
		items := made(30, nil)
		s := items[0].suite
		s.check = func(_ context.Context, g *gate, it *item) outcome {
			if it.rank == 6 {
				<-g.broken
				return outcome{item: it, err: fmt.Errorf("compiling: %w", broken)} // what follows from item 5
			}
			return outcome{item: it, err: g.do(it, func() error {
				used.Add(1)
				if it.rank == 5 {
					time.Sleep(20 * time.Millisecond)
					return fmt.Errorf("vkQueueSubmit: %w", broken)
				}
				return nil
			})}
		}
		r := &run{Options: Options{Budget: time.Hour}, start: time.Now(), workers: 4}
		outcomes, culprit, err := r.pool(context.Background(), items, time.Now().Add(time.Hour))
		require.NoError(t, err)
		require.Same(t, items[5], culprit)
		right := 0
		for _, o := range outcomes {
			switch {
			case o.err == nil:
				right++
			case o.item != culprit:
				require.True(t, breaks(o.err) || errors.Is(o.err, errInterrupted), "%v", o.err)
			}
		}
		require.EqualValues(t, right+1, used.Load())
		require.Less(t, len(outcomes), len(items), "the others went on")
	}
}

// TestAlone has cases that find no memory beside others.
func TestAlone(t *testing.T) {
	var running atomic.Int32
	check := func(context.Context, *gate, int) error {
		defer running.Add(-1)
		if running.Add(1) > 1 {
			return fmt.Errorf("vkAllocateMemory: %w", vk.ErrOutOfDeviceMemory)
		}
		time.Sleep(time.Millisecond)
		return nil
	}
	items := made(20, check)
	r := &run{Options: Options{Budget: time.Hour}, start: time.Now(), workers: 4, report: new(Report)}
	require.NoError(t, r.runItems(context.Background(), items, time.Now().Add(time.Hour)))
	for _, it := range items {
		require.Equal(t, Path{Right: 1}, *it.path, "item %s", it.c.name)
	}
	never := made(3, func(context.Context, *gate, int) error { return vk.ErrOutOfDeviceMemory })
	require.NoError(t, r.runItems(context.Background(), never, time.Now().Add(time.Hour)))
	for _, it := range never {
		require.Equal(t, Path{Refused: 1}, *it.path)
	}
}
