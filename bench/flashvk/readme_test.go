package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

var flagWord = regexp.MustCompile(`--([a-z][a-z0-9-]*)`)

// TestReadme says that the commands in README.md exist and have the flags that
// are named after them. A command begins a line of code, with or without a
// prompt; the indented lines below it are more of the same.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("README.md is not here")
	}
	if err != nil {
		t.Fatal(err)
	}
	root := newRoot(&app{stdout: io.Discard, stderr: io.Discard})
	var cmd *cobra.Command
	code, commands, flags := false, 0, 0
	for _, line := range strings.Split(string(text), "\n") {
		command, prompt := strings.CutPrefix(line, "$ ")
		switch {
		case strings.HasPrefix(line, "```"):
			code, cmd = !code, nil
			continue
		case code && strings.HasPrefix(command, "flashvk "):
			words := strings.Fields(command)[1:]
			if cmd, _, err = root.Find(words[:min(2, len(words))]); err != nil || cmd == root {
				t.Errorf("%s: no such command", line)
				cmd = nil
				continue
			}
			commands++
			if prompt && cmd.HasSubCommands() {
				t.Errorf("%s: %s is not a whole command", line, cmd.CommandPath())
			}
		case !strings.HasPrefix(line, "  "):
			cmd = nil
		}
		if cmd == nil {
			continue
		}
		for _, m := range flagWord.FindAllStringSubmatch(line, -1) {
			flags++
			if cmd.Flags().Lookup(m[1]) == nil {
				t.Errorf("%s: %s has no flag %s", line, cmd.CommandPath(), m[0])
			}
		}
	}
	if commands < 6 || flags < 20 {
		t.Errorf("README.md has %d commands with %d flags, which cannot be all", commands, flags)
	}
}
