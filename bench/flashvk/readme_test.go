package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

var flagWord = regexp.MustCompile(`--([a-z][a-z0-9-]*)`)

// documents returns the paths of README.md and of the pages in docs.
func documents(t *testing.T) []string {
	t.Helper()
	document(t, "../../README.md") // or skip
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("there are no pages in docs: %v", err)
	}
	return append([]string{"../../README.md"}, pages...)
}

// document returns the text of a page, or skips the test where only its binary is.
func document(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if _, repository := os.Stat("../../go.mod"); err != nil && errors.Is(repository, fs.ErrNotExist) {
		t.Skipf("%s is not here", path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestReadme says that the commands in README.md, docs and the other pages exist and have the
// flags that are named after them. A command begins a line of code, with or without a prompt and
// the folder of the program; the indented lines below it are more of the same.
func TestReadme(t *testing.T) {
	root := newRoot(&app{stdout: io.Discard, stderr: io.Discard})
	all := used{}
	for _, path := range append(documents(t), otherPages(t)...) {
		if filepath.Base(path) == "cli.md" {
			continue // TestCliDocs
		}
		u := commandsOf(t, root, path, document(t, path))
		if path == "../../README.md" && u.commands < 3 {
			t.Errorf("README.md has %d commands, which cannot be all", u.commands)
		}
		all.commands, all.flags = all.commands+u.commands, all.flags+u.flags
	}
	if all.commands < 15 || all.flags < 25 {
		t.Errorf("README.md and docs have %d commands with %d flags, which cannot be all", all.commands, all.flags)
	}
}

// TestRecordForm says that the form for device records asks for what selftest --share prints.
func TestRecordForm(t *testing.T) {
	var form strings.Builder
	for line := range strings.Lines(document(t, "../../.github/ISSUE_TEMPLATE/record.yml")) {
		form.WriteString(strings.TrimLeft(line, " "))
	}
	root := newRoot(&app{stdout: io.Discard, stderr: io.Discard})
	if u := commandsOf(t, root, "record.yml", form.String()); u.commands != 1 || u.flags != 1 {
		t.Errorf("record.yml has %d commands with %d flags, want one with one", u.commands, u.flags)
	}
	if folds := "folds " + foldCapabilities + " and " + foldRecord; !strings.Contains(form.String(), folds) {
		t.Errorf("record.yml does not name the %s", folds)
	}
}

// used counts what commandsOf looked at.
type used struct{ commands, flags int }

// commandsOf checks the commands of a page.
func commandsOf(t *testing.T, root *cobra.Command, path, text string) (u used) {
	var cmd *cobra.Command
	code := false
	for _, line := range strings.Split(text, "\n") {
		command, prompt := strings.CutPrefix(line, "$ ")
		command = strings.TrimPrefix(strings.TrimPrefix(command, "tools/vkrun "), "bin/")
		switch {
		case strings.HasPrefix(line, "```"):
			code, cmd = !code, nil
			continue
		case code && strings.HasPrefix(command, "flashvk "):
			command, _, _ = strings.Cut(command, " #")
			words := strings.Fields(command)[1:]
			var err error
			if cmd, _, err = root.Find(words[:min(2, len(words))]); err != nil || cmd == root {
				t.Errorf("%s: %s: no such command", path, line)
				cmd = nil
				continue
			}
			u.commands++
			if prompt && !whole(cmd) {
				t.Errorf("%s: %s: %s is not a whole command", path, line, cmd.CommandPath())
			}
		case !strings.HasPrefix(line, "  "):
			cmd = nil
		}
		if cmd == nil {
			continue
		}
		for _, m := range flagWord.FindAllStringSubmatch(line, -1) {
			u.flags++
			if cmd.Flags().Lookup(m[1]) == nil {
				t.Errorf("%s: %s: %s has no flag %s", path, line, cmd.CommandPath(), m[0])
			}
		}
	}
	return u
}

// whole reports whether a command needs no other behind it.
func whole(cmd *cobra.Command) bool {
	return !cmd.HasSubCommands() || strings.HasSuffix(cmd.Use, "[KERNEL]")
}
