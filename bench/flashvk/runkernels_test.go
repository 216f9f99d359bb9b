package main

import (
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/dtype/storage"
	"github.com/flashvk/flashvk/internal/safetensors/filetest"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

// find returns a kernel.
func find(name string) kernels.Kernel {
	k, _ := kernels.Find(name)
	return k
}

// drawn returns the tensors that a call of op reads, but for those that its forward
// pass writes.
func drawn(op bench.Op, backward bool) (tensors []bench.OpTensor, values map[string][]float32) {
	pass := bench.Forward
	if backward {
		pass = bench.Both
	}
	values = map[string][]float32{}
	for i, t := range op.Tensors() {
		if !t.Read(pass) || t.Role == call.Output {
			continue
		}
		n := 1
		for _, d := range t.Shape {
			n *= d
		}
		x := bench.Normal(t.DType, n, uint64(i))
		for j := range x {
			if t.Draw != nil {
				x[j] = t.DType.Round(t.Draw(x[j]))
			}
		}
		tensors, values[t.Name] = append(tensors, t), x
	}
	return tensors, values
}

// writeOp writes such tensors to a file.
func writeOp(t *testing.T, path string, tensors []bench.OpTensor, values map[string][]float32) {
	var list []safetensors.Tensor
	raw := map[string][]byte{}
	for _, x := range tensors {
		list, raw[x.Name] = append(list, safetensors.Tensor{Name: x.Name, DType: bench.FileDType(x.DType), Shape: x.Shape}), storage.Bytes(x.DType, values[x.Name])
	}
	filetest.Write(t, path, list, raw)
}

// TestRunKernels runs a file of each kernel's training cases, small ones, and
// compares all that is written with the reference.
func TestRunKernels(t *testing.T) {
	caps, dev := device(t)
	for _, k := range kernels.All() {
		if k.Name == "decode" {
			continue // whose tables are no random numbers: TestRunDecode
		}
		suite := k.New().Suite(true)
		if k.Name == "attention" && caps.Type == vk.CPU { // TestRun and TestRunBackward have more
			suite = suite[:1]
		}
		for _, c := range suite {
			t.Run(k.Name+"/"+c.Describe(), func(t *testing.T) {
				op := fromFile(t, k, c)
				backward := bench.HasBackward(op)
				tensors, values := drawn(op, backward)
				path := filepath.Join(t.TempDir(), "x.safetensors")
				writeOp(t, path, tensors, values)
				args := []string{"run", k.Name, "--in", path, "--out", path, dev}
				passes := []bench.Pass{bench.Forward}
				if backward {
					args, passes = append(args, "--backward"), append(passes, bench.Backward)
				}
				code, stdout, stderr := flashvk(args...)
				require.Zero(t, code, stderr)
				require.Empty(t, stdout)
				require.Contains(t, stderr, "flashvk: forward ")
				compareFile(t, path, op, values, passes)
			})
		}
	}
}

// fromFile returns what a file with the tensors of a case means.
func fromFile(t *testing.T, k kernels.Kernel, c bench.Op) bench.Op {
	var header kernels.Header
	tensors, _ := drawn(c, bench.HasBackward(c))
	for _, x := range tensors {
		header = append(header, safetensors.Tensor{Name: x.Name, DType: bench.FileDType(x.DType), Shape: x.Shape})
	}
	flags := k.New()
	flags.Add(pflag.NewFlagSet(k.Name, pflag.ContinueOnError), false)
	op, err := flags.FromFile(header)
	require.NoError(t, err)
	return op
}

// compareFile compares the tensors of a file with the reference.
func compareFile(t *testing.T, path string, op bench.Op, values map[string][]float32, passes []bench.Pass) {
	out, err := safetensors.Open(path)
	require.NoError(t, err)
	defer out.Close()
	written := 0
	for _, p := range passes {
		want, err := op.Reference(values, p)
		require.NoError(t, err)
		got := map[string][]float32{}
		for _, x := range op.Tensors() {
			if x.Written(p) {
				got[x.Name] = read(t, out, x.Name, x.DType, x.Shape...)
				written++
			}
		}
		_, wrong := want.Check(got)
		require.NoError(t, wrong)
		maps.Copy(values, got)
	}
	require.Len(t, out.Tensors(), written)
}

// TestRunOptim runs a file with several tensors, a step count, clipping and a copy.
func TestRunOptim(t *testing.T) {
	_, dev := device(t)
	k := find("optim")
	set := pflag.NewFlagSet("optim", pflag.ContinueOnError)
	flags := k.New()
	flags.Add(set, false)
	words := []string{"--copy", "bfloat16", "--max-norm", "0.5", "--lr", "0.02", "--beta1", "0.8"}
	require.NoError(t, set.Parse(words))
	var header kernels.Header
	for _, name := range []string{".w", ".norm.b"} {
		for _, what := range []string{"param", "grad", "m", "v"} {
			header = append(header, safetensors.Tensor{Name: what + name, DType: safetensors.F32, Shape: []int{3, 1 + len(name)}})
		}
	}
	header = append(header, safetensors.Tensor{Name: "step", DType: "I32", Shape: []int{1}})
	op, err := flags.FromFile(header)
	require.NoError(t, err)
	tensors, values := drawn(op, false)
	path := filepath.Join(t.TempDir(), "x.safetensors")
	writeOp(t, path, tensors, values)
	code, _, stderr := flashvk(append([]string{"run", "optim", "--in", path, "--out", path, dev}, words...)...)
	require.Zero(t, code, stderr)
	compareFile(t, path, op, values, []bench.Pass{bench.Forward})
}

// TestRunOptimSkipped: a step that is skipped says so, and one that is not does not.
func TestRunOptimSkipped(t *testing.T) {
	_, dev := device(t)
	one := []int{1}
	tensors := []bench.OpTensor{{Name: "param", Shape: one}, {Name: "grad", Shape: one}, {Name: "m", Shape: one}, {Name: "v", Shape: one}}
	for _, c := range []struct {
		grad    float64
		skipped bool
	}{{0.5, false}, {math.Inf(1), true}, {math.NaN(), true}} {
		path := filepath.Join(t.TempDir(), "x.safetensors")
		x := []float32{0.5}
		writeOp(t, path, tensors, map[string][]float32{"param": x, "grad": {float32(c.grad)}, "m": x, "v": x})
		code, _, stderr := flashvk("run", "optim", "--in", path, "--out", path, "--max-norm", "1", dev)
		require.Zero(t, code, stderr)
		require.Equal(t, c.skipped, strings.Contains(stderr, "flashvk: WARNING: the step was skipped"), stderr)
		out, err := safetensors.Open(path)
		require.NoError(t, err)
		require.Equal(t, c.skipped, read(t, out, "param", dtype.Float32, 1)[0] == 0.5)
		require.NoError(t, out.Close())
	}
}

// TestRunOptimStep refuses counts of steps that have no step after them.
func TestRunOptimStep(t *testing.T) {
	one := []int{1}
	tensors := []bench.OpTensor{{Name: "param", Shape: one}, {Name: "grad", Shape: one}, {Name: "m", Shape: one}, {Name: "v", Shape: one}, {Name: "step", DType: dtype.Int32, Shape: one}}
	for _, step := range []float32{-1, 1 << 24} {
		path := filepath.Join(t.TempDir(), "x.safetensors")
		x := []float32{0.5}
		writeOp(t, path, tensors, map[string][]float32{"param": x, "grad": x, "m": x, "v": x, "step": {step}})
		code, _, stderr := flashvk("run", "optim", "--in", path, "--out", path)
		require.Equal(t, exitFailure, code)
		require.Equal(t, fmt.Sprintf("flashvk: %s: tensor \"step\": %.0f is not in 0..16777215\n", path, step), stderr)
	}
}

// TestRunGMM runs a file with three tensors and a gradient of the loss.
func TestRunGMM(t *testing.T) {
	_, dev := device(t)
	var header kernels.Header
	for _, name := range []string{"logit", "mu", "log_sigma"} {
		header = append(header, safetensors.Tensor{Name: name, DType: safetensors.F16, Shape: []int{9, 4}})
	}
	header = append(header, safetensors.Tensor{Name: "y", DType: safetensors.F32, Shape: []int{9}}, safetensors.Tensor{Name: "dloss", DType: safetensors.F32, Shape: []int{1}})
	k := find("gmm")
	op, err := k.New().FromFile(header)
	require.NoError(t, err)
	tensors, values := drawn(op, true)
	path := filepath.Join(t.TempDir(), "x.safetensors")
	writeOp(t, path, tensors, values)
	code, _, stderr := flashvk("run", "gmm", "--in", path, "--out", path, "--backward", dev)
	require.Zero(t, code, stderr)
	compareFile(t, path, op, values, []bench.Pass{bench.Forward, bench.Backward})
}

// TestRunGroup runs a file of products of different sizes, one without rows, and measures
// the same group.
func TestRunGroup(t *testing.T) {
	_, dev := device(t)
	k := find("gemm")
	words := []string{"--group", "3x5x7,0x5x9,40x6x2,4x3x0", "--trans", "nt", "--beta", "-0.5", "--activation", "silu-keep"}
	flags, set := k.New(), pflag.NewFlagSet("gemm", pflag.ContinueOnError)
	flags.Add(set, false)
	require.NoError(t, set.Parse(words))
	header := kernels.Header{}
	for _, x := range []struct {
		name string
		n    int
	}{{"a", 3*7 + 40*2}, {"b", 5*7 + 5*9 + 6*2}, {"c", 3*5 + 40*6 + 4*3}, {"r", 3*5 + 40*6 + 4*3}} {
		header = append(header, safetensors.Tensor{Name: x.name, DType: safetensors.F16, Shape: []int{x.n}})
	}
	op, err := flags.FromFile(header)
	require.NoError(t, err)
	tensors, values := drawn(op, false)
	path := filepath.Join(t.TempDir(), "x.safetensors")
	writeOp(t, path, tensors, values)
	code, _, stderr := flashvk(append([]string{"run", "gemm", "--in", path, "--out", path, dev}, words...)...)
	require.Zero(t, code, stderr)
	compareFile(t, path, op, values, []bench.Pass{bench.Forward})

	code, stdout, stderr := flashvk(append([]string{"bench", "gemm", "--count", "1", "--iters", "1", "--impl", "auto,scalar", "--format", "csv", "--residual", dev}, words...)...)
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "3x5x7,0x5x9,40x6x2,4x3x0")
}

