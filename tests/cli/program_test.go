package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// built is the program, or why there is none.
var built struct {
	path string
	err  error
}

// TestMain builds the program into a temporary folder. In a bundle, for machines without Go, the
// program lies two folders up.
func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() { // make test runs -race with -short; prepare then skips, since the program is built without it
		os.Exit(m.Run())
	}
	os.Exit(inFolder(m.Run))
}

func inFolder(run func() int) int {
	dir, err := os.MkdirTemp("", "flashvk-cli-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	// The program's files stay out of the user's cache. Mesa's cache stays the user's, since
	// lavapipe would compile for seconds without it.
	if cache, err := os.UserCacheDir(); err == nil && os.Getenv("MESA_SHADER_CACHE_DIR") == "" {
		os.Setenv("MESA_SHADER_CACHE_DIR", cache)
	}
	if built.path, err = filepath.Abs("../../flashvk"); err != nil {
		panic(err)
	}
	if info, err := os.Stat(built.path); err != nil || !info.Mode().IsRegular() {
		built.path = filepath.Join(dir, "flashvk")
		// Go's own cache is the user's.
		out, err := exec.Command("go", "build", "-buildvcs=false", "-o", built.path, "../../bench/flashvk").CombinedOutput()
		if err != nil {
			built.err = fmt.Errorf("go build: %w: %s", err, out)
		}
	}
	os.Setenv("XDG_CACHE_HOME", filepath.Join(dir, "cache"))
	return run()
}

// limit is the time after which a process counts as one that hangs, on a busy machine too.
const limit = 3 * time.Minute

// A process is the program, started.
type process struct {
	t              *testing.T
	cmd            *exec.Cmd
	args           string
	stdout, stderr output
	ctx            context.Context // ends when its time is over
	ended          chan struct{}   // closed after its end
	err            error           // of its end
}

// An output is what a process has written so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// prepare returns the program with arguments, not started yet, with the Vulkan of this
// process. It is killed after the time limit.
func prepare(t *testing.T, args ...string) *process {
	t.Helper()
	if testing.Short() {
		t.Skip("-short")
	}
	if built.err != nil && (os.Getenv("FLASHVK_REQUIRE_TOOLS") != "" || !errors.Is(built.err, exec.ErrNotFound)) {
		t.Fatal(built.err)
	}
	if built.err != nil {
		t.Skip(built.err)
	}
	words := append([]string{built.path}, args...)
	if vkrun := os.Getenv("FLASHVK_VKRUN"); vkrun != "" {
		words = append([]string{vkrun}, words...)
	}
	return command(t, words...)
}

// command is prepare for any command line.
func command(t *testing.T, words ...string) *process {
	p := &process{t: t, args: strings.Join(words[1:], " "), ended: make(chan struct{})}
	var cancel context.CancelFunc
	p.ctx, cancel = context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel) // kills it, if the test has failed
	p.cmd = exec.CommandContext(p.ctx, words[0], words[1:]...)
	p.cmd.WaitDelay = time.Second
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	return p
}

func (p *process) start() *process {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Start())
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p
}

// await waits until the process has written a text to standard error.
func (p *process) await(text string) {
	p.t.Helper()
	p.until(func() bool { return strings.Contains(p.stderr.String(), text) })
}

// until waits until a condition holds.
func (p *process) until(done func() bool) {
	p.t.Helper()
	for !done() {
		select {
		case <-p.ended:
			if !done() {
				p.t.Fatalf("%s: not before the end, which is %v:\n%s%s", p.args, p.cmd.ProcessState, &p.stdout, &p.stderr)
			}
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// killAbove returns at the end of the process, which it kills once that has more than so many bytes
// of memory.
func (p *process) killAbove(bytes int) {
	for {
		select {
		case <-p.ended:
			return
		case <-time.After(20 * time.Millisecond):
		}
		var all, resident int
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
		fmt.Sscan(string(text), &all, &resident)
		if resident*os.Getpagesize() > bytes {
			p.cmd.Process.Kill()
		}
	}
}

// wait waits for the end of the process, and returns the exit status, -1 after a signal. It fails
// the test if the process crashes, takes too long, or draws progress though standard error is no
// terminal.
func (p *process) wait() (code int) {
	p.t.Helper()
	<-p.ended
	if failed := (*exec.ExitError)(nil); p.err != nil && !errors.As(p.err, &failed) {
		p.t.Fatalf("%s: %v\n%s", p.args, p.err, &p.stderr)
	}
	if p.ctx.Err() != nil {
		p.t.Fatalf("%s: no end within %v:\n%s%s", p.args, limit, &p.stdout, &p.stderr)
	}
	for _, text := range []string{p.stdout.String(), p.stderr.String()} {
		for _, bad := range []string{"panic: ", "fatal error: ", "goroutine ", "\x1b", "\r", "\b"} {
			if strings.Contains(text, bad) {
				p.t.Fatalf("%s: %q in the output:\n%s", p.args, bad, text)
			}
		}
	}
	return p.cmd.ProcessState.ExitCode()
}

// flashvk runs the program to its end.
func flashvk(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	p := prepare(t, args...).start()
	code = p.wait()
	return code, p.stdout.String(), p.stderr.String()
}

// device returns the capabilities of the device and the flag that chooses it. Without a
// device the test is skipped.
func device(t *testing.T) (*vk.Caps, string) {
	t.Helper()
	caps := *vktest.Open(t, vktest.NoValidation).Caps()
	return &caps, fmt.Sprintf("--device=%d", caps.Index)
}

// oneError returns the error of a process, which is the last line of standard error; notes
// may stand above it.
func oneError(t *testing.T, stderr string) string {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
	for _, line := range lines {
		require.True(t, strings.HasPrefix(line, "flashvk: "), "a line of standard error that is not ours: %q in\n%s", line, stderr)
	}
	return lines[len(lines)-1]
}

// small are the flags of a measurement that takes no time.
func small(dev string, more ...string) []string {
	return append([]string{"bench", "attention", dev, "--batch=1", "--heads=2", "--seqlen=33", "--headdim=16", "--impl=scalar", "--iters=2", "--count=2", "--no-tuning"}, more...)
}

// TestCompletion says that shells get scripts, and that the scripts get names of commands and of
// flags.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		code, stdout, stderr := flashvk(t, "completion", shell)
		require.Zero(t, code, stderr)
		require.Contains(t, stdout, "flashvk", shell)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"__complete", "se"}, "selftest\t"},
		{[]string{"__complete", "run", "att"}, "attention\t"},
		{[]string{"__complete", "run", "attention", "--lay"}, "--layout\t"},
	} {
		code, stdout, _ := flashvk(t, c.args...)
		require.Zero(t, code)
		require.Contains(t, stdout, c.want)
	}
}
