// Package files writes files that are whole at any moment. A reader sees the old content or the
// new, also when the writer is killed or the disk is full.
//
// The content goes to a temporary file in the same folder. The file is locked as long as its
// process lives, and takes the name at the end. A process that is killed leaves its temporary
// file behind; the next one that writes the same name removes it.
package files

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

// A File is a file that is being written. Commit gives it its name. Close removes it if it was
// not committed.
type File struct {
	*os.File
	path      string
	published bool
}

// The names of temporary files are .NAME.8 hexadecimal digits.tmp. NAME is cut, since a name has
// at most 255 bytes.
const (
	suffix   = ".tmp"
	digits   = 8
	maxBytes = 200
)

// prefix returns the beginning of the names of the temporary files of a name.
func prefix(base string) string {
	return "." + base[:min(len(base), maxBytes)] + "."
}

// Create starts a file for a path. A file that is there stays until Commit, and the new one gets
// its permissions. A link stands for the file that it leads to. A folder, a device or a pipe is
// an error.
func Create(path string) (*File, error) {
	mode := fs.FileMode(0)
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, &fs.PathError{Op: "create", Path: path, Err: fmt.Errorf("is %s, not a regular file", Kind(info.Mode()))}
	default:
		mode = info.Mode().Perm()
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return nil, err
		}
	}
	clear(path)
	f, err := create(path)
	file := &File{File: f, path: path}
	if err == nil && mode != 0 {
		if err = f.Chmod(mode); err != nil {
			file.Close()
		}
	}
	if err != nil {
		return nil, &fs.PathError{Op: "create", Path: path, Err: Bare(err)}
	}
	return file, nil
}

// create makes a temporary file and locks it. Before the lock another process may take the file for
// the file of a killed process and remove it. Then create makes another one.
func create(path string) (*os.File, error) {
	dir, base := filepath.Split(path)
	for {
		name := filepath.Join(dir, fmt.Sprintf("%s%0*x%s", prefix(base), digits, rand.Uint32(), suffix))
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if owned(f) {
			return f, nil
		}
		f.Close()
	}
}

// owned locks a file and reports whether it still has its name. Without locks it has: nobody
// removes a file that cannot be locked.
func owned(f *os.File) bool {
	if lock(f) == held {
		return false
	}
	here, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(f.Name())
	return err == nil && os.SameFile(here, there)
}

// clear removes the temporary files that killed processes left beside a path. It ignores errors,
// since it only tidies up.
func clear(path string) {
	dir, base := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), prefix(base))
		if ok && e.Type().IsRegular() && len(rest) == digits+len(suffix) && strings.HasSuffix(rest, suffix) {
			removeUnlocked(filepath.Join(dir, e.Name()))
		}
	}
}

// removeUnlocked removes a file or a folder, if it may, that no process holds.
func removeUnlocked(path string) {
	if f, err := os.Open(path); err == nil {
		if lock(f) == taken {
			os.RemoveAll(path) // another user's stays
		}
		f.Close()
	}
}

// Commit gives f its name and closes it.
func (f *File) Commit() error {
	defer f.Close()
	if err := f.Publish(); err != nil {
		return err
	}
	return f.File.Close()
}

// Publish gives f its name, and leaves it open and locked, for more to be written.
func (f *File) Publish() error {
	// Without Sync a crash of the machine soon after could leave an empty file.
	if err := f.Sync(); err != nil {
		return f.named(err)
	}
	if err := os.Rename(f.Name(), f.path); err != nil {
		return f.named(err)
	}
	f.published = true
	return nil
}

func (f *File) named(err error) error {
	return &fs.PathError{Op: "write", Path: f.path, Err: Bare(err)}
}

// Write implements io.Writer.
func (f *File) Write(data []byte) (int, error) {
	n, err := f.File.Write(data)
	if err != nil {
		err = f.named(err)
	}
	return n, err
}

