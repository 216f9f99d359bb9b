// Package tools_test tests the shell scripts of this folder against stand-ins for
// apt-get, dpkg, packages and hardware: nothing is downloaded.
package tools_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestScripts runs testdata, whose programs are in bin. TOOLS is this folder, WORK a script's
// folder.
func TestScripts(t *testing.T) {
	tools, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{Dir: "testdata", Setup: func(e *testscript.Env) error {
		e.Vars = []string{
			"WORK=" + e.WorkDir, "TOOLS=" + tools, "TMPDIR=" + os.TempDir(), "PATH=" + filepath.Join(e.WorkDir, "bin") + ":" + tools + ":" + os.Getenv("PATH"),
			"HOME=" + os.Getenv("HOME"), "GOCACHE=" + os.Getenv("GOCACHE"), "GOFLAGS=-buildvcs=false", // and not -trimpath, for which Go compiles its own packages anew
		}
		return filepath.WalkDir(filepath.Join(e.WorkDir, "bin"), func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Chmod(path, 0o777)
		})
	}})
}
