package cli

import (
	"bytes"
	"crypto/sha256"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

// errBuilding says why there is no program.
var errBuilding error

// TestMain builds the program into a temporary folder, with or without -race, and puts a script
// beside it that starts it as FLASHVK_VKRUN says. In a bundle, for machines without Go, the program
// lies three folders up.
func TestMain(m *testing.M) { os.Exit(inFolder(m.Run)) }

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
	program, err := filepath.Abs("../../../flashvk")
	if err != nil {
		panic(err)
	}
	if _, err := os.Stat("../../go.mod"); err == nil { // else this is a bundle
		program = filepath.Join(dir, "built")
		out, err := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-w", "-o", program, "../../bench/flashvk").CombinedOutput()
		if err != nil {
			errBuilding = fmt.Errorf("go build: %w: %s", err, out)
		}
	}
	launcher := "#!/bin/sh\nexec $FLASHVK_VKRUN '" + program + "' \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "flashvk"), []byte(launcher), 0o700); err != nil {
		panic(err)
	}
	if vk.HaveValidation() == nil {
		os.Setenv("VK_INSTANCE_LAYERS", "VK_LAYER_KHRONOS_validation")
	}
	os.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	os.Setenv("XDG_CACHE_HOME", filepath.Join(dir, "cache"))
	return run()
}

// needProgram skips the test where the program cannot be built.
func needProgram(t *testing.T) {
	t.Helper()
	if errors.Is(errBuilding, exec.ErrNotFound) && os.Getenv("FLASHVK_REQUIRE_TOOLS") == "" {
		t.Skip(errBuilding)
	} else if errBuilding != nil {
		t.Fatal(errBuilding)
	}
}

// TestScripts runs the scripts of testdata/script on a device, with the commands of
// testdata/script/README.
func TestScripts(t *testing.T) {
	needProgram(t)
	testscript.Run(t, params(t, "testdata/script"))
}

// TestNoDevice runs the scripts of testdata/nodevice, as on a machine without Vulkan. Mistakes in a
// command line and in files are found there, too.
func TestNoDevice(t *testing.T) {
	needProgram(t)
	p := testscript.Params{Dir: "testdata/nodevice", Cmds: commands(nil), ContinueOnError: true}
	p.Setup = func(e *testscript.Env) error {
		environment(e)
		e.Vars = append(e.Vars, "FLASHVK_VKRUN=", "VK_DRIVER_FILES=/none", "VK_ICD_FILENAMES=/none", "VK_INSTANCE_LAYERS=")
		return nil
	}
	testscript.Run(t, p)
}

// params returns what scripts in a folder have. Without a device it skips the test.
func params(t *testing.T, dir string) testscript.Params {
	caps := *vktest.Open(t, vktest.NoValidation).Caps()
	return testscript.Params{
		Dir: dir, ContinueOnError: true, Cmds: commands(&caps), Condition: func(name string) (bool, error) { return condition(name, &caps) },
		Setup: func(e *testscript.Env) error { environment(e); return nil },
	}
}

// environment gives scripts the environment of the tests.
func environment(e *testscript.Env) {
	home := "HOME=" + os.Getenv("HOME") // of PyTorch
	e.Vars = append(append(os.Environ(), e.Vars...), home, "PEERS="+peers())
}

// peers returns the folder of tools/peers; in a bundle it lies elsewhere.
func peers() string {
	for _, dir := range []string{"../../tools/peers", "../../../peers"} {
		if path, err := filepath.Abs(filepath.Join(dir, "torch_peer.py")); err == nil {
			if _, err := os.Stat(path); err == nil {
				return filepath.Dir(path)
			}
		}
	}
	return ""
}

// condition says whether the machine has a software driver, time for every case, PyTorch (with a
// GPU: cuda), a disk that is full, rights to mount one.
func condition(name string, caps *vk.Caps) (bool, error) {
	switch name {
	case "software":
		return caps.Type == vk.CPU, nil
	case "thorough":
		return vktest.ThoroughWith(caps), nil
	case "mount":
		return exec.Command("unshare", "-rm", "mount", "-t", "tmpfs", "none", os.TempDir()).Run() == nil, nil
	case "torch", "cuda":
		out, err := exec.Command("python3", "-c", "import torch; print(torch.cuda.is_available())").Output()
		have := err == nil && (name == "torch" || string(out) == "True\n") && peers() != ""
		if !have && slices.Contains(strings.Split(os.Getenv("FLASHVK_REQUIRE"), ","), "torch") {
			return false, fmt.Errorf("FLASHVK_REQUIRE names torch, but: %s, %v", out, err)
		}
		return have, nil
	}
	return false, fmt.Errorf("no condition %s", name)
}

