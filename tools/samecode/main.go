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
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
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
		var what string
		switch {
		case !is:
			what = "only in " + from
		case !was:
			what = "only in " + to
		default:
			a, err := canonical(old)
			if err != nil {
				return false, fmt.Errorf("%s of %s: %w", name, from, err)
			}
			b, err := canonical(now)
			if err != nil {
				return false, fmt.Errorf("%s of %s: %w", name, to, err)
			}
			if what = difference(a, b); what == "" {
				same++
				continue
			}
		}
		differ++
		fmt.Fprintf(w, "%s: %s\n", name, what)
	}
	fmt.Fprintf(w, "%d modules are the same, %d are not\n", same, differ)
	return differ == 0, nil
}

// load returns the modules of a folder or of a commit, by name.
func load(from string) (map[string][]byte, error) {
	dir := from
	if from == "." {
		dir = filepath.Join("shaders", "spv")
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		temp, err := os.MkdirTemp("", "samecode-*")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(temp)
		archive, err := exec.Command("git", "archive", "--format=tar", from, "shaders/spv").Output()
		if err != nil {
			return nil, fmt.Errorf("%s is neither a folder nor a commit with shaders/spv", from)
		}
		tar := exec.Command("tar", "-x", "-C", temp)
		tar.Stdin = bytes.NewReader(archive)
		if out, err := tar.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("tar: %w: %s", err, out)
		}
		dir = filepath.Join(temp, "shaders", "spv")
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*.spv"))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s holds no .spv", from)
	}
	modules := map[string][]byte{}
	for _, path := range paths {
		code, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		modules[strings.TrimSuffix(filepath.Base(path), ".spv")] = code
	}
	return modules, nil
}

// Opcodes that say nothing to a driver: OpSourceContinued, OpSource, OpSourceExtension, OpName,
// OpMemberName, OpString, OpLine, OpNop, OpNoLine, OpModuleProcessed.
var silent = map[uint32]bool{2: true, 3: true, 4: true, 5: true, 6: true, 7: true, 8: true, 0: true, 317: true, 330: true}

// canonical returns the instructions of a module, in words, without the silent ones. Ids are
// left as they are: glslang numbers them in the order of the source, and a number that moves
// is a change worth seeing.
func canonical(code []byte) ([][]uint32, error) {
	if len(code) < 20 || len(code)%4 != 0 || binary.LittleEndian.Uint32(code) != 0x07230203 {
		return nil, fmt.Errorf("not a SPIR-V module (%d bytes)", len(code))
	}
	words := make([]uint32, len(code)/4)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(code[4*i:])
	}
	var list [][]uint32
	for at := 5; at < len(words); {
		n := int(words[at] >> 16)
		if n == 0 || at+n > len(words) {
			return nil, fmt.Errorf("the instruction at word %d runs past the end", at)
		}
		if !silent[words[at]&0xffff] {
			list = append(list, words[at:at+n])
		}
		at += n
	}
	return list, nil
}

// difference says where two modules differ first, "" if they do not.
func difference(a, b [][]uint32) string {
	for i := range min(len(a), len(b)) {
		if !slices.Equal(a[i], b[i]) {
			return fmt.Sprintf("instruction %d of %d and %d differs: opcode %d and %d", i, len(a), len(b), a[i][0]&0xffff, b[i][0]&0xffff)
		}
	}
	if len(a) != len(b) {
		return fmt.Sprintf("%d and %d instructions", len(a), len(b))
	}
	return ""
}
