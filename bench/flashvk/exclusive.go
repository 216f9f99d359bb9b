package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// exclusively runs f, which reads a file, changes what it read and writes it, while no other process
// does the same to a file of that folder: what the other wrote in between would be lost. The
// folder is made if there is none. On a file system without locks f runs all the same.
func exclusively(path string, f func() error) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	lock, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer lock.Close() // and so unlocks
	for err = syscall.EINTR; err == syscall.EINTR; {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
	}
	if err != nil && err != syscall.ENOSYS && err != syscall.ENOTSUP {
		return fmt.Errorf("%s cannot be locked: %w", dir, err)
	}
	return f()
}
