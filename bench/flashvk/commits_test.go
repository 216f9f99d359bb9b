package main

import (
	"io/fs"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

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
	for _, path := range quotingFiles(t) {
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

// quotingFiles returns the pages, the records of conformance and the text files of bench/results.
func quotingFiles(t *testing.T) []string {
	t.Helper()
	paths := append(documents(t), otherPages(t)...)
	for _, root := range []string{"../../conformance", "../../bench/results"} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if slices.Contains([]string{".json", ".csv", ".txt", ".md", ".benchfmt"}, filepath.Ext(path)) {
				paths = append(paths, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
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

func TestCommitsIn(t *testing.T) {
	const text = "At 405262e, 4.405262e+07 or 4405262e-07 (commit 5142348, not 5142348). [x](a_3392f76.csv), v0.0.0-2026-3392f76481ad\n" +
		`"commit":"3392f76481ad" effaced 3392f76481ad3392f764 db30fa6.`
	want := []string{"405262e", "5142348", "3392f76", "3392f76481ad", "db30fa6"}
	if got := commitsIn(text); !slices.Equal(got, want) {
		t.Errorf("commits are %q, want %q", got, want)
	}
}
