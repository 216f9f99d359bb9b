// Package mutate makes kernels with mistakes that a table of small cases misses: missing
// barriers, reductions without some of the lanes, shared memory left from before. Tests say
// of the random problems of internal/bench/trial that they find them.
//
//	go run ./tools/mutants DIR                      writes DIR/MUTANT/MODULE.spv
//	flashvk selftest --modules DIR/MUTANT           does the suite see it?
//	flashvk selftest --modules DIR/MUTANT --random 1000
package mutate

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/internal/shaders/compile"
	"github.com/flashvk/flashvk/shaders"
)

// A Mutant is a mistake in the sources, or an experiment.
type Mutant struct {
	Name    string
	What    string // the mistake, in words
	Kernel  string // of package internal/bench/trial, which has it
	Modules string // the modules to compile with the mistake: a prefix of their names
	Edits   []Edit
	// Loose mutants do not reconverge maximally.
	Loose bool
	// Hidden says why no software driver shows the mistake; "" if lavapipe does.
	Hidden string

	experiment bool
}

// An Edit replaces text that a file has once: lines, of which the first and the last may be cut.
type Edit struct {
	File     string
	Old, New []string
}

// mutants.txt has a line for each field of a mutant, and each line of the Old and New of its edits.
//
//go:embed mutants.txt
var mutants string

// All lists the mutants.
func All() []Mutant {
	return slices.DeleteFunc(parse(mutants), func(m Mutant) bool { return m.experiment })
}

// Experiments lists kernels without one of their stages: what the time goes into, which is
// where to look for speed. Their results are wrong, and they are no test of the suites:
// BenchmarkLeaveOut of tests/lab times them.
func Experiments() []Mutant {
	return slices.DeleteFunc(parse(mutants), func(m Mutant) bool { return !m.experiment })
}

func parse(text string) (list []Mutant) {
	for line := range strings.SplitSeq(text, "\n") {
		word, rest, _ := strings.Cut(line, " ")
		if word == "mutant" || word == "experiment" {
			list = append(list, Mutant{Name: rest, experiment: word == "experiment"})
		}
		if len(list) == 0 {
			continue // the head of the file
		}
		m := &list[len(list)-1]
		if word == "file" {
			m.Edits = append(m.Edits, Edit{File: rest})
		}
		last := len(m.Edits) - 1
		switch word {
		case "what":
			m.What = rest
		case "kernel":
			m.Kernel = rest
		case "modules":
			m.Modules = rest
		case "loose":
			m.Loose = true
		case "hidden":
			m.Hidden = rest
		case "-":
			m.Edits[last].Old = append(m.Edits[last].Old, rest)
		case "+":
			m.Edits[last].New = append(m.Edits[last].New, rest)
		}
	}
	return list
}

// Compile writes the modules of a mutant of the shader folder source into dir, as NAME.spv.
// Glslc is the compiler.
func (m *Mutant) Compile(glslc, source, dir string) error {
	c, err := compile.New(glslc)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "flashvk-mutant-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	work = filepath.Join(work, "shaders")
	if err := m.sources(source, work); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	var rows []compile.Row
	for _, v := range shaders.Variants() {
		if strings.HasPrefix(v.Name(), m.Modules) {
			rows = append(rows, compile.Row{Name: v.Name(), File: v.File, Defines: v.Defines, Env: v.Env, Loose: m.Loose})
		}
	}
	code, err := c.Compile(work, rows...)
	if err != nil {
		return fmt.Errorf("%s: %w", m.Name, err)
	}
	for i, r := range rows {
		if err := os.WriteFile(filepath.Join(dir, r.Name+".spv"), code[i], 0o666); err != nil {
			return err
		}
	}
	return nil
}

// sources makes dir hold the sources of a mutant of the shader folder source, without spv, which is large.
func (m *Mutant) sources(source, dir string) error {
	err := os.CopyFS(filepath.Join(dir, "lib"), os.DirFS(filepath.Join(source, "lib")))
	kernels, _ := filepath.Glob(filepath.Join(source, "*.comp"))
	for i := 0; i < len(kernels) && err == nil; i++ {
		var text []byte
		if text, err = os.ReadFile(kernels[i]); err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(kernels[i])), text, 0o666)
		}
	}
	for i := 0; i < len(m.Edits) && err == nil; i++ {
		err = m.Edits[i].apply(dir)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", m.Name, err)
	}
	return nil
}

func (e *Edit) apply(dir string) error {
	path := filepath.Join(dir, e.File)
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	old := strings.Join(e.Old, "\n")
	if n := strings.Count(string(text), old); n != 1 {
		return fmt.Errorf("%s has the text to be replaced %d times, want once: %q", e.File, n, old)
	}
	return os.WriteFile(path, []byte(strings.Replace(string(text), old, strings.Join(e.New, "\n"), 1)), 0o666)
}
