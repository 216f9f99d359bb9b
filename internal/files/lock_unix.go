//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package files

import (
	"os"
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

// lockFolder waits for the lock of a folder, which its Close gives back.
func lockFolder(folder *os.File) error {
	err := flock(folder, syscall.LOCK_EX)
	if err == syscall.ENOSYS || err == syscall.ENOTSUP || err == syscall.ENOLCK {
		return nil
	}
	return err
}
