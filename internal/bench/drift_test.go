package bench

import (
	"context"
	"errors"
	"strings"
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
	m.first = time.Now()
	m.last = m.first.Add(12340 * time.Millisecond)
	m.ns = append(m.ns, 107)
	d := m.Drift() // 101 to 105, 99 to 107
	require.Equal(t, 8, d.Ticks)
	require.InDelta(t, 105.0/101-1, d.Change, 1e-12)
	require.InDelta(t, 107.0/99-1, d.Range, 1e-12)
	require.True(t, d.Large())
	require.Equal(t, "a reference kernel took 4.0% more time at the end than at the start, 12.3s before; its slowest time is 8.1% above its fastest", d.String())
	require.Equal(t, "+0.0396", d.key())
	d.Change = -0.02
	require.False(t, d.Large())
	require.Contains(t, d.String(), "2.0% less time")
	d.Change = -0.04
	require.True(t, d.Large())
	require.Zero(t, (&Monitor{ns: make([]float64, 20)}).Drift().Ticks, "a clock that stands still")

	r := sampleReport()
	r.Drift = d
	text := func(f Format) string {
		var b strings.Builder
		require.NoError(t, r.Write(&b, f))
		return b.String()
	}
	require.Contains(t, text(Table), "\nWARNING  a reference kernel took 4.0% less time")
	require.Contains(t, text(Benchfmt), "\ndrift: -0.0400\n")
	require.Contains(t, text(JSON), `"change": -0.04`)
	r.Env.CPU = true // whose times mean nothing anyway
	require.Contains(t, text(Table), "\ndrift    a reference kernel took 4.0% less time")
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
	drift := m.Drift()
	require.Equal(t, 9, drift.Ticks)
	require.Positive(t, drift.Over)
	require.GreaterOrEqual(t, drift.Range, 0.0)
	for _, ns := range m.ns {
		require.Positive(t, ns)
		if d.Caps().Type != vk.CPU {
			require.InDelta(t, float64(tickTime), ns, float64(tickTime))
		}
	}
	_, err = Run(ctx, d, c, nil)
	require.NoError(t, err)
	require.Equal(t, 18, m.Drift().Ticks)

	c.Protocol.Tick = func(context.Context) error { return errors.New("no time") }
	_, err = Run(ctx, d, c, nil)
	require.EqualError(t, err, "reference kernel: no time")
}
