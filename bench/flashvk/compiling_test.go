package main

import (
	"bytes"
	"context"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/vk"
)

// TestCompiling: what takes long to compile is said, while it lasts and at its end, and on a
// terminal only.
func TestCompiling(t *testing.T) {
	var b bytes.Buffer
	a := &app{notes: newCompileNotes(&b)}
	require.Nil(t, a.compiling("quick"), "no terminal")

	a.notes.after = time.Hour
	quick := a.compiling("quick")
	quick()
	a.notes.after = time.Millisecond
	slow := a.compiling("slow")
	for said := false; !said; time.Sleep(time.Millisecond) {
		a.notes.mu.Lock()
		said = b.Len() > 0
		a.notes.mu.Unlock()
	}
	slow()
	require.Regexp(t, regexp.MustCompile("^\r\x1b\\[Kflashvk: the driver compiles slow\n\r\x1b\\[Kflashvk: the driver compiled slow in [0-9.]+m?s\n$"), b.String())
	late := a.compiling("late")
	a.notes.close()
	time.Sleep(50 * time.Millisecond)
	late()
	require.NotContains(t, b.String(), "late")
}

// TestCompilingDevice: the device says what it compiles, kernel by kernel.
func TestCompilingDevice(t *testing.T) {
	_, dev := device(t)
	var names []string
	open := 0
	d, err := vk.Open(vk.Options{Device: dev[len("--device="):], Compiling: func(kernel string) func() {
		names = append(names, kernel)
		open++
		return func() { open-- }
	}})
	require.NoError(t, err)
	defer d.Close()
	_, err = vk.NewKernel[struct{}](d, "bad", nil, nil, vk.KernelOptions{})
	require.Error(t, err)
	require.Empty(t, names, "what is refused is not compiled")
	_, err = bench.CopyRate(context.Background(), d, bench.DefaultProtocol(true))
	require.NoError(t, err)
	require.NotEmpty(t, names)
	require.Zero(t, open)
}
