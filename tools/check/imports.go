package main

import (
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A pkg is what go list says of a package of ours; paths are relative to the
// module ("vk", "attention/ref").
type pkg struct {
	path        string
	imports     []string // ours only, as all of the following
	testImports []string
}

// levels is the order of packages: each imports only packages of lower levels, or
// of its own pattern. The first pattern that matches counts; "x/..." matches x and
// what is below it. What is internal/x stands where x would.
var levels = []struct {
	pattern string
	level   int
}{
	{"dtype/...", 0},
	{"enum", 0},
	{"files", 0},
	{"text", 0},
	{"cover", 0},
	{"spirv", 0},
	{"parallel", 0},
	{"vk/...", 1},
	{"safetensors/...", 1},
	{"shaders/...", 1},
	{"guard", 2},
	{"chips/...", 2},
	{"conformance", 3},
	{"attention/philox", 1},
	{"attention/ref/...", 4},
	{"attention/attntest", 8},
	{"attention/...", 3},
	{"call", 7},
	{"pipelines/tnp/...", 7}, // composes the kernels below into steps
	{"pipelines/record/...", 2},
	{"pipelines/...", 6},
	{"bench/...", 9},
	{"examples/...", 10},
	{"tests/...", 10},
	{"tools/...", 11},
}

// levelOf returns the pattern and the level of a package, -1 if it has none.
func levelOf(p string) (pattern string, level int) {
	p = strings.TrimPrefix(p, "internal/")
	for _, l := range levels {
		prefix, deep := strings.CutSuffix(l.pattern, "/...")
		if p == prefix || deep && strings.HasPrefix(p, prefix+"/") {
			return l.pattern, l.level
		}
	}
	return "", -1
}

// importProblems checks the direction of the imports between our packages.
func importProblems(pkgs []pkg) []string {
	var problems []string
	for _, p := range pkgs {
		if _, level := levelOf(p.path); level < 0 {
			problems = append(problems, fmt.Sprintf("%s has no place in the order of packages (tools/check/imports.go)", p.path))
			continue
		}
		for _, i := range p.imports {
			if problem := importProblem(p.path, i); problem != "" {
				problems = append(problems, problem)
			}
		}
		if usesNoDevice(p.path) {
			for _, i := range append(slices.Clone(p.imports), p.testImports...) {
				if folder(i) == "vk" {
					problems = append(problems, fmt.Sprintf("%s imports %s: references use no device", p.path, i))
				}
			}
		}
	}
	return problems
}

func importProblem(p, imported string) string {
	pattern, level := levelOf(p)
	otherPattern, otherLevel := levelOf(imported)
	switch {
	case pattern == otherPattern:
		return ""
	case folder(p) == "shaders" && folder(imported) != "spirv" && folder(imported) != "parallel":
		return fmt.Sprintf("%s imports %s: shaders imports nothing of ours but spirv and parallel", p, imported)
	case folder(p) == "vk" && otherLevel > 0:
		return fmt.Sprintf("%s imports %s: vk imports nothing of ours but dtype and what is as small", p, imported)
	case otherLevel >= level:
		return fmt.Sprintf("%s imports %s, which does not stand below it", p, imported)
	}
	return ""
}

// folder is the first element of a path, after internal.
func folder(p string) string {
	top, _, _ := strings.Cut(strings.TrimPrefix(p, "internal/"), "/")
	return top
}

// usesNoDevice: references must run, and be read, without Vulkan. They may import
// the packages of kernels, which declare the problems.
func usesNoDevice(p string) bool {
	return path.Base(p) == "ref" || strings.Contains(p, "/ref/")
}

func (r *repo) listPackages() ([]pkg, error) {
	lines, err := r.goList("-f", `{{.ImportPath}},{{join .Imports " "}},{{join .TestImports " "}} {{join .XTestImports " "}}`, "./...")
	if err != nil {
		return nil, err
	}
	var list []pkg
	for _, line := range lines {
		fields := strings.Split(line, ",")
		ours := func(paths string) (list []string) {
			for _, path := range strings.Fields(paths) {
				if rel, ok := strings.CutPrefix(path, modulePath); ok {
					list = append(list, rel)
				}
			}
			return list
		}
		list = append(list, pkg{strings.TrimPrefix(fields[0], modulePath), ours(fields[1]), ours(fields[2])})
	}
	return list, nil
}

const modulePath = "github.com/flashvk/flashvk/"

func (r *repo) goList(args ...string) ([]string, error) {
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir = r.root
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = errors.New(strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	return strings.FieldsFunc(string(out), func(c rune) bool { return c == '\n' }), nil
}

func checkImports(r *repo) ([]string, error) {
	pkgs, err := r.listPackages()
	if err != nil {
		return nil, err
	}
	linked, err := r.goList("-deps", productPath)
	if err != nil {
		return nil, err
	}
	problems := append(importProblems(pkgs), linkProblems(linked)...)
	for _, name := range r.goFiles() {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(r.root, name), nil, parser.ImportsOnly)
		if err != nil {
			problems = append(problems, err.Error())
			continue
		}
		for _, spec := range f.Imports {
			i, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return nil, err
			}
			if problem := specialImport(name, i); problem != "" {
				problems = append(problems, problem)
			}
		}
	}
	return problems, nil
}

// productPath is the program that users get.
const productPath = "./bench/flashvk"

func linkProblems(linked []string) []string {
	var problems []string
	for _, p := range linked {
		if p == "testing" || strings.HasPrefix(p, "testing/") || strings.HasPrefix(p, "github.com/stretchr/") || strings.HasSuffix(p, "/vktest") {
			problems = append(problems, fmt.Sprintf("%s links %s, which is for tests: go list -deps -f '{{.ImportPath}}: {{.Imports}}' %s says by whom", productPath[2:], p, productPath))
		}
	}
	return problems
}

// specialImport keeps cgo and unsafe where they belong.
func specialImport(file, imported string) string {
	dir, base := path.Split(file)
	switch {
	case imported == "C" && !(dir == "vk/" && strings.HasPrefix(base, "ext")):
		return fmt.Sprintf(`%s imports "C": only vk/ext*.go does`, file)
	case imported == "unsafe" && dir != "vk/":
		return fmt.Sprintf("%s imports unsafe, which stays inside vk", file)
	}
	return ""
}
