package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/vk"
)

// tuningFlags say which measured configurations a command uses.
type tuningFlags struct {
	file string
	none bool
}

func (t *tuningFlags) add(f *pflag.FlagSet) {
	f.StringVar(&t.file, "tuning", "", "file of flashvk tune to use (default: the one in the user's cache folder, if there is one)")
	f.BoolVar(&t.none, "no-tuning", false, "use the built-in configurations only")
}

func (t *tuningFlags) check() error {
	if t.none && t.file != "" {
		return usagef("--tuning %s and --no-tuning contradict each other", t.file)
	}
	return nil
}

// load returns what the device was tuned to, nil if nothing is known. A file
// that cannot be used is ignored with a warning, but one that was named is an
// error.
func (t *tuningFlags) load(stderr io.Writer, caps *vk.Caps) (*attention.Tuning, error) {
	if t.none {
		return nil, nil
	}
	path := t.file
	if path == "" {
		var err error
		if path, err = tuningPath(caps); err != nil {
			return nil, nil // no cache folder, so nothing was tuned
		}
	}
	tuning, err := attention.LoadTuningFile(path, caps)
	switch {
	case err != nil && t.file != "":
		return nil, fmt.Errorf("%s: %w", path, err)
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		fmt.Fprintf(stderr, "flashvk: WARNING: %s is ignored: %v\n", path, err)
		return nil, nil
	}
	if n := tuning.Stale(); n > 0 {
		fmt.Fprintf(stderr, "flashvk: WARNING: %d rows of %s are ignored: their kernels have changed; run flashvk tune\n", n, path)
	}
	if n := tuning.Len(); n > 0 {
		fmt.Fprintf(stderr, "flashvk: tuned: %d rows of %s\n", n, path)
	}
	return tuning, nil
}

// tuningPath returns the user-level file for a device.
func tuningPath(caps *vk.Caps) (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return attention.TuningPath(filepath.Join(dir, "flashvk", "tuning"), caps), nil
}
