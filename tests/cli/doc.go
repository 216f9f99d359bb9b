// Package cli tests the built program. Its tests start it as a user does, and check what a test
// inside of package main cannot see: the exit status, what is written to which stream, pipes
// without a reader, full disks, signals, and two processes at a time.
package cli
