//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package files

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// locking is the result of an attempt to lock a file.
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

// Exclusively runs f, which changes a file, while no other process does the same to a file of
// that folder. Otherwise one of the changes could be lost. It makes the folder if there is none.
// On a file system without locks f runs all the same.
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
