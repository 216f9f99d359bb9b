package faults

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/vk"
)

// times returns the number of repetitions in a round: short, `most` with FLASHVK_LONG=1, or the
// number in FLASHVK_LONG.
func times(t *testing.T, short, most int) int {
	t.Helper()
	switch long := os.Getenv("FLASHVK_LONG"); long {
	case "":
		return short
	case "1":
		return most
	default:
		n, err := strconv.Atoi(long)
		require.NoError(t, err, "FLASHVK_LONG")
		require.Positive(t, n, "FLASHVK_LONG")
		return n
	}
}

// usage is what a process holds.
type usage struct {
	goroutines, files int
	resident, heap    int64 // bytes
}

func measure(t *testing.T) (u usage) {
	t.Helper()
	runtime.GC()
	runtime.GC() // what the first one finalized
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u.goroutines, u.heap = runtime.NumGoroutine(), int64(m.HeapAlloc)
	files, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	u.files = len(files)
	text, err := os.ReadFile("/proc/self/statm")
	require.NoError(t, err)
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	require.NoError(t, err)
	u.resident = pages * int64(os.Getpagesize())
	return u
}

// rounds is the number of rounds after which memory that has grown in each counts as a leak.
const rounds = 8

// flat runs rounds of n calls of f until the process holds no more memory after a round than before
// it, except for some bytes for each call. A leak grows in every round; an allocator, or the
// driver's compiler, takes memory in some rounds only.
func flat(t *testing.T, n int, perCall int64, f func()) {
	t.Helper()
	round := func() usage {
		for range n {
			f()
		}
		return measure(t)
	}
	before := round()
	for i := 1; ; i++ {
		start := time.Now()
		after := round()
		t.Logf("%d times in %v: before %+v, after %+v", n, time.Since(start).Round(time.Millisecond), before, after)
		grown := ""
		switch {
		case after.goroutines > before.goroutines:
			grown = "goroutines"
		case after.files > before.files:
			grown = "files"
		case after.heap-before.heap > 64<<10+int64(n)*perCall/8:
			grown = "Go's heap"
		case after.resident-before.resident > 2<<20+int64(n)*perCall:
			grown = "memory"
		default:
			return
		}
		require.Less(t, i, rounds, "%s grows in each of %d rounds", grown, rounds)
		before = after
	}
}

// TestRecordings records, runs and closes calls.
func TestRecordings(t *testing.T) {
	d := vktest.Open(t, vktest.NoValidation)
	ctx := context.Background()
	p := norm.Problem{Rows: 8, Cols: 64, DType: dtype.Float32}
	tensor := func(shape ...int) vk.Tensor { return vktest.Values[float32](t, d, dtype.Float32, nil, shape...) }
	x := norm.Tensors{X: tensor(8, 64), W: tensor(64), Y: tensor(8, 64), Mean: tensor(8), RStd: tensor(8)}
	g := norm.Gradients{DY: tensor(8, 64), DX: tensor(8, 64), DW: tensor(64)}
	kernels := 0
	flat(t, times(t, 600, 50000), 256, func() {
		c, err := d.NewCmd("call")
		require.NoError(t, err)
		defer c.Close()
		require.NoError(t, norm.Forward(c, x, p, norm.Options{}))
		require.NoError(t, norm.Backward(c, x, g, p, norm.Options{}))
		require.NoError(t, c.Submit(ctx))
		kernels = len(d.CachedKernels())
	})
	require.LessOrEqual(t, kernels, 4)
}

// TestDevices opens, uses and closes devices. Each tenth has the validation layer, if there is one,
// which reports objects of the driver that are left as an error of Close.
func TestDevices(t *testing.T) {
	vktest.Open(t) // or there is none
	n := 0
	flat(t, times(t, 30, 1000), 64<<10, func() {
		n++
		d, err := vk.Open(vk.Options{Validate: n%10 == 0 && vk.HaveValidation() == nil})
		require.NoError(t, err)
		require.NoError(t, scenario(d))
		require.NoError(t, d.Close())
	})
}
