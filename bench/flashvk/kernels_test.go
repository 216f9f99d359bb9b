package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

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

// TestConfigOfPass: a configuration is of one pass, whose inputs may be made by the other.
func TestConfigOfPass(t *testing.T) {
	_, dev := device(t)
	args := []string{"attention", "--batch", "1", "--heads", "1", "--seqlen", "64", "--headdim", "16", "--count", "1", "--impl", "scalar", dev, "--config"}
	const forward, backward = "scalar 16x16 t8x16 depth16 rows8", "scalar dkv 16x16 t8x16 depth16 rows8 dq 32x32 t8x16 depth32 rows8"
	for _, x := range [][4]string{{"bench", backward, "--backward", ""}, {"profile", backward, "--backward=false", "is of the backward pass"}, {"bench", forward, "--backward=false", ""}, {"bench", forward, "--backward", "is of the forward pass"}} {
		code, stdout, stderr := flashvk(append(append([]string{x[0]}, args...), x[1], x[2])...)
		require.Equal(t, x[3] != "", code == 1, stderr)
		require.Contains(t, stderr, x[3])
		if x[3] == "" {
			require.Contains(t, stdout, x[1])
		}
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
		{"bench norm --suite all", 2, `invalid argument "all" for "--suite" flag: not one of training`},
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
		{"bench optim --lr -1", 2, "optim: lr=-1 is not a positive float32"},
		{"bench optim --copy float32", 2, "optim: --copy float32 is not a format of 16 bits"},
		{"bench optim --copy float16 --grad-dtype bfloat16", 2, "optim: --copy float16 and --grad-dtype bfloat16: formats of 16 bits are the same"},
		{"bench optim --backward", 2, "unknown flag: --backward"},
		{"run optim --in x --out y --lr -1", 2, "optim: lr=-1 is not a positive float32"},
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