// commands are the commands of scripts. Caps are nil without a device.
func commands(caps *vk.Caps) map[string]func(ts *testscript.TestScript, neg bool, args []string) {
	return map[string]func(ts *testscript.TestScript, neg bool, args []string){
		"flashvk": flashvk, "usage": refusal(2), "fails": refusal(1), "refuses": refuses, "narrow": narrow,
		"await": await, "signal": signal, "tensors": tensors, "agrees": agrees, "model": model, "whole": whole,
		"right": func(ts *testscript.TestScript, _ bool, args []string) { right(ts, caps, args) },
	}
}

// flashvk runs the program to its end, which is to have exit status 0, with ! 1.
func flashvk(ts *testscript.TestScript, neg bool, args []string) {
	start(ts, map[bool]int{true: 1}[neg], args)
}

// start runs the program, and checks its exit status and that standard error has lines of ours
// alone: no panics, no progress, no messages of the validation layer.
func start(ts *testscript.TestScript, status int, args []string) {
	code, err := 0, ts.Exec("flashvk", args...)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if code != status {
		ts.Fatalf("exit status %d, want %d", code, status)
	}
	stderr := ts.ReadFile("stderr")
	for line := range strings.Lines(stderr) {
		if !strings.HasPrefix(line, "flashvk: ") {
			ts.Fatalf("a line of standard error that is not ours: %q", line)
		}
	}
	for _, bad := range []string{"panic: ", "fatal error: ", "Validation Error", "VUID-", "\x1b", "\r", "\b"} {
		if strings.Contains(stderr+ts.ReadFile("stdout"), bad) {
			ts.Fatalf("%q in the output", bad)
		}
	}
}

// refusal is usage TEXT ARGS… and fails TEXT ARGS…: the program prints no result, and an error with
// the text, in a line, before which fails allows notes. Its exit status is 2 or 1.
func refusal(status int) func(ts *testscript.TestScript, neg bool, args []string) {
	return func(ts *testscript.TestScript, _ bool, args []string) {
		start(ts, status, args[1:])
		lines := strings.SplitAfter(ts.ReadFile("stderr"), "\n")
		last := lines[max(len(lines)-2, 0)]
		if !strings.Contains(last, args[0]) || !strings.HasSuffix(last, "\n") || status == 2 && len(lines) != 2 || ts.ReadFile("stdout") != "" {
			ts.Fatalf("want one line with %q", args[0])
		}
	}
}

// refuses is refuses TEXT 'KERNEL FLAGS…' TENSORS…: run refuses a file of these tensors, and writes
// none.
func refuses(ts *testscript.TestScript, _ bool, args []string) {
	const in, out = "refused.safetensors", "none.safetensors"
	tensors(ts, false, append([]string{in}, args[2:]...))
	refusal(1)(ts, false, slices.Concat([]string{args[0], "run"}, strings.Fields(args[1]), []string{"--in", in, "--out", out}))
	if _, err := os.Stat(ts.MkAbs(out)); err == nil {
		ts.Fatalf("an output was left")
	}
}

// narrow says that the last output fits a terminal of 100 columns.
func narrow(ts *testscript.TestScript, _ bool, _ []string) {
	for line := range strings.Lines(ts.ReadFile("stdout")) {
		if utf8.RuneCountInString(line) > 101 {
			ts.Fatalf("a wide line: %s", line)
		}
	}
}