// TestKeep runs and measures perceptrons that keep their hidden units, which a file has in
// rows without gaps.
func TestKeep(t *testing.T) {
	_, dev := device(t)
	for _, x := range []struct {
		kernel, keep string
		w1, w2       []int
	}{
		{"mlp", "pre", []int{7, 13}, []int{13, 5}},
		{"mlp", "hidden", []int{7, 13}, []int{13, 5}},
		{"grouped", "pre", []int{3, 7, 13}, []int{3, 13, 5}},
	} {
		k := find(x.kernel)
		flags, set := k.New(), pflag.NewFlagSet(x.kernel, pflag.ContinueOnError)
		flags.Add(set, false)
		require.NoError(t, set.Parse([]string{"--keep", x.keep}))
		op, err := flags.FromFile(kernels.Header{
			{Name: "x", DType: safetensors.F16, Shape: []int{9, 7}},
			{Name: "w1", DType: safetensors.F16, Shape: x.w1},
			{Name: "w2", DType: safetensors.F16, Shape: x.w2},
		})
		require.NoError(t, err)
		tensors, values := drawn(op, true)
		path := filepath.Join(t.TempDir(), "x.safetensors")
		writeOp(t, path, tensors, values)
		code, _, stderr := flashvk("run", x.kernel, "--in", path, "--out", path, "--keep", x.keep, "--backward", "--impl", "scalar", dev)
		require.Zero(t, code, stderr)
		compareFile(t, path, op, values, []bench.Pass{bench.Forward, bench.Backward})

		for _, pass := range []string{"--backward", "--both"} {
			code, stdout, stderr := flashvk("bench", x.kernel, "--tokens", "9", "--in", "7", "--hidden", "13", "--out", "5", "--keep", x.keep, pass, "--count", "1", "--iters", "1", "--impl", "scalar", "--format", "csv", dev)
			require.Zero(t, code, stderr)
			require.Contains(t, stdout, ","+x.keep+",")
		}
	}
	for kernel, names := range map[string]string{"mlp": "nothing, pre, hidden", "grouped": "nothing, pre"} {
		code, _, stderr := flashvk("bench", kernel, "--keep", "all", dev)
		require.Equal(t, 2, code)
		require.Contains(t, stderr, "not one of "+names)
	}
}
