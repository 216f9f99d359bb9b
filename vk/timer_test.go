package vk_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

func TestTimer(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	if d.Caps().TimestampBits == 0 {
		t.Skip("no timestamps")
	}
	timer := must(d.NewTimer(4))
	defer timer.Close()
	_, err := timer.Nanoseconds(0, 1)
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
	busy := must(timer.Nanoseconds(0, 1))
	idle := must(timer.Nanoseconds(1, 2))
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

// TestTrace says that a trace names the dispatches and that their times do not
// overlap where there are barriers.
func TestTrace(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	trace := must(d.NewTrace(3))
	defer trace.Close()
	k := axpy(t, d)
	x, y := tensor(t, d, "x", 1, 2), tensor(t, d, "y", 3, 4)
	c := newCmd(t, d)
	record := func() {
		c.Trace(trace)
		k.Dispatch(c, vk.Groups{}, axpyParams{N: 2, A: 1}, x, y)
		c.Barrier()
		spin(t, d, c)
		c.Barrier()
	}
	record()
	k.Dispatch(c, vk.Groups{X: 2}, axpyParams{N: 2, A: 1}, x, y)
	submit(t, c)
	list := trace.Dispatches()
	require.Len(t, list, 3)
	require.Equal(t, "axpy", list[0].Kernel)
	require.Equal(t, [3]uint32{1, 1, 1}, list[0].Groups)
	require.Equal(t, [3]uint32{2, 1, 1}, list[2].Groups)
	require.Equal(t, "spin", list[1].Kernel)
	require.Positive(t, list[1].Workgroup[0])
	begin, end, err := trace.Times()
	require.NoError(t, err)
	require.Zero(t, begin[0])
	last := 0.0
	for i := range list {
		require.LessOrEqual(t, last, begin[i]+1, "dispatch %d begins before the one before it ends", i)
		require.LessOrEqual(t, begin[i], end[i])
		last = end[i]
	}
	require.Greater(t, end[1]-begin[1], end[0]-begin[0], "the kernel that spins takes longer")

	// Reset ends the trace; a trace that is used again forgets.
	c.Reset()
	k.Dispatch(c, vk.Groups{}, axpyParams{N: 2, A: 1}, x, y)
	submit(t, c)
	require.Len(t, trace.Dispatches(), 3)
	c.Reset()
	record()
	require.Len(t, trace.Dispatches(), 2)
	for range 2 {
		k.Dispatch(c, vk.Groups{}, axpyParams{N: 2, A: 1}, x, y)
	}
	require.ErrorContains(t, c.Err(), "more than the 3 dispatches of its trace")

	_, err = d.NewTrace(0)
	require.ErrorContains(t, err, "may have 1 to 524288")
}

// TestTraceNotes says that a note is of the next dispatch, and that a trace knows which
// dispatches wait for the one before.
func TestTraceNotes(t *testing.T) {
	d := vktest.Open(t)
	trace := must(d.NewTrace(8))
	defer trace.Close()
	k := axpy(t, d)
	x, y := tensor(t, d, "x", 1, 2), tensor(t, d, "y", 3, 4)
	c := newCmd(t, d)
	note := func(text string) {
		c.Note(func() vk.Note { return vk.Note{Text: text, FLOPs: 4, Bytes: vk.Traffic(x, y, y)} })
	}
	dispatch := func() { k.Dispatch(c, vk.Groups{}, axpyParams{N: 2, A: 1}, x, tensor(t, d, "own", 0, 0)) }
	note("there is no trace yet")
	dispatch()
	c.Barrier()
	c.Trace(trace)
	dispatch() // 0
	note("1")
	dispatch() // 1, beside 0
	c.Barrier()
	note("2")
	dispatch()
	dispatch() // 3, beside 2
	c.Fill(y.Buffer, 0, 4, 0)
	k.Dispatch(c, vk.Groups{}, axpyParams{N: 2, A: 1}, y, x) // 4, behind the fill
	submit(t, c)
	var texts []string
	var beside []bool
	for _, x := range trace.Dispatches() {
		texts, beside = append(texts, x.Note.Text), append(beside, x.Beside)
	}
	require.Equal(t, []string{"", "1", "2", "", ""}, texts)
	require.Equal(t, []bool{false, true, false, true, false}, beside)
	require.Equal(t, vk.Note{Text: "2", FLOPs: 4, Bytes: 24}, trace.Dispatches()[2].Note)
}

func TestTraffic(t *testing.T) {
	d := vktest.Open(t)
	x := tensor(t, d, "x", 1, 2, 3, 4, 5, 6)
	x.Shape, x.Strides = []int{7, 2, 1}, []int{0, 3, 1}
	require.Equal(t, 8.0, vk.Traffic(x))
	x.DType = dtype.Float16
	require.Equal(t, 8.0, vk.Traffic(x, vk.Tensor{}, x))
	require.Zero(t, vk.Traffic())
}
