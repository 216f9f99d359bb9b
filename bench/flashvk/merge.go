package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/pipelines/lm"
)

// folder completes a command of the folder of a checkpoint, its argument.
func folder(cmd *cobra.Command, dir *string) *cobra.Command {
	cmd.Use += " DIR"
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		*dir = strings.Join(args, " ") // one, or an error
		return exactly(1, "one folder of a checkpoint")(cmd, args)
	}
	return cmd
}

func newMerge(a *app) *cobra.Command {
	var dir, adapter, out string
	return a.command(folder(&cobra.Command{Use: "merge"}, &dir), func(f *pflag.FlagSet) {
		fileVar(f, &adapter, "adapter", "folder of the adapter")
		fileVar(f, &out, "out", "folder to write, without a checkpoint")
	}, func(context.Context) error {
		if _, err := os.Stat(filepath.Join(out, "config.json")); err == nil {
			return fmt.Errorf("merge: %s has a config.json: its checkpoint would be lost", out)
		}
		c, err := lm.Open(dir)
		if err != nil {
			return err
		}
		defer c.Close()
		w, err := withAdapter(adapter, &c.Config, c)
		if err != nil {
			return err
		}
		return c.Copy(out, w)
	})
}
