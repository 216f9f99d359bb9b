package cli

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// scripts returns the folder of tools/peers; in a bundle it lies elsewhere.
func scripts(t *testing.T) string {
	t.Helper()
	for _, dir := range []string{"../../tools/peers", "../../peers", "../peers", "../../../peers"} {
		if _, err := os.Stat(filepath.Join(dir, "torch_peer.py")); err == nil {
			dir, err = filepath.Abs(dir)
			require.NoError(t, err)
			return dir
		}
	}
	vktest.Require(t, "torch", errors.New("tools/peers is not here"))
	return ""
}

// python runs Python with the modules of tools/peers. Importing PyTorch takes seconds, and a minute
// on a machine with other work.
func python(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "python3", append([]string{"-B"}, args...)...)
	cmd.Env, cmd.WaitDelay = append(os.Environ(), "PYTHONPATH="+scripts(t)), time.Second
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errOut.String()
}

// torch skips the test without PyTorch, or without a GPU that it sees, unless FLASHVK_REQUIRE names
// torch. It returns the folder of the scripts.
func torch(t *testing.T, gpu bool) string {
	t.Helper()
	dir := scripts(t)
	if _, err := exec.LookPath("python3"); err != nil {
		vktest.Require(t, "torch", err)
	}
	_, stdout, stderr := python(t, "-c", "import torch; print('CUDA' if torch.cuda.is_available() else 'CPU')")
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	switch device := strings.TrimSpace(stdout); {
	case device == "":
		vktest.Require(t, "torch", fmt.Errorf("python3: %s", lines[len(lines)-1]))
	case gpu && device != "CUDA":
		vktest.Require(t, "torch", errors.New("PyTorch sees no CUDA device"))
	}
	return dir
}

// launcher writes a program that runs flashvk on the device of the tests, for scripts to start.
func launcher(t *testing.T, dev string) string {
	t.Helper()
	words := prepare(t).cmd.Args
	for i, w := range words {
		words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	path := filepath.Join(t.TempDir(), "flashvk")
	text := "#!/bin/sh\nexec " + strings.Join(words, " ") + ` "$@" '` + dev + "'\n"
	require.NoError(t, os.WriteFile(path, []byte(text), 0o700))
	return path
}

// TestTorchModel says that the loss of a model and the gradients by all parameters agree with
// PyTorch's in float64, in each format and with each checkpoint.
func TestTorchModel(t *testing.T) {
	caps, dev := device(t)
	script := filepath.Join(torch(t, false), "torch_model.py")
	formats := "float32,float16"
	if caps.BFloat16CoopMat {
		formats += ",bfloat16"
	}
	args := []string{script, "--flashvk", launcher(t, dev), "--dtype", formats}
	if caps.Type == vk.CPU {
		args = append(args, "--layers=2", "--d-model=32", "--heads=2", "--headdim=16", "--d-ff=21", "--components=3", "--batch=2", "--context=7", "--targets=12")
	}
	code, stdout, stderr := python(t, args...)
	require.Zero(t, code, "%s\n%s", stdout, stderr)
	require.Equal(t, 3*len(strings.Split(formats, ",")), strings.Count(stdout, " gradients, the furthest off:"), stdout)
	t.Log(stdout)
	code, stdout, _ = python(t, append(args, "--dtype=float32", "--limit=1e-12")...)
	require.Equal(t, 1, code)
	require.Contains(t, stdout, "of its norm, more than 1e-12")
}

// stateDict is a program of PyTorch alone. Its model loads a file of weights as a state dict.
const stateDict = `
import sys, torch
from torch import nn
import torch_peer
torch_peer.torch = torch
d, heads, dim, ff, components, layers = map(int, sys.argv[2:])
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d, bias=False), nn.LayerNorm(d, bias=False)
        self.qkv, self.out = nn.Linear(d, 3 * heads * dim, bias=False), nn.Linear(heads * dim, d, bias=False)
        self.up, self.down = nn.Linear(d, ff, bias=False), nn.Linear(ff, d, bias=False)
class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Parameter(torch.empty(components, d, ff)), nn.Parameter(torch.empty(components, ff, 3))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.heads = nn.Linear(3, d, bias=False), nn.LayerNorm(d, bias=False), Heads()
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
m = Model()
print(m.load_state_dict(torch_peer.read_tensors(sys.argv[1], "cpu"), strict=True), sum(p.numel() for p in m.parameters()))
`

// TestTorchStateDict says that PyTorch loads the file of --weights as a state dict with exactly its
// names.
func TestTorchStateDict(t *testing.T) {
	_, dev := device(t)
	torch(t, false)
	path := filepath.Join(t.TempDir(), "weights.safetensors")
	code, _, stderr := flashvk(t, "train", dev, "--dtype=float32", "--steps=1", "--batches=1", "--weights", path)
	require.Zero(t, code, stderr)
	code, stdout, stderr := python(t, "-c", stateDict, path, "32", "2", "16", "64", "3", "2")
	require.Zero(t, code, stderr)
	require.Equal(t, "<All keys matched successfully> 23360\n", stdout)
}

// losses returns the column of a log.
func losses(t *testing.T, path string) (list []float64) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	require.NoError(t, err)
	require.Equal(t, []string{"step", "loss", "lr", "tokens_per_s", "seconds"}, rows[0])
	for _, row := range rows[1:] {
		x, err := strconv.ParseFloat(row[1], 64)
		require.NoError(t, err)
		list = append(list, x)
	}
	return list
}

