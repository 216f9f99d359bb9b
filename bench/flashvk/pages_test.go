package main

import (
	"cmp"
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
	"github.com/spf13/cobra/doc"
	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/conformance"
	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// pages returns the paths of README.md, of the pages in docs, and of those that are not for users
// first.
func pages(t *testing.T) []string {
	t.Helper()
	document(t, "../../README.md") // or skip
	var list []string
	for _, pattern := range []string{"README.md", "docs/*.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "conformance/README.md", "attention/TUNING.md", "pipelines/*/TUNING.md", "bench/results/*/README.md"} {
		found, err := filepath.Glob("../../" + pattern)
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		list = append(list, found...)
	}
	return list
}

// document returns the text of a page, or skips the test where only its binary is.
func document(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if _, repository := os.Stat("../../go.mod"); err != nil && errors.Is(repository, fs.ErrNotExist) {
		t.Skipf("%s is not here", path)
	}
	require.NoError(t, err)
	return string(text)
}

// program returns the commands.
func program() *cobra.Command { return newRoot(&app{stdout: io.Discard, stderr: io.Discard}) }

// readmeLines is how long README.md may be: it is for deciding, docs is for reading.
const readmeLines = 150

// TestReadme says that README.md is short, and that the commands in all pages exist and have the
// flags that are named after them.
func TestReadme(t *testing.T) {
	require.LessOrEqual(t, strings.Count(document(t, "../../README.md"), "\n"), readmeLines, "what does not help to decide belongs to docs")
	all, root := 0, program()
	for _, path := range pages(t) {
		if filepath.Base(path) != "cli.md" { // TestCliDocs
			n := commandsOf(t, root, path, document(t, path))
			require.True(t, n > 2 || path != "../../README.md")
			all += n
		}
	}
	require.Greater(t, all, 40, "these cannot be all")
}

// TestRecordForm says that the form for device records asks for what selftest --share prints, which
// tools/proven reads.
func TestRecordForm(t *testing.T) {
	var form strings.Builder
	for line := range strings.Lines(document(t, "../../.github/ISSUE_TEMPLATE/record.yml")) {
		form.WriteString(strings.TrimLeft(line, " "))
	}
	require.Equal(t, 4, commandsOf(t, program(), "record.yml", form.String()))
	require.Contains(t, form.String(), fmt.Sprintf("folds %s, %s and %s or %s", foldCapabilities, text.FoldDevice, text.FoldRecord, text.FoldRows))

	ran := conformance.New(&vk.Caps{Name: "card", Type: vk.DiscreteGPU, DriverInfo: "1.2"})
	ran.Problem("norm", 7, true)
	var issue, warnings strings.Builder
	a := &app{stdout: &issue, stderr: &warnings}
	require.NoError(t, a.writeIssue(&vk.Caps{Name: "card"}, func(io.Writer) error { return nil }, text.FoldRecord, conformance.Format(ran)))
	got, err := conformance.FromIssue(strings.ReplaceAll(issue.String(), "\n", "\r\n"))
	require.NoError(t, err)
	require.Equal(t, string(conformance.Format(ran)), string(conformance.Format(got)))
	_, err = conformance.FromIssue(issue.String()[:issue.Len()-20])
	require.ErrorContains(t, err, "not the whole output")
	require.Empty(t, warnings.String())
	require.NoError(t, a.writeIssue(&vk.Caps{}, func(io.Writer) error { return nil }, text.FoldRows, make([]byte, maxIssue)))
	require.Contains(t, warnings.String(), "characters are more than the 65536 of an issue: attach them as a file")
}

var flagWord = regexp.MustCompile(`--([a-z][a-z0-9-]*)`)

// commandsOf checks the commands of a page, and counts them and their flags. A command begins a line
// of code, with or without a prompt and the folder of the program; the indented lines below it are
// more of the same.
func commandsOf(t *testing.T, root *cobra.Command, path, text string) (n int) {
	var cmd *cobra.Command
	code := false
	for _, line := range strings.Split(text, "\n") {
		command, prompt := strings.CutPrefix(line, "$ ")
		command = strings.TrimPrefix(strings.TrimPrefix(command, "tools/vkrun "), "bin/")
		switch {
		case strings.HasPrefix(line, "```"):
			code, cmd = !code, nil
		case code && strings.HasPrefix(command, "flashvk "):
			command, _, _ = strings.Cut(command, " #")
			words := strings.Fields(command)[1:]
			found, _, err := root.Find(words[:min(2, len(words))])
			require.NoError(t, err, "%s: %s", path, line)
			require.True(t, found != root && (!prompt || whole(found)), "%s: %s: no such command", path, line)
			cmd = found
			n++
		case !strings.HasPrefix(line, "  "):
			cmd = nil
		}
		if cmd == nil {
			continue
		}
		for _, m := range flagWord.FindAllStringSubmatch(line, -1) {
			require.NotNil(t, cmd.Flags().Lookup(m[1]), "%s: %s: %s has no flag %s", path, line, cmd.CommandPath(), m[0])
			n++
		}
	}
	return n
}

// whole reports whether a command needs no other behind it.
func whole(cmd *cobra.Command) bool {
	return !cmd.HasSubCommands() || strings.HasSuffix(cmd.Use, "[KERNEL]")
}

// pageWidth is how many columns a line of a page has at most.
const pageWidth = 160

var (
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	heading = regexp.MustCompile(`^#+ +(.*)$`)
	// notInAnchor is what GitHub leaves out of a heading to make its anchor.
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// TestDocs says that the lines of pages fit, but for tables and code, and follows the links to files
// and to headings of them.
func TestDocs(t *testing.T) {
	links := 0
	for _, path := range pages(t) {
		prose(document(t, path), func(i int, line string) {
			n := utf8.RuneCountInString(line)
			require.True(t, n <= pageWidth || strings.HasPrefix(line, "|"), "%s:%d has %d columns, more than %d", path, i+1, n, pageWidth)
		})
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
			_, err := os.Stat(target)
			require.NoError(t, err, "%s: link %s", path, m[1])
			found := anchor == ""
			if !found {
				prose(document(t, target), func(_ int, line string) {
					if m := heading.FindStringSubmatch(line); m != nil {
						found = found || anchor == strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")
					}
				})
			}
			require.True(t, found, "%s: link %s: no such heading", path, m[1])
		}
	}
	require.Greater(t, links, 20, "these cannot be all")
}

// prose calls f with the lines that are not code.
func prose(text string, f func(i int, line string)) {
	code := false
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(strings.TrimLeft(line, " "), "```") {
			code = !code
		} else if !code {
			f(i, line)
		}
	}
}

