package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/conformance"
	"github.com/flashvk/flashvk/internal/files"
)

// Records returns the committed records, by the names of their files.
func Records() ([]*Record, error) { return Read(conformance.Records) }

// Read returns the records in a folder, by the names of their files. A file that is
// not named as Record.FileName says is an error, so that there is one for each device
// and driver.
func Read(dir fs.FS) ([]*Record, error) {
	names, err := fs.Glob(dir, "*.json")
	if err != nil {
		return nil, err
	}
	var list []*Record
	for _, name := range names {
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return nil, fmt.Errorf("conformance: %w", err)
		}
		r, err := Parse(text)
		if err != nil {
			return nil, fmt.Errorf("conformance: %s: %w", name, err)
		}
		if want := r.FileName(); name != want {
			return nil, fmt.Errorf("conformance: %s is the record of %v: it should be named %s", name, r, want)
		}
		list = append(list, r)
	}
	return list, nil
}

// WriteFile writes r to the file at path, making its folder. Whoever opens the file
// sees the old content or the new, whole.
func WriteFile(path string, r *Record) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("conformance: %w", err)
		}
	}()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	return files.Write(path, Format(r))
}

// Format returns the text of a record, JSON with a module or a run on each line, so that
// two versions of a file differ in the lines that say something else.
func Format(r *Record) []byte {
	sorted := *r
	sorted.Modules, sorted.Random = slices.Clone(r.Modules), slices.Clone(r.Random)
	sorted.sort()
	head := sorted
	head.Modules, head.Random = []Module{}, []Random{}
	text := strings.TrimSuffix(string(encode(head, "\t")), "\t\"modules\": [],\n\t\"random\": []\n}\n")
	var b bytes.Buffer
	b.WriteString(text)
	writeLines(&b, "modules", sorted.Modules, ",\n")
	writeLines(&b, "random", sorted.Random, "\n}\n")
	return b.Bytes()
}

// writeLines writes a field that is a list with an element on each line.
func writeLines[T any](b *bytes.Buffer, name string, list []T, end string) {
	fmt.Fprintf(b, "\t%q: [", name)
	for i, x := range list {
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(b, "\n\t\t%s", bytes.TrimSpace(encode(x, "")))
	}
	if len(list) > 0 {
		b.WriteString("\n\t")
	}
	b.WriteString("]" + end)
}

// encode returns the JSON of a value that always has one.
func encode(x any, indent string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(x); err != nil {
		panic("conformance: a record has no JSON")
	}
	return b.Bytes()
}

// Parse reads the text of a record. A field that it does not know is an error: merging
// would lose it.
func Parse(text []byte) (*Record, error) {
	r := new(Record)
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(r); err != nil {
		return nil, fmt.Errorf("not a record: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("not a record: something follows it")
	}
	if r.Device == "" || r.DriverVersion == "" {
		return nil, errors.New("not a record: device or driver_version is missing")
	}
	seen := map[string]bool{}
	for i := range r.Modules {
		m := &r.Modules[i]
		want := *m
		want.conclude()
		switch {
		case m.Name == "" || len(m.SHA256) != 64:
			return nil, fmt.Errorf("module %q has sha256 %q, not 64 digits", m.Name, m.SHA256)
		case seen[m.Name]:
			return nil, fmt.Errorf("module %s is there twice", m.Name)
		case m.Verdict != want.Verdict:
			return nil, fmt.Errorf("module %s has verdict %q with %d wrong", m.Name, m.Verdict, m.Wrong)
		case m.ran()+m.Wrong == 0:
			return nil, fmt.Errorf("module %s has a verdict, but nothing ran it", m.Name)
		case m.Since != nil && (m.Wrong == 0 || m.Since.Wrong > 0 || m.Since.SHA256 != m.SHA256 || m.Since.Since != nil):
			return nil, fmt.Errorf("module %s has runs since it was wrong that are none", m.Name)
		}
		seen[m.Name] = true
	}
	r.sort()
	return r, nil
}
