package vk_test

import (
	"context"
	"strings"
	"testing"

	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/vktest"
)

// openValidated opens a device of its own, whose validation messages are the
// test's business.
func openValidated(t *testing.T) *vk.Device {
	t.Helper()
	vktest.Require(t, "validation", vk.HaveValidation())
	d, err := vk.Open(vk.Options{Validate: true})
	if err != nil {
		t.Skip(err)
	}
	return d
}

func TestMissingBarrier(t *testing.T) {
	d := openValidated(t)
	k := axpy(t, d)
	x, y := tensor(t, d, "x", 1, 2, 3), tensor(t, d, "y", 10, 20, 30)
	c := newCmd(t, d)
	k.Dispatch(c, vk.Groups{}, axpyParams{N: 3, A: 2}, x, y)
	k.Dispatch(c, vk.Groups{}, axpyParams{N: 3, A: 2}, x, y)
	err := c.Submit(context.Background())
	if err == nil || !strings.Contains(err.Error(), "SYNC-HAZARD") {
		t.Errorf("Submit = %v, want a hazard", err)
	}
	for _, o := range []interface{ Close() }{c, x, y} {
		o.Close()
	}
	if err := d.Close(); err == nil || !strings.Contains(err.Error(), "SYNC-HAZARD") {
		t.Errorf("Close = %v, want the hazard", err)
	}
}

func BenchmarkDispatchRecord(b *testing.B) {
	d := vktest.Open(b, vktest.NoValidation)
	k := axpy(b, d)
	x, y := tensor(b, d, "x", 1, 2, 3), tensor(b, d, "y", 10, 20, 30)
	c := newCmd(b, d)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if i++; i%256 == 0 {
			b.StopTimer()
			c.Reset()
			b.StartTimer()
		}
		k.Dispatch(c, vk.Groups{}, axpyParams{N: 3, A: 2}, x, y)
		c.Barrier()
	}
	if err := c.Err(); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkCachedKernel(b *testing.B) {
	d := vktest.Open(b, vktest.NoValidation)
	b.ReportAllocs()
	for b.Loop() {
		axpy(b, d)
	}
}

func BenchmarkSubmit(b *testing.B) {
	d := vktest.Open(b, vktest.NoValidation)
	c := newCmd(b, d)
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Submit(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkStart(b *testing.B) {
	d := vktest.Open(b, vktest.NoValidation)
	c := newCmd(b, d)
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Start(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}