var packageLink = regexp.MustCompile(`(?i)package \[[a-z/]+\]\(\.\./([a-z/]+)/[a-z_]+\.go\)`)

// TestKernelsDocs says that the code blocks of docs/kernels.md are in the comments of
// the package that the section names last before them, or of packages below it.
func TestKernelsDocs(t *testing.T) {
	dir, comments := "", ""
	parts := strings.Split(document(t, "../../docs/kernels.md"), "\n```")
	require.Greater(t, len(parts), 30, "these cannot be all")
	for i, part := range parts {
		if m := packageLink.FindAllStringSubmatch(part, -1); m != nil && i%2 == 0 {
			dir = filepath.Join("../..", m[len(m)-1][1])
			comments = ""
			require.NoError(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
				if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
					comments += trimLines(document(t, path), "//")
				}
				return err
			}))
		}
		if i%2 == 1 {
			require.Contains(t, comments, trimLines(strings.TrimLeft(part, "\n"), ""), "comments of package %s", dir)
		}
	}
}

// trimLines returns the lines of a text that have a prefix, without it and without spaces around.
func trimLines(text, prefix string) string {
	var b strings.Builder
	for _, line := range strings.Split(text, "\n") {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), prefix); ok {
			b.WriteString(strings.TrimSpace(rest) + "\n")
		}
	}
	return b.String()
}

