package cli

import (
	"bytes"
	"crypto/sha256"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/safetensors"
)

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
