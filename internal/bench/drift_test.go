package bench

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

func TestDrift(t *testing.T) {
	var m *Monitor
	require.Empty(t, m.Drift().String())
	m = &Monitor{ns: []float64{100, 102, 101, 99, 104, 105, 103}}
	require.Zero(t, m.Drift().Ticks, "seven ticks say nothing")
	require.Zero(t, (&Monitor{ns: make([]float64, 20)}).Drift().Ticks, "a clock that stands still")
	m.first = time.Now()
	m.last = m.first.Add(12340 * time.Millisecond)
	m.ns = append(m.ns, 107)
	r := sampleReport()
	r.Wide = true
	r.Drift = m.Drift() // 101 to 105, 99 to 107
	require.Contains(t, written(t, r, Table), "\nWARNING  a reference kernel took 4.0% more time at the end than at the start, 12.3s before; its slowest time is 8.1% above its fastest\n")
	require.Contains(t, written(t, r, Benchfmt), "\ndrift: +0.0396\n")
	require.Contains(t, written(t, r, JSON), `"change": 0.0396`)
	r.Drift.Change = -0.02
	require.Contains(t, written(t, r, Table), "\ndrift    a reference kernel took 2.0% less time")
	r.Drift.Change = -0.04
	require.True(t, r.Drift.Large())
	r.Env.CPU = true // whose times mean nothing anyway
	require.Contains(t, written(t, r, Table), "\ndrift    a reference kernel took 4.0% less time")
}

// TestMonitor says that a measurement calls the reference kernel between its
// rounds, and fails if that does.
func TestMonitor(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	ctx := context.Background()
	m, err := NewMonitor(ctx, d)
	require.NoError(t, err)
	defer m.Close()
	pr := quick()
	pr.Samples, pr.Tick = 8, m.Tick
	c := Case{Op: opOf(t, smallProblem()), Impls: []string{"scalar"}, Protocol: pr}
	_, err = Run(ctx, d, c, nil)
	require.NoError(t, err)
	require.Equal(t, 9, m.Drift().Ticks)
	require.Positive(t, m.Drift().Over)
	for _, ns := range m.ns {
		require.Positive(t, ns)
		if d.Caps().Type != vk.CPU {
			require.InDelta(t, float64(tickTime), ns, float64(tickTime))
		}
	}
	c.Protocol.Tick = func(context.Context) error { return errors.New("no time") }
	_, err = Run(ctx, d, c, nil)
	require.EqualError(t, err, "reference kernel: no time")
}
