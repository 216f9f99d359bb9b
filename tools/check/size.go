package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path"
	"strings"
	"text/tabwriter"
)

// A wing is a part of the house with one purpose. Budgets are numbers of lines: a commit that
// raises one says in its message what pays for it.
type wing struct {
	name  string
	paths []string // files and folders; a file belongs to the wing with its longest match
	goMax int      // lines of Go, tests included
	glMax int      // lines of GLSL
}

// wings are all of the repository. The first has what no other wing names.
var wings = []wing{
	{"files, tests, examples, tools", []string{""}, 6869, 0},
	{"devices, and what kernels share", []string{
		"dtype", "internal/dtype", "vk", "internal/vk", "internal/chips", "internal/cover", "internal/enum",
		"internal/parallel", "internal/text", "internal/needcgo",
	}, 14533, 0},
	{"shaders", []string{"shaders", "internal/shaders", "internal/spirv"}, 2640, 17892},
	{"attention", []string{"attention", "internal/attention"}, 16533, 0},
	{"other kernels", []string{"pipelines", "internal/pipelines"}, 20261, 0},
	{"one engine for every proof", []string{
		"internal/call", "internal/guard", "internal/attention/attntest",
		"internal/bench/kernels", "internal/bench/trial", "internal/bench/selftest", "internal/conformance", "conformance",
		"tests/conformance", "tests/gradients",
	}, 15923, 0},
	{"the program", []string{"bench", "internal/bench"}, 12218, 0},
	{"trainer and models", []string{
		"pipelines/tnp", "pipelines/train", "pipelines/lm", "internal/pipelines/tnp", "internal/bench/train",
	}, 12997, 0},
	{"tools/converge", []string{"tools/converge"}, 1885, 0},
}

// A size counts the lines of a wing.
type size struct {
	code, tests, glsl int
}

func (s size) golang() int { return s.code + s.tests }

// wingOf returns the index of the wing that a file belongs to.
func wingOf(name string) int {
	best, length := 0, 0
	for i, w := range wings {
		for _, p := range w.paths {
			if (name == p || strings.HasPrefix(name, p+"/")) && len(p) > length {
				best, length = i, len(p)
			}
		}
	}
	return best
}

// sizes counts the lines of each wing's files, whose text read returns.
func sizes(files []string, read func(string) (string, error)) ([]size, error) {
	list := make([]size, len(wings))
	for _, name := range files {
		ext := path.Ext(name)
		if ext != ".go" && ext != ".comp" && ext != ".glsl" || strings.Contains("/"+name, "/testdata/") {
			continue
		}
		text, err := read(name)
		if err != nil {
			return nil, err
		}
		s, lines := &list[wingOf(name)], strings.Count(text, "\n")
		switch {
		case ext != ".go":
			s.glsl += lines
		case strings.HasSuffix(name, "_test.go"):
			s.tests += lines
		default:
			s.code += lines
		}
	}
	return list, nil
}

func checkSize(r *repo) ([]string, error) {
	list, err := sizes(r.files, r.read)
	if err != nil {
		return nil, err
	}
	return sizeProblems(list), nil
}

func sizeProblems(list []size) []string {
	var problems []string
	for i, w := range wings {
		for _, c := range []struct {
			kind   string
			n, max int
		}{{"Go", list[i].golang(), w.goMax}, {"GLSL", list[i].glsl, w.glMax}} {
			if c.n > c.max {
				problems = append(problems, fmt.Sprintf("%s: %d lines of %s, over the budget of %d: "+
					"delete what says something twice, or raise the budget in tools/check/size.go and say what pays for it",
					w.name, c.n, c.kind, c.max))
			}
		}
	}
	return problems
}

func (r *repo) sizesAt(commit string) ([]size, error) {
	git := func(args ...string) (string, error) {
		cmd := exec.Command("git", args...)
		cmd.Dir = r.root
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
		}
		return string(out), nil
	}
	names, err := git("ls-tree", "-r", "-z", "--name-only", commit)
	if err != nil {
		return nil, err
	}
	return sizes(strings.Split(names, "\x00"), func(name string) (string, error) {
		return git("show", commit+":"+name)
	})
}

