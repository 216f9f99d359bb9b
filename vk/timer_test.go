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
	reached, open := c.AwaitHost(gateSPIRV)
	t.Cleanup(open)
	c.Timestamp(timer, 1)
	c.Timestamp(timer, 2)
	start := time.Now()
	if err := c.Start(background()); err != nil {
		t.Fatal(err)
	}
	for !reached() {
		time.Sleep(time.Millisecond / 10)
	}
	from := time.Now()
	time.Sleep(50 * time.Millisecond)
	least := time.Since(from)
	open()
	if err := c.Wait(background()); err != nil {
		t.Fatal(err)
	}
	most := time.Since(start)
	busy, err := timer.Elapsed(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	idle, err := timer.Nanoseconds(1, 2)
	if err != nil {
		t.Fatal(err)
	}
	// One interval lies in the other, however busy the host is; clocks may differ by a hundredth.
	if busy < least-least/100 || busy > most+most/100 {
		t.Errorf("the wait took %v by the device's clock, %v to %v by ours", busy, least, most)
	}
	if idle < 0 || float64(busy)+idle > 1.01*float64(most) {
		t.Errorf("nothing took %v ns after a wait of %v, both %v by the host's clock", idle, busy, most)
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
