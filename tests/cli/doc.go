// Package cli tests the built program. Scripts in testdata start it as a user does, and check exit
// statuses, streams, files, signals, and two processes at a time.
package cli
