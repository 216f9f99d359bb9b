// Samecode compares SPIR-V modules without what no driver looks at: names and debug
// information.
//
//	go run ./tools/samecode OLD NEW
//
// OLD and NEW are folders of NAME.spv, or commits, whose shaders/spv is meant; "." is
// shaders/spv as it is. A module that has moved is found by OLDNAME=NEWNAME after them:
//
//	go run ./tools/samecode HEAD~1 . attention_fwd_coopmat2.f16=attention_fwd_matrix_coopmat2.f16
//
// It prints a line for each module that differs, or that only one side has, and how many are
// the same. The exit status is 1 if any differs. A step that renames or moves leaves
// everything the same.
package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/internal/spirv"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "samecode: usage: go run ./tools/samecode OLD NEW [OLDNAME=NEWNAME …]")
		os.Exit(2)
	}
	same, err := run(os.Stdout, os.Args[1], os.Args[2], os.Args[3:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "samecode:", err)
		os.Exit(2)
	}
	if !same {
		os.Exit(1)
	}
}

// run compares two sides and reports whether all modules are the same.
func run(w io.Writer, from, to string, renames []string) (bool, error) {
	before, err := load(from)
	if err != nil {
		return false, err
	}
	after, err := load(to)
	if err != nil {
		return false, err
	}
	for _, r := range renames {
		old, name, ok := strings.Cut(r, "=")
		if _, there := before[old]; !ok || !there {
			return false, fmt.Errorf("%q is not the name of a module of %s, =, and its new name", r, from)
		}
		before[name] = before[old]
		delete(before, old)
	}
	same, differ := 0, 0
	all := maps.Clone(before)
	maps.Copy(all, after)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		old, was := before[name]
		now, is := after[name]
		what := difference(old, now)
		switch {
		case !is:
			what = "only in " + from
		case !was:
			what = "only in " + to
		case what == "":
			same++
			continue
		}
		differ++
		fmt.Fprintf(w, "%s: %s\n", name, what)
	}
	fmt.Fprintf(w, "%d modules are the same, %d are not\n", same, differ)
	return differ == 0, nil
}

func load(from string) (map[string][]spirv.Instruction, error) {
	dir := from
	if from == "." {
		dir = filepath.Join("shaders", "spv")
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		if dir, err = os.MkdirTemp("", "samecode-*"); err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		if err := exec.Command("git", "--work-tree="+dir, "restore", "--source="+from, "--", "shaders/spv").Run(); err != nil {
			return nil, fmt.Errorf("%s is neither a folder nor a commit with shaders/spv", from)
		}
		dir = filepath.Join(dir, "shaders", "spv")
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*.spv"))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s holds no .spv", from)
	}
	modules := map[string][]spirv.Instruction{}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".spv")
		code, err := os.ReadFile(path)
		if err == nil {
			modules[name], err = spirv.Code(code)
		}
		if err != nil {
			return nil, fmt.Errorf("%s of %s: %w", name, from, err)
		}
	}
	return modules, nil
}

// difference says where two modules differ first, "" if they do not.
func difference(a, b []spirv.Instruction) string {
	for i := range min(len(a), len(b)) {
		if a[i].Op != b[i].Op || !slices.Equal(a[i].Args, b[i].Args) {
			return fmt.Sprintf("instruction %d of %d and %d differs: opcode %d and %d", i, len(a), len(b), a[i].Op, b[i].Op)
		}
	}
	if len(a) != len(b) {
		return fmt.Sprintf("%d and %d instructions", len(a), len(b))
	}
	return ""
}
