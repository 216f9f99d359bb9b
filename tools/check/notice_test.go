package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "TestNotice writes NOTICE")

const noticeHead = `flashvk is under the licence in LICENSE. The program links the modules below, each under its own licence.
This file is written by: go test ./tools/check -run Notice -update
`

// TestNotice says that NOTICE has the licences of all modules that the program links, and no other.
func TestNotice(t *testing.T) {
	r, err := openRepo()
	require.NoError(t, err)
	modules, err := r.goList("-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Dir}}{{end}}{{end}}", productPath)
	require.NoError(t, err)
	slices.Sort(modules)
	want := notice(t, slices.Compact(modules))
	if *update {
		err = os.WriteFile(filepath.Join(r.root, "NOTICE"), []byte(want), 0o666)
	}
	got, readErr := r.read("NOTICE")
	require.NoError(t, errors.Join(err, readErr))
	require.Equal(t, want, got)
}

// notice returns the text of NOTICE for modules, each a path and a folder. Modules with the same
// licence share its text.
func notice(t *testing.T, modules []string) string {
	t.Helper()
	var texts []string
	of := map[string][]string{}
	for _, line := range modules {
		path, dir, _ := strings.Cut(line, " ")
		text := licences(t, path, dir)
		if of[text] == nil {
			texts = append(texts, text)
		}
		if path == "golang.org/x/sys" {
			path += ", and Go's standard library"
		}
		of[text] = append(of[text], path)
	}
	var b strings.Builder
	b.WriteString(noticeHead)
	for _, text := range texts {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s", strings.Repeat("=", 80), strings.Join(of[text], "\n"), text)
	}
	return b.String()
}

// licences returns the texts of a module's licences, lines without spaces at their end.
func licences(t *testing.T, path, dir string) string {
	t.Helper()
	var b strings.Builder
	for _, pattern := range []string{"LICEN[CS]E*", "COPYING*", "NOTICE*", "THIRD_PARTY_LICENSES/*"} {
		files, _ := filepath.Glob(filepath.Join(dir, pattern))
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for line := range strings.Lines(string(text)) {
				b.WriteString(strings.TrimRight(line, " \t\r\n\f") + "\n")
			}
		}
	}
	require.NotZero(t, b.Len())
	return b.String()
}
