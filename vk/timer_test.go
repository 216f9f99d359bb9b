package vk_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/vk/vktest"
)

func TestTimer(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	if d.Caps().TimestampBits == 0 {
		t.Skip("no timestamps")
	}
	timer, err := d.NewTimer(4)
	require.NoError(t, err)
	defer timer.Close()
	_, err = timer.Nanoseconds(0, 1)
	wantError(t, "before use", err, "not recorded")

	c := newCmd(t, d)
	c.Timestamp(timer, 0)
	reached, open := c.AwaitHost(gateSPIRV)
	t.Cleanup(open)
	c.Timestamp(timer, 1)
	c.Timestamp(timer, 2)
	start := time.Now()
	require.NoError(t, c.Start(background()))
	for !reached() {
		time.Sleep(time.Millisecond / 10)
	}
	from := time.Now()
	time.Sleep(50 * time.Millisecond)
	least := float64(time.Since(from))
	open()
	require.NoError(t, c.Wait(background()))
	most := 1.01 * float64(time.Since(start)) // clocks may differ by a hundredth
	busy, err := timer.Nanoseconds(0, 1)
	require.NoError(t, err)
	idle, err := timer.Nanoseconds(1, 2)
	require.NoError(t, err)
	// One interval lies in the other, however busy the host is.
	require.GreaterOrEqual(t, busy, 0.99*least)
	require.GreaterOrEqual(t, idle, 0.0)
	require.LessOrEqual(t, busy+idle, most)
	_, err = timer.Nanoseconds(0, 3)
	wantError(t, "not recorded", err, "timestamp 3 was not recorded")
	for _, i := range []int{-1, 4} {
		_, err = timer.Nanoseconds(i, 1)
		wantError(t, "index", err, "not in 0..3")
	}
	for _, n := range []int{0, -1, 1<<20 + 1, 1 << 31, 1<<32 + 1} {
		_, err = d.NewTimer(n)
		wantError(t, "NewTimer", err, "may have 1 to 1048576")
	}
}
