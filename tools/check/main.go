// Check is everything that can be said about the source without running it on a
// device: `go run ./tools/check`, the same for an engineer and in CI.
//
//	format       gofmt -s
//	vet          go vet, experiments of tests/lab included
//	staticcheck  at a pinned version, fetched through the module proxy
//	imports      packages import downwards only; "C" and unsafe stay in vk; the program links nothing of tests
//	budget       lengths of files and functions
//	size         lines of each wing of the house (size.go)
//	hosts        no file names a package mirror
//	binaries     only SPIR-V and pictures are binary
//	scripts      bash -n, sh -n
//	shaders      the SPIR-V is current and valid (the tests of ./shaders)
//	converge     what the invocations of a subgroup must execute together, they do
//	proven       WARNING only: a GPU ran the SPIR-V as it stands (tools/proven)
//
// Each finding is one line on standard output; with findings the exit status is 1, but
// for those that are warnings.
// Arguments are names of checks to run instead of all; -skip has a comma list of checks to
// leave out. -size prints the lines of each wing, and their change since the commit that is the
// argument, HEAD without one.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// staticcheckVersion supports Go 1.24 to 1.26.
const staticcheckVersion = "v0.7.0"

// A check looks at the repository and returns its findings, one line each. The
// error is a check that could not be made.
type check struct {
	name string
	run  func(r *repo) ([]string, error)
	warn bool // findings are no failure
}

var checks = []check{
	{name: "format", run: checkFormat},
	{name: "imports", run: checkImports},
	{name: "budget", run: checkBudget},
	{name: "size", run: checkSize},
	{name: "hosts", run: checkHosts},
	{name: "binaries", run: checkBinaries},
	{name: "scripts", run: checkScripts},
	{name: "vet", run: program("go", "vet", "-tags=lab", "./...")},
	{name: "staticcheck", run: checkStaticcheck},
	// -count=1 because the answer depends on the compiler too, which go test does not see.
	{name: "shaders", run: program("go", "test", "-count=1", "-vet=off", "-run", "TestCurrent|TestValid|TestNames|TestGet", "./shaders")},
	{name: "converge", run: program("go", "run", "./tools/converge")},
	// Who changes a shader without a GPU at hand makes unproven modules; who closes the issue proves them.
	{name: "proven", run: program("go", "run", "./tools/proven"), warn: true},
}

func main() {
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: go run ./tools/check [-skip CHECK,…] [CHECK…] | -size [COMMIT]")
		for _, c := range checks {
			fmt.Fprintln(os.Stderr, "  "+c.name)
		}
	}
	skip := flag.String("skip", "", "checks to leave out")
	table := flag.Bool("size", false, "print the lines of each wing instead")
	flag.Parse()
	if *table {
		if err := showSizes(flag.Arg(0)); err != nil {
			fmt.Fprintf(os.Stderr, "check: %v\n", err)
			os.Exit(1)
		}
		return
	}
	left := strings.FieldsFunc(*skip, func(c rune) bool { return c == ',' })
	for _, name := range append(left, flag.Args()...) {
		if !slices.ContainsFunc(checks, func(c check) bool { return c.name == name }) {
			fmt.Fprintf(os.Stderr, "check: no check %q\n", name)
			os.Exit(2)
		}
	}
	r, err := openRepo()
	if err != nil {
		fmt.Fprintf(os.Stderr, "check: %v\n", err)
		os.Exit(1)
	}
	failed := false
	for _, c := range checks {
		if flag.NArg() > 0 && !slices.Contains(flag.Args(), c.name) || slices.Contains(left, c.name) {
			continue
		}
		start := time.Now()
		findings, err := c.run(r)
		kind := ""
		if c.warn {
			kind = "WARNING: "
		}
		for _, f := range findings {
			fmt.Printf("%s: %s%s\n", c.name, kind, f)
		}
		if err != nil {
			fmt.Printf("%s: could not be checked: %v\n", c.name, err)
		}
		result := "ok"
		switch {
		case err != nil || len(findings) > 0 && !c.warn:
			result, failed = "FAILED", true
		case len(findings) > 0:
			result = fmt.Sprintf("%d warnings", len(findings))
		}
		fmt.Fprintf(os.Stderr, "check: %-12s%s (%.1f s)\n", c.name, result, time.Since(start).Seconds())
	}
	if failed {
		os.Exit(1)
	}
}

// A repo is the working tree.
type repo struct {
	root  string
	files []string // relative to root, sorted; none that git ignores
}

func openRepo() (*repo, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOMOD: %w", err)
	}
	gomod := strings.TrimSpace(string(out))
	if gomod == "" || gomod == os.DevNull {
		return nil, fmt.Errorf("not in a Go module")
	}
	r := &repo{root: filepath.Dir(gomod)}
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = r.root
	if out, err = cmd.Output(); err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	for _, name := range strings.Split(string(out), "\x00") {
		// A file that was deleted but not yet committed is listed too.
		if info, err := os.Lstat(filepath.Join(r.root, name)); err == nil && info.Mode().IsRegular() {
			r.files = append(r.files, name)
		}
	}
	slices.Sort(r.files)
	r.files = slices.Compact(r.files)
	return r, nil
}

func (r *repo) read(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(r.root, name))
	return string(text), err
}

// each returns what problems finds in the files.
func (r *repo) each(problems func(name, text string) []string) (list []string, err error) {
	for _, name := range r.files {
		text, err := r.read(name)
		if err != nil {
			return nil, err
		}
		list = append(list, problems(name, text)...)
	}
	return list, nil
}

// goFiles are the files that gofmt and the compiler see.
func (r *repo) goFiles() []string {
	var list []string
	for _, name := range r.files {
		if strings.HasSuffix(name, ".go") && !strings.Contains("/"+name, "/testdata/") {
			list = append(list, name)
		}
	}
	return list
}

// command runs a program in the root and returns the lines of its output, both
// streams, that are not empty. Exit status 0 or not is ok.
func (r *repo) command(env []string, name string, args ...string) (lines []string, ok bool, err error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = r.root
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		return nil, false, fmt.Errorf("%s: %w", name, err)
	}
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimRight(line, " \t\r\n"); line != "" {
			lines = append(lines, line)
		}
	}
	return lines, cmd.ProcessState.Success(), nil
}
