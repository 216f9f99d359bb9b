//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package files

import (
	"os"
	"path/filepath"
)

type locking int

const (
	taken locking = iota
	held
	none
)

// lock locks nothing on these systems.
func lock(*os.File) locking { return none }

// Exclusively runs f. On these systems it excludes nobody.
func Exclusively(path string, f func() error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	return f()
}
