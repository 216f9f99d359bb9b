package cli

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/safetensors"
)

// kills is the number of moments at which a command is killed.
func kills() int {
	if os.Getenv("FLASHVK_LONG") != "" {
		return 50
	}
	return 4
}

// intact returns what is wrong with a file, by its name, or "" if it is whole.
func intact(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	ends := func(end string) string {
		if !bytes.HasSuffix(bytes.TrimSpace(text), []byte(end)) {
			return "it does not end in " + end
		}
		return ""
	}
	switch filepath.Ext(path) {
	case ".json":
		if !json.Valid(text) {
			return "it is not JSON"
		}
		return ""
	case ".csv":
		if _, err := csv.NewReader(bytes.NewReader(text)).ReadAll(); err != nil {
			return err.Error()
		}
	case ".svg":
		return ends("</svg>")
	case ".html":
		return ends("</html>")
	case ".safetensors":
		f, err := safetensors.Open(path)
		if err != nil {
			return err.Error()
		}
		f.Close()
		return ""
	case ".vkcache":
		if !whole(text) {
			return "a part of a cache"
		}
		return ""
	}
	if len(text) > 0 && text[len(text)-1] != '\n' {
		return "its last line is cut"
	}
	return ""
}

// temporary reports whether a name is that of a temporary file.
func temporary(name string) bool {
	return strings.HasPrefix(name, ".") && strings.HasSuffix(name, ".tmp")
}

// sight waits until a folder has a temporary file, or done is closed, and reports whether it has
// one.
func sight(dir string, done <-chan struct{}) bool {
	for {
		files, _ := os.ReadDir(dir)
		if slices.ContainsFunc(files, func(e os.DirEntry) bool { return temporary(e.Name()) }) {
			return true
		}
		select {
		case <-done:
			return false
		case <-time.After(20 * time.Microsecond):
		}
	}
}

// writers returns the commands that write files into a folder. In is a file of tensors, drawn one
// of results.
func writers(dev, in, drawn string) map[string]func(dir string) []string {
	return map[string]func(dir string) []string{
		"bench": func(dir string) []string { return small(dev, "--out", dir) },
		"sweep": func(dir string) []string {
			return []string{"sweep", dev, "--impl=scalar", "--count=1", "--batch=1", "--heads=1", "--headdim=8", "--min-len=8", "--max-len=64", "--step=8", "--csv", filepath.Join(dir, "s.csv")}
		},
		"run": func(dir string) []string {
			return []string{"run", "attention", dev, "--impl=scalar", "--in", in, "--out", filepath.Join(dir, "o.safetensors")}
		},
		"tune": func(dir string) []string {
			return tuneArgs(dev, filepath.Join(dir, "t.json"), "--seqlen=32,48", "--budget=200ms")
		},
		"selftest": func(dir string) []string {
			return []string{"selftest", dev, "--random=20", "--kernel=optim", "--record", filepath.Join(dir, "r.json")}
		},
		"profile": func(dir string) []string {
			return []string{"profile", "norm", dev, "--rows=4", "--cols=32", "--count=1", "--trace", filepath.Join(dir, "trace.json")}
		},
		"plot": func(dir string) []string { return []string{"plot", drawn, "--out", dir} },
		"train": func(dir string) []string {
			return []string{"train", dev, "--steps=4", "--save-every=2", "--save", filepath.Join(dir, "m.safetensors"), "--csv", filepath.Join(dir, "l.csv"), "--curve", filepath.Join(dir, "curve")}
		},
	}
}

// TestKill kills every command that writes files, at moments all over its time, and half as often
// while a file is being written, with and without files of an earlier run. All files must be
// whole, old or new. The next run must work and remove what the killed ones left.
func TestKill(t *testing.T) {
	_, dev := device(t)
	in := inputs(t, 40)
	drawn := filepath.Join(t.TempDir(), "drawn.csv")
	code, stdout, stderr := flashvk(t, small(dev, "--format=csv")...)
	require.Zero(t, code, stderr)
	require.NoError(t, os.WriteFile(drawn, []byte(stdout), 0o600))
	for name, args := range writers(dev, in, drawn) {
		t.Run(name, func(t *testing.T) {
			dir, cache := t.TempDir(), t.TempDir()
			t.Setenv("XDG_CACHE_HOME", cache)
			start := time.Now()
			code, _, stderr := flashvk(t, args(dir)...)
			require.Zero(t, code, stderr)
			took := time.Since(start)
			files, err := os.ReadDir(dir)
			require.NoError(t, err)
			check := func(dir string) (left int) {
				require.NoError(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
					if err != nil || e.IsDir() {
						return err
					}
					if temporary(e.Name()) {
						left++
					} else if wrong := intact(t, path); wrong != "" {
						t.Errorf("%s: %s", path, wrong)
					}
					return nil
				}))
				return left
			}
			fresh := filepath.Join(t.TempDir(), "new")
			require.NoError(t, os.Mkdir(fresh, 0o700))
			left, ended, caught := 0, 0, 0
			for i := range kills() + kills()/2 {
				target := []string{dir, fresh}[i%2]
				if name == "sweep" && i%4 < 2 { // which has nothing to do where all is measured
					require.NoError(t, os.Truncate(filepath.Join(dir, "s.csv"), 0))
				}
				p := prepare(t, args(target)...).start()
				if i >= kills() {
					if sight(target, p.ended) {
						p.cmd.Process.Kill()
						caught++
					}
					<-p.ended
				} else {
					select {
					case <-p.ended:
						ended++
					case <-time.After(took * time.Duration(2*i+1) / time.Duration(2*kills())):
						p.cmd.Process.Kill()
						<-p.ended
					}
				}
				left = max(left, check(target), check(cache))
			}
			t.Logf("%d kills within %v; %d had ended before; %d of %d while a file was under way; temporary files at once: %d", kills(), took, ended, caught, kills()/2, left)
			for _, target := range []string{dir, fresh} {
				code, _, stderr = flashvk(t, args(target)...)
				require.Zero(t, code, stderr)
				require.Zero(t, check(target), "temporary files are left")
				now, err := os.ReadDir(target)
				require.NoError(t, err)
				var names, want []string
				for _, f := range now {
					names = append(names, f.Name())
				}
				for _, f := range files {
					want = append(want, f.Name())
				}
				require.Equal(t, want, names)
			}
		})
	}
}
