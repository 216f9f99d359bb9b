//go:build unix

package peer

import (
	"os"
	"os/exec"
	"syscall"
)

// group makes a command the first of a group of processes.
func group(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// killGroup kills all that are left of it. An error says that there is nothing.
func killGroup(p *os.Process) { syscall.Kill(-p.Pid, syscall.SIGKILL) }
