package files

import (
	"bufio"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// TestWrite replaces files: what is there stays until the new one is whole, and keeps its
// permissions and the links to it.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "x"), filepath.Join(dir, "link")
	require.NoError(t, Write(path, []byte("one")))
	require.NoError(t, os.Chmod(path, 0o640))
	require.NoError(t, os.Symlink(path, link))
	f, err := Create(link)
	require.NoError(t, err)
	_, err = f.Write([]byte("two"))
	require.NoError(t, err)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "one", string(text), "before Commit")
	require.NoError(t, f.Commit())
	require.NoError(t, f.Close())
	text, err = os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "two", string(text))
	info, err := os.Lstat(path)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o640), info.Mode())
	require.Equal(t, []string{"link", "x"}, names(t, dir))

	f, err = Create(path)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, f.Close())
	require.Equal(t, []string{"link", "x"}, names(t, dir), "after Close without Commit")

	require.NoError(t, Write(filepath.Join(dir, strings.Repeat("n", 255)), nil), "the longest name")
}

// TestErrors has paths that are none of a file.
func TestErrors(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for path, want := range map[string]string{
		dir:                           "create " + dir + ": is a directory, not a regular file",
		pipe:                          "create " + pipe + ": is a pipe, not a regular file",
		"/dev/null":                   "create /dev/null: is a device, not a regular file",
		filepath.Join(dir, "no", "x"): "create " + filepath.Join(dir, "no", "x") + ": no such file or directory",
	} {
		_, err := Create(path)
		require.EqualError(t, err, want)
	}
	require.NoError(t, Write("/dev/null", []byte("x")), "a device is written as it stands")
	if _, err := os.Stat("/dev/full"); err == nil {
		require.ErrorIs(t, Write("/dev/full", []byte("x")), syscall.ENOSPC)
	}
	require.Equal(t, []string{"pipe"}, names(t, dir))
}

// TestSame compares what paths lead to, by links of each kind, with and without a file there.
func TestSame(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, folder := range []string{"a", "b"} {
		require.NoError(t, os.MkdirAll(folder+"/deep", 0o700))
	}
	require.NoError(t, os.WriteFile("a/there", nil, 0o600))
	require.NoError(t, os.Link("a/there", "b/hard"))
	for name, to := range map[string]string{"folder": "a", "file": "a/there", "b/up": "../a/none", "deep": "b/deep", "round": "round"} {
		require.NoError(t, os.Symlink(to, name))
	}
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"a/there", "a/there", true},
		{"a/there", filepath.Join(dir, "a", "there"), true},
		{"a/there", "file", true},
		{"folder/there", "a/there", true},
		{"a/there", "b/hard", true},
		{"a/there", "b/there", false},
		{"a/there", "a/none", false},
		{"a/none", "a//./none", true},
		{"a/none", dir + "/folder/none", true},
		{"a/none", "b/none", false},
		{"a/none", "a/other", false},
		{"a/none", "b/up", true},
		{"b/none", "deep/../none", true},
		{"none", "deep/../none", false},
		{"none", "./none", true},
		{"none/x", "none/x", false}, // there is no folder for it
		{"round", "a/none", false},
		{"", "", false},
		{"/dev/null", "/dev/null", false},
	} {
		require.Equal(t, c.want, Same(c.a, c.b), "%s and %s", c.a, c.b)
		require.Equal(t, c.want, Same(c.b, c.a), "%s and %s", c.b, c.a)
	}
}

// TestMain is the test, or a process that begins files and then waits to be killed.
func TestMain(m *testing.M) {
	path := os.Getenv("FLASHVK_TEST_FILE")
	if path == "" {
		os.Exit(m.Run())
	}
	f, err := Create(path)
	if err == nil {
		_, err = f.Write([]byte("half"))
	}
	d, errDir := TempDir("flashvk-files-test-")
	if err = errors.Join(err, errDir); err != nil {
		os.Stdout.WriteString(err.Error())
		os.Exit(1)
	}
	os.Stdout.WriteString(d.Path + "\n")
	os.Stdin.Read(make([]byte, 1))
}

// TestKilled: the next process that writes the same file removes the temporary file of a killed
// process, but not the temporary file of a living one.
func TestKilled(t *testing.T) {
	dir, temp := t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", temp)
	path := filepath.Join(dir, "x")
	begin := func() (*exec.Cmd, string) {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), "FLASHVK_TEST_FILE="+path)
		if vkrun := os.Getenv("FLASHVK_VKRUN"); vkrun != "" {
			c = exec.Command(vkrun, os.Args[0])
			c.Env = append(os.Environ(), "FLASHVK_TEST_FILE="+path)
		}
		in, err := c.StdinPipe()
		require.NoError(t, err)
		t.Cleanup(func() { in.Close() })
		out, err := c.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err, line)
		return c, strings.TrimSpace(line)
	}
	lives, livesDir := begin()
	killed, killedDir := begin()
	require.Len(t, names(t, dir), 2)
	require.NoError(t, killed.Process.Kill())
	killed.Wait()
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".x.12345678.tmp.mine"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".xy.12345678.tmp"), nil, 0o600), "of another name")

	require.NoError(t, Write(path, []byte("whole")))
	require.Len(t, names(t, dir), 4, "what lives, the file, and the two of others")
	d, err := TempDir("flashvk-files-test-")
	require.NoError(t, err)
	require.NoDirExists(t, killedDir)
	require.DirExists(t, livesDir)
	require.NoError(t, d.Close())
	require.NoDirExists(t, d.Path)

	require.NoError(t, lives.Process.Kill())
	lives.Wait()
	require.NoError(t, Write(path, bytes.Repeat([]byte("x"), 1<<20)))
	require.ElementsMatch(t, []string{".x.12345678.tmp.mine", ".xy.12345678.tmp", "x"}, names(t, dir))
}

// TestExclusively has many read a number and write the next one.
func TestExclusively(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "n")
	const writers, times = 8, 25
	var all sync.WaitGroup
	for range writers {
		all.Add(1)
		go func() {
			defer all.Done()
			for range times {
				assert.NoError(t, Exclusively(path, func() error {
					text, _ := os.ReadFile(path)
					n, _ := strconv.Atoi(string(text))
					return os.WriteFile(path, []byte(strconv.Itoa(n+1)), 0o600)
				}))
			}
		}()
	}
	all.Wait()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, strconv.Itoa(writers*times), string(text))
	require.ErrorIs(t, Exclusively(path, func() error { return os.ErrExist }), os.ErrExist)
}
