package compile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
)

const manifestName = "manifest.txt"

// Generate makes dir/spv of the shader folder dir hold exactly the modules of the
// rows and the manifest. It compiles every row, or with changed only those whose
// module is not what the manifest of the same compiler says, which a change of
// this package escapes. If a row does not compile, nothing is written and the
// error names every problem.
func Generate(dir string, rows []Row, c *Compiler, changed bool) error {
	spv := filepath.Join(dir, "spv")
	kept := make([][]byte, len(rows))
	if changed {
		kept = current(dir, rows, c)
	}
	code, errs := compileAll(dir, rows, kept, c)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	m := &Manifest{Compiler: c.Version, Entries: map[string]Entry{}}
	if err := os.MkdirAll(spv, 0o777); err != nil {
		return err
	}
	for i, r := range rows {
		source, err := SourceHash(dir, r)
		if err != nil {
			return err
		}
		m.Entries[r.Name] = Entry{Source: source, SPIRV: Hash(code[i])}
		if err := writeChanged(filepath.Join(spv, r.Name+".spv"), code[i]); err != nil {
			return err
		}
	}
	orphans, err := orphans(spv, rows)
	if err != nil {
		return err
	}
	for _, path := range orphans {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return writeChanged(filepath.Join(spv, manifestName), m.Format())
}

// Check compares dir/spv with the rows and their sources and returns what is
// wrong, or nothing. With a compiler it compiles each row again, and wants the
// same bytes if it is the compiler of the manifest; without one (c == nil), the
// manifest's hashes decide.
func Check(dir string, rows []Row, c *Compiler) []error {
	spv := filepath.Join(dir, "spv")
	text, err := os.ReadFile(filepath.Join(spv, manifestName))
	if err != nil {
		return []error{err}
	}
	m, err := ParseManifest(text)
	if err != nil {
		return []error{err}
	}
	var errs []error
	var code [][]byte
	if c != nil {
		code, errs = compileAll(dir, rows, make([][]byte, len(rows)), c)
	}
	for i, r := range rows {
		var fresh []byte
		if c != nil && c.Version == m.Compiler {
			fresh = code[i]
		}
		if err := checkRow(dir, r, m, fresh); err != nil {
			errs = append(errs, err)
		}
	}
	for name := range m.Entries {
		if !slices.ContainsFunc(rows, func(r Row) bool { return r.Name == name }) {
			errs = append(errs, fmt.Errorf("%s: %s has a line, but no row in variants.go", manifestName, name))
		}
	}
	paths, err := orphans(spv, rows)
	if err != nil {
		errs = append(errs, err)
	}
	for _, path := range paths {
		errs = append(errs, fmt.Errorf("%s is an orphan: no row in variants.go makes it", filepath.Base(path)))
	}
	return errs
}

// checkRow checks one committed module; fresh is its SPIR-V of just now, or nil.
func checkRow(dir string, r Row, m *Manifest, fresh []byte) error {
	code, err := os.ReadFile(filepath.Join(dir, "spv", r.Name+".spv"))
	if err != nil {
		return err
	}
	source, err := SourceHash(dir, r)
	if err != nil {
		return err
	}
	entry, ok := m.Entries[r.Name]
	switch {
	case !ok:
		return fmt.Errorf("%s: %s has no line", manifestName, r.Name)
	case entry.Source != source:
		return fmt.Errorf("%s.spv is stale: %s, its includes or its flags have changed since it was made", r.Name, r.File)
	case entry.SPIRV != Hash(code):
		return fmt.Errorf("%s.spv is not the file that its manifest line describes", r.Name)
	case fresh != nil && !bytes.Equal(code, fresh):
		return fmt.Errorf("%s.spv is not what %s compiles to", r.Name, r.File)
	}
	return nil
}

// current returns the modules that are what the manifest says of their sources and
// of the compiler, nil for the others.
func current(dir string, rows []Row, c *Compiler) [][]byte {
	code := make([][]byte, len(rows))
	spv := filepath.Join(dir, "spv")
	text, err := os.ReadFile(filepath.Join(spv, manifestName))
	if err != nil {
		return code
	}
	m, err := ParseManifest(text)
	if err != nil || m.Compiler != c.Version {
		return code
	}
	for i, r := range rows {
		if checkRow(dir, r, m, nil) == nil {
			code[i], _ = os.ReadFile(filepath.Join(spv, r.Name+".spv"))
		}
	}
	return code
}

// compileAll compiles the rows side by side that kept has no module of: one module
// per row, nil where an error was met. Rows that fail alike (one file, several types)
// give one error.
func compileAll(dir string, rows []Row, kept [][]byte, c *Compiler) ([][]byte, []error) {
	code := slices.Clone(kept)
	failed := make([]error, len(rows))
	var wg sync.WaitGroup
	slots := make(chan struct{}, runtime.NumCPU())
	for i, r := range rows {
		if code[i] != nil {
			continue
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			slots <- struct{}{}
			defer func() { <-slots }()
			code[i], failed[i] = c.Compile(dir, r)
		}()
	}
	wg.Wait()
	var errs []error
	seen := map[string]bool{}
	for _, err := range failed {
		if err != nil && !seen[err.Error()] {
			seen[err.Error()] = true
			errs = append(errs, err)
		}
	}
	return code, errs
}

// orphans returns the .spv files in the folder spv that no row makes.
func orphans(spv string, rows []Row) ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(spv, "*.spv"))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(paths, func(path string) bool {
		name := strings.TrimSuffix(filepath.Base(path), ".spv")
		return slices.ContainsFunc(rows, func(r Row) bool { return r.Name == name })
	}), nil
}

// writeChanged writes data to path unless that is what it holds: an unchanged
// file keeps its time stamp, and whatever embeds it needs no rebuild.
func writeChanged(path string, data []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	return os.WriteFile(path, data, 0o666)
}
