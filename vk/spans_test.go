package vk

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestSpans compares spans with a set of bytes.
func TestSpans(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var s spans
		var set [64]bool
		for range 30 {
			start := rng.Int64N(60)
			end := start + 1 + rng.Int64N(4)
			if got := slices.Contains(set[start:end], true); s.meet(start, end) != got {
				t.Fatalf("seed %d: %v meets %d to %d: %v", seed, s, start, end, !got)
			}
			switch all := !slices.Contains(set[start:end], false); {
			case rng.IntN(2) == 0:
				s.add(start, end)
				for i := start; i < end; i++ {
					set[i] = true
				}
			case all: // remove is for what is there
				s.remove(start, end)
				clear(set[start:end])
			}
		}
		for i, x := range s {
			if x.start >= x.end || i > 0 && s[i-1].end >= x.start {
				t.Fatalf("seed %d: %v", seed, s)
			}
		}
	}
}

// BenchmarkTracker is what one dispatch of eight tensors costs beside what Vulkan does, after
// as many others as the name says that wrote slices of one buffer, with gaps between.
func BenchmarkTracker(b *testing.B) {
	for _, others := range []int{0, 300} {
		b.Run(fmt.Sprintf("beside=%d", others), func(b *testing.B) {
			c := Cmd{uses: map[*object]*use{}}
			t := &c.tracker
			buffers := make([]object, 4)
			touch := func(at int64) {
				t.touches = t.touches[:0]
				for j := range buffers {
					at += 2 << 10
					t.touch(c.use(&buffers[j]), 0, 1<<20, false)
					t.touch(c.use(&buffers[0]), at, at+1<<10, true)
				}
			}
			for i := range others {
				touch(1<<20 + int64(8*i)<<10)
				t.note(compute)
			}
			b.ReportAllocs()
			for b.Loop() {
				touch(1<<20 + int64(others*4+1)<<10) // between two of the others
				if t.conflicts(compute) {
					b.Fatal("they are apart")
				}
				touch(1 << 20)
				t.note(compute)
			}
		})
	}
}
