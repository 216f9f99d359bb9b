package main

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// mirrorPattern matches the hosts of distributions' package mirrors, and any URL of a Debian
// archive, except in the reserved domain that tests use.
var mirrorPattern = regexp.MustCompile(`\b(?:[a-z0-9-]+\.)+(?:debian|ubuntu)\.(?:org|com|net)\b|https?://[A-Za-z0-9.-]+(?::[0-9]+)?/debian(?:[/\s"']|$)`)

// allowedHost matches what mirrorPattern may find: no mirror.
var allowedHost = regexp.MustCompile(`^https?://(?:[a-z]+\.test|localhost)\b`)

// checkHosts looks for mirrors: those that the pattern knows, and those that this
// machine is configured for. A file that names one works on one network only.
func checkHosts(r *repo) ([]string, error) {
	configured, err := r.configuredHosts()
	if err != nil {
		return nil, err
	}
	return r.each(func(name, text string) []string { return hostProblems(name, text, configured) })
}

// configuredHosts are the hosts of apt's Debian archives, and of a Go module proxy other
// than the usual one.
func (r *repo) configuredHosts() ([]string, error) {
	sources, _, err := r.command(nil, "tools/toolchain", "--sources")
	if err != nil {
		return nil, err
	}
	proxy, _, err := r.command(nil, "go", "env", "-changed", "GOPROXY")
	if err != nil {
		return nil, err
	}
	var hosts []string
	for _, m := range regexp.MustCompile(`https?://([A-Za-z0-9.-]+)`).FindAllStringSubmatch(strings.Join(append(sources, proxy...), "\n"), -1) {
		if m[1] != "localhost" && !strings.HasPrefix(m[1], "127.") {
			hosts = append(hosts, m[1])
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts), nil
}

func hostProblems(name, text string, hosts []string) []string {
	if !utf8.ValidString(text) {
		return nil // binary
	}
	var problems []string
	n := 0
	for line := range strings.Lines(text) {
		n++
		found := ""
		for _, m := range mirrorPattern.FindAllString(line, -1) {
			if !allowedHost.MatchString(m) {
				found = m
			}
		}
		for _, host := range hosts {
			if strings.Contains(line, host) {
				found = host
			}
		}
		if found != "" {
			problems = append(problems, fmt.Sprintf("%s:%d: names the package mirror %s", name, n, found))
		}
	}
	return problems
}

func checkScripts(r *repo) ([]string, error) {
	var problems []string
	for _, name := range r.files {
		text, err := r.read(name)
		if err != nil {
			return nil, err
		}
		shell := shellOf(text)
		if shell == "" {
			continue
		}
		lines, ok, err := r.command(nil, shell, "-n", name)
		if err != nil {
			return nil, err
		}
		if !ok {
			problems = append(problems, lines...)
		}
	}
	return problems, nil
}

// shellOf returns the shell that a script's first line asks for, "" for other files.
func shellOf(text string) string {
	first, _, _ := strings.Cut(text, "\n")
	rest, ok := strings.CutPrefix(first, "#!")
	if !ok {
		return ""
	}
	for _, word := range strings.Fields(rest) {
		switch word[strings.LastIndex(word, "/")+1:] {
		case "bash":
			return "bash"
		case "sh", "dash":
			return "sh"
		case "env":
			continue
		default:
			return ""
		}
	}
	return ""
}

// binaryMagic is how a binary file that belongs into the repository begins, by its extension.
var binaryMagic = map[string]string{
	".spv": "\x03\x02\x23\x07",
	".png": "\x89PNG\r\n\x1a\n",
}

// checkBinaries finds programs and other binary files that were added by mistake: the history
// keeps them for ever.
func checkBinaries(r *repo) ([]string, error) { return r.each(binaryProblems) }

// binaryProblems goes by the content of a file, as a program may have any name.
func binaryProblems(name, text string) []string {
	if utf8.ValidString(text) && !strings.Contains(text, "\x00") {
		return nil
	}
	if magic := binaryMagic[path.Ext(name)]; magic != "" && strings.HasPrefix(text, magic) {
		return nil
	}
	return []string{fmt.Sprintf("%s is a binary file of %d bytes: only SPIR-V (.spv) and pictures (.png) are binary here", name, len(text))}
}

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
