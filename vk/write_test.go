package vk_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/flashvk/flashvk/internal/vk/vktest"
)

// TestWrite writes more than fits one command, changes the source, and submits twice: the
// commands have what was recorded.
func TestWrite(t *testing.T) {
	d := vktest.Open(t)
	const n = 40000
	b := newBuffer(t, d, "b", 4*n+8)
	data := make([]byte, 4*n)
	for i := range data {
		data[i] = byte(i / 4 % 251)
	}
	want := slices.Clone(data)
	c := newCmd(t, d)
	c.Fill(b, 0, 4*n+8, 0)
	c.Write(b, 4, data)
	clear(data)
	got := make([]byte, 4*n+8)
	for range 2 {
		if err := b.Upload(background(), 0, got); err != nil {
			t.Fatal(err)
		}
		submit(t, c)
		if err := b.Download(background(), 0, got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got[4:4*n+4], want) || !bytes.Equal(got[:4], make([]byte, 4)) || !bytes.Equal(got[4*n+4:], make([]byte, 4)) {
			t.Fatal("the buffer does not hold what was recorded")
		}
		clear(got)
	}
}
