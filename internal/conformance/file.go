package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/internal/files"
	"github.com/flashvk/flashvk/internal/text"
)

// Read returns the records in a folder, by the names of their files. A file that is
// not named as Record.FileName says is an error, so that there is one for each device
// and driver.
func Read(dir fs.FS) (list []*Record, err error) {
	names, err := fs.Glob(dir, "*.json")
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
	return list, err
}

// File returns the path of the record of mine: the given file, or in a folder the file of the device
// and its driver. It is an error if the file has another device's record. A run takes minutes, so
// File is called before.
func File(path string, mine *Record) (string, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, mine.FileName())
	}
	// Reading a device may never end, and a rename must not replace it by a file.
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return "", errors.New("it is not a regular file")
	}
	old, err := ReadFile(path)
	if err == nil && old != nil {
		err = SameDevice(old, mine)
	}
	return path, err
}

// ReadFile returns the record of a file, nil if there is no file or it is empty.
func ReadFile(path string) (*Record, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(bytes.TrimSpace(text)) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return Parse(text)
}

// FromIssue returns the record in what flashvk selftest --share printed.
func FromIssue(issue string) (*Record, error) {
	record := text.Unfold(issue, text.FoldRecord)
	if record == "" {
		return nil, fmt.Errorf("conformance: no fold %s: not the whole output of flashvk selftest --share", text.FoldRecord)
	}
	return Parse([]byte(record))
}

// MergeFile merges a run into a file, which may be missing, and returns what the file has then.
func MergeFile(path string, run *Record) (*Record, error) {
	err := files.Exclusively(path, func() error {
		old, err := ReadFile(path)
		if err == nil && old != nil {
			run, err = Merge(old, run)
		}
		if err != nil {
			return err
		}
		return files.Write(path, Format(run))
	})
	return run, err
}

// Format returns the text of a record, JSON with a module or a run on each line, so that
// two versions of a file differ in the lines that say something else.
func Format(r *Record) []byte {
	r.sort()
	head := *r
	head.Modules, head.Random = nil, nil
	text, err := json.MarshalIndent(head, "", "\t")
	if err != nil {
		panic("conformance: a record has no JSON")
	}
	lists := strings.NewReplacer(`"modules": null`, `"modules": `+lines(r.Modules), `"random": null`, `"random": `+lines(r.Random))
	return []byte(lists.Replace(string(text)) + "\n")
}

// lines returns the JSON of a list with an element on each line.
func lines[T any](list []T) string {
	if len(list) == 0 {
		return "[]"
	}
	text, err := json.Marshal(list)
	if err != nil {
		panic("conformance: a record has no JSON")
	}
	text = bytes.ReplaceAll(text[1:len(text)-1], []byte("},{"), []byte("},\n\t\t{"))
	return "[\n\t\t" + string(text) + "\n\t]"
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

// SameDevice returns why a and b cannot be one record, or nil: they are of another device,
// or of another driver or version of it.
func SameDevice(a, b *Record) error {
	if a.Device != b.Device || a.Type != b.Type || a.VendorID != b.VendorID || a.DeviceID != b.DeviceID ||
		a.Driver != b.Driver || a.DriverVersion != b.DriverVersion {
		return fmt.Errorf("conformance: a record of %v and one of %v do not merge", a, b)
	}
	return nil
}

// Merge returns what is known after the run b, before which a was. It may change both.
//
// Module by module: other SPIR-V in b replaces the SPIR-V of a. Of the same SPIR-V the
// counts are the larger ones, not the sums, so that merging a run twice is merging it
// once. If it was wrong in one of them it is wrong, until runs of other commits, with nothing
// wrong and no wrong one among them, have together run at least as many random problems of every
// kernel, some of the fixed suite, and as much in all, what was wrong included (Module.Since). There
// the problems of a kernel are added up if a knows none of the seeds that b drew them with.
// Without "another commit" a failure that comes and goes could be repeated until it goes; with none
// at all, the mending of what is not SPIR-V, such as a stride or a missing barrier between two
// kernels, would never show.
//
// A run of random problems in b replaces a run of a with the same kernel and seed, if
// it is of another commit; else the larger counts hold.
func Merge(a, b *Record) (*Record, error) {
	if err := SameDevice(a, b); err != nil {
		return nil, err
	}
	added := map[string]bool{}
	for _, r := range b.Random {
		known := slices.ContainsFunc(a.Random, func(old Random) bool { return old.Kernel == r.Kernel && old.Seed == r.Seed })
		before, more := added[r.Kernel]
		added[r.Kernel] = !known && (before || !more)
	}
	// The Vulkan version and the family of b are the program's, and may be newer.
	for _, old := range a.Modules {
		if m := b.module(old.Name); m == nil {
			b.Modules = append(b.Modules, old)
		} else if m.SHA256 == old.SHA256 {
			*m = mergeModule(old, *m, added)
		}
	}
	for _, old := range a.Random {
		i := slices.IndexFunc(b.Random, func(r Random) bool { return r.Kernel == old.Kernel && r.Seed == old.Seed })
		if i < 0 {
			b.Random = append(b.Random, old)
		} else if r := &b.Random[i]; r.Commit == old.Commit {
			r.Problems, r.Failed = max(r.Problems, old.Problems), max(r.Failed, old.Failed)
		}
	}
	b.sort()
	return b, nil
}

// mergeModule merges runs of the same SPIR-V, b the newer one. Added has the kernels whose random problems
// in b are others than those in a.
func mergeModule(a, b Module, added map[string]bool) Module {
	if a.Wrong == 0 || b.Wrong > 0 || a.Commit == "" || b.Commit == "" || a.Commit == b.Commit {
		since := a.Since
		if b.Wrong > 0 {
			since = b.Since
		}
		a = largest(a, b)
		a.Since = since
		return a
	}
	since := b
	if a.Since != nil {
		before := maps.Clone(a.Since.Random)
		since = largest(*a.Since, b)
		for kernel, n := range b.Random {
			if added[kernel] {
				since.Random[kernel] = before[kernel] + n
			}
		}
	}
	if since.covers(&a) {
		return since // its commit, too: it is the first that is right
	}
	a.Since = &since
	return a
}

// largest returns a with the larger counts of both.
func largest(a, b Module) Module {
	a.Fixed, a.Wrong = max(a.Fixed, b.Fixed), max(a.Wrong, b.Wrong)
	for kernel, n := range b.Random {
		if a.Random == nil {
			a.Random = map[string]int{}
		}
		a.Random[kernel] = max(a.Random[kernel], n)
	}
	a.conclude()
	return a
}

// covers reports whether m ran at least what old did: random problems of each kernel, and all in all.
// Of the fixed suite it ran some: tables may have come to choose another module for the rest.
func (m *Module) covers(old *Module) bool {
	for kernel, n := range old.Random {
		if m.Random[kernel] < n {
			return false
		}
	}
	return min(1, m.Fixed) >= min(1, old.Fixed) && m.ran() >= old.ran()+old.Wrong
}
