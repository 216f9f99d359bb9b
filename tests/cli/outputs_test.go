package cli

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	_ "github.com/flashvk/flashvk/attention" // loadTuning reads its rows
	"github.com/flashvk/flashvk/internal/conformance"
	_ "github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/vk/kit"
)

// full is a device that is a full disk.
const full = "/dev/full"

func openFull(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile(full, os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// tuneArgs are the flags of a search of a moment.
func tuneArgs(dev, out string, more ...string) []string {
	return append([]string{"tune", "attention", dev, "--impl=scalar", "--batch=1", "--heads=1", "--headdim=16", "--causal=false", "--dtype=float16", "--out", out}, more...)
}

// loadTuning returns the rows of a tuning file, and wants all of them to be valid.
func loadTuning(t *testing.T, path string) []kit.TuningRow {
	t.Helper()
	caps, _ := device(t)
	tuning, err := kit.LoadTuningFile(path, caps)
	require.NoError(t, err)
	rows := tuning.Rows(caps)
	for _, r := range rows {
		require.NoError(t, r.Err)
	}
	return rows
}

// loadRecord returns the record of a file.
func loadRecord(t *testing.T, path string) *conformance.Record {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	r, err := conformance.Parse(text)
	require.NoError(t, err)
	return r
}

// TestClosedPipe says that a pipe whose reader is gone ends the program without a message, as it
// ends other programs. Results that also go to files are in them.
func TestClosedPipe(t *testing.T) {
	_, dev := device(t)
	dir := t.TempDir()
	record, tuned, out := filepath.Join(dir, "record.json"), filepath.Join(dir, "tuned.json"), filepath.Join(dir, "out")
	for _, args := range [][]string{
		{"devices", "--json"},
		small(dev, "--format=csv", "--out", out),
		{"selftest", dev, "--random=2", "--kernel=optim", "--record", record},
		tuneArgs(dev, tuned, "--seqlen=32", "--budget=200ms"),
	} {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		r.Close()
		p := prepare(t, args...)
		p.cmd.Stdout = w
		p.start()
		w.Close()
		code := p.wait()
		status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
		require.True(t, code == 1 || status.Signaled() && status.Signal() == syscall.SIGPIPE, "%q: %v\n%s", args, p.cmd.ProcessState, &p.stderr)
		require.NotContains(t, p.stderr.String(), "SIGPIPE")
	}
	require.FileExists(t, filepath.Join(out, "results.benchfmt"))
	require.FileExists(t, filepath.Join(out, "report.html"))
	require.NotEmpty(t, loadRecord(t, record).Random)
	require.Len(t, loadTuning(t, tuned), 1)
}

// TestHead wants `flashvk … | head -1` to print a line.
func TestHead(t *testing.T) {
	_, dev := device(t)
	for _, args := range [][]string{{"devices", "--json"}, small(dev, "--format=csv", "--count=300", "--iters=300")} {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		p := prepare(t, args...)
		p.cmd.Stdout = w
		p.start()
		w.Close()
		line, err := bufio.NewReaderSize(r, 16).ReadString('\n')
		require.NoError(t, err)
		require.NotEmpty(t, line)
		r.Close()
		p.wait()
		require.NotContains(t, p.stderr.String(), "SIGPIPE")
	}
}

// TestFullStdout wants an error if results cannot be written.
func TestFullStdout(t *testing.T) {
	_, dev := device(t)
	out := filepath.Join(t.TempDir(), "out")
	tuned := filepath.Join(t.TempDir(), "tuned.json")
	for _, args := range [][]string{
		{"version"},
		{"--help"},
		{"devices"},
		small(dev, "--out", out),
		small(dev, "--format=csv"),
		{"bench", "norm", dev, "--rows=4", "--cols=32", "--count=1", "--iters=1", "--format=benchfmt"},
		{"selftest", dev, "--random=2", "--kernel=optim"},
		tuneArgs(dev, tuned, "--seqlen=32", "--budget=200ms"),
		{"tune", "gemm", dev, "--dry-run", "--impl=scalar"},
	} {
		p := prepare(t, args...)
		p.cmd.Stdout = openFull(t)
		require.Equal(t, 1, p.start().wait(), "%q: %s", args, &p.stderr)
		require.Contains(t, oneError(t, p.stderr.String()), "write /dev/stdout: no space left on device", "%q", args)
	}
	require.FileExists(t, filepath.Join(out, "report.html"), "--out suffers from standard output")
	require.Len(t, loadTuning(t, tuned), 1, "the tuning file suffers from standard output")
}

// TestFullFiles wants an error that names a file that cannot be written, after results were written
// to all other places.
func TestFullFiles(t *testing.T) {
	_, dev := device(t)
	openFull(t)
	// Results do not go to /dev/full: reading it has no end, and a user with enough rights
	// would replace it.
	for _, c := range []struct {
		args []string
		want string
	}{
		{small(dev, "--out", full), "mkdir /dev/full: not a directory"},
		{[]string{"selftest", dev, "--random=100000", "--kernel=optim", "--record", full}, "--record /dev/full: it is not a regular file"},
		{[]string{"selftest", dev, "--record", full}, "--record /dev/full: it is not a regular file"},
		{[]string{"sweep", dev, "--csv", full}, "/dev/full: is a device, not a regular file"},
		{tuneArgs(dev, full, "--budget=1h"), "/dev/full: "},
		{[]string{"run", "attention", dev, "--in", inputs(t, 4), "--out", full}, "/dev/full: is a device"},
	} {
		p := prepare(t, c.args...).start()
		p.killAbove(2 << 30) // before memory is full
		require.Equal(t, 1, p.wait(), "%q: %s", c.args, &p.stderr)
		require.Empty(t, p.stdout.String(), "%q", c.args)
		require.Contains(t, oneError(t, p.stderr.String()), c.want, "%q", c.args)
	}
	info, err := os.Stat(full)
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&os.ModeDevice)

	dir := t.TempDir()
	for _, name := range []string{"results.csv", "trace.json"} {
		require.NoError(t, os.Symlink(full, filepath.Join(dir, name)))
	}
	code, stdout, stderr := flashvk(t, small(dev, "--out", dir)...)
	require.Equal(t, 1, code, stderr)
	require.Contains(t, oneError(t, stderr), filepath.Join(dir, "results.csv")+": no space left on device")
	require.Contains(t, stdout, "\nscalar ", "standard output suffers from --out")
	trace := filepath.Join(dir, "trace.json")
	code, _, stderr = flashvk(t, "profile", "norm", dev, "--rows=4", "--cols=32", "--count=1", "--trace", trace)
	require.Equal(t, 1, code, stderr)
	require.Contains(t, oneError(t, stderr), trace+": no space left on device")
}

// onFullDisk is prepare with a folder that is a tmpfs with these options. Without the rights to
// mount one the test is skipped.
func onFullDisk(t *testing.T, folder, options string, args ...string) *process {
	t.Helper()
	mount := `mount -t tmpfs -o ` + options + ` none "$0"`
	if out, err := exec.Command("unshare", "-rm", "sh", "-c", mount, folder).CombinedOutput(); err != nil {
		t.Skipf("no disk to fill: %v: %s", err, out)
	}
	p := prepare(t, args...)
	return command(t, append([]string{"unshare", "-rm", "sh", "-c", mount + ` && exec "$@"`, folder}, p.cmd.Args...)...)
}

// TestFullDisk is TestFullFiles with a disk that is full when results are written.
func TestFullDisk(t *testing.T) {
	_, dev := device(t)
	dir := t.TempDir()
	p := onFullDisk(t, dir, "size=1m,nr_inodes=1", "selftest", dev, "--random=2", "--kernel=optim", "--record", dir)
	require.Equal(t, 1, p.start().wait(), p.stderr.String())
	require.Contains(t, oneError(t, p.stderr.String()), dir)
	require.Contains(t, p.stderr.String(), ": no space left on device")
	require.Contains(t, p.stdout.String(), "2 random problems of seed 1, ", "standard output suffers from --record")

	path := filepath.Join(dir, "o.safetensors")
	p = onFullDisk(t, dir, "size=16k", "run", "attention", dev, "--impl=scalar", "--in", inputs(t, 300), "--out", path)
	require.Equal(t, 1, p.start().wait(), p.stderr.String())
	require.Contains(t, oneError(t, p.stderr.String()), path+": no space left on device")

	path = filepath.Join(dir, "s.csv")
	p = onFullDisk(t, dir, "size=4k", "sweep", dev, "--impl=scalar", "--count=1", "--batch=1", "--heads=1", "--headdim=8", "--min-len=1", "--max-len=100", "--step=1", "--csv", path)
	require.Equal(t, 1, p.start().wait(), p.stderr.String())
	require.Contains(t, oneError(t, p.stderr.String()), path+": no space left on device")
	require.Empty(t, strings.TrimSpace(p.stdout.String()))
}

// TestFullDiskOut wants charts and reports to be whole, or not to exist.
func TestFullDiskOut(t *testing.T) {
	_, dev := device(t)
	cut := false
	for _, size := range []string{"32k", "48k", "64k", "96k"} {
		dir := t.TempDir()
		// The disk goes away with the process, so the shell lists it before.
		look := `; code=$?; for f in "$0"/*.svg; do tail -c7 "$f" 2>/dev/null; done; ls -A "$0"; exit $code`
		p := onFullDisk(t, dir, "size="+size, small(dev, "--out", dir)...)
		script := p.cmd.Args[4]
		p.cmd.Args[4] = strings.Replace(script, `exec "$@"`, `"$@"`, 1) + look
		require.NotEqual(t, script, p.cmd.Args[4])
		code := p.start().wait()
		stdout := p.stdout.String()
		require.NotContains(t, stdout, ".tmp")
		require.Contains(t, stdout, "results.csv", "the disk is so small that nothing is on it")
		if code == 0 {
			require.Contains(t, stdout, "report.html")
			continue
		}
		cut = true
		require.Regexp(t, dir+`/[a-z.-]+: no space left on device`, oneError(t, p.stderr.String()))
		require.NotContains(t, stdout, "report.html")
		require.Equal(t, strings.Count(stdout, ".svg\n"), strings.Count(stdout, "</svg>\n"), "a chart is cut:\n%s", stdout)
	}
	require.True(t, cut, "no disk was full")
}

// TestCacheWarning says that one line warns if the folder of compiled pipelines cannot be made, and
// that the result is the same.
func TestCacheWarning(t *testing.T) {
	_, dev := device(t)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	t.Setenv("XDG_CACHE_HOME", file) // a file, below which no folder can be made
	code, stdout, stderr := flashvk(t, small(dev)...)
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "scalar")
	require.Equal(t, 1, strings.Count(stderr, "WARNING: vk: pipeline cache: "), stderr)
	oneError(t, stderr)
}

// TestPlotOfOut wants plot to draw the results of bench --out into the same files, charts of
// latencies among them.
func TestPlotOfOut(t *testing.T) {
	_, dev := device(t)
	out, plots := t.TempDir(), t.TempDir()
	code, _, stderr := flashvk(t, "bench", "norm", dev, "--suite=training", "--small", "--count=2", "--iters=1", "--no-tuning", "--out", out)
	require.Zero(t, code, stderr)
	code, stdout, stderr := flashvk(t, "plot", filepath.Join(out, "results.csv"), "--out", plots)
	require.Zero(t, code, stderr)
	names := func(dir string) (list []string) {
		files, err := filepath.Glob(filepath.Join(dir, "*.svg"))
		require.NoError(t, err)
		for _, f := range files {
			if name := filepath.Base(f); !strings.HasPrefix(name, "latency") {
				list = append(list, name)
			}
		}
		return list
	}
	require.NotEmpty(t, names(out))
	require.Equal(t, names(out), names(plots), stdout)
	for _, name := range names(out) {
		want, err := os.ReadFile(filepath.Join(out, name))
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join(plots, name))
		require.NoError(t, err)
		require.Equal(t, string(want), string(got), name)
	}
}
