package main

import (
	"fmt"
	"strings"
)

func checkFormat(r *repo) ([]string, error) {
	lines, ok, err := r.command(nil, "gofmt", append([]string{"-s", "-l"}, r.goFiles()...)...)
	if err != nil || !ok {
		return lines, err // syntax errors
	}
	for i := range lines {
		lines[i] += " is not formatted: gofmt -s -w " + lines[i]
	}
	return lines, nil
}

// program is a check that a program makes, which prints the findings.
func program(command ...string) func(r *repo) ([]string, error) {
	return func(r *repo) ([]string, error) {
		lines, ok, err := r.command([]string{"FLASHVK_REQUIRE_TOOLS=1"}, command[0], command[1:]...)
		if err != nil || ok {
			return nil, err // a C compiler's warnings are printed too, and are no findings
		}
		return findings(lines, strings.Join(command, " ")), nil
	}
}

func checkStaticcheck(r *repo) ([]string, error) {
	const path = "honnef.co/go/tools/cmd/staticcheck@" + staticcheckVersion
	lines, ok, err := r.command(nil, "go", "run", path, "-version")
	if err == nil && !ok {
		err = fmt.Errorf("cannot get %s (offline?): %s", path, append([]string{"no output"}, lines...)[len(lines)])
	}
	if err != nil {
		return nil, err
	}
	return program("go", "run", path, "./...")(r)
}

// findings drops from a failed program's output the lines that are no finding. The
// result is never empty.
func findings(lines []string, program string) []string {
	var list []string
	for _, line := range lines {
		text := strings.TrimPrefix(strings.TrimSpace(line), "vet: ")
		switch {
		case text == "FAIL", text == "PASS", strings.HasPrefix(text, "exit status "):
		case strings.HasPrefix(text, "# "), strings.HasPrefix(text, "FAIL\t"), strings.HasPrefix(text, "ok  \t"),
			strings.HasPrefix(text, "--- "), strings.HasPrefix(text, "=== "), strings.HasPrefix(text, "go: downloading "):
		default:
			list = append(list, text)
		}
	}
	if list == nil {
		return []string{program + " failed and did not say why"}
	}
	return list
}
