package main

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
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
		if !t.Read(pass) || t.Role == bench.Output {
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

// TestBenchKernels measures the cases of each kernel's first suite, small: the forward pass
// in every format, the others in one that goes by the kernel. Problems of attention and decode are the
// largest: on software it has one format, as TestBenchFormats has all of them for one problem,
// and the passes of another suite.
func TestBenchKernels(t *testing.T) {
	caps, dev := device(t)
	for i, k := range kernels.All() {
		large := (k.Name == "attention" || k.Name == "decode") && caps.Type == vk.CPU
		passes := []string{""}
		if bench.HasBackward(k.New().Suite(true)[0]) {
			passes = []string{"", "--backward", "--both"}
		}
		for _, pass := range passes {
			formats, suite := bench.Formats(), kernels.Suites(k.New())[0].Name
			if pass != "" || large {
				formats = formats[i%len(formats):][:1]
			}
			if pass != "" && large {
				suite = "decoder"
			}
			for _, format := range formats {
				t.Run(k.Name+pass+"/"+string(format), func(t *testing.T) {
					args := append([]string{"bench", k.Name, "--suite", suite, "--impl", "auto", "--count", "1", "--iters", "1", "--wide", "--format", string(format), dev}, strings.Fields(pass)...)
					code, stdout, stderr := flashvk(args...)
					require.Zero(t, code, stderr)
					require.Contains(t, stdout, map[bench.Format]string{
						bench.Table: "  pass ", bench.Markdown: "| pass |", bench.Benchfmt: " ns/op ", bench.CSV: "kernel,impl,", bench.JSON: `"impl": "auto"`,
					}[format])
				})
			}
		}
	}
}

// TestConfigOfPath: a configuration is of one path, and of auto.
func TestConfigOfPath(t *testing.T) {
	_, dev := device(t)
	for _, x := range [][]string{
		{"gemm", "scalar 32x32 t8x8 k32 g8", "coopmat", "coopmat is not supported: path coopmat: --config is of path scalar"},
		{"gemm", "scalar 32x32 t8x8 k32 g8", "scalar", ""},
		{"gemm", "scalar 32x32 t8x8 k32 g8", "auto", ""},
		{"mlp", "pair s8 t4x4 h2x2 x16 ahead8", "auto", "auto is not supported: path auto: --config is of path fused"},
	} {
		code, stdout, stderr := flashvk("bench", x[0], "--count", "1", "--iters", "1", "--config", x[1], "--impl", x[2], dev)
		if x[3] == "" {
			require.Zero(t, code, stderr)
			require.Contains(t, stdout, x[1])
		} else {
			require.Equal(t, 1, code)
			require.Contains(t, stderr, x[3])
		}
	}
}

// TestConfigOfPass: a configuration of the backward pass is of that alone, whose inputs the forward pass makes.
func TestConfigOfPass(t *testing.T) {
	_, dev := device(t)
	const config = "scalar dkv 16x16 t8x16 depth16 rows8 dq 32x32 t8x16 depth32 rows8"
	args := []string{"attention", "--batch", "1", "--heads", "1", "--seqlen", "64", "--headdim", "16", "--count", "1", "--impl", "scalar", "--config", config, dev}
	for _, command := range []string{"bench", "profile"} {
		code, stdout, stderr := flashvk(append(append([]string{command}, args...), "--backward")...)
		require.Zero(t, code, stderr)
		require.Contains(t, stdout, config)
		code, _, stderr = flashvk(append([]string{command}, args...)...)
		require.Equal(t, 1, code)
		require.Contains(t, stderr, "is of the backward pass")
	}
}

// TestPeerOfKernel asks a peer that answers with our own outputs, from flashvk run.
func TestPeerOfKernel(t *testing.T) {
	_, dev := device(t)
	dir := t.TempDir()
	out := filepath.Join(dir, "y.safetensors")
	p := normInput(t, filepath.Join(dir, "x.safetensors"))
	code, _, stderr := flashvk("run", "norm", "--in", p, "--out", out, dev)
	require.Zero(t, code, stderr)
	script := `read request; echo "$request" > ` + dir + `/request; echo '{"name": "copy", "samples_ns": [5], "output": "` + out + `"}'`
	code, stdout, stderr := flashvk("bench", "norm", "--rows", "3", "--cols", "8", "--dtype", "float32", "--count", "1", "--peer", "me="+script, dev)
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "me:copy")
	require.Contains(t, stdout, "me:copy has a wrong output: ") // its inputs are others
	request, err := os.ReadFile(dir + "/request")
	require.NoError(t, err)
	for _, want := range []string{`"op":"norm"`, `"pass":"forward"`, `"params":{`, `"rows":3`, `"eps":0.00001`} {
		require.Contains(t, string(request), want)
	}
}

