// Mutants compiles the kernels with mistakes of package internal/shaders/mutate, and its experiments:
//
//	go run ./tools/mutants DIR        writes DIR/MUTANT/MODULE.spv
//
// It runs in the repository and needs tools/toolchain's glslc, which it finds by
// FLASHVK_GLSLC or tools/toolchain.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/internal/shaders/compile"
	"github.com/flashvk/flashvk/internal/shaders/mutate"
)

func main() {
	if len(os.Args) != 2 || strings.HasPrefix(os.Args[1], "-") {
		fmt.Fprintln(os.Stderr, "mutants: usage: go run ./tools/mutants DIR")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	glslc, err := compile.Find(".", "glslc", true)
	if err != nil {
		return err
	}
	for _, m := range slices.Concat(mutate.All(), mutate.Experiments()) {
		if err := m.Compile(glslc, "shaders", filepath.Join(dir, m.Name)); err != nil {
			return err
		}
		fmt.Printf("%-20s %s: %s\n", m.Name, m.Kernel, m.What)
	}
	return nil
}
