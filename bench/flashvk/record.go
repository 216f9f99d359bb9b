package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/flashvk/flashvk/internal/bench/selftest"
	"github.com/flashvk/flashvk/internal/bench/trial"
	"github.com/flashvk/flashvk/internal/conformance"
	"github.com/flashvk/flashvk/internal/files"
	"github.com/flashvk/flashvk/vk"
)

// newRecord returns what a run of the program at commit proves of a device. Fixed and random are
// nil if they were not run.
func newRecord(caps *vk.Caps, commit string, fixed *selftest.Report, random *trial.Result) *conformance.Record {
	r := conformance.New(caps)
	if fixed != nil {
		for _, m := range fixed.Modules {
			r.Add(conformance.Module{Name: m.Name, SHA256: conformance.Hash(m.SPIRV), Commit: commit, Fixed: m.Problems[selftest.Suite], Wrong: m.Failed})
		}
	}
	if random != nil {
		for _, m := range random.Modules {
			r.Add(conformance.Module{Name: m.Name, SHA256: conformance.Hash(m.SPIRV), Commit: commit, Random: m.Problems, Wrong: m.Failed})
		}
		failed := map[string]int{}
		for _, f := range random.Failures {
			failed[f.Kernel]++
		}
		for kernel, n := range random.Kernels {
			r.AddRandom(conformance.Random{Kernel: kernel, Seed: random.Seed, Commit: commit, Problems: n, Failed: failed[kernel]})
		}
	}
	return r
}

// recordFile returns the path of --record: the file, or in a folder the file of the device and
// its driver. It fails if the file has another device's record. A run takes minutes, so it is
// called before.
func recordFile(path string, caps *vk.Caps) (string, error) {
	mine := conformance.New(caps)
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, mine.FileName())
	}
	// Reading a device may never end, and a rename must not replace it by a file.
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return "", fmt.Errorf("--record %s: it is not a regular file", path)
	}
	old, err := readRecord(path)
	if err == nil && old != nil {
		err = conformance.SameDevice(old, mine)
	}
	if err != nil {
		return "", fmt.Errorf("--record %s: %w", path, err)
	}
	return path, nil
}

// readRecord returns the record of a file, nil if there is no file or it is empty.
func readRecord(path string) (*conformance.Record, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(bytes.TrimSpace(text)) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return conformance.Parse(text)
}

// mergeRecord merges a run into a file, which may be missing.
func mergeRecord(path string, run *conformance.Record) error {
	return files.Exclusively(path, func() error {
		old, err := readRecord(path)
		if err != nil {
			return fmt.Errorf("--record %s: %w", path, err)
		}
		if old != nil {
			if run, err = conformance.Merge(old, run); err != nil {
				return err
			}
		}
		return conformance.WriteFile(path, run)
	})
}