// TestTorchCurve says that PyTorch trains the same model on the same tasks from the same weights to
// the same losses, step by step, within the errors of float32. Our chart has its log beside ours.
func TestTorchCurve(t *testing.T) {
	_, dev := device(t)
	script := filepath.Join(torch(t, false), "torch_curve.py")
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	const steps = 20
	train := func(args ...string) {
		code, _, stderr := flashvk(t, append([]string{"train", dev, "--dtype=float32", "--lr=0.002", "--batches=1"}, args...)...)
		require.Zero(t, code, stderr)
	}
	train("--steps=1", "--lr=1e-30", "--weight-decay=0", "--save", file("start")) // with moments, which a start has none of
	code, stdout, stderr := python(t, script, "--make=100", "--batch=8", "--context=16", "--targets=16", "--heads=2", fmt.Sprint("--steps=", steps), "--lr=0.002", "--dtype=float32", "--mode=eager",
		"--data", file("tasks"), "--start", file("start"), "--csv", file("torch.csv"))
	require.Zero(t, code, "%s%s", stdout, stderr)
	train(fmt.Sprint("--steps=", steps), "--data", file("tasks"), "--start", file("start"), "--heads=2", "--csv", file("log.csv"), "--curve", file("curve"), "--beside", "torch="+file("torch.csv"))
	ours, theirs := losses(t, file("log.csv")), losses(t, file("torch.csv"))
	require.Len(t, ours, steps)
	require.Len(t, theirs, steps)
	least, off := math.Inf(1), 0.0
	for i := range ours {
		least, off = min(least, ours[i]), max(off, math.Abs(theirs[i]-ours[i]))
	}
	t.Logf("at most %.2g apart", off)
	require.Less(t, off, 2e-5)
	require.Less(t, least, ours[0]-0.1, "it learns")
	require.FileExists(t, file("curve.svg"))
}

// TestTorchPeers says that each peer script answers flashvk's questions, and computes the same
// results.
func TestTorchPeers(t *testing.T) {
	_, dev := device(t)
	dir := torch(t, true)
	for script, args := range map[string]string{
		"torch_sdpa.py":   "attention --impl auto --batch 2 --heads 4 --seqlen 256 --headdim 64 --dtype float16 --causal",
		"torch_decode.py": "decode --impl auto --batch 2 --heads 4 --kv-heads 2 --keys 256 --dtype float16",
		"torch_train.py":  "norm --impl auto --rows 1024 --cols 512 --dtype float16",
		"torch_step.py":   "train --shape tiny --dtype float32",
	} {
		t.Run(script, func(t *testing.T) {
			words := append([]string{"bench"}, strings.Fields(args)...)
			code, stdout, stderr := flashvk(t, append(words, dev, "--count=2", "--peer=torch=python3 -B "+filepath.Join(dir, script))...)
			require.Zero(t, code, stderr)
			require.Contains(t, stdout, "\ntorch:", "no row of it")
			require.NotContains(t, stdout, "has no times")
			require.NotContains(t, stdout, "has a wrong output")
			require.NotRegexp(t, `(?m)^torch(:\S+)?: `, stdout)
		})
	}
}
