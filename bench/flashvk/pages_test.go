package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// pages returns the paths of README.md, of the pages in docs, and of those that are not for users
// first.
func pages(t *testing.T) []string {
	t.Helper()
	document(t, "../../README.md") // or skip
	list := []string{"../../README.md"}
	for _, pattern := range []string{"docs/*.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "conformance/README.md", "attention/TUNING.md", "pipelines/*/TUNING.md", "bench/results/*/README.md"} {
		found, err := filepath.Glob("../../" + pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("there is no %s: %v", pattern, err)
		}
		list = append(list, found...)
	}
	return list
}

var flagWord = regexp.MustCompile(`--([a-z][a-z0-9-]*)`)

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
	for _, path := range pages(t) {
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

// readmeLines is how long README.md may be: it is for deciding, docs is for reading.
const readmeLines = 150

// TestReadmeLength keeps README.md short.
func TestReadmeLength(t *testing.T) {
	if n := strings.Count(document(t, "../../README.md"), "\n"); n > readmeLines {
		t.Errorf("README.md has %d lines, more than %d: what does not help to decide belongs to docs", n, readmeLines)
	}
}

// pageWidth is how many columns a line of a page has at most.
const pageWidth = 160

// TestDocsWidth says that the lines of pages fit, but for tables and code.
func TestDocsWidth(t *testing.T) {
	for _, path := range pages(t) {
		code := false
		for i, line := range strings.Split(document(t, path), "\n") {
			if strings.HasPrefix(strings.TrimLeft(line, " "), "```") {
				code = !code
			}
			if n := utf8.RuneCountInString(line); n > pageWidth && !code && !strings.HasPrefix(line, "|") {
				t.Errorf("%s:%d has %d columns, more than %d", path, i+1, n, pageWidth)
			}
		}
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	// notInAnchor is what GitHub leaves out of a heading to make its anchor.
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// TestDocsLinks follows the links of all pages to files and to headings of them.
func TestDocsLinks(t *testing.T) {
	links := 0
	for _, path := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(document(t, path), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			links++
			file, anchor, _ := strings.Cut(m[1], "#")
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: link %s: %v", path, m[1], err)
				continue
			}
			if anchor != "" && !anchors(document(t, target))[anchor] {
				t.Errorf("%s: link %s: no such heading", path, m[1])
			}
		}
	}
	if links < 20 {
		t.Errorf("there are %d links, which cannot be all", links)
	}
}

// anchors returns those of a text's headings, as GitHub makes them. Lines of code are
// not headings.
func anchors(text string) map[string]bool {
	set := map[string]bool{}
	for i, part := range strings.Split(text, "\n```") {
		if i%2 == 1 {
			continue
		}
		for _, m := range heading.FindAllStringSubmatch(part, -1) {
			set[strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
		}
	}
	return set
}

var packageLink = regexp.MustCompile(`(?i)package \[[a-z/]+\]\(\.\./([a-z/]+)/[a-z_]+\.go\)`)

// TestKernelsDocs says that the code blocks of docs/kernels.md are in the comments of
// the package that the section names last before them, or of packages below it.
func TestKernelsDocs(t *testing.T) {
	blocks := 0
	dir, comments := "", ""
	for i, part := range strings.Split(document(t, "../../docs/kernels.md"), "\n```") {
		if i%2 == 0 {
			if m := packageLink.FindAllStringSubmatch(part, -1); m != nil {
				dir = m[len(m)-1][1]
				comments = commentsBelow(t, filepath.Join("../..", dir))
			}
			continue
		}
		blocks++
		block := strings.TrimLeft(part, "\n")
		if !strings.Contains(comments, trimLines(block)) {
			t.Errorf("no comment of package %s has\n%s", dir, block)
		}
	}
	if blocks < 15 {
		t.Errorf("docs/kernels.md has %d blocks of code, which cannot be all", blocks)
	}
}

// commentsBelow returns the lines of comments of the Go files in a folder and below,
// trimmed.
func commentsBelow(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, line := range strings.Split(string(text), "\n") {
			comment, ok := strings.CutPrefix(strings.TrimSpace(line), "//")
			if ok {
				b.WriteString(strings.TrimSpace(comment) + "\n")
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// trimLines trims each line of a text.
func trimLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "\n") + "\n"
}

var update = flag.Bool("update", false, "TestCliDocs writes docs/cli.md")

// TestCliDocs compares docs/cli.md with what the commands say of themselves. With
// -update it writes the file.
func TestCliDocs(t *testing.T) {
	const path = "../../docs/cli.md"
	old := document(t, path)
	text := cliDocs()
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	if old != text {
		t.Error("docs/cli.md is not what the commands say: go test ./bench/flashvk -run Cli -update writes it anew")
	}
}

// cliDocs returns a line for each command: what it does, and an example.
func cliDocs() string {
	var b strings.Builder
	b.WriteString(`<!-- Code generated by go test ./bench/flashvk -run Cli -update; DO NOT EDIT. -->

# The command line

Each command says its flags with ` + "`--help`" + `. [guide.md](guide.md) shows what the commands print.

| command | | for example |
| --- | --- | --- |
`)
	for _, c := range allCommands(newRoot(&app{stdout: io.Discard, stderr: io.Discard})) {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", c.CommandPath(), c.Short, firstExample(c.Example))
	}
	return b.String()
}

// firstExample returns the first command with flags of examples, or the first, as code of a table's
// cell.
func firstExample(examples string) string {
	first := ""
	for line := range strings.Lines(examples) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "flashvk ") || first != "" && !strings.Contains(line, " -") {
			continue
		}
		first = "`" + strings.ReplaceAll(line, "|", `\|`) + "`"
		if strings.Contains(line, " -") {
			break
		}
	}
	return first
}

// allCommands returns a command and those below it, in the order of help.
func allCommands(c *cobra.Command) []*cobra.Command {
	list := []*cobra.Command{c}
	for _, below := range c.Commands() {
		if below.IsAvailableCommand() {
			list = append(list, allCommands(below)...)
		}
	}
	return list
}

// TestCommits says that every commit that a page, a record or a measurement quotes is an ancestor
// of HEAD: a commit of a branch that was rebased leads a reader nowhere.
func TestCommits(t *testing.T) {
	shallow, err := exec.Command("git", "rev-parse", "--is-shallow-repository").Output()
	if err != nil {
		t.Skipf("this is no clone of the repository: git rev-parse: %v", err)
	}
	if strings.TrimSpace(string(shallow)) == "true" {
		t.Skip("this clone is shallow: it does not have the commits")
	}
	out, err := exec.Command("git", "rev-list", "HEAD").Output()
	if err != nil {
		t.Fatalf("git rev-list HEAD: %v", err)
	}
	ancestors := strings.Fields(string(out))
	slices.Sort(ancestors)
	quoted := 0
	paths := pages(t)
	for _, root := range []string{"../../conformance", "../../bench/results"} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if slices.Contains([]string{".json", ".csv", ".txt", ".benchfmt"}, filepath.Ext(path)) {
				paths = append(paths, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range paths {
		for _, commit := range commitsIn(document(t, path)) {
			quoted++
			i, _ := slices.BinarySearch(ancestors, commit)
			if i == len(ancestors) || !strings.HasPrefix(ancestors[i], commit) {
				t.Errorf("%s: commit %s is no ancestor of HEAD", path, commit)
			}
		}
	}
	if quoted < 100 {
		t.Errorf("%d commits are quoted, which cannot be all", quoted)
	}
}

var (
	hexWord = regexp.MustCompile(`(commit )?([0-9A-Za-z.+-]*)`)
	hexID   = regexp.MustCompile(`^(?:[0-9a-f]{7,8}|[0-9a-f]{12})$`)
)

// commitsIn returns the abbreviated commits of a text: words of hexadecimal digits with letters
// among them, since a word of digits alone is a commit only where the text says so.
func commitsIn(text string) []string {
	var list []string
	for _, m := range hexWord.FindAllStringSubmatch(text, -1) {
		word := strings.TrimRight(m[2], ".")
		mixed := strings.ContainsAny(word, "abcdef") && strings.ContainsAny(word, "0123456789")
		if hexID.MatchString(strings.TrimSuffix(word, ".csv")) && (mixed || m[1] != "") {
			list = append(list, strings.TrimSuffix(word, ".csv"))
		}
	}
	return list
}
