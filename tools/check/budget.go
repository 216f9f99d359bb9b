package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"strings"
)

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
