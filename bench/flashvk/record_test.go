package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/bench/selftest"
	"github.com/flashvk/flashvk/internal/bench/trial"
	"github.com/flashvk/flashvk/internal/conformance"
	"github.com/flashvk/flashvk/vk"
)

// TestNewRecord makes a record of a made-up fixed suite and made-up random problems.
func TestNewRecord(t *testing.T) {
	caps := vk.Caps{Name: "NVIDIA H200", Type: vk.DiscreteGPU, VendorID: 0x10de, DriverName: "NVIDIA", DriverInfo: "580.159.04"}
	code := []byte{1, 2, 3}
	fixed := &selftest.Report{Modules: trial.Tally{{ModuleInfo: vk.ModuleInfo{Name: "a", SPIRV: code}, Problems: map[string]int{selftest.Suite: 4}, Failed: 1}}}
	random := &trial.Result{
		Seed: 7, Kernels: map[string]int{"gemm": 5, "mlp": 2}, Failures: []trial.Failure{{Kernel: "mlp"}},
		Modules: trial.Tally{
			{ModuleInfo: vk.ModuleInfo{Name: "a", SPIRV: code}, Problems: map[string]int{"gemm": 3}},
			{ModuleInfo: vk.ModuleInfo{Name: "b"}, Problems: map[string]int{"gemm": 5, "mlp": 1}, Failed: 1},
		},
	}
	r := newRecord(&caps, "8f5bb0a", fixed, random)
	require.Equal(t, "hopper", r.Family)
	require.Equal(t, []conformance.Module{
		{Name: "a", SHA256: conformance.Hash(code), Verdict: conformance.Fail, Commit: "8f5bb0a", Fixed: 4, Random: map[string]int{"gemm": 3}, Wrong: 1},
		{Name: "b", SHA256: conformance.Hash(nil), Verdict: conformance.Fail, Commit: "8f5bb0a", Random: map[string]int{"gemm": 5, "mlp": 1}, Wrong: 1},
	}, r.Modules)
	require.Equal(t, []conformance.Random{
		{Kernel: "gemm", Seed: 7, Commit: "8f5bb0a", Problems: 5}, {Kernel: "mlp", Seed: 7, Commit: "8f5bb0a", Problems: 2, Failed: 1},
	}, r.Random)
	require.Empty(t, newRecord(&caps, "", nil, nil).Modules)

	dir := t.TempDir()
	path, err := recordFile(dir, &caps)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "nvidia-h200-580.159.04.json"), path)
	require.NoError(t, mergeRecord(path, r))
	first, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, mergeRecord(path, r))
	second, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(first), string(second), "the same run twice is not one run")

	other := caps
	other.Name = "NVIDIA H100"
	_, err = recordFile(path, &other)
	require.ErrorContains(t, err, "a record of NVIDIA H200")
	require.NoError(t, os.WriteFile(path, []byte("{}"), 0o666))
	_, err = recordFile(path, &caps)
	require.ErrorContains(t, err, "not a record")
	require.ErrorContains(t, mergeRecord(path, r), "not a record")
	require.NoError(t, os.WriteFile(path, nil, 0o666)) // as mktemp leaves it
	require.NoError(t, mergeRecord(path, r))
}

// TestSelftestRecord runs the program twice, on the cheapest cases, and wants one record.
func TestSelftestRecord(t *testing.T) {
	caps, dev := concurrent(t)
	path := filepath.Join(t.TempDir(), "record.json")
	var args []string
	var r *conformance.Record
	for budget := 2 * time.Second; ; budget *= 4 { // a machine with other work to do needs longer
		args = []string{"selftest", dev, "--impl=scalar", "--budget", budget.String(), "--record", path}
		code, stdout, stderr := flashvk(args...)
		require.Zero(t, code, stderr)
		require.Contains(t, stdout, "scalar")
		require.Contains(t, stderr, "this program does not know its commit") // go test stamps none
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		r, err = conformance.Parse(text)
		require.NoError(t, err)
		if bytes.Contains(text, []byte("attention_fwd_scalar.f32")) || budget > time.Minute {
			break
		}
	}
	require.Equal(t, caps.Name, r.Device)
	require.Equal(t, caps.Type == vk.CPU, !r.GPU())
	modules, err := conformance.Modules()
	require.NoError(t, err)
	committed := map[string]string{}
	for _, m := range modules {
		committed[m.Name] = m.SHA256
	}
	names := map[string]bool{}
	for _, m := range r.Modules {
		require.Equal(t, conformance.Pass, m.Verdict, m.Name)
		require.Equal(t, committed[m.Name], m.SHA256, m.Name)
		require.Positive(t, m.Fixed)
		names[m.Name] = true
	}
	require.True(t, names["micro_copy"] && names["attention_fwd_scalar.f32"], "modules are %v", names)

	code, stdout, stderr := flashvk(append(args, "--share")...)
	require.Zero(t, code, stderr)
	for _, want := range []string{"**" + caps.Name, "| path | pass | type | verdict |", "<summary>Capabilities</summary>", "   matrices ", "```json\n{\n\t\"device\": ", `"name":"micro_copy"`, "| fma f32 | "} {
		require.Contains(t, stdout, want)
	}
	home, err := os.UserHomeDir()
	require.NoError(t, err)
	host, err := os.Hostname()
	require.NoError(t, err)
	here, err := os.Getwd()
	require.NoError(t, err)
	for _, private := range []string{home, host, here, t.TempDir()} {
		if len(private) > 3 { // "/root" and "box", but not "/"
			require.False(t, strings.Contains(stdout, private), "what is shared names %s", private)
		}
	}
}

func TestSelftestUsage(t *testing.T) {
	for _, c := range []struct {
		want string
		args []string
	}{
		{"--share is Markdown", []string{"--share", "--format=table"}},
		{"--record needs the name", []string{"--record="}},
		{"--impl auto is not a path", []string{"--impl=auto"}},
		{"not one of table, markdown", []string{"--format=csv"}},
		{"--budget 0s is not positive", []string{"--budget=0s"}},
	} {
		code, stdout, stderr := flashvk(append([]string{"selftest"}, c.args...)...)
		require.Equal(t, exitUsage, code, stderr)
		require.Empty(t, stdout)
		require.Contains(t, stderr, c.want)
	}
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