// Close closes f and removes it unless it has its name. It may be called again.
func (f *File) Close() error {
	if f == nil {
		return nil
	}
	if err := f.File.Close(); errors.Is(err, fs.ErrClosed) {
		return nil
	} else if f.published {
		return err
	}
	if err := os.Remove(f.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Write replaces the file at path. A path that is no regular file, such as /dev/stdout, is
// written in place.
func Write(path string, data []byte) error {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return os.WriteFile(path, data, 0o666)
	}
	f, err := Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Commit()
}

// A Dir is a folder of temporary files. TempDir removes the folders that killed processes left.
type Dir struct {
	Path string
	f    *os.File
}

// TempDir makes a folder for temporary files below a folder. Its name begins with prefix.
func TempDir(prefix string) (*Dir, error) {
	entries, _ := os.ReadDir(os.TempDir())
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) && e.IsDir() {
			removeUnlocked(filepath.Join(os.TempDir(), e.Name()))
		}
	}
	for {
		path, err := os.MkdirTemp("", prefix)
		if err != nil {
			return nil, err
		}
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, errors.Join(err, os.Remove(path))
		}
		if owned(f) {
			return &Dir{path, f}, nil
		}
		f.Close()
	}
}

// Close removes the folder.
func (d *Dir) Close() error {
	return errors.Join(os.RemoveAll(d.Path), d.f.Close())
}

// OpenLocked opens or makes a file that this process alone reads and writes until it is closed.
// Its errors are "path: reason": the path is no regular file, or another process has it open in
// this way.
func OpenLocked(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, Bare(err))
		}
		info, err := f.Stat()
		switch {
		case err != nil:
		case !info.Mode().IsRegular(): // it may never end
			err = fmt.Errorf("is %s, not a regular file", Kind(info.Mode()))
		case lock(f) == held:
			err = errors.New("another process is writing it: name another file, or wait")
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("%s: %w", path, Bare(err))
		}
		if there, err := os.Stat(path); err == nil && os.SameFile(info, there) {
			return f, nil
		}
		f.Close() // another process replaced the file before it was locked
	}
}

// Exclusively runs f, which changes a file, while no other process does the same to a file of
// that folder. Otherwise one of the changes could be lost. It makes the folder if there is none.
// On a file system or a system without locks f runs all the same.
func Exclusively(path string, f func() error) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer folder.Close() // and so unlocks
	if err := lockFolder(folder); err != nil {
		return fmt.Errorf("%s cannot be locked: %w", dir, err)
	}
	return f()
}

// Same reports whether two paths lead to one file, which need not exist, whatever they are called:
// through links, or from other folders. "" is no path, and a device or a pipe is no file.
func Same(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	a, b = target(a), target(b)
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	if errX == nil && errY == nil {
		return os.SameFile(x, y) && x.Mode().IsRegular()
	}
	dirA, baseA := filepath.Split(a)
	dirB, baseB := filepath.Split(b)
	if errX == nil || errY == nil || baseA != baseB {
		return false
	}
	x, errX = os.Stat(cmp.Or(dirA, "."))
	y, errY = os.Stat(cmp.Or(dirB, "."))
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// target follows links to their end, where there may be no file.
func target(path string) string {
	const most = 40 // as many as systems follow
	for range most {
		to, err := os.Readlink(path)
		if err != nil {
			break // it is no link
		}
		if !filepath.IsAbs(to) {
			dir, _ := filepath.Split(path)
			to = dir + to // Join would resolve .. by a link's name, not by its target
		}
		path = to
	}
	return path
}

// maxResults is the most bytes of a file of results.
const maxResults = 64 << 20

// Results returns a reader of a file of results, which may be a device or a pipe without an end: it
// fails after 64 MiB.
func Results(r io.Reader) io.Reader { return io.MultiReader(io.LimitReader(r, maxResults), tooLong{r}) }

type tooLong struct{ r io.Reader }

// Read implements io.Reader, behind the last byte that there may be.
func (x tooLong) Read(p []byte) (int, error) {
	if n, err := x.r.Read(p); n == 0 {
		return 0, err
	}
	return 0, fmt.Errorf("it has more than %d bytes, the most of a file of results", maxResults)
}

// Bare returns the reason in an error of package os, without the operation and the name.
func Bare(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	var l *os.LinkError
	if errors.As(err, &l) {
		return l.Err
	}
	return err
}

// Kind names what a path is, if it is not a regular file.
func Kind(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeDevice != 0:
		return "a device"
	case mode&fs.ModeNamedPipe != 0:
		return "a pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	}
	return "special"
}
