//go:build !unix

package peer

import (
	"os"
	"os/exec"
)

// group does nothing on these systems.
func group(*exec.Cmd) {}

// killGroup kills the first process of a group alone on these systems.
func killGroup(p *os.Process) { p.Kill() }
