package trial

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

// countTo returns a Pool.Next of the numbers from 0 to n-1, and how many it has returned.
func countTo(n int) (next func() (int, bool), begun *atomic.Int32) {
	begun = new(atomic.Int32)
	return func() (int, bool) {
		i := int(begun.Add(1)) - 1
		return i, i < n
	}, begun
}

// TestPool says that tasks run side by side, and that one at a time uses the device.
func TestPool(t *testing.T) {
	const workers = 4
	var together sync.WaitGroup
	together.Add(workers)
	var inside atomic.Int32
	done := map[int]int{}
	next, _ := countTo(40)
	pool := Pool[int]{
		Workers: workers, Next: next,
		Check: func(ctx context.Context, use Use, i int) error {
			if i < workers {
				together.Done()
				together.Wait() // with fewer workers this would wait for ever
			}
			return use(ctx, func(context.Context) error {
				if inside.Add(1) != 1 {
					return errors.New("two use the device")
				}
				defer inside.Add(-1)
				time.Sleep(time.Duration(i%3) * time.Millisecond)
				return nil
			})
		},
		Done: func(i int, err error) {
			done[i]++
			require.NoError(t, err)
		},
	}
	_, err := pool.Run(context.Background())
	require.NoError(t, err)
	require.Len(t, done, 40)
	for i, n := range done {
		require.Equal(t, 1, n, i)
	}

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	pool.Next = func() (int, bool) { t.Error("begun after the context ended"); return 0, false }
	_, err = pool.Run(ctx)
	require.NoError(t, err)
}

// TestPoolBlames breaks the device in task 5 while other tasks wait. Only task 5 is to blame, and
// nobody uses the device afterwards.
func TestPoolBlames(t *testing.T) {
	const culprit, follows, tasks = 5, 6, 30
	for _, broken := range []error{vk.ErrDeviceLost, context.DeadlineExceeded} {
		var used atomic.Int32
		lost, results := make(chan struct{}), map[int]error{}
		next, begun := countTo(tasks)
		pool := Pool[int]{
			Workers: 4, Next: next,
			Check: func(ctx context.Context, use Use, i int) error {
				if i == follows {
					<-lost
					return fmt.Errorf("compiling: %w", broken) // what follows from the culprit
				}
				return use(ctx, func(context.Context) error {
					used.Add(1)
					if i != culprit {
						return nil
					}
					for begun.Load() <= follows { // until the other one is under way
						time.Sleep(time.Millisecond)
					}
					defer time.AfterFunc(20*time.Millisecond, func() { close(lost) })
					return fmt.Errorf("vkQueueSubmit: %w", broken)
				})
			},
			Done: func(i int, err error) { results[i] = err },
		}
		i, err := pool.Run(context.Background())
		require.ErrorIs(t, err, broken)
		require.Equal(t, culprit, i)
		require.ErrorIs(t, results[culprit], broken)
		for i, err := range results {
			require.True(t, i == culprit || err == nil, "%d: %v", i, err)
		}
		require.EqualValues(t, len(results), used.Load())
		require.Less(t, len(results), tasks, "the others went on")
	}
}

// TestPoolHang gives up a call on the device, and does not wait for what the call holds.
func TestPoolHang(t *testing.T) {
	next, _ := countTo(1)
	pool := Pool[int]{
		Workers: 2, Next: next, Hang: time.Millisecond,
		Check: func(ctx context.Context, use Use, _ int) error {
			return use(ctx, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		},
		Done: func(_ int, err error) { require.ErrorIs(t, err, context.DeadlineExceeded) },
	}
	_, err := pool.Run(context.Background())
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
