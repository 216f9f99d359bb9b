package vk_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// BenchmarkCmd is the host's part of recording and submitting: a kernel of the cache, a dispatch, a
// recording made afresh, one that ran before, one with the wait for it.
func BenchmarkCmd(b *testing.B) {
	d := vktest.Open(b, vktest.NoValidation)
	x, y := tensor(b, d, "x", 1, 2, 3), tensor(b, d, "y", 10, 20, 30)
	c := newCmd(b, d)
	dispatch := func() { axpy(b, d).Dispatch(c, vk.Groups{}, axpyParams{N: 3, A: 2}, x, y) }
	none := func() {}
	for _, x := range []struct {
		name         string
		before, call func()
	}{
		{"CachedKernel", none, func() { axpy(b, d) }},
		{"Dispatch", none, dispatch},
		{"Record+Start", func() { require.NoError(b, c.Wait(background())) }, func() {
			c.Reset()
			dispatch()
			require.NoError(b, c.Start(background()))
		}},
		{"Start", func() { require.NoError(b, c.Wait(background())) }, func() { require.NoError(b, c.Start(background())) }},
		{"Submit", none, func() { submit(b, c) }},
	} {
		b.Run(x.name, func(b *testing.B) {
			c.Reset()
			b.ReportAllocs()
			for i := 1; b.Loop(); i++ {
				if b.StopTimer(); i%256 == 0 {
					c.Reset()
				}
				x.before()
				b.StartTimer()
				x.call()
			}
			require.NoError(b, c.Err())
		})
	}
}

func BenchmarkDownload(b *testing.B) {
	d := vktest.Open(b, vktest.NoValidation)
	buf := newBuffer(b, d, "b", 64<<20)
	data := make([]byte, buf.Bytes())
	b.SetBytes(buf.Bytes())
	for b.Loop() {
		require.NoError(b, buf.Download(background(), 0, data))
	}
}

// BenchmarkDispatchTracked is the cost of a dispatch whose kernel has two tensors on slices of
// one buffer, after as many others on parts of their own as the name says.
func BenchmarkDispatchTracked(b *testing.B) {
	for _, others := range []int{0, 300} {
		b.Run(fmt.Sprintf("beside=%d", others), func(b *testing.B) {
			d := vktest.Open(b, vktest.NoValidation)
			k := axpy(b, d)
			n := int(sliceAlignment(d) / 4)
			whole := tensor(b, d, "whole", make([]float32, (others+2)*2*n)...)
			parts := make([]vk.Tensor, others+2)
			for i := range parts { // with gaps between, so that they stay apart
				parts[i] = whole.Slice(0, 2*i*n, (2*i+1)*n).Narrow()
			}
			c := newCmd(b, d)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if b.StopTimer(); i%256 == 0 {
					c.Reset()
					for i := range others {
						k.Dispatch(c, vk.Groups{}, axpyParams{N: 1}, parts[0], parts[i+2])
					}
				}
				b.StartTimer()
				k.Dispatch(c, vk.Groups{}, axpyParams{N: 1}, parts[0], parts[1])
			}
			require.NoError(b, c.Err())
		})
	}
}
