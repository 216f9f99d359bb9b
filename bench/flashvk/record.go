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

// newRecord returns what a run of the program at commit proves of a device: of the fixed
// suite, of random problems, or of both; nil is what was not run.
func newRecord(caps *vk.Caps, commit string, fixed *selftest.Report, random *trial.Result) *conformance.Record {
	r := conformance.New(caps)
	if fixed != nil {
		for _, m := range fixed.Modules {
			r.Add(conformance.Module{Name: m.Name, SHA256: conformance.Hash(m.SPIRV), Commit: commit, Fixed: m.Right, Wrong: m.Wrong})
		}
	}
	if random != nil {
		for _, m := range random.Modules {
			r.Add(conformance.Module{Name: m.Name, SHA256: m.SHA256, Commit: commit, Random: m.Problems, Wrong: m.Failed})
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

// recordFile returns the path of --record: the file itself, or in a folder that of the
// device and its driver. It fails if another device's record is there, which is found
// out before a run of minutes.
func recordFile(path string, caps *vk.Caps) (string, error) {
	mine := conformance.New(caps)
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, mine.FileName())
	}
	// A device may never end, and its name must not become that of a file.
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