// showSizes prints the table of wings, beside a commit, HEAD if it is "".
func showSizes(commit string) error {
	if commit == "" {
		commit = "HEAD"
	}
	r, err := openRepo()
	if err != nil {
		return err
	}
	now, err := sizes(r.files, r.read)
	if err != nil {
		return err
	}
	before, err := r.sizesAt(commit)
	if err != nil {
		return err
	}
	printSizes(os.Stdout, now, before, commit)
	return nil
}

// printSizes writes the table of wings: lines, budgets, and the change of Go and GLSL since a
// commit.
func printSizes(w io.Writer, now, before []size, commit string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "Go\ttests\tboth\tbudget\tsince %s\tGLSL\tbudget\tsince\t  wing\n", commit)
	row := func(s, b size, goMax, glMax int, name string) {
		fmt.Fprintf(t, "%d\t%d\t%d\t%d\t%+d\t%d\t%d\t%+d\t  %s\n",
			s.code, s.tests, s.golang(), goMax, s.golang()-b.golang(), s.glsl, glMax, s.glsl-b.glsl, name)
	}
	var all, was size
	goMax, glMax := 0, 0
	for i, w := range wings {
		row(now[i], before[i], w.goMax, w.glMax, w.name)
		all = size{all.code + now[i].code, all.tests + now[i].tests, all.glsl + now[i].glsl}
		was = size{was.code + before[i].code, was.tests + before[i].tests, was.glsl + before[i].glsl}
		goMax, glMax = goMax+w.goMax, glMax+w.glMax
	}
	row(all, was, goMax, glMax, "all")
	t.Flush()
}

// Soft budgets, in lines. A file that goes over one says why on its first line,
//
//	// Long: the reason.
const (
	goFileLines   = 500
	kernelLines   = 250
	functionLines = 80
)

func checkBudget(r *repo) ([]string, error) {
	return r.each(func(name, text string) []string {
		if ext := path.Ext(name); ext != ".go" && ext != ".comp" || strings.Contains("/"+name, "/testdata/") {
			return nil
		}
		return budgetProblems(name, text)
	})
}

// budgetProblems returns what is too long in a file without a reason.
func budgetProblems(name, text string) []string {
	first, _, _ := strings.Cut(text, "\n")
	if reason, ok := strings.CutPrefix(first, "// Long: "); ok && strings.TrimSpace(reason) != "" {
		return nil
	}
	if strings.HasPrefix(first, "// Code generated ") {
		return nil
	}
	budget := kernelLines
	if path.Ext(name) == ".go" {
		budget = goFileLines
	}
	var problems []string
	if n := strings.Count(text, "\n"); n > budget {
		problems = append(problems, fmt.Sprintf("%s has %d lines, over %d: split it, or give the reason on its first line (// Long: …)", name, n, budget))
	}
	if path.Ext(name) != ".go" {
		return problems
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, text, parser.SkipObjectResolution)
	if err != nil {
		return append(problems, err.Error())
	}
	for _, decl := range f.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		start, end := fset.Position(fn.Pos()).Line, fset.Position(fn.End()).Line
		if n := end - start + 1 - tableLines(fset, fn); n > functionLines {
			problems = append(problems, fmt.Sprintf("%s:%d: %s has %d lines, over %d", name, start, fn.Name.Name, n, functionLines))
		}
	}
	return problems
}

// tableLines counts the lines of a function that are data, not code: composite
// literals over several lines, but not the functions inside them.
func tableLines(fset *token.FileSet, fn *ast.FuncDecl) int {
	lines := 0
	span := func(n ast.Node) int {
		return fset.Position(n.End()).Line - fset.Position(n.Pos()).Line
	}
	var count func(n ast.Node, sign int)
	count = func(n ast.Node, sign int) {
		ast.Inspect(n, func(c ast.Node) bool {
			switch c := c.(type) {
			case *ast.CompositeLit:
				if sign > 0 {
					lines += span(c)
					for _, e := range c.Elts {
						count(e, -1)
					}
					return false
				}
			case *ast.FuncLit:
				if sign < 0 {
					lines -= span(c)
					count(c.Body, 1)
					return false
				}
			}
			return true
		})
	}
	count(fn, 1)
	return lines
}
