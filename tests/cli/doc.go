// Package cli tests the built program. Its tests start it as a user does, and check what tests of
// package main cannot see: the exit status, the content of each stream, pipes without a reader,
// full disks, signals, and two processes at a time.
package cli
