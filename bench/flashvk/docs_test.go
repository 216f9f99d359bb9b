package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

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
	for _, path := range append(documents(t), otherPages(t)...) {
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

// otherPages returns the paths of the pages that are not for users first.
func otherPages(t *testing.T) []string {
	t.Helper()
	pages := []string{"../../CONTRIBUTING.md", "../../CHANGELOG.md", "../../SECURITY.md", "../../conformance/README.md"}
	for _, pattern := range []string{"../../attention/TUNING.md", "../../pipelines/*/TUNING.md", "../../bench/results/*/README.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("there is no %s: %v", pattern, err)
		}
		pages = append(pages, found...)
	}
	return pages
}

// TestDocsLinks follows the links of all pages to files and to headings of them.
func TestDocsLinks(t *testing.T) {
	links := 0
	for _, path := range append(documents(t), otherPages(t)...) {
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
