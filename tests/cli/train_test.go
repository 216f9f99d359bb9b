package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestKillTrain: a training that is killed and continued, again and again, comes to the state of
// one that is not, byte for byte; its file is never a part of one.
func TestKillTrain(t *testing.T) {
	_, dev := device(t)
	dir := t.TempDir()
	args := func(file string, more ...string) []string {
		return append([]string{"train", dev, "--dtype=float32", "--steps=200", "--batches=1", "--save", filepath.Join(dir, file), "--save-every=1"}, more...)
	}
	whole := prepare(t, args("whole")...).start()
	require.Zero(t, whole.wait(), &whole.stderr)
	killed := 0
	for wait := 400 * time.Millisecond; ; wait += 400 * time.Millisecond {
		var load []string
		if _, err := os.Stat(filepath.Join(dir, "part")); err == nil {
			load = []string{"--load", filepath.Join(dir, "part")}
		}
		p := prepare(t, args("part", load...)...).start()
		select {
		case <-p.ended:
		case <-time.After(wait):
			require.NoError(t, p.cmd.Process.Kill())
		}
		// It may have been killed between its last step and its end: the next one has none to do.
		if p.wait() == 0 || strings.Contains(p.stderr.String(), "none is left") {
			break
		}
		killed++
	}
	require.Positive(t, killed)
	want, err := os.ReadFile(filepath.Join(dir, "whole"))
	require.NoError(t, err)
	got, err := os.ReadFile(filepath.Join(dir, "part"))
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// TestInterruptTrain: ^C ends a training, which writes what it has come to.
func TestInterruptTrain(t *testing.T) {
	_, dev := device(t)
	path := filepath.Join(t.TempDir(), "model")
	p := prepare(t, "train", dev, "--dtype=float32", "--steps=100000", "--save", path).start()
	p.await("flashvk: memory ")
	time.Sleep(time.Second)
	interrupt(t, p, os.Interrupt)
	q := prepare(t, "train", dev, "--dtype=float32", "--evaluate", path, "--batches=1").start()
	require.Zero(t, q.wait(), &q.stderr)
}
