package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/sheet"
	"github.com/flashvk/flashvk/internal/files"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func newTuneShow(a *app) *cobra.Command {
	var o output
	path := ""
	return a.command(&cobra.Command{
		Use:   "show",
		Short: "List what a device was tuned to",
		Long: `Lists the rows of the file that flashvk tune writes for a device and its driver and the
other commands use: the kernel and pass, the problem that was measured, the configuration
that won on its path, and its time. A row that has no effect says why: the device cannot
run it, or its kernels have changed since it was measured.`,
		Example: `  flashvk tune show
  flashvk tune show --tuning tuning.json --format markdown`,
	}, func(f *pflag.FlagSet) {
		f.StringVar(&path, "tuning", "", "file to list (default: the one in the user's cache folder)")
		o.add(f, "or markdown", bench.Table, bench.Markdown)
	}, func(context.Context) error {
		return a.onDevice(o.device, func(d *vk.Device, _ bench.Environment) (err error) {
			if path == "" {
				if path, err = kit.UserTuningPath(d.Caps()); err != nil {
					return err
				}
			}
			tuning, err := kit.LoadTuningFile(path, d.Caps())
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			return bench.WriteSheet(a.stdout, tuningSheet(path, tuning, d.Caps()), o.format, o.wide)
		})
	})
}

// tuningSheet has a row for each of tuning.
func tuningSheet(path string, tuning *kit.Tuning, caps *vk.Caps) sheet.Sheet {
	s := sheet.Section{Keys: 2}
	s.Add("file", "%s", path)
	for i, name := range []string{"kernel", "pass", "problem", "configuration", "time"} {
		s.Columns = append(s.Columns, sheet.Column{Name: name, Number: i == 4})
	}
	for i, row := range tuning.Rows(caps) {
		s.Rows = append(s.Rows, []string{row.Kernel, row.Pass, row.Problem, row.Config, bench.FormatTime(row.NS)})
		if row.Err != nil {
			s.Note("row %d has no effect: %v", i+1, row.Err)
		}
	}
	return sheet.Sheet{Sections: []sheet.Section{s}}
}

// loadTuning returns what the device was tuned to in a file, or with "" in the user's; nil if
// nothing is known. A file that cannot be used is ignored with a warning, but one that was named is
// an error.
func loadTuning(stderr io.Writer, file string, caps *vk.Caps) (*kit.Tuning, error) {
	path := file
	if path == "" {
		var err error
		if path, err = kit.UserTuningPath(caps); err != nil {
			return nil, nil // no cache folder, so nothing was tuned
		}
	}
	tuning, err := kit.LoadTuningFile(path, caps)
	switch {
	case err != nil && file != "":
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
