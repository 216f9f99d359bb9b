//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package files

import "os"

type locking int

const (
	taken locking = iota
	held
	none
)

// lock and lockFolder lock nothing on these systems.
func lock(*os.File) locking { return none }

func lockFolder(*os.File) error { return nil }
