package tests

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// hasSources skips a test of the sources in a bundle, which has none.
func hasSources(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("../go.mod"); err != nil {
		t.Skip(err)
	}
}

// userPackages returns the packages that a program of a user imports: all packages that export a
// function, outside of the folders for ourselves. Packages of data alone export none.
func userPackages(t *testing.T) (names []string) {
	t.Helper()
	hasSources(t)
	ours := []string{"internal", "tests", "tools", "bench", "examples", "testdata"}
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || path == ".." {
			return err
		}
		if slices.Contains(ours, d.Name()) || strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if functions, _ := parse(t, path); len(functions) > 0 {
			names = append(names, filepath.ToSlash(path[len("../"):]))
		}
		return nil
	}))
	return names
}

// notForUsers are functions that only packages of ours call.
var notForUsers = []string{
	"gmm.Merge",                                       // package mixture runs it after its kernel: ExampleForward there
	"shaders.Hash", "shaders.Use", "shaders.Variants", // of the records and of the shaders' developers
}

// TestExamples wants some example with a checked output to call each function of the packages that
// users import.
func TestExamples(t *testing.T) {
	for _, name := range userPackages(t) {
		t.Run(name, func(t *testing.T) {
			functions, tests := parse(t, filepath.Join("..", name))
			called := map[string]bool{}
			for _, e := range doc.Examples(tests...) {
				if e.Output == "" && !e.EmptyOutput {
					continue // it is compiled, and never run
				}
				ast.Inspect(e.Code, func(n ast.Node) bool {
					if s, ok := n.(*ast.SelectorExpr); ok {
						called[s.Sel.Name] = true
					}
					return true
				})
			}
			for _, f := range functions {
				if !called[f] && !slices.Contains(notForUsers, filepath.Base(name)+"."+f) {
					t.Errorf("no example with an output calls %s.%s", filepath.Base(name), f)
				}
			}
		})
	}
}

// parse returns the exported functions of a package, and its tests.
func parse(t *testing.T, dir string) (functions []string, tests []*ast.File) {
	t.Helper()
	for path, file := range parseFiles(t, dir) {
		if strings.HasSuffix(path, "_test.go") {
			tests = append(tests, file)
			continue
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.IsExported() {
				functions = append(functions, f.Name.Name)
			}
		}
	}
	return functions, tests
}

// parseFiles returns the files of a folder by their paths.
func parseFiles(t *testing.T, dir string) map[string]*ast.File {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	files := map[string]*ast.File{}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		require.NoError(t, err)
		files[path] = file
	}
	return files
}
