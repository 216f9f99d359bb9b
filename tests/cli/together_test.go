package cli

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/vk/kit"
)

// together starts processes at the same time and waits for all of them.
func together(t *testing.T, commands ...[]string) {
	t.Helper()
	var list []*process
	for _, args := range commands {
		list = append(list, prepare(t, args...).start())
	}
	for _, p := range list {
		require.Zero(t, p.wait(), "%s: %s", p.args, &p.stderr)
	}
}

// TestTogether says that processes share the device and the cache of pipelines, which is whole
// afterwards.
func TestTogether(t *testing.T) {
	_, dev := device(t)
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	in := inputs(t, 20)
	out := filepath.Join(t.TempDir(), "o")
	together(t,
		small(dev, "--format=csv", "--count=50"),
		[]string{"selftest", dev, "--random=60", "--kernel=optim"},
		[]string{"run", "attention", dev, "--impl=scalar", "--in", in, "--out", out + "1"},
		[]string{"run", "attention", dev, "--impl=unfused", "--in", in, "--out", out + "2"},
		[]string{"run", "attention", dev, "--impl=scalar", "--in", in, "--out", out + "1"},
	)
	files, err := filepath.Glob(filepath.Join(cache, "flashvk", "pipelines", "*"))
	require.NoError(t, err)
	require.Len(t, files, 1, "the cache of a device is one file")
	cached, err := os.ReadFile(files[0])
	require.NoError(t, err)
	require.True(t, whole(cached), "a cache of pipelines that is not whole")
	before, err := os.ReadFile(out + "1")
	require.NoError(t, err)
	together(t, []string{"run", "attention", dev, "--impl=scalar", "--in", in, "--out", out + "1"})
	after, err := os.ReadFile(out + "1")
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// whole reports whether a file is a header, a hash, and data with that hash.
func whole(file []byte) bool {
	for data := sha256.Size; data < min(len(file), 256); data++ {
		if sum := sha256.Sum256(file[data:]); bytes.Equal(sum[:], file[data-sha256.Size:data]) {
			return true
		}
	}
	return false
}

// TestTogetherTune says that two tuners of one file both leave their winners in it.
func TestTogetherTune(t *testing.T) {
	_, dev := device(t)
	path := filepath.Join(t.TempDir(), "tuned.json")
	slow := prepare(t, tuneArgs(dev, path, "--seqlen=32", "--budget=200ms")...).start()
	slow.await("problem 1 of 1: ")
	require.NoError(t, slow.cmd.Process.Signal(syscall.SIGSTOP))
	quick := prepare(t, tuneArgs(dev, path, "--seqlen=48", "--budget=200ms")...).start()
	require.Zero(t, quick.wait(), quick.stderr.String())
	require.Len(t, loadTuning(t, path), 1)
	require.NoError(t, slow.cmd.Process.Signal(syscall.SIGCONT))
	require.Zero(t, slow.wait(), slow.stderr.String())
	require.Len(t, loadTuning(t, path), 2)
}

// TestTogetherTuneKernels is TestTogetherTune for two kernels in the user's file, which other
// commands then read.
func TestTogetherTuneKernels(t *testing.T) {
	caps, dev := device(t)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	path, err := kit.UserTuningPath(caps)
	require.NoError(t, err)
	slow := prepare(t, "tune", "attention", dev, "--impl=scalar", "--batch=1", "--heads=1", "--headdim=16", "--causal=false", "--dtype=float16", "--seqlen=32", "--backward", "--budget=200ms").start()
	slow.await("problem 1 of 1: ")
	require.NoError(t, slow.cmd.Process.Signal(syscall.SIGSTOP))
	norm := []string{"tune", "norm", dev, "--rows=8", "--cols=64", "--dtype=float16", "--budget=200ms"}
	quick := prepare(t, norm...).start()
	require.Zero(t, quick.wait(), quick.stderr.String())
	require.Len(t, loadTuning(t, path), 1)
	require.NoError(t, slow.cmd.Process.Signal(syscall.SIGCONT))
	require.Zero(t, slow.wait(), slow.stderr.String())
	rows := loadTuning(t, path)
	require.Len(t, rows, 2)
	require.Equal(t, []string{"norm", "forward", "attention", "backward"}, []string{rows[0].Kernel, rows[0].Pass, rows[1].Kernel, rows[1].Pass})

	show := prepare(t, "tune", "show", dev).start()
	require.Zero(t, show.wait(), show.stderr.String())
	for _, row := range rows {
		require.Contains(t, show.stdout.String(), row.Config)
	}
	// A newer file is nobody's to replace.
	newer := []byte(`{"format": 99}`)
	require.NoError(t, os.WriteFile(path, newer, 0o600))
	again := prepare(t, norm...).start()
	require.Equal(t, 1, again.wait())
	require.Contains(t, again.stderr.String(), "format=99 is above 5, which this version reads: a newer version of flashvk wrote it: remove the file or name another with --out")
	kept, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, newer, kept)
}

// TestTogetherSweep says that the second of two sweeps into one file ends with an error, and that
// the first loses nothing. Afterwards the second finds all rows there.
func TestTogetherSweep(t *testing.T) {
	_, dev := device(t)
	path := filepath.Join(t.TempDir(), "s.csv")
	args := []string{"sweep", dev, "--min-len=8", "--max-len=48", "--step=8", "--heads=1", "--impl=scalar", "--csv=" + path}
	first := prepare(t, args...).start()
	first.until(func() bool { info, err := os.Stat(path); return err == nil && info.Size() > 0 })
	require.NoError(t, first.cmd.Process.Signal(syscall.SIGSTOP))
	second := prepare(t, args...).start()
	require.Equal(t, 1, second.wait())
	require.Contains(t, second.stderr.String(), "s.csv: another process is writing it: name another file, or wait")
	require.NoError(t, first.cmd.Process.Signal(syscall.SIGCONT))
	require.Zero(t, first.wait(), first.stderr.String())
	rows, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, 1+6, bytes.Count(rows, []byte("\n")))
	again := prepare(t, args...).start()
	require.Zero(t, again.wait(), again.stderr.String())
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(rows), string(after))
}

// TestTogetherRecord says that two selftests of one record both leave their results in it.
func TestTogetherRecord(t *testing.T) {
	_, dev := device(t)
	path := filepath.Join(t.TempDir(), "record.json")
	slow := prepare(t, "selftest", dev, "--random=10000000", "--kernel=optim", "--record", path).start()
	slow.await("flashvk: device ")
	quick := prepare(t, "selftest", dev, "--random=2", "--kernel=norm", "--record", path).start()
	require.Zero(t, quick.wait(), quick.stderr.String())
	interrupt(t, slow, os.Interrupt)
	var kernels []string
	for _, r := range loadRecord(t, path).Random {
		kernels = append(kernels, r.Kernel)
	}
	require.ElementsMatch(t, []string{"norm", "optim"}, kernels)
}
