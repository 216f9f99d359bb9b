package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/sheet"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// tuneShow holds the flags of tune show.
type tuneShow struct {
	file, device string
	format       bench.Format
	wide         bool
}

func newTuneShow(a *app) *cobra.Command {
	t := tuneShow{format: bench.Table}
	cmd := &cobra.Command{
		Use:   "show",
		Short: "List what a device was tuned to",
		Long: `Lists the rows of the file that flashvk tune writes for a device and its driver and the
other commands use: the kernel and pass, the problem that was measured, the configuration
that won on its path, and its time. A row that has no effect says why: the device cannot
run it, or its kernels have changed since it was measured.`,
		Example: `  flashvk tune show
  flashvk tune show --tuning tuning.json --format markdown`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error { return t.run(a) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&t.file, "tuning", "", "file to list (default: the one in the user's cache folder)")
	formatVar(f, &t.format, []bench.Format{bench.Table, bench.Markdown}, "table (default) or markdown")
	wideVar(f, &t.wide)
	deviceVar(f, &t.device)
	return cmd
}

func (t *tuneShow) run(a *app) error {
	d, err := openTuned(t.device)
	if err != nil {
		return err
	}
	defer d.Close()
	caps, path := d.Caps(), t.file
	if path == "" {
		if path, err = kit.UserTuningPath(caps); err != nil {
			return err
		}
	}
	tuning, err := kit.LoadTuningFile(path, caps)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return bench.WriteSheet(a.stdout, tuningSheet(path, tuning, caps), t.format, t.wide)
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
