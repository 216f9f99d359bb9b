package selftest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/bench/trial"
	"github.com/flashvk/flashvk/vk"
)

// made returns items with a check.
func made(n int, check func() error) []*item {
	s := new(suite)
	s.check = func(context.Context, *trial.Runner, *item) (float64, error) { return 0, check() }
	var list []*item
	for i := range n {
		list = append(list, &item{suite: s, c: &testCase{name: fmt.Sprint(i)}, path: new(Path), rank: i})
	}
	return list
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

// TestAlone has cases that find no memory beside others.
func TestAlone(t *testing.T) {
	var running atomic.Int32
	check := func() error {
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
	never := made(3, func() error { return vk.ErrOutOfDeviceMemory })
	require.NoError(t, r.runItems(context.Background(), never, time.Now().Add(time.Hour)))
	for _, it := range never {
		require.Equal(t, Path{Refused: 1}, *it.path)
	}
}

// TestSample says that both suites of a GPU compare their largest cases on a sample, and find it
// wrong.
func TestSample(t *testing.T) {
	r := &run{report: new(Report)}
	zeros := attntest.Contiguous(func(o, lse []float64, _ ref.Inputs[float64], _ attention.Problem) error {
		clear(o)
		clear(lse)
		return nil
	})
	r.forwarder = func(attention.Impl) attntest.Forwarder { return zeros }
	forward := r.suites()[0]
	sampled := 0
	for _, c := range forward.cases {
		if 2*c.attention.FLOPs() > sampleCost {
			sampled++
			require.Contains(t, c.name, "large/")
		}
	}
	require.Equal(t, 21, sampled)
	c := forward.cases[len(forward.cases)-sampled]
	_, err := forward.check(context.Background(), trial.OnDevice(nil, nil), &item{c: c})
	require.ErrorContains(t, err, "of a sample", c.name)
}
