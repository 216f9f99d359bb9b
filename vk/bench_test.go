package vk_test

import (
	"testing"

	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

func BenchmarkDispatch(b *testing.B) {
	d := vktest.Open(b, vktest.NoValidation)
	k := axpy(b, d)
	x, y := tensor(b, d, "x", 1, 2, 3), tensor(b, d, "y", 10, 20, 30)
	c := newCmd(b, d)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if n++; n%256 == 0 {
			b.StopTimer()
			c.Reset()
			b.StartTimer()
		}
		k.Dispatch(c, vk.Groups{}, axpyParams{N: 3, A: 2}, x, y)
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

// BenchmarkRecordStart is a recording made afresh and handed to the queue.
func BenchmarkRecordStart(b *testing.B) {
	d := vktest.Open(b, vktest.NoValidation)
	k := axpy(b, d)
	x, y := tensor(b, d, "x", 1, 2, 3), tensor(b, d, "y", 10, 20, 30)
	c := newCmd(b, d)
	b.ReportAllocs()
	for b.Loop() {
		c.Reset()
		k.Dispatch(c, vk.Groups{}, axpyParams{N: 3, A: 2}, x, y)
		if err := c.Start(background()); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := c.Wait(background()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkReplay is a Start of a recording that ran before.
func BenchmarkReplay(b *testing.B) {
	d := vktest.Open(b, vktest.NoValidation)
	c := newCmd(b, d)
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Start(background()); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := c.Wait(background()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func BenchmarkSubmit(b *testing.B) {
	d := vktest.Open(b, vktest.NoValidation)
	c := newCmd(b, d)
	b.ReportAllocs()
	for b.Loop() {
		submit(b, c)
	}
}

func BenchmarkDownload(b *testing.B) {
	d := vktest.Open(b, vktest.NoValidation)
	buf := newBuffer(b, d, "b", 64<<20)
	data := make([]byte, buf.Bytes())
	b.SetBytes(buf.Bytes())
	for b.Loop() {
		if err := buf.Download(background(), 0, data); err != nil {
			b.Fatal(err)
		}
	}
}
