package cli

import (
	"encoding/csv"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// interrupt sends a signal and waits for the end, with status 1 and one word: without it, what the
// tests start runs until its limit.
func interrupt(t *testing.T, p *process, signal os.Signal) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(signal))
	code := p.wait()
	require.Equal(t, 1, code, "%s: %v\n%s", p.args, p.cmd.ProcessState, &p.stderr)
	require.Equal(t, "flashvk: interrupted", oneError(t, p.stderr.String()), p.args)
}

// TestInterrupt says that ^C, or a signal to terminate, ends a long command.
func TestInterrupt(t *testing.T) {
	_, dev := device(t)
	for _, c := range []struct {
		signal os.Signal
		args   []string
	}{
		{os.Interrupt, small(dev, "--format=csv", "--count=100000", "--iters=10000000")},
		{syscall.SIGTERM, []string{"bench", "norm", dev, "--format=json", "--count=100000", "--iters=10000000"}},
		{os.Interrupt, []string{"sweep", dev, "--impl=scalar", "--batch=1", "--heads=1", "--headdim=8", "--min-len=1", "--max-len=10000", "--step=1", "--csv", filepath.Join(t.TempDir(), "s.csv")}},
	} {
		p := prepare(t, c.args...).start()
		p.await("flashvk: device ")
		time.Sleep(200 * time.Millisecond) // for what comes after the note
		interrupt(t, p, c.signal)
		require.Empty(t, p.stdout.String(), "results of a measurement that was cut short")
	}
}

// TestSecondSignal says that the second signal ends a process that the first one does not end,
// since it reads a pipe without a writer.
func TestSecondSignal(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		p := prepare(t, "plot", pipe, "--out", t.TempDir()).start()
		time.Sleep(300 * time.Millisecond) // for the program to begin
		require.NoError(t, p.cmd.Process.Signal(signal))
		for ended := false; !ended; {
			select {
			case <-p.ended: // at its limit, with another status, if signals do not end it
				ended = true
			case <-time.After(300 * time.Millisecond): // two that wait for a process are one
				_ = p.cmd.Process.Signal(signal)
			}
		}
		status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
		require.True(t, status.Signaled() && status.Signal() == signal || status.ExitStatus() == 1, p.cmd.ProcessState)
	}
}

// TestInterruptSelftest says that an interrupted selftest reports and records the random problems
// that it has checked.
func TestInterruptSelftest(t *testing.T) {
	_, dev := device(t)
	record := filepath.Join(t.TempDir(), "record.json")
	some := regexp.MustCompile(`(?m)^0 wrong of [0-9]+ random problems of seed 1, .*optim [1-9]`)
	for wait := time.Second; ; wait *= 2 { // until one has been checked when the interrupt comes
		p := prepare(t, "selftest", dev, "--random=10000000", "--kernel=optim", "--record", record).start()
		p.await("flashvk: device ")
		time.Sleep(wait)
		interrupt(t, p, os.Interrupt)
		if some.MatchString(p.stdout.String()) {
			break
		}
		require.NotContains(t, p.stdout.String(), "WRONG")
	}
	random := loadRecord(t, record).Random
	require.Len(t, random, 1)
	require.Equal(t, "optim", random[0].Kernel)
	require.Positive(t, random[0].Problems)
}

// TestInterruptTune says that an interrupted tune prints and keeps the winners of the problems that
// it has finished.
func TestInterruptTune(t *testing.T) {
	_, dev := device(t)
	path := filepath.Join(t.TempDir(), "tuned.json")
	p := prepare(t, tuneArgs(dev, path, "--seqlen=32,48", "--budget=400ms", "--format=benchfmt")...).start()
	p.await("problem 2 of 2: ")
	interrupt(t, p, os.Interrupt)
	require.Contains(t, p.stdout.String(), "/seq_q=32/")
	require.NotContains(t, p.stdout.String(), "/seq_q=48/")
	require.Len(t, loadTuning(t, path), 1)
	left, err := filepath.Glob(path + "*")
	require.NoError(t, err)
	require.Equal(t, []string{path}, left, "temporary files")
}

// TestInterruptSuite says that an interrupted suite writes the measured cases to each place. A slow
// peer makes the second case last.
func TestInterruptSuite(t *testing.T) {
	_, dev := device(t)
	dir := t.TempDir()
	out, script, first, second := filepath.Join(dir, "out"), filepath.Join(dir, "peer.sh"), filepath.Join(dir, "first"), filepath.Join(dir, "second")
	require.NoError(t, os.WriteFile(script, []byte(`if [ -e `+first+` ]; then touch `+second+`; sleep 100000; fi
touch `+first+`
echo '{"name": "x", "samples_ns": [1e6]}'
`), 0o600))
	p := prepare(t, "bench", "attention", dev, "--suite=latency", "--small", "--impl=scalar", "--count=2", "--iters=2", "--peer", "p=sh "+script, "--format=csv", "--out", out).start()
	p.until(func() bool { _, err := os.Stat(second); return err == nil })
	interrupt(t, p, os.Interrupt)
	file, err := os.ReadFile(filepath.Join(out, "results.csv"))
	require.NoError(t, err)
	for _, text := range []string{p.stdout.String(), string(file)} {
		lines, err := csv.NewReader(strings.NewReader(text)).ReadAll()
		require.NoError(t, err)
		require.Len(t, lines, 3, "names, ours and the peer's of the first case:\n%s", text)
	}
}
