package vk_test

import (
	"testing"
	"time"

	"github.com/flashvk/flashvk/internal/vk/vktest"
)

func TestTimer(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	if d.Caps().TimestampBits == 0 {
		t.Skip("no timestamps")
	}
	timer, err := d.NewTimer(4)
	if err != nil {
		t.Fatal(err)
	}
	defer timer.Close()
	_, err = timer.Elapsed(0, 1)
	wantError(t, "before use", err, "not recorded")

	c := newCmd(t, d)
	c.Timestamp(timer, 0)
	spin(t, d, c)
	c.Timestamp(timer, 1)
	c.Timestamp(timer, 2)
	start := time.Now()
	submit(t, c)
	wall := time.Since(start)
	busy, err := timer.Elapsed(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	idle, err := timer.Nanoseconds(1, 2)
	if err != nil {
		t.Fatal(err)
	}
	if busy > wall || busy < wall/2 {
		t.Errorf("the kernel took %v by the device's clock, %v by ours", busy, wall)
	}
	if idle < 0 || idle > float64(busy)/2 {
		t.Errorf("nothing took %v ns, the kernel %v", idle, busy)
	}
	_, err = timer.Elapsed(0, 3)
	wantError(t, "not recorded", err, "timestamp 3 was not recorded")
	for _, i := range []int{-1, 4} {
		_, err = timer.Elapsed(i, 1)
		wantError(t, "index", err, "not in 0..3")
	}
	for _, n := range []int{0, -1, 1<<20 + 1, 1 << 31, 1<<32 + 1} {
		_, err = d.NewTimer(n)
		wantError(t, "NewTimer", err, "may have 1 to 1048576")
	}
}
