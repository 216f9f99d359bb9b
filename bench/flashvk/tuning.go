package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/files"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
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
func (t *tuningFlags) load(stderr io.Writer, caps *vk.Caps) (*kit.Tuning, error) {
	if t.none {
		return nil, nil
	}
	path := t.file
	if path == "" {
		var err error
		if path, err = kit.UserTuningPath(caps); err != nil {
			return nil, nil // no cache folder, so nothing was tuned
		}
	}
	tuning, err := kit.LoadTuningFile(path, caps)
	switch {
	case err != nil && t.file != "":
		return nil, fmt.Errorf("%s: %w", path, err)
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		fmt.Fprintf(stderr, "flashvk: WARNING: %s is ignored: %v\n", path, err)
		return nil, nil
	}
	for _, row := range tuning.Rows(caps) {
		if errors.Is(row.Err, vk.ErrUnsupported) {
			fmt.Fprintf(stderr, "flashvk: WARNING: a row of %s is ignored: %s %s, %s: %v\n", path, row.Kernel, row.Pass, row.Problem, row.Err)
		}
	}
	if n := tuning.Stale(); n > 0 {
		fmt.Fprintf(stderr, "flashvk: WARNING: %d rows of %s are ignored: their kernels have changed; run flashvk tune\n", n, path)
	}
	if n := tuning.Len(); n > 0 {
		fmt.Fprintf(stderr, "flashvk: tuned: %d rows of %s\n", n, path)
	}
	return tuning, nil
}

// An openTuning is a file that winners go to.
type openTuning struct {
	path  string
	caps  *vk.Caps
	known *kit.Tuning // what it had, and what was added
}

// openTuningFile opens the file for the winners, that of the user for no path, before the work: an
// error comes then, not after it. A file of the user's that is damaged is replaced, though by the
// first winners only; one that was named is not, for it may be a file of any kind, nor is one
// of a newer version.
func openTuningFile(stderr io.Writer, path, flag string, caps *vk.Caps) (*openTuning, error) {
	named := path != ""
	if !named {
		var err error
		if path, err = kit.UserTuningPath(caps); err != nil {
			return nil, fmt.Errorf("there is no folder for the results, name a file with --%s: %w", flag, err)
		}
	}
	f := &openTuning{path, caps, kit.NewTuning(caps)}
	return f, files.Exclusively(path, func() error {
		tuning, err := kit.LoadTuningFile(path, caps)
		switch {
		case err == nil:
			f.known = tuning
		case errors.Is(err, fs.ErrNotExist):
		case named || errors.Is(err, kit.ErrNewerTuning):
			return fmt.Errorf("%s: %w: remove the file or name another with --%s", path, err, flag)
		default:
			fmt.Fprintf(stderr, "flashvk: WARNING: %s is replaced: %v\n", path, err)
		}
		return safetensors.CanCreate(path)
	})
}

// add writes the file with what more adds to it. Another process may have tuned into the file
// meanwhile: its rows stay.
func (f *openTuning) add(more func(to *kit.Tuning) error) error {
	return files.Exclusively(f.path, func() error {
		now, err := kit.LoadTuningFile(f.path, f.caps)
		switch {
		case err == nil:
			f.known = now
		case errors.Is(err, kit.ErrNewerTuning):
			return fmt.Errorf("%s: %w", f.path, err)
		}
		if err := more(f.known); err != nil {
			return err
		}
		return f.known.WriteFile(f.path)
	})
}