// await is await FILE [TEXT]: it waits until the file has the text, or anything.
func await(ts *testscript.TestScript, _ bool, args []string) {
	for {
		text, err := os.ReadFile(ts.MkAbs(args[0]))
		if err == nil && len(text) > 0 && (len(args) == 1 || strings.Contains(string(text), args[1])) {
			return
		}
		if !slices.ContainsFunc(ts.BackgroundCmds(), func(c *exec.Cmd) bool { return c.Process.Signal(syscall.Signal(0)) == nil }) {
			ts.Fatalf("all commands have ended:\n%s", text)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// signal is signal SIGNAL [again]: it sends a signal to the first command in the background; with
// again it does so until the command ends.
func signal(ts *testscript.TestScript, _ bool, args []string) {
	s := map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT}[args[0]]
	process := ts.BackgroundCmds()[0].Process
	ts.Check(process.Signal(s))
	for err := error(nil); len(args) > 1 && err == nil; err = process.Signal(s) {
		time.Sleep(100 * time.Millisecond)
	}
}

// writers are the commands that write files, here into DIR.
var writers = []string{
	"bench norm --rows=4 --cols=32 --count=2 --iters=2 --out DIR",
	"sweep norm --rows=8..64+8 --cols=8 --count=1 --csv DIR/s.csv",
	"run norm --in DIR/../in.safetensors --out DIR/o.safetensors",
	"tune norm --rows=8,16 --cols=64 --budget=100ms --out DIR/t.json",
	"selftest --random=20 --kernel=optim --record DIR/r.json",
	"profile norm --rows=4 --cols=32 --count=1 --trace DIR/trace.json",
	"plot DIR/../drawn.csv --out DIR",
	"train --steps=4 --dtype=float32 --save-every=2 --batches=1 --save DIR/m.safetensors --csv DIR/l.csv --curve DIR/curve",
}

// TestKill kills every command that writes files, while a file is being written and at another
// moment, in turn. All files must be whole, old or new. The next run must work, and remove what the killed
// ones left. With FLASHVK_LONG it does so 25 times each.
func TestKill(t *testing.T) {
	needProgram(t)
	vktest.Open(t, vktest.NoValidation)
	root, cache := t.TempDir(), t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	write, err := safetensors.Create(filepath.Join(root, "in.safetensors"), []safetensors.Tensor{{Name: "x", DType: "F32", Shape: []int{50, 80}}, {Name: "w", DType: "F32", Shape: []int{80}}}, nil)
	require.NoError(t, err)
	require.NoError(t, write.WriteFloat32s("x", make([]float32, 4000)))
	require.NoError(t, write.WriteFloat32s("w", make([]float32, 80)))
	require.NoError(t, write.Commit())
	drawn, err := exec.Command("flashvk", "bench", "norm", "--rows=4", "--cols=32", "--count=2", "--iters=2", "--format=csv").Output()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(root, "drawn.csv"), drawn, 0o600))
	kills := 4
	if os.Getenv("FLASHVK_LONG") != "" {
		kills = 50
	}
	for _, words := range writers {
		t.Run(strings.Fields(words)[0], func(t *testing.T) {
			dir := filepath.Join(root, strings.Fields(words)[0])
			require.NoError(t, os.MkdirAll(dir, 0o777))
			command := func() *exec.Cmd {
				return exec.Command("flashvk", strings.Fields(strings.ReplaceAll(words, "DIR", dir))...)
			}
			began := time.Now()
			out, err := command().CombinedOutput()
			require.NoError(t, err, "%s", out)
			took := time.Since(began)
			for i := range kills {
				if strings.HasPrefix(words, "sweep ") && i%4 < 2 { // which has nothing to do where all is measured
					require.NoError(t, os.Truncate(filepath.Join(dir, "s.csv"), 0))
				}
				cmd, ended := command(), make(chan error)
				require.NoError(t, cmd.Start())
				go func() { ended <- cmd.Wait() }()
				underWay, moment := i%2 == 0, time.After(took*time.Duration(i)/time.Duration(kills))
				for done := false; !done; {
					select {
					case <-ended:
						done, ended = true, nil
					case <-moment:
						done = !underWay
					case <-time.After(50 * time.Microsecond):
						done = underWay && temporary(dir)
					}
				}
				if cmd.Process.Kill(); ended != nil {
					<-ended
				}
				requireWhole(t, dir)
				requireWhole(t, filepath.Join(cache, "flashvk", "pipelines"))
			}
			out, err = command().CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.False(t, temporary(dir), "temporary files are left")
			requireWhole(t, dir)
		})
	}
}

// temporary reports whether a folder has a temporary file.
func temporary(dir string) bool {
	list, _ := filepath.Glob(filepath.Join(dir, ".*.tmp"))
	return len(list) > 0
}

// requireWhole wants all files of a folder to be whole, but temporary ones.
func requireWhole(t *testing.T, dir string) {
	t.Helper()
	require.NoError(t, wholeFiles(dir))
}

// whole is whole DIR: all files of the folder are whole, but temporary ones.
func whole(ts *testscript.TestScript, _ bool, args []string) { ts.Check(wholeFiles(ts.MkAbs(args[0]))) }

func wholeFiles(dir string) error {
	list, err := filepath.Glob(filepath.Join(dir, "[^.]*"))
	if err != nil || len(list) == 0 {
		return fmt.Errorf("%s has no files: %v", dir, err)
	}
	for _, path := range list {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !intact(path, text) {
			return fmt.Errorf("%s is cut:\n%.1000s", path, text)
		}
	}
	return nil
}

// intact reports whether a file is whole, as far as its kind shows it.
func intact(name string, text []byte) bool {
	switch filepath.Ext(name) {
	case ".json":
		return json.Valid(text)
	case ".csv":
		_, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
		return err == nil
	case ".svg", ".html":
		return bytes.HasSuffix(bytes.TrimSpace(text), []byte("</"+filepath.Ext(name)[1:]+">"))
	case ".vkcache": // a header, a hash, and data with that hash
		for data := sha256.Size; data < min(len(text), 256); data++ {
			if sum := sha256.Sum256(text[data:]); bytes.Equal(sum[:], text[data-sha256.Size:data]) {
				return true
			}
		}
		return false
	case ".safetensors":
		_, err := safetensors.Read(bytes.NewReader(text), int64(len(text)))
		return err == nil
	}
	return len(text) == 0 || text[len(text)-1] == '\n'
}
