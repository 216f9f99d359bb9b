package compile

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

const manifestName = "manifest.txt"

// Generate makes dir/spv of the shader folder dir hold exactly the modules of the
// rows and the manifest. It compiles every row, or with changed only those whose
// module is not what the manifest of the same compiler says, which a change of
// this package escapes. If a row does not compile, nothing is written and the
// error names every problem.
func Generate(dir string, rows []Row, c *Compiler, changed bool) error {
	code, stale := make([][]byte, len(rows)), []Row(nil)
	old, err := readManifest(dir)
	for i, r := range rows {
		if changed && err == nil && old.Compiler == c.Version && checkRow(dir, r, old, nil) == nil {
			code[i], _ = os.ReadFile(modulePath(dir, r.Name))
		} else {
			stale = append(stale, r)
		}
	}
	fresh, err := c.Compile(dir, stale...)
	if err != nil {
		return err
	}
	m := &Manifest{Compiler: c.Version, Entries: map[string]Entry{}}
	if err := os.MkdirAll(filepath.Join(dir, "spv"), 0o777); err != nil {
		return err
	}
	for i, r := range rows {
		if code[i] == nil {
			code[i], fresh = fresh[0], fresh[1:]
		}
		source, err := SourceHash(dir, r)
		if err != nil {
			return err
		}
		m.Entries[r.Name] = Entry{Source: source, SPIRV: Hash(code[i])}
		if err := writeChanged(modulePath(dir, r.Name), code[i]); err != nil {
			return err
		}
	}
	orphans, err := orphans(dir, rows)
	if err != nil {
		return err
	}
	for _, path := range orphans {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return writeChanged(filepath.Join(dir, "spv", manifestName), m.Format())
}

func modulePath(dir, name string) string { return filepath.Join(dir, "spv", name+".spv") }

func readManifest(dir string) (*Manifest, error) {
	text, err := os.ReadFile(filepath.Join(dir, "spv", manifestName))
	if err != nil {
		return nil, err
	}
	return ParseManifest(text)
}

// Check compares dir/spv with the rows and their sources and returns what is
// wrong, or nothing. With a compiler it compiles each row again, and wants the
// same bytes if it is the compiler of the manifest; without one (c == nil), the
// manifest's hashes decide.
func Check(dir string, rows []Row, c *Compiler) []error {
	m, err := readManifest(dir)
	if err != nil {
		return []error{err}
	}
	var errs []error
	code := make([][]byte, len(rows))
	if c != nil {
		if code, err = c.Compile(dir, rows...); err != nil {
			errs = append(errs, err)
		}
	}
	for i, r := range rows {
		if c != nil && c.Version != m.Compiler {
			code[i] = nil
		}
		if err := checkRow(dir, r, m, code[i]); err != nil {
			errs = append(errs, err)
		}
	}
	for name := range m.Entries {
		if !slices.ContainsFunc(rows, func(r Row) bool { return r.Name == name }) {
			errs = append(errs, fmt.Errorf("%s: %s has a line, but no row in variants.go", manifestName, name))
		}
	}
	paths, err := orphans(dir, rows)
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
	code, err := os.ReadFile(modulePath(dir, r.Name))
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

// orphans returns the .spv files of the folder that no row makes.
func orphans(dir string, rows []Row) ([]string, error) {
	paths, err := filepath.Glob(modulePath(dir, "*"))
	return slices.DeleteFunc(paths, func(path string) bool {
		return slices.ContainsFunc(rows, func(r Row) bool { return modulePath(dir, r.Name) == path })
	}), err
}

// writeChanged writes data to path unless that is what it holds: an unchanged
// file keeps its time stamp, and whatever embeds it needs no rebuild.
func writeChanged(path string, data []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	return os.WriteFile(path, data, 0o666)
}
