package main

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/conformance"
)

// TestExclusively has many read a number and write the next one.
func TestExclusively(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "n")
	const writers, times = 8, 25
	var all sync.WaitGroup
	for range writers {
		all.Add(1)
		go func() {
			defer all.Done()
			for range times {
				err := exclusively(path, func() error {
					text, _ := os.ReadFile(path)
					n, _ := strconv.Atoi(string(text))
					return os.WriteFile(path, []byte(strconv.Itoa(n+1)), 0o600)
				})
				if err != nil {
					t.Error(err)
				}
			}
		}()
	}
	all.Wait()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, strconv.Itoa(writers*times), string(text))
	require.ErrorIs(t, exclusively(path, func() error { return os.ErrExist }), os.ErrExist)
}

// TestMergeRecords merges runs of different kernels into one record at the same time: none is
// lost.
func TestMergeRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record.json")
	const writers = 12
	var all sync.WaitGroup
	for i := range writers {
		all.Add(1)
		go func() {
			defer all.Done()
			run := &conformance.Record{Device: "card", Driver: "driver", DriverVersion: "1", Random: []conformance.Random{{Kernel: "k" + strconv.Itoa(i), Problems: 1}}}
			if err := mergeRecord(path, run); err != nil {
				t.Error(err)
			}
		}()
	}
	all.Wait()
	record, err := readRecord(path)
	require.NoError(t, err)
	require.Len(t, record.Random, writers)
}