// normInput writes a file for run norm.
func normInput(t *testing.T, path string) string {
	tensors := []bench.OpTensor{
		{Name: "x", DType: dtype.Float32, Shape: []int{3, 8}},
		{Name: "w", DType: dtype.Float32, Shape: []int{8}},
	}
	writeOp(t, path, tensors, map[string][]float32{"x": bench.Normal(dtype.Float32, 24, 77), "w": bench.Normal(dtype.Float32, 8, 78)})
	return path
}

// TestKernelErrors has the line and the exit status of mistakes that show without a
// device.
func TestKernelErrors(t *testing.T) {
	tensor := func(name string, format safetensors.DType, shape ...int) safetensors.Tensor {
		return safetensors.Tensor{Name: name, DType: format, Shape: shape}
	}
	x, w := tensor("x", "F16", 3, 8), tensor("w", "F32", 8)
	in := func(more string, tensors ...safetensors.Tensor) string {
		return "run norm --out /nowhere/y --in " + writeTensors(t, tensors...) + " " + more
	}
	optim := func(more string, tensors ...safetensors.Tensor) string {
		return strings.Replace(in(more, tensors...), "run norm", "run optim", 1)
	}
	gmm := func(more string, tensors ...safetensors.Tensor) string {
		return strings.Replace(in(more, tensors...), "run norm", "run gmm", 1)
	}
	gemm := func(more string, tensors ...safetensors.Tensor) string {
		return strings.Replace(in("--group 3x4x5 "+more, tensors...), "run norm", "run gemm", 1)
	}
	mixture := func(more string, tensors ...safetensors.Tensor) string {
		return strings.Replace(in(more, tensors...), "run norm", "run mixture", 1)
	}
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"bench norm --rows 0", 2, "norm: rows=0 is not positive"},
		{"bench norm --cols -1", 2, "norm: cols=-1 is not positive"},
		{"bench norm --eps -1", 2, "norm: eps=-1 is not a finite number from 0 on"},
		{"bench norm --dtype int8", 2, `invalid argument "int8" for "--dtype" flag: not one of float16, bfloat16, float32`},
		{"bench norm --weight-dtype float16", 2, "norm: weight dtype=float16 is neither float32 nor that of the rows, bfloat16"},
		{"bench norm --impl scalar", 2, `"scalar" is not one of auto`},
		{"bench norm --impl auto,auto", 2, `"auto" occurs twice`},
		{"bench norm --suite all", 2, `invalid argument "all" for "--suite" flag: "all" is not one of training`},
		{"bench norm --suite training --rows 3", 2, "--suite training and --rows contradict each other"},
		{"bench norm --small", 2, "--small needs --suite"},
		{"bench norm --count 0", 2, "--count 0 is less than 1"},
		{"bench norm --backward --both", 2, "--backward and --both contradict each other"},
		{"bench norm --peer x", 2, `"x" is not NAME=COMMAND`},
		{"bench norm x", 2, `bench norm: argument "x" is not expected`},
		{"run norm", 2, "run norm needs --in FILE"},
		{"run norm --in x", 2, "run norm needs --out FILE"},
		{"run norm --in /nowhere/x --out y", 1, "safetensors: /nowhere/x: no such file or directory"},
		{in(""), 1, `tensor "x" is missing`},
		{in("", x), 1, `tensor "w" is missing`},
		{in("", x, tensor("w", "F32", 7)), 1, `tensor "w": shape [7], want [8]`},
		{in("", x, tensor("w", "BF16", 8)), 1, `norm: weight dtype=bfloat16 is neither float32 nor that of the rows, float16`},
		{in("", x, tensor("w", "F64", 8)), 1, `tensor "w": dtype F64 is not one of F16, BF16, F32`},
		{in("", x, tensor("w", "F32", 8, 1)), 1, `tensor "w": shape [8 1] has 2 axes, want 1: cols`},
		{in("", x, w, tensor("z", "F32", 8)), 1, `tensor "z" is not one of x, w`},
		{in("", x, w, tensor("residual", "F32", 3, 8)), 1, `tensor "residual": dtype F32, want F16`},
		{in("", x, w, tensor("dy", "F16", 3, 8)), 1, `tensor "dy" is for --backward only`},
		{in("--backward", x, w), 1, `tensor "dy" is missing`},
		{in("--eps nan", x, w), 2, "norm: eps=NaN is not a finite number from 0 on"},
		{in("", x, w), 1, "safetensors: /nowhere/y: no such file or directory"},

		{"run grouped --in x --out y --heads-at-a-time -1", 2, "mlp: heads_at_a_time=-1 is negative"},

		{"bench grouped --suite training --products --heads 3", 2, "--suite training and --heads contradict each other"},

		{"bench gemm --group 3x4", 2, `gemm: product "3x4" of a group is not MxNxK, as in 128x512x64`},
		{"bench gemm --group 3x4x5,-1x4x5", 2, "gemm: product 1 of the group: m=-1 is not from 0 to"},
		{"bench gemm --group 3x4x0", 2, "gemm: products 3x4x0 have no elements of a"},
		{"bench gemm --group 3x4x5 --m 3", 2, "--group and --m contradict each other"},
		{"bench gemm --batch 0", 2, "--batch 0 is less than 1"},
		{"run gemm --in x --out y --trans xx", 2, `gemm: transposes "xx" are not one of nn, nt, tn, tt`},
		{"run gemm --in x --out y --alpha 0", 2, "gemm: alpha=0 leaves no product"},
		{"run gemm --in x --out y --group 3x4", 2, `gemm: product "3x4" of a group is not MxNxK, as in 128x512x64`},
		{"bench gemm --suite training --group 3x4x5", 2, "--suite training and --group contradict each other"},
		{gemm(""), 1, `tensor "a" is missing`},
		{gemm("", tensor("a", "F16", 15), tensor("b", "F16", 21)), 1, `tensor "b": shape [21], want [20]`},

		{"bench gmm --tokens 0", 2, "gmm: tokens=0 is not positive"},
		{"bench gmm --components 0", 2, "gmm: components=0 is not positive"},
		{"run gmm --in /nowhere/x --out y", 1, "safetensors: /nowhere/x: no such file or directory"},
		{gmm(""), 1, `tensor "logit" is missing`},
		{gmm("", tensor("p", "F32", 3, 2)), 1, `tensor "p": shape [3 2] has 2 axes, want 3: tokens, components, logit mu log_sigma`},
		{gmm("", tensor("p", "F32", 3, 2, 4)), 1, `tensor "p": shape [3 2 4] has a last axis of 4, want 3: logit, mu, log sigma`},
		{gmm("", tensor("p", "F32", 3, 2, 3)), 1, `tensor "y" is missing`},
		{gmm("", tensor("p", "F32", 3, 2, 3), tensor("y", "F16", 3)), 1, `tensor "y": dtype F16, want F32`},
		{gmm("", tensor("logit", "F16", 3, 2), tensor("mu", "F32", 3, 2)), 1, `tensor "mu": dtype F32, want F16`},
		{gmm("", tensor("p", "F32", 3, 2, 3), tensor("logit", "F32", 3, 2)), 1, `tensor "logit" is not one of p, y`},
		{gmm("", tensor("p", "F32", 3, 2, 3), tensor("y", "F32", 3), tensor("dloss", "F32", 1)), 1, `tensor "dloss" is for --backward only`},

		{"bench mixture --heads 0", 2, "mixture: heads=0 is not from 1 to 1073741824"},
		{"bench mixture --groups -1", 2, "mixture: groups=-1 is negative"},
		{"run mixture --in x --out y --groups -1", 2, "mixture: groups=-1 is negative"},
		{mixture("", tensor("x", "F16", 3, 8), tensor("w2", "F16", 2, 5, 4)), 1, `tensor "w2": shape [2 5 4] has a last axis of 4, want 3: logit, mu, log sigma`},
		{mixture("", tensor("x", "F16", 3, 8), tensor("w2", "F16", 2, 5, 3), tensor("w1", "F16", 2, 7, 5)), 1, `tensor "w1": shape [2 7 5], want [2 8 5]`},
		{mixture("", tensor("x", "F16", 3, 8), tensor("w2", "F16", 2, 5, 3), tensor("w1", "F16", 2, 8, 5)), 1, `tensor "y" is missing`},

		{"bench optim --tensors 0", 2, "optim: tensors=0 is not in 1..100000"},
		{"bench optim --beta1 1", 2, "optim: beta1=1 is not in [0, 1)"},
		{"bench optim --lr -1", 2, "optim: lr=-1 is not a finite number from 0 on"},
		{"bench optim --copy float32", 2, "optim: --copy float32 is not a format of 16 bits"},
		{"bench optim --copy float16 --grad-dtype bfloat16", 2, "optim: --copy float16 and --grad-dtype bfloat16: formats of 16 bits are the same"},
		{"bench optim --backward", 2, "unknown flag: --backward"},
		{"run optim --in x --out y --lr -1", 2, "optim: lr=-1 is not a finite number from 0 on"},
		{optim(""), 1, `there is no tensor "param" or "param.NAME"`},
		{optim("", x), 1, `there is no tensor "param" or "param.NAME"`},
		{optim("", tensor("param.a", "F32", 3)), 1, `tensor "grad.a" is missing`},
		{optim("", tensor("param.a", "F16", 3)), 1, `tensor "param.a": dtype F16 is not F32`},
		{optim("", tensor("param", "F32", 3), tensor("grad", "F16", 3), tensor("param.b", "F32", 3), tensor("grad.b", "F32", 3)), 1, `tensor "grad.b": dtype F32, but F16 of "grad"`},
		{optim("", tensor("param", "F32", 3), tensor("grad", "F32", 4)), 1, `tensor "grad": shape [4], want [3]`},
		{optim("", tensor("param", "F32", 3), tensor("grad", "F32", 3), tensor("m", "F32", 3)), 1, `tensor "v" is missing`},
		{optim("", tensor("param", "F32", 3), tensor("grad", "F32", 3), tensor("m", "F32", 3), tensor("v", "F32", 3), tensor("step", "F32", 1)), 1, `tensor "step": dtype F32, want I32`},
	} {
		code, stdout, stderr := flashvk(strings.Fields(c.args)...)
		require.Equal(t, c.code, code, "%s: %s", c.args, stderr)
		require.Contains(t, stderr, c.want, c.args)
		require.True(t, strings.HasPrefix(stderr, "flashvk: ") && strings.Count(stderr, "\n") == 1, "%s: %q", c.args, stderr)
		require.Empty(t, stdout)
	}
}
