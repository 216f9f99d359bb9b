// Package cli holds tests of the built program: they start it as a user does, and look at
// what a test inside of package main cannot see. That is the exit status, what is written to
// which stream, pipes that nobody reads any more, full disks, signals, and two processes at
// a time.
package cli