var update = flag.Bool("update", false, "write docs/cli.md, and the tables of measurements")

// TestCliDocs compares docs/cli.md with what the commands say of themselves. With
// -update it writes the file.
func TestCliDocs(t *testing.T) {
	const path = "../../docs/cli.md"
	old := document(t, path)
	text := `<!-- Code generated by go test ./bench/flashvk -run Cli -update; DO NOT EDIT. -->

# The command line

Each command says its flags with ` + "`--help`" + `. [guide.md](guide.md) shows what the commands print.

| command | | for example |
| --- | --- | --- |
`
	for _, c := range allCommands(program()) {
		first := "" // command with flags of the examples, or the first of all
		for line := range strings.Lines(c.Example) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "flashvk ") && (first == "" || !strings.Contains(first, " -") && strings.Contains(line, " -")) {
				first = "`" + strings.ReplaceAll(line, "|", `\|`) + "`"
			}
		}
		text += fmt.Sprintf("| `%s` | %s | %s |\n", c.CommandPath(), c.Short, first)
	}
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
		return
	}
	require.Equal(t, text, old, "go test ./bench/flashvk -run Cli -update writes docs/cli.md anew")
}

// TestCommits says that every commit that a page, a record or a measurement quotes is an ancestor
// of HEAD: a commit of a branch that was rebased leads a reader nowhere.
func TestCommits(t *testing.T) {
	vktest.Sequential(t)
	shallow, err := exec.Command("git", "rev-parse", "--is-shallow-repository").Output()
	if err != nil || strings.TrimSpace(string(shallow)) == "true" {
		t.Skip("this is no clone of the repository, or one that does not have the commits")
	}
	out, err := exec.Command("git", "rev-list", "HEAD").Output()
	require.NoError(t, err)
	ancestors := strings.Fields(string(out))
	slices.Sort(ancestors)
	quoted, paths := 0, pages(t)
	for _, root := range []string{"../../conformance", "../../bench/results"} {
		require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if slices.Contains([]string{".json", ".csv", ".txt", ".benchfmt"}, filepath.Ext(path)) {
				paths = append(paths, path)
			}
			return err
		}))
	}
	for _, path := range paths {
		for _, m := range hexWord.FindAllStringSubmatch(document(t, path), -1) {
			commit := strings.TrimSuffix(strings.TrimRight(m[2], "."), ".csv")
			mixed := strings.ContainsAny(commit, "abcdef") && strings.ContainsAny(commit, "0123456789")
			if !hexID.MatchString(commit) || !mixed && m[1] == "" {
				continue
			}
			quoted++
			i, _ := slices.BinarySearch(ancestors, commit)
			require.True(t, i < len(ancestors) && strings.HasPrefix(ancestors[i], commit), "%s: commit %s is no ancestor of HEAD", path, commit)
		}
	}
	require.Greater(t, quoted, 100, "these cannot be all")
}

// Abbreviated commits are words of hexadecimal digits with letters among them, since a word of digits
// alone is a commit only where the text says so.
var (
	hexWord = regexp.MustCompile(`(commit )?([0-9A-Za-z.+-]*)`)
	hexID   = regexp.MustCompile(`^(?:[0-9a-f]{7,8}|[0-9a-f]{12})$`)
)

var man = flag.String("man", "", "write the manual pages into this folder")

// TestMan makes a manual page of each command from its help, for tools/release with -man.
func TestMan(t *testing.T) {
	dir := cmp.Or(*man, t.TempDir())
	root := program()
	root.DisableAutoGenTag = true
	header := &doc.GenManHeader{Section: "1", Manual: "flashvk", Source: bench.ReadBuildInfo().Version}
	require.NoError(t, doc.GenManTree(root, header, dir))
	for _, c := range allCommands(root) {
		page, err := os.ReadFile(filepath.Join(dir, strings.ReplaceAll(c.CommandPath(), " ", "-")+".1"))
		require.NoError(t, err)
		require.Contains(t, string(page), c.Short)
	}
}
