//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package files

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// What came of an attempt to lock a file.
type locking int

const (
	taken locking = iota // by this process, until it closes the file or ends
	held                 // by another
	none                 // the file system has no locks
)

// lock tries to lock a file or folder.
func lock(f *os.File) locking {
	switch err := flock(f, syscall.LOCK_EX|syscall.LOCK_NB); err {
	case nil:
		return taken
	case syscall.EWOULDBLOCK:
		return held
	}
	return none
}

func flock(f *os.File, how int) (err error) {
	for err = syscall.EINTR; err == syscall.EINTR; {
		err = syscall.Flock(int(f.Fd()), how)
	}
	return err
}

// Lock locks f until it is closed and reports whether no other process has it locked. On a
// file system without locks nobody has.
func Lock(f *os.File) bool { return lock(f) != held }

// Exclusively runs f, which reads a file, changes what it read and writes it, while no other process
// does the same to a file of that folder: what the other wrote in between would be lost. The
// folder is made if there is none. On a file system without locks f runs all the same.
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
	if err := flock(folder, syscall.LOCK_EX); err != nil && err != syscall.ENOSYS && err != syscall.ENOTSUP && err != syscall.ENOLCK {
		return fmt.Errorf("%s cannot be locked: %w", dir, err)
	}
	return f()
}
